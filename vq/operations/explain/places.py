"""Where partitions take messages, and why one takes none now: the facts of several questions.

``refusal_of`` judges, and does no I/O; ``read_places`` asks.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import VqError
from vq.model import NodeInfo, PartitionPlacement, StatusResult
from vq.operations.brokers.blocks import blocks_of
from vq.operations.brokers.brokers import FAILED_STATES, broker_status
from vq.operations.brokers.disks import DiskState, disk_states

#: Levels of a disk at which its partitions take no messages.
FULL_LEVELS: Final = frozenset({"refuse", "stop", "gone", "silent"})
#: Why a partition takes no messages, in the order in which it is told.
REFUSALS: Final = (
    "partition_closed",
    "no_master",
    "broker_silent",
    "partition_failed",
    "partition_moving",
    "disk_full",
    "min_insync",
)


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What is known of a broker group at this moment.

    Attributes:
        group: Its name.
        state: Its record; None: nobody ever led it, or it cannot be read.
        master: The registered master; None: it has none.
        status: What the master answers; None: it does not, or there is none.
        error: Why not.
        draining: No new partitions are placed on it; None: not known.
        pool: Its pool; None: the common one, or not known.
    """

    group: str
    state: GroupState | None = None
    master: NodeInfo | None = None
    status: StatusResult | None = None
    error: str = ""
    draining: bool | None = None
    pool: str | None = None

    @property
    def name(self) -> str:
        """The master as texts name it; of a group without one, the group."""
        return self.group if self.master is None else f"{self.group}/{self.master.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """Where one partition takes messages.

    Attributes:
        partition: Its number.
        placement: Its ranges.
        answer: Of the group that takes its messages; None: none does.
        state: What its broker says of it; None: it has not opened it yet, or does not answer.
        reason: Why it is in that state, as the broker says.
        disk: The disk that it lies on; None: not known.
        log_end: Where its log ends at the master; None: not known.
        min_insync: The least number of nodes in sync.
    """

    partition: int
    placement: PartitionPlacement
    answer: GroupAnswer | None
    state: str | None = None
    reason: str = ""
    disk: DiskState | None = None
    log_end: int | None = None
    min_insync: int = 1

    @property
    def insync(self) -> tuple[str, ...] | None:
        """The nodes in sync; None: not known."""
        if self.answer is None or self.answer.state is None:
            return None
        return self.answer.state.insync


def refusal_of(place: PartitionPlace) -> str | None:
    """Return why a partition takes no messages, one of ``REFUSALS``; None: it takes them.

    What makes a topic refuse messages as a whole is judged elsewhere.
    """
    answer = place.answer
    if answer is None:
        return "partition_closed"
    if answer.master is None:
        return "no_master"
    if answer.status is None:
        return "broker_silent"
    if place.state in FAILED_STATES:
        return "partition_failed"
    # A message for a partition that its broker has not opened yet waits there until it has.
    if place.state in {"ro", "sealed"} or not answer.status.raw["master"]:
        return "partition_moving"
    if place.disk is not None and place.disk.level in FULL_LEVELS:
        return "disk_full"
    insync = place.insync
    if insync is not None and len(insync) < place.min_insync:
        return "min_insync"
    return None


async def read_places(
    cluster: ClusterClient, view: TopicView, numbers: Sequence[int]
) -> list[PartitionPlace]:
    """Return where some partitions of a topic take messages; each broker group is asked once."""
    placements = [view.partitions[each] for each in numbers]
    names = sorted({each.writer_group for each in placements if each.writer_group is not None})
    answers = dict(
        zip(names, await gather_all(ask_group(cluster, each) for each in names), strict=True)
    )
    disks = dict(
        zip(
            names,
            await gather_all(_disks(cluster, answers[each], view) for each in names),
            strict=True,
        )
    )
    found = []
    for each in placements:
        answer = None if each.writer_group is None else answers[each.writer_group]
        told = None if answer is None else told_of(answer, view.name, each.partition)
        found.append(
            PartitionPlace(
                partition=each.partition,
                placement=each,
                answer=answer,
                state=None if told is None else told["state"],
                reason="" if told is None else told["reason"],
                disk=None if answer is None else disks[answer.group].get(each.partition),
                log_end=None if told is None else told["log_end_offset"],
                min_insync=view.settings.min_insync,
            )
        )
    return found


async def ask_group(cluster: ClusterClient, group: str) -> GroupAnswer:
    """Return what is known of a broker group; what cannot be read or asked is in ``error``."""
    coordinator = cluster.coordinator
    try:
        state, value = await asyncio.gather(
            registry.read_state(coordinator, group), registry.read_group(coordinator, group)
        )
        master = (
            None if state is None else await registry.read_node(coordinator, group, state.master)
        )
    except Unreadable as error:
        return GroupAnswer(group, error=str(error))
    draining = None if value is None else value.draining
    known = GroupAnswer(
        group, state, master, draining=draining, pool=None if value is None else value.pool
    )
    if master is None:
        return replace(known, error=f"broker group {group} has no registered master")
    try:
        status = await broker_status(cluster, master.address)
    except VqError as error:
        text = f"{known.name} ({master.address}) does not answer: {type(error).__name__}: {error}"
        return replace(known, error=text)
    return replace(known, status=status)


def told_of(answer: GroupAnswer, topic: str, partition: int) -> Mapping[str, Any] | None:
    """Return what the master says of a partition; None: it does not know it."""
    if answer.status is None:
        return None
    for each in answer.status.raw["partitions"]:
        if (each["topic"], each["partition"]) == (topic, partition):
            found: Mapping[str, Any] = each
            return found
    return None


async def _disks(
    cluster: ClusterClient, answer: GroupAnswer, view: TopicView
) -> dict[int, DiskState]:
    """Return the disk of each partition, if that is known."""
    if answer.status is None or answer.master is None:
        return {}
    disks = disk_states(answer.status)
    numbers = range(len(view.partitions))
    if len(disks) == 1:
        return dict.fromkeys(numbers, disks[0])
    if not any(each.level in FULL_LEVELS for each in disks):
        return {}  # whichever it is, it takes messages
    by_directory = {each.directory: each for each in disks}
    try:
        held = await blocks_of(cluster, answer.master.address, view.name)
    except VqError:
        return {}
    return {
        each.partition: by_directory[each.directory]
        for each in held
        if each.directory in by_directory
    }
