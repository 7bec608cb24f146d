"""What an operator asks and changes, as plain values and functions.

``factory.admin`` of ``vq.MessageFactory`` and ``vq.aio.MessageFactory`` asks and changes; the names
below are what it takes and returns. They are loaded on first use, as those of ``vq``. The command
line is a face over the same functions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vq.admin.archive_runs import (
        ArchiveNodeRun,
        ArchiveRun,
        ArchiveRunUnknown,
        ArchiveTopicRun,
    )
    from vq.admin.archives import ArchivedBlock, VerifiedArchive
    from vq.admin.blocks import HeldBlock, HeldPartition, SilentNode
    from vq.admin.brokers import BadPartition, Damage
    from vq.admin.bulk import (
        GroupContract,
        GroupPlace,
        GroupTopic,
        MeasuredRange,
        MessageRange,
        ReadPlacement,
        TopicState,
    )
    from vq.admin.changes import ChangeUnknown, ResetUnknown
    from vq.admin.checks import Finding, Level
    from vq.admin.closing import ClosedTopic, OpenedTopic
    from vq.admin.cluster import BrokerReport, ClusterStatus
    from vq.admin.columns import StoredColumns
    from vq.admin.contents import (
        CheckedBatch,
        ContentCheck,
        ContentFault,
        ContentTotals,
        FaultKind,
        ProducerEdge,
        sequence_fault,
    )
    from vq.admin.disks import DiskState
    from vq.admin.diverged import CutFile, CutMessages
    from vq.admin.draining import DrainedGroup, DrainedNode, DrainUnknown
    from vq.admin.emptying import GroupDrain, TopicDrain
    from vq.admin.groups import (
        GroupDeletion,
        GroupDescription,
        GroupMember,
        GroupProgress,
        GroupSummary,
        TopicForgetting,
    )
    from vq.admin.lag_rules import LagFacts, LagThresholds, LagVerdict, judge_lag, why_stopped
    from vq.admin.offsets import PartitionEnds
    from vq.admin.placements import Move, Moved
    from vq.admin.removing import GivenUp, Removal
    from vq.admin.resets import Goal, Reset, Target
    from vq.admin.safety import Unsafe, UnsafeKind
    from vq.admin.searched import FoundMessages, GapKind, SearchedPartition, SearchGap
    from vq.admin.settings import SettingsUnknown
    from vq.admin.stored import StoredBytes, StoredRange
    from vq.admin.switching import Switched
    from vq.admin.topics import (
        DeletedTopic,
        Deletion,
        HeldBack,
        PartitionDescription,
        Topic,
        TopicDescription,
        TopicSummary,
    )
    from vq.admin.unclean import Unclean
    from vq.admin.verification import Verified, VerifyProgress
    from vq.admin.writes import WriteAttempt, WrittenRange
    from vq.coordination.groups.groups import UnknownGroup
    from vq.coordination.topics.topics import TopicExists
    from vq.coordination.tree.reading import TopicView
    from vq.coordination.tree.values.audit import UncleanElection
    from vq.coordination.tree.values.cluster import ClusterSettings
    from vq.coordination.tree.values.consumers import CommittedOffset
    from vq.model import GroupView, NodeInfo, TopicDeletion, TopicOrigin


_HOMES = {
    "vq.admin.archive_runs": (
        "ArchiveNodeRun",
        "ArchiveRun",
        "ArchiveRunUnknown",
        "ArchiveTopicRun",
    ),
    "vq.admin.archives": ("ArchivedBlock", "VerifiedArchive"),
    "vq.admin.blocks": ("HeldBlock", "HeldPartition", "SilentNode"),
    "vq.admin.brokers": ("BadPartition", "Damage"),
    "vq.admin.bulk": (
        "GroupContract",
        "GroupPlace",
        "GroupTopic",
        "MeasuredRange",
        "MessageRange",
        "ReadPlacement",
        "TopicState",
    ),
    "vq.admin.changes": ("ChangeUnknown", "ResetUnknown"),
    "vq.admin.checks": ("Finding", "Level"),
    "vq.admin.closing": ("ClosedTopic", "OpenedTopic"),
    "vq.admin.cluster": ("BrokerReport", "ClusterStatus"),
    "vq.admin.columns": ("StoredColumns",),
    "vq.admin.contents": (
        "CheckedBatch",
        "ContentCheck",
        "ContentFault",
        "ContentTotals",
        "FaultKind",
        "ProducerEdge",
        "sequence_fault",
    ),
    "vq.admin.disks": ("DiskState",),
    "vq.admin.diverged": ("CutFile", "CutMessages"),
    "vq.admin.draining": ("DrainUnknown", "DrainedGroup", "DrainedNode"),
    "vq.admin.emptying": ("GroupDrain", "TopicDrain"),
    "vq.admin.searched": ("FoundMessages", "GapKind", "SearchGap", "SearchedPartition"),
    "vq.admin.groups": (
        "GroupDeletion",
        "GroupDescription",
        "GroupMember",
        "GroupProgress",
        "GroupSummary",
        "TopicForgetting",
    ),
    "vq.admin.lag_rules": ("LagFacts", "LagThresholds", "LagVerdict", "judge_lag", "why_stopped"),
    "vq.admin.offsets": ("PartitionEnds",),
    "vq.admin.placements": ("Move", "Moved"),
    "vq.admin.removing": ("GivenUp", "Removal"),
    "vq.admin.resets": ("Goal", "Reset", "Target"),
    "vq.admin.safety": ("Unsafe", "UnsafeKind"),
    "vq.admin.settings": ("SettingsUnknown",),
    "vq.admin.stored": ("StoredBytes", "StoredRange"),
    "vq.admin.switching": ("Switched",),
    "vq.admin.topics": (
        "DeletedTopic",
        "Deletion",
        "HeldBack",
        "PartitionDescription",
        "Topic",
        "TopicDescription",
        "TopicSummary",
    ),
    "vq.admin.unclean": ("Unclean",),
    "vq.admin.verification": ("Verified", "VerifyProgress"),
    "vq.admin.writes": ("WriteAttempt", "WrittenRange"),
    "vq.coordination.groups.groups": ("UnknownGroup",),
    "vq.coordination.tree.reading": ("TopicView",),
    "vq.coordination.topics.topics": ("TopicExists",),
    "vq.coordination.tree.values.audit": ("UncleanElection",),
    "vq.coordination.tree.values.cluster": ("ClusterSettings",),
    "vq.coordination.tree.values.consumers": ("CommittedOffset",),
    "vq.model": ("GroupView", "NodeInfo", "TopicDeletion", "TopicOrigin"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ArchiveNodeRun",
    "ArchiveRun",
    "ArchiveRunUnknown",
    "ArchiveTopicRun",
    "ArchivedBlock",
    "BadPartition",
    "BrokerReport",
    "ChangeUnknown",
    "CheckedBatch",
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
    "DeletedTopic",
    "Deletion",
    "DiskState",
    "DrainUnknown",
    "DrainedGroup",
    "DrainedNode",
    "FaultKind",
    "Finding",
    "FoundMessages",
    "GapKind",
    "GivenUp",
    "Goal",
    "GroupContract",
    "GroupDeletion",
    "GroupDescription",
    "GroupDrain",
    "GroupMember",
    "GroupPlace",
    "GroupProgress",
    "GroupSummary",
    "GroupTopic",
    "GroupView",
    "HeldBack",
    "HeldBlock",
    "HeldPartition",
    "LagFacts",
    "LagThresholds",
    "LagVerdict",
    "Level",
    "MeasuredRange",
    "MessageRange",
    "Move",
    "Moved",
    "NodeInfo",
    "OpenedTopic",
    "PartitionDescription",
    "PartitionEnds",
    "ProducerEdge",
    "ReadPlacement",
    "Removal",
    "Reset",
    "ResetUnknown",
    "SearchGap",
    "SearchedPartition",
    "SettingsUnknown",
    "SilentNode",
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
    "TopicOrigin",
    "TopicState",
    "TopicSummary",
    "TopicView",
    "Unclean",
    "UncleanElection",
    "UnknownGroup",
    "Unsafe",
    "UnsafeKind",
    "Verified",
    "VerifiedArchive",
    "VerifyProgress",
    "WriteAttempt",
    "WrittenRange",
    "judge_lag",
    "sequence_fault",
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
