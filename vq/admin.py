"""What an operator asks and changes, as plain values and functions.

``factory.admin`` of ``vq.MessageFactory`` and ``vq.aio.MessageFactory`` asks and changes; the names
below are what it takes and returns. They are loaded on first use, as those of ``vq``. The command
line is a face over the same functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# isort: off
# A name as itself is public to type checkers; isort would give each a statement.
if TYPE_CHECKING:
    from vq.coordination.groups.groups import UnknownGroup as UnknownGroup
    from vq.coordination.security.users import UnknownUser as UnknownUser, UserExists as UserExists
    from vq.coordination.topics.topics import TopicExists as TopicExists
    from vq.coordination.tree.acls import identity_of as identity_of
    from vq.coordination.tree.coordinator import Grant as Grant, NodeRights as NodeRights
    from vq.coordination.tree.reading import TopicView as TopicView
    from vq.coordination.tree.values.allocations import FailedMove as FailedMove
    from vq.coordination.tree.values.audit import UncleanElection as UncleanElection
    from vq.coordination.tree.values.cluster import ClusterSettings as ClusterSettings
    from vq.coordination.tree.values.consumers import CommittedOffset as CommittedOffset
    from vq.coordination.tree.values.identities import Identities as Identities
    from vq.coordination.tree.values.runs import ArchiveTopicRun as ArchiveTopicRun
    from vq.model import (
        GroupView as GroupView,
        NodeInfo as NodeInfo,
        TopicDeletion as TopicDeletion,
        TopicOrigin as TopicOrigin,
    )
    from vq.operations.allocation.advisor import judge as judge, propose as propose
    from vq.operations.allocation.applying import (
        AllocationBusy as AllocationBusy,
        MovedMeanwhile as MovedMeanwhile,
        PlanOutdated as PlanOutdated,
    )
    from vq.operations.allocation.board import BrokenGoal as BrokenGoal, GoalScore as GoalScore
    from vq.operations.allocation.changes import PlanChange as PlanChange
    from vq.operations.allocation.facts import (
        AllocatedTopic as AllocatedTopic,
        AllocationFacts as AllocationFacts,
        GroupLoad as GroupLoad,
        MeasuredPartition as MeasuredPartition,
    )
    from vq.operations.allocation.goals import (
        AllocationGoals as AllocationGoals,
        HardGoal as HardGoal,
        LoadGoal as LoadGoal,
        RequiredLabel as RequiredLabel,
    )
    from vq.operations.allocation.plan_json import (
        plan_from_json as plan_from_json,
        plan_to_json as plan_to_json,
        wanted_moves as wanted_moves,
    )
    from vq.operations.allocation.plans import (
        AllocatedGroup as AllocatedGroup,
        AllocatedMove as AllocatedMove,
        AllocationPlan as AllocationPlan,
        GroupSums as GroupSums,
        KeptLoad as KeptLoad,
        PlannedTopic as PlannedTopic,
    )
    from vq.operations.allocation.runs import AllocationRun as AllocationRun, RunMove as RunMove
    from vq.operations.archives.archive_runs import (
        ArchiveNodeRun as ArchiveNodeRun,
        ArchiveRun as ArchiveRun,
        ArchiveRunUnknown as ArchiveRunUnknown,
    )
    from vq.operations.archives.archives import (
        ArchivedBlock as ArchivedBlock,
        RestoredArchive as RestoredArchive,
        VerifiedArchive as VerifiedArchive,
    )
    from vq.operations.base.acts import ActNotRecorded as ActNotRecorded
    from vq.operations.base.changes import (
        ChangeUnknown as ChangeUnknown,
        ResetUnknown as ResetUnknown,
        TreeUnknown as TreeUnknown,
    )
    from vq.operations.brokers.blocks import (
        HeldBlock as HeldBlock,
        HeldPartition as HeldPartition,
        SilentNode as SilentNode,
    )
    from vq.operations.brokers.brokers import BadPartition as BadPartition, Damage as Damage
    from vq.operations.brokers.disks import DiskState as DiskState
    from vq.operations.brokers.diverged import CutFile as CutFile, CutMessages as CutMessages
    from vq.operations.brokers.draining import (
        DrainedGroup as DrainedGroup,
        DrainedNode as DrainedNode,
        DrainUnknown as DrainUnknown,
    )
    from vq.operations.brokers.jobs import BrokerJob as BrokerJob, NodeJobs as NodeJobs
    from vq.operations.brokers.removing import GivenUp as GivenUp, Removal as Removal
    from vq.operations.brokers.safety import Unsafe as Unsafe, UnsafeKind as UnsafeKind
    from vq.operations.brokers.switching import Switched as Switched
    from vq.operations.brokers.unclean import Unclean as Unclean
    from vq.operations.cluster.audit import OperatorAct as OperatorAct
    from vq.operations.cluster.bulk import (
        GroupContract as GroupContract,
        GroupPlace as GroupPlace,
        GroupTopic as GroupTopic,
        MeasuredRange as MeasuredRange,
        MessageRange as MessageRange,
        ReadPlacement as ReadPlacement,
        TopicState as TopicState,
    )
    from vq.operations.cluster.checks import Finding as Finding, Level as Level
    from vq.operations.cluster.cluster import (
        BrokerReport as BrokerReport,
        ClusterStatus as ClusterStatus,
    )
    from vq.operations.cluster.definition_file import (
        DefinedBrokers as DefinedBrokers,
        DefinedTopic as DefinedTopic,
        Definitions as Definitions,
        definitions_from as definitions_from,
        definitions_json as definitions_json,
    )
    from vq.operations.cluster.definitions import (
        DefinitionAction as DefinitionAction,
        DefinitionChange as DefinitionChange,
        DefinitionStep as DefinitionStep,
        PlannedDefinitions as PlannedDefinitions,
    )
    from vq.operations.cluster.settings import SettingsUnknown as SettingsUnknown
    from vq.operations.explain.answers import (
        Cause as Cause,
        ExplainedFact as ExplainedFact,
        Explanation as Explanation,
    )
    from vq.operations.explain.disk_causes import TopicOnDisk as TopicOnDisk
    from vq.operations.explain.disks import DiskExplanation as DiskExplanation
    from vq.operations.groups.balance import (
        BalancePlan as BalancePlan,
        OwnerChange as OwnerChange,
        PartitionMove as PartitionMove,
        PlannedMember as PlannedMember,
    )
    from vq.operations.groups.group_removal import (
        GroupDeletion as GroupDeletion,
        TopicForgetting as TopicForgetting,
    )
    from vq.operations.groups.groups import (
        GroupDescription as GroupDescription,
        GroupMember as GroupMember,
        GroupProgress as GroupProgress,
        GroupSummary as GroupSummary,
    )
    from vq.operations.groups.lag_rules import (
        LagFacts as LagFacts,
        LagThresholds as LagThresholds,
        LagVerdict as LagVerdict,
        judge_lag as judge_lag,
        why_stopped as why_stopped,
    )
    from vq.operations.groups.making import (
        ExportedOffset as ExportedOffset,
        GroupExport as GroupExport,
        PlannedGroup as PlannedGroup,
    )
    from vq.operations.groups.resets import Goal as Goal, Reset as Reset, Target as Target
    from vq.operations.groups.shared import (
        SharedGroupDescription as SharedGroupDescription,
        SharedProgress as SharedProgress,
    )
    from vq.operations.groups.terms import GroupTerms as GroupTerms
    from vq.operations.messages.columns import StoredColumns as StoredColumns
    from vq.operations.messages.contents import (
        CheckedBatch as CheckedBatch,
        ContentCheck as ContentCheck,
        ContentFault as ContentFault,
        ContentTotals as ContentTotals,
        FaultKind as FaultKind,
        ProducerEdge as ProducerEdge,
        sequence_fault as sequence_fault,
    )
    from vq.operations.messages.dead_letters import (
        DeadLetter as DeadLetter,
        DeadLetters as DeadLetters,
    )
    from vq.operations.messages.delayed import (
        DelayedMessage as DelayedMessage,
        DelayedMessages as DelayedMessages,
    )
    from vq.operations.messages.recovering import WaitingBranch as WaitingBranch
    from vq.operations.messages.resending import Resending as Resending
    from vq.operations.messages.searched import (
        FoundMessages as FoundMessages,
        GapKind as GapKind,
        SearchedPartition as SearchedPartition,
        SearchGap as SearchGap,
    )
    from vq.operations.messages.settling import LetterState as LetterState, Settled as Settled
    from vq.operations.messages.stored import StoredBytes as StoredBytes, StoredRange as StoredRange
    from vq.operations.messages.transactions import (
        PartOfTransaction as PartOfTransaction,
        TransactionChecking as TransactionChecking,
        TransactionDecision as TransactionDecision,
        TransactionDescription as TransactionDescription,
    )
    from vq.operations.messages.writes import (
        WriteAttempt as WriteAttempt,
        WrittenRange as WrittenRange,
    )
    from vq.operations.partitions.offsets import PartitionEnds as PartitionEnds
    from vq.operations.partitions.placements import Move as Move, Moved as Moved
    from vq.operations.security.access import AccessUnknown as AccessUnknown
    from vq.operations.security.quotas import QuotasUnknown as QuotasUnknown
    from vq.operations.security.security_plan import (
        AnonymousSeen as AnonymousSeen,
        MissingAccess as MissingAccess,
        NodeSecurity as NodeSecurity,
        SecurityPlan as SecurityPlan,
        SecurityStep as SecurityStep,
        StepState as StepState,
    )
    from vq.operations.security.users import (
        UserChangeUnknown as UserChangeUnknown,
        UserEntry as UserEntry,
    )
    from vq.operations.topics.closing import ClosedTopic as ClosedTopic, OpenedTopic as OpenedTopic
    from vq.operations.topics.deletion import DeletedTopic as DeletedTopic, Deletion as Deletion
    from vq.operations.topics.emptying import GroupDrain as GroupDrain, TopicDrain as TopicDrain
    from vq.operations.topics.topics import (
        HeldBack as HeldBack,
        PartitionDescription as PartitionDescription,
        Topic as Topic,
        TopicDescription as TopicDescription,
        TopicSummary as TopicSummary,
    )
    from vq.operations.topics.verification import (
        Verified as Verified,
        VerifyProgress as VerifyProgress,
    )
    from vq.operations.tree.checking import CheckedTree as CheckedTree, RepairedNode as RepairedNode
    from vq.operations.tree.copying import (
        ImportAction as ImportAction,
        ImportStep as ImportStep,
        PlannedImport as PlannedImport,
    )
    from vq.operations.tree.document import (
        ExportedNode as ExportedNode,
        TreeExport as TreeExport,
        read_tree as read_tree,
    )
    from vq.operations.tree.findings import (
        Severity as Severity,
        TreeFinding as TreeFinding,
        TreeRepair as TreeRepair,
    )
    from vq.operations.tree.securing import SecuredTree as SecuredTree, WrongAcl as WrongAcl
    from vq.security.quotas import (
        EffectiveLimit as EffectiveLimit,
        Quota as Quota,
        QuotaLimit as QuotaLimit,
    )
    from vq.security.rules import (
        AccessDecision as AccessDecision,
        AccessRule as AccessRule,
        Need as Need,
        Resource as Resource,
        Right as Right,
        RuleEffect as RuleEffect,
    )
# isort: on


_HOMES = {
    "vq.operations.allocation.advisor": "judge propose",
    "vq.operations.allocation.applying": "AllocationBusy MovedMeanwhile PlanOutdated",
    "vq.operations.allocation.board": "BrokenGoal GoalScore",
    "vq.operations.allocation.changes": "PlanChange",
    "vq.operations.allocation.facts": "AllocatedTopic AllocationFacts GroupLoad MeasuredPartition",
    "vq.operations.allocation.goals": "AllocationGoals HardGoal LoadGoal RequiredLabel",
    "vq.operations.allocation.plan_json": "plan_from_json plan_to_json wanted_moves",
    "vq.operations.allocation.plans": (
        "AllocatedGroup AllocatedMove AllocationPlan GroupSums KeptLoad PlannedTopic"
    ),
    "vq.operations.allocation.runs": "AllocationRun RunMove",
    "vq.coordination.tree.values.allocations": "FailedMove",
    "vq.coordination.tree.values.runs": "ArchiveTopicRun",
    "vq.operations.archives.archive_runs": "ArchiveNodeRun ArchiveRun ArchiveRunUnknown",
    "vq.operations.archives.archives": "ArchivedBlock RestoredArchive VerifiedArchive",
    "vq.operations.brokers.blocks": "HeldBlock HeldPartition SilentNode",
    "vq.operations.brokers.brokers": "BadPartition Damage",
    "vq.operations.cluster.bulk": (
        "GroupContract GroupPlace GroupTopic MeasuredRange MessageRange ReadPlacement TopicState"
    ),
    "vq.operations.base.changes": "ChangeUnknown ResetUnknown TreeUnknown",
    "vq.operations.cluster.checks": "Finding Level",
    "vq.operations.topics.closing": "ClosedTopic OpenedTopic",
    "vq.operations.cluster.cluster": "BrokerReport ClusterStatus",
    "vq.operations.messages.columns": "StoredColumns",
    "vq.operations.messages.contents": (
        "CheckedBatch ContentCheck ContentFault ContentTotals FaultKind ProducerEdge sequence_fault"
    ),
    "vq.operations.brokers.disks": "DiskState",
    "vq.operations.brokers.diverged": "CutFile CutMessages",
    "vq.operations.brokers.draining": "DrainUnknown DrainedGroup DrainedNode",
    "vq.operations.topics.emptying": "GroupDrain TopicDrain",
    "vq.operations.messages.dead_letters": "DeadLetter DeadLetters",
    "vq.operations.messages.delayed": "DelayedMessage DelayedMessages",
    "vq.operations.messages.recovering": "WaitingBranch",
    "vq.operations.messages.resending": "Resending",
    "vq.operations.messages.settling": "LetterState Settled",
    "vq.operations.messages.transactions": (
        "PartOfTransaction TransactionChecking TransactionDecision TransactionDescription"
    ),
    "vq.operations.messages.searched": "FoundMessages GapKind SearchGap SearchedPartition",
    "vq.operations.explain.answers": "Cause ExplainedFact Explanation",
    "vq.operations.explain.disks": "DiskExplanation",
    "vq.operations.explain.disk_causes": "TopicOnDisk",
    "vq.operations.tree.checking": "CheckedTree RepairedNode TreeUnknown",
    "vq.operations.tree.copying": "ImportAction ImportStep PlannedImport",
    "vq.operations.tree.document": "ExportedNode TreeExport read_tree",
    "vq.operations.tree.securing": "SecuredTree WrongAcl",
    "vq.operations.tree.findings": "Severity TreeFinding TreeRepair",
    "vq.operations.cluster.definition_file": (
        "DefinedBrokers DefinedTopic Definitions definitions_from definitions_json"
    ),
    "vq.operations.cluster.definitions": (
        "DefinitionAction DefinitionChange DefinitionStep PlannedDefinitions"
    ),
    "vq.operations.groups.balance": "BalancePlan OwnerChange PartitionMove PlannedMember",
    "vq.operations.groups.making": "ExportedOffset GroupExport PlannedGroup",
    "vq.operations.groups.shared": "SharedGroupDescription SharedProgress",
    "vq.operations.groups.terms": "GroupTerms",
    "vq.operations.groups.group_removal": "GroupDeletion TopicForgetting",
    "vq.operations.groups.groups": "GroupDescription GroupMember GroupProgress GroupSummary",
    "vq.operations.groups.lag_rules": "LagFacts LagThresholds LagVerdict judge_lag why_stopped",
    "vq.operations.partitions.offsets": "PartitionEnds",
    "vq.operations.partitions.placements": "Move Moved",
    "vq.operations.brokers.jobs": "BrokerJob NodeJobs",
    "vq.operations.brokers.removing": "GivenUp Removal",
    "vq.operations.groups.resets": "Goal Reset Target",
    "vq.operations.brokers.safety": "Unsafe UnsafeKind",
    "vq.operations.cluster.settings": "SettingsUnknown",
    "vq.operations.messages.stored": "StoredBytes StoredRange",
    "vq.operations.brokers.switching": "Switched",
    "vq.operations.topics.deletion": "DeletedTopic Deletion",
    "vq.operations.topics.topics": (
        "HeldBack PartitionDescription Topic TopicDescription TopicSummary"
    ),
    "vq.operations.brokers.unclean": "Unclean",
    "vq.operations.topics.verification": "Verified VerifyProgress",
    "vq.operations.messages.writes": "WriteAttempt WrittenRange",
    "vq.coordination.groups.groups": "UnknownGroup",
    "vq.coordination.tree.acls": "identity_of",
    "vq.coordination.tree.coordinator": "Grant NodeRights",
    "vq.coordination.security.users": "UnknownUser UserExists",
    "vq.operations.base.acts": "ActNotRecorded",
    "vq.operations.cluster.audit": "OperatorAct",
    "vq.operations.security.security_plan": (
        "AnonymousSeen MissingAccess NodeSecurity SecurityPlan SecurityStep StepState"
    ),
    "vq.operations.security.users": "UserChangeUnknown UserEntry",
    "vq.coordination.tree.reading": "TopicView",
    "vq.coordination.topics.topics": "TopicExists",
    "vq.coordination.tree.values.audit": "UncleanElection",
    "vq.coordination.tree.values.cluster": "ClusterSettings",
    "vq.operations.security.access": "AccessUnknown",
    "vq.operations.security.quotas": "QuotasUnknown",
    "vq.security.quotas": "EffectiveLimit Quota QuotaLimit",
    "vq.security.rules": "AccessDecision AccessRule Need Resource Right RuleEffect",
    "vq.coordination.tree.values.consumers": "CommittedOffset",
    "vq.coordination.tree.values.identities": "Identities",
    "vq.model": "GroupView NodeInfo TopicDeletion TopicOrigin",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker takes the imports above, and would take any other name, too
    __all__ = sorted(_HOME_OF)

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'vq.admin' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
