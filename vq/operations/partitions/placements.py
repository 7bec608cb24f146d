"""Where partitions live, and moving them to another broker group.

Loop-bound functions on a ``ClusterClient``. A move copies nothing: the old group ends its span, the
new one starts at that offset::

    SEAL at the old master     appends are refused from now on; returns the end and the producers
    ADOPT at the new master    makes an empty log that starts there and knows the producers
    compare-and-set            the partition's znode gets [old: start…end) [new: end…)

A group that moves a partition to itself (``clocks``) ends its span as well and goes on with a new
log; it needs no ADOPT.

Before the first step the new master must answer. If a later one fails, the mover raises the version
of the partition's znode: no step of this move can succeed any more, so the old master takes appends
again. A mover that dies leaves a seal that the old master takes back after its ``seal_timeout_s``.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import group_views, registry
from vq.coordination.topics import summaries, topics
from vq.coordination.topics.allocation import allocate, pool_text, too_few_nodes
from vq.coordination.topics.placement import begin_range, move
from vq.coordination.tree.coordinator import BadVersion, Check
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.round_trip import bound_s
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    NotMaster,
    TimedOut,
    UnknownTopic,
)
from vq.log_lines import get_logger
from vq.model import NodeInfo, PartitionPlacement
from vq.operations.base.acts import audited
from vq.operations.base.changes import unknown_when_cut
from vq.operations.brokers.brokers import master_and_epoch
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import AdoptRequest, PingRequest, SealRequest, SealResponse

#: Bound of one move from SEAL to the change in ZooKeeper. Well below the brokers' seal time-out.
MOVE_TIMEOUT_S = 10.0
#: Bound of undoing one that failed, and of its calls to ZooKeeper, some to spare; with a slow one
#: it is longer, up to ``MOVE_TIMEOUT_S``.
UNDO_TIMEOUT_S = 2.0
_UNDO_CALLS = 8

logger = get_logger(__name__)


async def partitions_of(cluster: ClusterClient, topic: str) -> list[PartitionPlacement]:
    """Return where the partitions of a topic live, in rising order.

    Raises:
        UnknownTopic: There is no such topic.
    """
    return list((await cluster.track(topic)).partitions(topic))


# Moves ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Move:
    """One partition to be moved, as read from the tree: nothing has happened yet.

    Attributes:
        view: The topic.
        placement: Of the partition.
        source: The master of the group that takes its appends.
        target: The master of the group that shall take them; or the same one, with a new log.
        epochs: In which these two lead their groups. The move is refused in another epoch: a master
            knows nothing of what another one was asked to seal or to prepare.
    """

    view: TopicView
    placement: PartitionPlacement
    source: NodeInfo
    target: NodeInfo
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_new_log(self) -> bool:
        """Whether the group stays, and begins a new log."""
        return self.source.group == self.target.group

    @property
    def version(self) -> int:
        """Version of the partition's znode that all steps of this move rest on."""
        return self.view.partition_versions[self.placement.partition]


@dataclass(frozen=True, slots=True)
class Moved:
    """One partition that was moved; ``offset`` is where the new group goes on."""

    topic: str
    partition: int
    source: str
    target: str
    offset: int


async def plan_moves(
    cluster: ClusterClient, topic: str, partitions: Iterable[int], group: str
) -> list[Move]:
    """Return the moves that bring partitions to a broker group; changes nothing.

    Those that are there already are left out.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: There is no such group, its pool is not the topic's, or it has fewer nodes
            than the topic's ``min_insync``.
        NotMaster: The old or the new group has no master.
        CoordinationError: A partition is closed, or in the middle of another move.
    """
    view = await topics.describe_topic(cluster.coordinator, topic)
    await _check_target(cluster, view, group)
    target, target_epoch = await need_master(cluster, group, "the new")
    moves = []
    for number in sorted(set(partitions)):
        topics.check_partition(view, number)
        placement = view.partitions[number]
        if placement.writer_group is None:
            raise CoordinationError(
                f"{topic}-{number} is open on no group (state {placement.state}); nothing to move"
            )
        if placement.writer_group != group:
            source, epoch = await need_master(cluster, placement.writer_group, "the old")
            epochs = {source.group: epoch, target.group: target_epoch}
            moves.append(Move(view, placement, source, target, epochs))
    return moves


async def _check_target(cluster: ClusterClient, view: TopicView, group: str) -> None:
    target = await registry.read_group(cluster.coordinator, group)
    if target is None:
        known = ", ".join(await registry.group_names(cluster.coordinator))
        raise InvalidArgument(f"there is no broker group {group!r}; known: {known or 'none'}")
    pool = view.settings.pool
    if target.pool != pool:
        raise InvalidArgument(
            f"topic {view.name!r} lives in {pool_text(pool)}, but group {group!r} is of "
            f"{pool_text(target.pool)}"
        )
    await check_nodes(cluster, view.name, group, view.settings.min_insync)


async def plan_emptying(cluster: ClusterClient, group: str) -> list[Move]:
    """Return the moves that bring all open partitions of a broker group to others.

    Raises:
        CoordinationError: No other group can take those of a topic.
        NotMaster: A group has no running master.
    """
    moves: list[Move] = []
    views = [each for each in await group_views.groups(cluster.coordinator) if each.group != group]
    for summary in await summaries.summarize_topics(cluster.coordinator):
        view = await topics.describe_topic(cluster.coordinator, summary.name)
        numbers = [each.partition for each in view.partitions if each.writer_group == group]
        if not numbers:
            continue
        targets = defaultdict(list)
        settings = view.settings
        chosen = allocate(len(numbers), views, pool=settings.pool, min_insync=settings.min_insync)
        for number, target in zip(numbers, chosen, strict=True):
            targets[target].append(number)
        for target, its in targets.items():
            moves += await plan_moves(cluster, view.name, its, target)
    return moves


async def check_nodes(cluster: ClusterClient, topic: str, group: str, min_insync: int) -> None:
    """Check that a group can take messages of a topic; its nodes that are away count.

    Raises:
        InvalidArgument: It has fewer nodes than ``min_insync``.
    """
    state = await registry.read_state(cluster.coordinator, group)
    nodes = await group_views.known_nodes(cluster.coordinator, group, state)
    why = too_few_nodes(max(1, len(nodes)), min_insync)
    if why is not None:
        raise InvalidArgument(
            f"group {group!r} {why}: topic {topic!r} would take no message there; start more "
            "nodes of the group, or set the topic's min_insync lower"
        )


async def need_master(cluster: ClusterClient, group: str, which: str) -> tuple[NodeInfo, int]:
    """Return the master of a group and its epoch.

    Raises:
        NotMaster: It has none.
    """
    master = await master_and_epoch(cluster, group)
    if master is None:
        raise NotMaster(f"{which} group {group!r} has no running master; start its broker first")
    return master


async def _moved(_: ClusterClient, arguments: Mapping[str, Any]) -> int:
    return len(arguments["planned"])


@audited(partitions=_moved)
async def move_all(cluster: ClusterClient, planned: Sequence[Move]) -> list[Moved]:
    """Carry out planned moves, one after the other: an error leaves the rest where it was.

    Copies nothing. What is there stays readable where it was written; producers and consumers
    follow by themselves.

    Raises:
        CoordinationError: A partition was changed meanwhile; it was not moved.
        Refused: A broker refused; that partition was not moved.
        OutcomeUnknown: A step did not come back; ``describe_topic`` says whether it was moved.
        ChangeUnknown: ZooKeeper went away; that partition is moved or not.
    """
    done = []
    for each in planned:
        name, number = each.placement.topic, each.placement.partition
        with unknown_when_cut(f"moving {name}-{number}"):
            offset = await carry_out(cluster, each)
        done.append(Moved(name, number, each.source.group, each.target.group, offset))
    return done


async def carry_out(cluster: ClusterClient, planned: Move, *, only_if: Sequence[Check] = ()) -> int:
    """Move one partition; return the offset at which the new group goes on.

    ``only_if`` must hold when the tree is changed, such as that a lease is held.

    Raises:
        BadVersion: Somebody else changed the partition meanwhile, or one of the groups has another
            master; nothing was moved.
        OutcomeUnknown, CoordinationError: A step did not come back. Only the last one changes
            anything for others: the topic's description says whether the partition has moved.
        VqError: A broker refused; nothing was moved.
    """
    try:
        async with asyncio.timeout(MOVE_TIMEOUT_S):
            return await _carry_out(cluster, planned, only_if)
    except TimeoutError:
        raise TimedOut(
            f"moving {planned.placement.topic}-{planned.placement.partition} took longer than "
            f"{MOVE_TIMEOUT_S:g} s; `vq topic describe` says whether it has moved"
        ) from None


async def _carry_out(cluster: ClusterClient, planned: Move, only_if: Sequence[Check]) -> int:
    if not planned.is_new_log:
        await cluster.request(planned.target.address, Command.PING, PingRequest())
    try:
        sealed = await seal(cluster, planned)
        if not planned.is_new_log:
            await adopt(cluster, planned, sealed)
        await place(cluster, planned, sealed, only_if=only_if)
    except BaseException:
        await asyncio.shield(_undo(cluster, planned))
        raise
    return sealed.end_offset


async def _undo(cluster: ClusterClient, planned: Move) -> None:
    """Have the old master take appends again, unless the partition has moved all the same.

    Safe whatever became of the steps: they rest on the version that is raised here.
    """
    name, number = planned.placement.topic, planned.placement.partition
    try:
        bound = bound_s(
            UNDO_TIMEOUT_S,
            calls=_UNDO_CALLS,
            round_trip_s=cluster.coordinator.round_trip_s,
            most_s=MOVE_TIMEOUT_S,
        )
        async with asyncio.timeout(bound):
            await topics.touch_partition(cluster.coordinator, name, number, planned.version)
    except (CoordinationError, UnknownTopic, TimeoutError) as error:
        logger.debug("a seal is left to its broker", topic=name, partition=number, error=error)


async def seal(cluster: ClusterClient, planned: Move) -> SealResponse:
    """First step of a move: the old master ends its appends and returns the end."""
    request = SealRequest(
        topic=planned.placement.topic,
        partition=planned.placement.partition,
        placement_version=planned.version,
        topic_id=planned.view.id,
    )
    sealed, _ = await cluster.request(planned.source.address, Command.SEAL, request)
    assert isinstance(sealed, SealResponse)
    return sealed


def next_number(sealed: SealResponse) -> int | None:
    """Return the number of the first message behind a sealed log; None: not known."""
    return sealed.next_number if sealed.number_known else None


async def adopt(cluster: ClusterClient, planned: Move, sealed: SealResponse) -> None:
    """Second step of a move: the new master prepares the log that goes on there."""
    number = next_number(sealed)
    request = AdoptRequest(
        topic=planned.placement.topic,
        partition=planned.placement.partition,
        topic_id=planned.view.id,
        start_offset=sealed.end_offset,
        producers=sealed.producers,
        placement_version=planned.version,
        number=number or 0,
        number_known=number is not None,
    )
    await cluster.request(planned.target.address, Command.ADOPT, request)


async def place(
    cluster: ClusterClient, planned: Move, sealed: SealResponse, *, only_if: Sequence[Check] = ()
) -> None:
    """Last step of a move, and the one that counts: the tree names the new group."""
    if planned.is_new_log:
        moved = begin_range(planned.placement, sealed.end_offset, next_number(sealed))
    else:
        group, number = planned.target.group, next_number(sealed)
        moved = move(planned.placement, sealed.end_offset, group, number)
    try:
        await topics.change_placement(
            cluster.coordinator, planned.view, moved, epochs=planned.epochs, only_if=only_if
        )
    except BadVersion as error:
        name, number = planned.placement.topic, planned.placement.partition
        refused = BadVersion(
            error.path,
            f"{name}-{number} was not moved: it was changed, or a group has another master",
        )
        refused.hint = (
            "wait until `vq cluster status` shows the masters of both groups, and repeat the move"
        )
        raise refused from error
