"""What operators ask of a cluster through the wire: ends of partitions, backlogs, moves.

Loop-bound functions on a ``ClusterClient``. Changes that concern ZooKeeper alone are in
``vq.coordination.topics``. What a broker that is away would have to tell is None, never 0.

A move copies nothing: the old group ends its span, the new one starts at that offset::

    SEAL at the old master     appends are refused from now on; returns the end and the producers
    ADOPT at the new master    makes an empty log that starts there and knows the producers
    compare-and-set            the partition's znode gets [old: start…end) [new: end…)

Until the last step nothing has changed for anybody: a mover that dies before leaves a seal that the
old master takes back after its ``seal_timeout_s``.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.coordination import registry, topics
from vq.coordination.allocation import pool_text
from vq.coordination.placement import move
from vq.coordination.reading import TopicView
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    NotMaster,
    TimedOut,
    UnknownPartition,
    VqError,
)
from vq.model import Address, NodeInfo, PartitionPlacement, Span
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    AdoptRequest,
    OffsetsRequest,
    OffsetsResponse,
    PingRequest,
    PingResponse,
    SealRequest,
    SealResponse,
)

#: Bound of one move from SEAL to the change in ZooKeeper. Well below the brokers' seal time-out.
MOVE_TIMEOUT_S = 10.0


# Masters and ends -----------------------------------------------------------------------------
async def master_of(cluster: ClusterClient, group: str) -> NodeInfo | None:
    """Return the registered master of a group, None while it has none."""
    found = await _master_and_epoch(cluster, group)
    return None if found is None else found[0]


async def _master_and_epoch(cluster: ClusterClient, group: str) -> tuple[NodeInfo, int] | None:
    state = await registry.read_state(cluster.coordinator, group)
    if state is None:
        return None
    node = await registry.read_node(cluster.coordinator, group, state.master)
    return None if node is None else (node, state.epoch)


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """The offsets a partition holds, ``[earliest, latest)``; ``log_end`` may be ahead of it."""

    earliest: int
    latest: int
    log_end: int


class Inspector:
    """Asks brokers about partitions; remembers masters, so use one per question."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._masters: dict[str, asyncio.Task[tuple[NodeInfo, int] | None]] = {}

    async def ends(self, placement: PartitionPlacement) -> PartitionEnds | None:
        """Return the ends of a partition, None when a broker that knows one does not answer."""
        if not placement.spans:
            return None
        newest = await self._offsets(placement, placement.spans[-1])
        oldest = newest
        if len(placement.spans) > 1:
            oldest = await self._offsets(placement, placement.spans[0])
        if newest is None or oldest is None:
            return None
        return PartitionEnds(oldest.earliest, newest.latest, newest.log_end_offset)

    async def offset_at_time(self, placement: PartitionPlacement, time_ms: int) -> int | None:
        """Return the first batch stored at or after ``time_ms``, the end when none is that young.

        None when a broker that must be asked does not answer.
        """
        for span in placement.spans:
            answer = await self._ask(placement, span, OffsetsRequest(by_time=True, time_ms=time_ms))
            if answer is None:
                return None
            if span.end is None or answer.offset < span.end:
                return answer.offset
        return None

    async def count(self, placement: PartitionPlacement, start: int, end: int) -> int | None:
        """Return how many messages lie in ``[start, end)``, None when a broker cannot tell.

        Nor can one that answers with an estimate: damage or a failing medium hides what is there.
        """
        total = 0
        for span in placement.spans:
            low, high = max(start, span.start), end if span.end is None else min(end, span.end)
            if low >= high:
                continue
            answer = await self._offsets(placement, span, low, high)
            if answer is None or not answer.count_exact:
                return None
            total += answer.count
        return total

    async def _offsets(
        self, placement: PartitionPlacement, span: Span, low: int = 0, high: int = 0
    ) -> OffsetsResponse | None:
        request = OffsetsRequest()
        if low < high:
            request.count, request.from_offset, request.to_offset = True, low, high
        return await self._ask(placement, span, request)

    async def _ask(
        self, placement: PartitionPlacement, span: Span, request: OffsetsRequest
    ) -> OffsetsResponse | None:
        found = await self._master(span.group)
        if found is None:
            return None
        master, request.epoch = found
        request.topic, request.partition = placement.topic, placement.partition
        try:
            answer, _ = await self._cluster.request(master.address, Command.OFFSETS, request)
        except VqError:
            return None
        assert isinstance(answer, OffsetsResponse)
        return answer

    async def _master(self, group: str) -> tuple[NodeInfo, int] | None:
        task = self._masters.get(group)
        if task is None:
            task = asyncio.create_task(_master_and_epoch(self._cluster, group))
            self._masters[group] = task
        return await task


async def ping(cluster: ClusterClient, address: Address) -> tuple[float, float]:
    """Return ``(round trip in seconds, the broker's clock minus ours in seconds)``.

    The difference is known to half a round trip.

    Raises:
        VqError: No answer.
    """
    clock = cluster.clock
    await cluster.connection(address)  # the connection's own cost is not part of the round trip
    wall_ms, started = clock.wall_ms(), clock.monotonic()
    answer, _ = await cluster.request(address, Command.PING, PingRequest())
    assert isinstance(answer, PingResponse)
    trip_s = clock.monotonic() - started
    return trip_s, (answer.wall_ms - wall_ms) / 1000 - trip_s / 2


# Moves ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Move:
    """One partition to be moved, as read from the tree: nothing has happened yet."""

    view: TopicView
    placement: PartitionPlacement
    source: NodeInfo
    target: NodeInfo

    @property
    def version(self) -> int:
        """Version of the partition's znode that all steps of this move rest on."""
        return self.view.partition_versions[self.placement.partition]


async def plan_moves(
    cluster: ClusterClient, topic: str, partitions: Iterable[int], group: str
) -> list[Move]:
    """Return the moves that bring ``partitions`` to ``group``; those that are there are left out.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: There is no such group, or its pool is not the topic's.
        NotMaster: The old or the new group has no master.
        CoordinationError: A partition is closed, or in the middle of another move.
    """
    view = await topics.describe_topic(cluster.coordinator, topic)
    await _check_target(cluster, view, group)
    target = await _need_master(cluster, group, "the new")
    moves = []
    for number in sorted(set(partitions)):
        if not 0 <= number < len(view.partitions):
            raise UnknownPartition(
                f"topic {topic!r} has partitions 0 to {len(view.partitions) - 1}, not {number}"
            )
        placement = view.partitions[number]
        if placement.writer_group is None:
            raise CoordinationError(
                f"{topic}-{number} is open on no group (state {placement.state}); nothing to move"
            )
        if placement.writer_group != group:
            source = await _need_master(cluster, placement.writer_group, "the old")
            moves.append(Move(view, placement, source, target))
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


async def _need_master(cluster: ClusterClient, group: str, which: str) -> NodeInfo:
    master = await master_of(cluster, group)
    if master is None:
        raise NotMaster(f"{which} group {group!r} has no running master; start its broker first")
    return master


async def carry_out(cluster: ClusterClient, planned: Move) -> int:
    """Move one partition; return the offset at which the new group goes on.

    Raises:
        BadVersion: Somebody else changed the partition meanwhile; nothing was moved.
        OutcomeUnknown, CoordinationError: A step did not come back. Only the last one changes
            anything for others: the topic's description says whether the partition has moved.
        VqError: A broker refused; nothing was moved.
    """
    try:
        async with asyncio.timeout(MOVE_TIMEOUT_S):
            return await _carry_out(cluster, planned)
    except TimeoutError:
        raise TimedOut(
            f"moving {planned.placement.topic}-{planned.placement.partition} took longer than "
            f"{MOVE_TIMEOUT_S:g} s; `vq topic describe` says whether it has moved"
        ) from None


async def _carry_out(cluster: ClusterClient, planned: Move) -> int:
    sealed = await seal(cluster, planned)
    await adopt(cluster, planned, sealed)
    await place(cluster, planned, sealed)
    return sealed.end_offset


async def seal(cluster: ClusterClient, planned: Move) -> SealResponse:
    """First step of a move: the old master ends its appends and tells where."""
    request = SealRequest(
        topic=planned.placement.topic,
        partition=planned.placement.partition,
        placement_version=planned.version,
        topic_id=planned.view.id,
    )
    sealed, _ = await cluster.request(planned.source.address, Command.SEAL, request)
    assert isinstance(sealed, SealResponse)
    return sealed


async def adopt(cluster: ClusterClient, planned: Move, sealed: SealResponse) -> None:
    """Second step of a move: the new master prepares the log that goes on there."""
    request = AdoptRequest(
        topic=planned.placement.topic,
        partition=planned.placement.partition,
        topic_id=planned.view.id,
        start_offset=sealed.end_offset,
        producers=sealed.producers,
        placement_version=planned.version,
    )
    await cluster.request(planned.target.address, Command.ADOPT, request)


async def place(cluster: ClusterClient, planned: Move, sealed: SealResponse) -> None:
    """Last step of a move, and the one that counts: the tree names the new group."""
    moved = move(planned.placement, sealed.end_offset, planned.target.group)
    await topics.change_placement(cluster.coordinator, planned.view, moved)
