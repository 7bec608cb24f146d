"""What an operator asks and changes, as plain values and functions.

``factory.admin`` of ``vq.MessageFactory`` and ``vq.aio.MessageFactory`` asks and changes; the names
below are what it takes and returns. They are loaded on first use, as those of ``vq``. The command
line is a face over the same functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vq.coordination.groups.groups import UnknownGroup
    from vq.coordination.security.users import UnknownUser, UserExists
    from vq.coordination.topics.topics import TopicExists
    from vq.coordination.tree.acls import identity_of
    from vq.coordination.tree.coordinator import Grant, NodeRights
    from vq.coordination.tree.reading import TopicView
    from vq.coordination.tree.values.allocations import FailedMove
    from vq.coordination.tree.values.audit import UncleanElection
    from vq.coordination.tree.values.cluster import ClusterSettings
    from vq.coordination.tree.values.consumers import CommittedOffset
    from vq.coordination.tree.values.identities import Identities
    from vq.coordination.tree.values.runs import ArchiveTopicRun
    from vq.model import GroupView, NodeInfo, TopicDeletion, TopicOrigin
    from vq.operations.allocation.advisor import judge, propose
    from vq.operations.allocation.applying import (
        AllocationBusy,
        MovedMeanwhile,
        PlanOutdated,
    )
    from vq.operations.allocation.board import BrokenGoal, GoalScore
    from vq.operations.allocation.changes import PlanChange
    from vq.operations.allocation.facts import (
        AllocatedTopic,
        AllocationFacts,
        GroupLoad,
        MeasuredPartition,
    )
    from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal, RequiredLabel
    from vq.operations.allocation.plan_json import plan_from_json, plan_to_json, wanted_moves
    from vq.operations.allocation.plans import (
        AllocatedGroup,
        AllocatedMove,
        AllocationPlan,
        GroupSums,
        KeptLoad,
        PlannedTopic,
    )
    from vq.operations.allocation.runs import AllocationRun, RunMove
    from vq.operations.archives.archive_runs import ArchiveNodeRun, ArchiveRun, ArchiveRunUnknown
    from vq.operations.archives.archives import ArchivedBlock, RestoredArchive, VerifiedArchive
    from vq.operations.base.acts import ActNotRecorded
    from vq.operations.base.changes import ChangeUnknown, ResetUnknown, TreeUnknown
    from vq.operations.brokers.blocks import HeldBlock, HeldPartition, SilentNode
    from vq.operations.brokers.brokers import BadPartition, Damage
    from vq.operations.brokers.disks import DiskState
    from vq.operations.brokers.diverged import CutFile, CutMessages
    from vq.operations.brokers.draining import DrainedGroup, DrainedNode, DrainUnknown
    from vq.operations.brokers.jobs import BrokerJob, NodeJobs
    from vq.operations.brokers.removing import GivenUp, Removal
    from vq.operations.brokers.safety import Unsafe, UnsafeKind
    from vq.operations.brokers.switching import Switched
    from vq.operations.brokers.unclean import Unclean
    from vq.operations.cluster.audit import OperatorAct
    from vq.operations.cluster.bulk import (
        GroupContract,
        GroupPlace,
        GroupTopic,
        MeasuredRange,
        MessageRange,
        ReadPlacement,
        TopicState,
    )
    from vq.operations.cluster.checks import Finding, Level
    from vq.operations.cluster.cluster import BrokerReport, ClusterStatus
    from vq.operations.cluster.definition_file import (
        DefinedBrokers,
        DefinedTopic,
        Definitions,
        definitions_from,
        definitions_json,
    )
    from vq.operations.cluster.definitions import (
        DefinitionAction,
        DefinitionChange,
        DefinitionStep,
        PlannedDefinitions,
    )
    from vq.operations.cluster.settings import SettingsUnknown
    from vq.operations.explain.answers import Cause, ExplainedFact, Explanation
    from vq.operations.explain.disk_causes import TopicOnDisk
    from vq.operations.explain.disks import DiskExplanation
    from vq.operations.groups.balance import (
        BalancePlan,
        OwnerChange,
        PartitionMove,
        PlannedMember,
    )
    from vq.operations.groups.group_removal import GroupDeletion, TopicForgetting
    from vq.operations.groups.groups import (
        GroupDescription,
        GroupMember,
        GroupProgress,
        GroupSummary,
    )
    from vq.operations.groups.lag_rules import (
        LagFacts,
        LagThresholds,
        LagVerdict,
        judge_lag,
        why_stopped,
    )
    from vq.operations.groups.making import ExportedOffset, GroupExport, PlannedGroup
    from vq.operations.groups.resets import Goal, Reset, Target
    from vq.operations.groups.shared import SharedGroupDescription, SharedProgress
    from vq.operations.groups.terms import GroupTerms
    from vq.operations.messages.columns import StoredColumns
    from vq.operations.messages.contents import (
        CheckedBatch,
        ContentCheck,
        ContentFault,
        ContentTotals,
        FaultKind,
        ProducerEdge,
        sequence_fault,
    )
    from vq.operations.messages.dead_letters import DeadLetter, DeadLetters
    from vq.operations.messages.delayed import DelayedMessage, DelayedMessages
    from vq.operations.messages.recovering import WaitingBranch
    from vq.operations.messages.resending import Resending
    from vq.operations.messages.searched import FoundMessages, GapKind, SearchedPartition, SearchGap
    from vq.operations.messages.settling import LetterState, Settled
    from vq.operations.messages.stored import StoredBytes, StoredRange
    from vq.operations.messages.transactions import (
        PartOfTransaction,
        TransactionChecking,
        TransactionDecision,
        TransactionDescription,
    )
    from vq.operations.messages.writes import WriteAttempt, WrittenRange
    from vq.operations.partitions.offsets import PartitionEnds
    from vq.operations.partitions.placements import Move, Moved
    from vq.operations.security.access import AccessUnknown
    from vq.operations.security.quotas import QuotasUnknown
    from vq.operations.security.security_plan import (
        AnonymousSeen,
        MissingAccess,
        NodeSecurity,
        SecurityPlan,
        SecurityStep,
        StepState,
    )
    from vq.operations.security.users import UserChangeUnknown, UserEntry
    from vq.operations.topics.closing import ClosedTopic, OpenedTopic
    from vq.operations.topics.deletion import DeletedTopic, Deletion
    from vq.operations.topics.emptying import GroupDrain, TopicDrain
    from vq.operations.topics.topics import (
        HeldBack,
        PartitionDescription,
        Topic,
        TopicDescription,
        TopicSummary,
    )
    from vq.operations.topics.verification import Verified, VerifyProgress
    from vq.operations.tree.checking import CheckedTree, RepairedNode
    from vq.operations.tree.copying import ImportAction, ImportStep, PlannedImport
    from vq.operations.tree.document import ExportedNode, TreeExport, read_tree
    from vq.operations.tree.findings import Severity, TreeFinding, TreeRepair
    from vq.operations.tree.securing import SecuredTree, WrongAcl
    from vq.security.quotas import EffectiveLimit, Quota, QuotaLimit
    from vq.security.rules import AccessDecision, AccessRule, Need, Resource, Right, RuleEffect


_HOMES = {
    "vq.operations.allocation.advisor": ("judge", "propose"),
    "vq.operations.allocation.applying": (
        "AllocationBusy",
        "MovedMeanwhile",
        "PlanOutdated",
    ),
    "vq.operations.allocation.board": ("BrokenGoal", "GoalScore"),
    "vq.operations.allocation.changes": ("PlanChange",),
    "vq.operations.allocation.facts": (
        "AllocatedTopic",
        "AllocationFacts",
        "GroupLoad",
        "MeasuredPartition",
    ),
    "vq.operations.allocation.goals": ("AllocationGoals", "HardGoal", "LoadGoal", "RequiredLabel"),
    "vq.operations.allocation.plan_json": ("plan_from_json", "plan_to_json", "wanted_moves"),
    "vq.operations.allocation.plans": (
        "AllocatedGroup",
        "AllocatedMove",
        "AllocationPlan",
        "GroupSums",
        "KeptLoad",
        "PlannedTopic",
    ),
    "vq.operations.allocation.runs": ("AllocationRun", "RunMove"),
    "vq.coordination.tree.values.allocations": ("FailedMove",),
    "vq.coordination.tree.values.runs": ("ArchiveTopicRun",),
    "vq.operations.archives.archive_runs": ("ArchiveNodeRun", "ArchiveRun", "ArchiveRunUnknown"),
    "vq.operations.archives.archives": ("ArchivedBlock", "RestoredArchive", "VerifiedArchive"),
    "vq.operations.brokers.blocks": ("HeldBlock", "HeldPartition", "SilentNode"),
    "vq.operations.brokers.brokers": ("BadPartition", "Damage"),
    "vq.operations.cluster.bulk": (
        "GroupContract",
        "GroupPlace",
        "GroupTopic",
        "MeasuredRange",
        "MessageRange",
        "ReadPlacement",
        "TopicState",
    ),
    "vq.operations.base.changes": ("ChangeUnknown", "ResetUnknown", "TreeUnknown"),
    "vq.operations.cluster.checks": ("Finding", "Level"),
    "vq.operations.topics.closing": ("ClosedTopic", "OpenedTopic"),
    "vq.operations.cluster.cluster": ("BrokerReport", "ClusterStatus"),
    "vq.operations.messages.columns": ("StoredColumns",),
    "vq.operations.messages.contents": (
        "CheckedBatch",
        "ContentCheck",
        "ContentFault",
        "ContentTotals",
        "FaultKind",
        "ProducerEdge",
        "sequence_fault",
    ),
    "vq.operations.brokers.disks": ("DiskState",),
    "vq.operations.brokers.diverged": ("CutFile", "CutMessages"),
    "vq.operations.brokers.draining": ("DrainUnknown", "DrainedGroup", "DrainedNode"),
    "vq.operations.topics.emptying": ("GroupDrain", "TopicDrain"),
    "vq.operations.messages.dead_letters": ("DeadLetter", "DeadLetters"),
    "vq.operations.messages.delayed": ("DelayedMessage", "DelayedMessages"),
    "vq.operations.messages.recovering": ("WaitingBranch",),
    "vq.operations.messages.resending": ("Resending",),
    "vq.operations.messages.settling": ("LetterState", "Settled"),
    "vq.operations.messages.transactions": (
        "PartOfTransaction",
        "TransactionChecking",
        "TransactionDecision",
        "TransactionDescription",
    ),
    "vq.operations.messages.searched": (
        "FoundMessages",
        "GapKind",
        "SearchGap",
        "SearchedPartition",
    ),
    "vq.operations.explain.answers": (
        "Cause",
        "ExplainedFact",
        "Explanation",
    ),
    "vq.operations.explain.disks": ("DiskExplanation",),
    "vq.operations.explain.disk_causes": ("TopicOnDisk",),
    "vq.operations.tree.checking": (
        "CheckedTree",
        "RepairedNode",
        "TreeUnknown",
    ),
    "vq.operations.tree.copying": (
        "ImportAction",
        "ImportStep",
        "PlannedImport",
    ),
    "vq.operations.tree.document": (
        "ExportedNode",
        "TreeExport",
        "read_tree",
    ),
    "vq.operations.tree.securing": ("SecuredTree", "WrongAcl"),
    "vq.operations.tree.findings": (
        "Severity",
        "TreeFinding",
        "TreeRepair",
    ),
    "vq.operations.cluster.definition_file": (
        "DefinedBrokers",
        "DefinedTopic",
        "Definitions",
        "definitions_from",
        "definitions_json",
    ),
    "vq.operations.cluster.definitions": (
        "DefinitionAction",
        "DefinitionChange",
        "DefinitionStep",
        "PlannedDefinitions",
    ),
    "vq.operations.groups.balance": (
        "BalancePlan",
        "OwnerChange",
        "PartitionMove",
        "PlannedMember",
    ),
    "vq.operations.groups.making": ("ExportedOffset", "GroupExport", "PlannedGroup"),
    "vq.operations.groups.shared": ("SharedGroupDescription", "SharedProgress"),
    "vq.operations.groups.terms": ("GroupTerms",),
    "vq.operations.groups.group_removal": ("GroupDeletion", "TopicForgetting"),
    "vq.operations.groups.groups": (
        "GroupDescription",
        "GroupMember",
        "GroupProgress",
        "GroupSummary",
    ),
    "vq.operations.groups.lag_rules": (
        "LagFacts",
        "LagThresholds",
        "LagVerdict",
        "judge_lag",
        "why_stopped",
    ),
    "vq.operations.partitions.offsets": ("PartitionEnds",),
    "vq.operations.partitions.placements": ("Move", "Moved"),
    "vq.operations.brokers.jobs": ("BrokerJob", "NodeJobs"),
    "vq.operations.brokers.removing": ("GivenUp", "Removal"),
    "vq.operations.groups.resets": ("Goal", "Reset", "Target"),
    "vq.operations.brokers.safety": ("Unsafe", "UnsafeKind"),
    "vq.operations.cluster.settings": ("SettingsUnknown",),
    "vq.operations.messages.stored": ("StoredBytes", "StoredRange"),
    "vq.operations.brokers.switching": ("Switched",),
    "vq.operations.topics.deletion": ("DeletedTopic", "Deletion"),
    "vq.operations.topics.topics": (
        "HeldBack",
        "PartitionDescription",
        "Topic",
        "TopicDescription",
        "TopicSummary",
    ),
    "vq.operations.brokers.unclean": ("Unclean",),
    "vq.operations.topics.verification": ("Verified", "VerifyProgress"),
    "vq.operations.messages.writes": ("WriteAttempt", "WrittenRange"),
    "vq.coordination.groups.groups": ("UnknownGroup",),
    "vq.coordination.tree.acls": ("identity_of",),
    "vq.coordination.tree.coordinator": ("Grant", "NodeRights"),
    "vq.coordination.security.users": ("UnknownUser", "UserExists"),
    "vq.operations.base.acts": ("ActNotRecorded",),
    "vq.operations.cluster.audit": ("OperatorAct",),
    "vq.operations.security.security_plan": (
        "AnonymousSeen",
        "MissingAccess",
        "NodeSecurity",
        "SecurityPlan",
        "SecurityStep",
        "StepState",
    ),
    "vq.operations.security.users": ("UserChangeUnknown", "UserEntry"),
    "vq.coordination.tree.reading": ("TopicView",),
    "vq.coordination.topics.topics": ("TopicExists",),
    "vq.coordination.tree.values.audit": ("UncleanElection",),
    "vq.coordination.tree.values.cluster": ("ClusterSettings",),
    "vq.operations.security.access": ("AccessUnknown",),
    "vq.operations.security.quotas": ("QuotasUnknown",),
    "vq.security.quotas": ("EffectiveLimit", "Quota", "QuotaLimit"),
    "vq.security.rules": (
        "AccessDecision",
        "AccessRule",
        "Need",
        "Resource",
        "Right",
        "RuleEffect",
    ),
    "vq.coordination.tree.values.consumers": ("CommittedOffset",),
    "vq.coordination.tree.values.identities": ("Identities",),
    "vq.model": ("GroupView", "NodeInfo", "TopicDeletion", "TopicOrigin"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AccessDecision",
    "AccessRule",
    "AccessUnknown",
    "ActNotRecorded",
    "AllocatedGroup",
    "AllocatedMove",
    "AllocatedTopic",
    "AllocationBusy",
    "AllocationFacts",
    "AllocationGoals",
    "AllocationPlan",
    "AllocationRun",
    "AnonymousSeen",
    "ArchiveNodeRun",
    "ArchiveRun",
    "ArchiveRunUnknown",
    "ArchiveTopicRun",
    "ArchivedBlock",
    "BadPartition",
    "BalancePlan",
    "BrokenGoal",
    "BrokerJob",
    "BrokerReport",
    "Cause",
    "ChangeUnknown",
    "CheckedBatch",
    "CheckedTree",
    "ClosedTopic",
    "ClusterSettings",
    "ClusterStatus",
    "CommittedOffset",
    "ContentCheck",
    "ContentFault",
    "ContentTotals",
    "CutFile",
    "CutMessages",
    "Damage",
    "DeadLetter",
    "DeadLetters",
    "DefinedBrokers",
    "DefinedTopic",
    "DefinitionAction",
    "DefinitionChange",
    "DefinitionStep",
    "Definitions",
    "DelayedMessage",
    "DelayedMessages",
    "DeletedTopic",
    "Deletion",
    "DiskExplanation",
    "DiskState",
    "DrainUnknown",
    "DrainedGroup",
    "DrainedNode",
    "EffectiveLimit",
    "ExplainedFact",
    "Explanation",
    "ExportedNode",
    "ExportedOffset",
    "FailedMove",
    "FaultKind",
    "Finding",
    "FoundMessages",
    "GapKind",
    "GivenUp",
    "Goal",
    "GoalScore",
    "Grant",
    "GroupContract",
    "GroupDeletion",
    "GroupDescription",
    "GroupDrain",
    "GroupExport",
    "GroupLoad",
    "GroupMember",
    "GroupPlace",
    "GroupProgress",
    "GroupSummary",
    "GroupSums",
    "GroupTerms",
    "GroupTopic",
    "GroupView",
    "HardGoal",
    "HeldBack",
    "HeldBlock",
    "HeldPartition",
    "Identities",
    "ImportAction",
    "ImportStep",
    "KeptLoad",
    "LagFacts",
    "LagThresholds",
    "LagVerdict",
    "LetterState",
    "Level",
    "LoadGoal",
    "MeasuredPartition",
    "MeasuredRange",
    "MessageRange",
    "MissingAccess",
    "Move",
    "Moved",
    "MovedMeanwhile",
    "Need",
    "NodeInfo",
    "NodeJobs",
    "NodeRights",
    "NodeSecurity",
    "OpenedTopic",
    "OperatorAct",
    "OwnerChange",
    "PartOfTransaction",
    "PartitionDescription",
    "PartitionEnds",
    "PartitionMove",
    "PlanChange",
    "PlanOutdated",
    "PlannedDefinitions",
    "PlannedGroup",
    "PlannedImport",
    "PlannedMember",
    "PlannedTopic",
    "ProducerEdge",
    "Quota",
    "QuotaLimit",
    "QuotasUnknown",
    "ReadPlacement",
    "Removal",
    "RepairedNode",
    "RequiredLabel",
    "Resending",
    "Reset",
    "ResetUnknown",
    "Resource",
    "RestoredArchive",
    "Right",
    "RuleEffect",
    "RunMove",
    "SearchGap",
    "SearchedPartition",
    "SecuredTree",
    "SecurityPlan",
    "SecurityStep",
    "SettingsUnknown",
    "Settled",
    "Severity",
    "SharedGroupDescription",
    "SharedProgress",
    "SilentNode",
    "StepState",
    "StoredBytes",
    "StoredColumns",
    "StoredRange",
    "Switched",
    "Target",
    "Topic",
    "TopicDeletion",
    "TopicDescription",
    "TopicDrain",
    "TopicExists",
    "TopicForgetting",
    "TopicOnDisk",
    "TopicOrigin",
    "TopicState",
    "TopicSummary",
    "TopicView",
    "TransactionChecking",
    "TransactionDecision",
    "TransactionDescription",
    "TreeExport",
    "TreeFinding",
    "TreeRepair",
    "TreeUnknown",
    "Unclean",
    "UncleanElection",
    "UnknownGroup",
    "UnknownUser",
    "Unsafe",
    "UnsafeKind",
    "UserChangeUnknown",
    "UserEntry",
    "UserExists",
    "Verified",
    "VerifiedArchive",
    "VerifyProgress",
    "WaitingBranch",
    "WriteAttempt",
    "WrittenRange",
    "WrongAcl",
    "definitions_from",
    "definitions_json",
    "identity_of",
    "judge",
    "judge_lag",
    "plan_from_json",
    "plan_to_json",
    "propose",
    "read_tree",
    "sequence_fault",
    "wanted_moves",
    "why_stopped",
]


if not TYPE_CHECKING:  # a type checker would take any name for one of the package

    def __getattr__(name: str) -> Any:
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'vq.admin' has no attribute {name!r}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
