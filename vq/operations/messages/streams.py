"""The messages of a topic without a group: from places that are chosen, merged by their time.

Loop-bound functions on a ``ClusterClient``. Nothing is committed. Memory: for each partition one
answer of a broker, which is smaller the more partitions there are.
"""

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from vq import limits
from vq.bounds import check_between
from vq.client.cluster import ClusterClient
from vq.client.reading.decode import Decoder
from vq.client.reading.forward import BEHIND_S, ReadOptions
from vq.client.reading.partition_reader import PartitionReader
from vq.client.reading.tail import merge_last
from vq.coordination.topics import topics
from vq.errors import (
    Busy,
    InvalidArgument,
    OffsetOutOfRange,
)
from vq.message_filter import ALL, Filter
from vq.model import Message, OffsetBounds, PartitionPlacement, TopicPartition, time_ms_of
from vq.operations.messages.stored import COUNT_MAX
from vq.operations.partitions.offsets import Inspector, PartitionEnds, check_time, no_answer
from vq.tasks import begin_task

#: Bytes of answers that all partitions together hold, and the least of one.
_BYTES_MAX: Final = 16 * limits.MIB
_BYTES_MIN: Final = 4 * limits.KIB
#: Partitions that are followed at once: each has a request that waits.
FOLLOWED_MAX: Final = 256
#: Messages that are yielded together at most.
_READY_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where reading begins; at most one field is set, none: at the oldest message kept.

    Attributes:
        latest: At the end: only messages that come from now on.
        since_ms: At the first message stored at or after this time, in ms since 1970 UTC.
        offset: Where a record starts; of one partition.
        last: So many messages before the end, the newest of all partitions; 1 to 100,000.
    """

    latest: bool = False
    since_ms: int | None = None
    offset: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        given = [each for each in (self.since_ms, self.offset, self.last) if each is not None]
        if len(given) + self.latest > 1:
            raise InvalidArgument("give one of latest, since_ms, offset and last")
        if self.since_ms is not None:
            check_time("since_ms", self.since_ms)
        if self.last is not None:
            check_between("last", self.last, 1, COUNT_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where reading ends; at most one field is set, none: at the end.

    Attributes:
        until_ms: Before the first message stored at or after this time, in ms since 1970 UTC.
        offset: Before the message that starts there, or behind it; of one partition.
    """

    until_ms: int | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        if self.until_ms is not None and self.offset is not None:
            raise InvalidArgument("give one of until_ms and offset")
        if self.until_ms is not None:
            check_time("until_ms", self.until_ms)


@dataclass(frozen=True, slots=True)
class _Part:
    """One partition that is read, from ``start``; it ended at ``end`` when reading began."""

    reader: PartitionReader
    start: int
    end: int


async def messages(
    cluster: ClusterClient,
    topic: str,
    begin: Begin,
    *,
    partitions: Sequence[int] = (),
    wanted: Filter = ALL,
    follow: bool = False,
    end: End | None = None,
) -> AsyncGenerator[Sequence[Message], None]:
    """Yield messages of a topic up to its present end; with ``follow`` also those that come later.

    ``end`` says where to end before that; not with ``follow``.

    Up to the present end they are in the order of the times at which they were sent, as far as the
    order within each partition allows it; later ones are in the order in which they come.

    Raises:
        UnknownTopic, UnknownPartition: There is none; or it was deleted meanwhile, also if another
            one has its name now.
        InvalidArgument: An offset for several partitions, or too many partitions to follow.
        OffsetOutOfRange, OffsetNotBoundary: The partition has no such offset.
        NotMaster: A broker that must be asked does not answer.
        Busy: A broker serves less than there was when reading began.
        CorruptData: A message is damaged; those before it were yielded.
    """
    placements = await _placements(cluster, topic, partitions)
    if follow and len(placements) > FOLLOWED_MAX:
        raise InvalidArgument(
            f"{len(placements)} partitions are too many to follow without a group, which takes at "
            f"most {FOLLOWED_MAX}; name some, or give a group"
        )
    size = max(_BYTES_MIN, min(limits.MIB, _BYTES_MAX // max(1, len(placements))))
    parts = await _parts(cluster, placements, begin, end or End())
    if begin.last is not None:
        parts = await _last(parts, begin.last, wanted, size)
    async for some in _merged(parts, wanted, size):
        yield some
    if follow:
        async for some in _followed(parts, wanted, size):
            yield some


async def _placements(
    cluster: ClusterClient, topic: str, only: Sequence[int]
) -> list[PartitionPlacement]:
    view = await topics.describe_topic(cluster.coordinator, topic)
    for number in only:
        topics.check_partition(view, number)
    return [each for each in view.partitions if not only or each.partition in only]


async def _parts(
    cluster: ClusterClient, placements: Sequence[PartitionPlacement], begin: Begin, end: End
) -> list[_Part]:
    """Return the partitions with their places; ``last`` begins at the oldest message for now."""
    if (begin.offset is not None or end.offset is not None) and len(placements) != 1:
        raise InvalidArgument(
            f"an offset means one partition; {len(placements)} are read: name one"
        )
    inspector = Inspector(cluster)
    ends = await asyncio.gather(*(inspector.ends(each) for each in placements))
    found = []
    for placement, known in zip(placements, ends, strict=True):
        partition = TopicPartition(placement.topic, placement.partition)
        if known is None:
            raise no_answer(partition)
        start = await _start(inspector, placement, known, begin)
        last = await _end(inspector, placement, known, end)
        found.append(_Part(PartitionReader(cluster, partition), start, last))
    return found


async def _end(
    inspector: Inspector, placement: PartitionPlacement, ends: PartitionEnds, end: End
) -> int:
    if end.offset is not None:
        return min(end.offset, ends.latest)
    if end.until_ms is None:
        return ends.latest
    found = await inspector.offset_at_time(placement, end.until_ms)
    if found is None:
        raise no_answer(TopicPartition(placement.topic, placement.partition))
    return min(found, ends.latest)


async def _start(
    inspector: Inspector, placement: PartitionPlacement, ends: PartitionEnds, begin: Begin
) -> int:
    if begin.latest:
        return ends.latest
    if begin.offset is not None:
        if not ends.earliest <= begin.offset <= ends.latest:
            raise OffsetOutOfRange(
                f"offset {begin.offset} of {placement.topic}-{placement.partition} is outside "
                f"[{ends.earliest}, {ends.latest}]",
                details={"earliest": ends.earliest, "latest": ends.latest},
            )
        return begin.offset
    if begin.since_ms is None:
        return ends.earliest
    found = await inspector.offset_at_time(placement, begin.since_ms)
    if found is None:
        raise no_answer(TopicPartition(placement.topic, placement.partition))
    return min(max(found, ends.earliest), ends.latest)


# One partition --------------------------------------------------------------------------------
async def _read(
    part: _Part, wanted: Filter, size: int, *, follow: bool = False
) -> AsyncIterator[Sequence[Message]]:
    """Yield the messages that start in ``[start, end)``; with ``follow`` all from ``end`` on."""
    start, end = (part.end, None) if follow else (part.start, part.end)
    read = part.reader.read(
        start,
        Decoder(part.reader.partition, wanted=wanted),
        end,
        size=size,
        wait_s=limits.LONG_POLL_S_MAX if follow else 0.0,
        options=ReadOptions(wanted=wanted, patience_s=math.inf if follow else BEHIND_S),
    )
    try:
        async for found in read:
            inside = found if end is None else [each for each in found if each.offset < end]
            if inside:
                yield inside
    except OffsetOutOfRange as error:
        latest = error.details.get("latest")
        if end is None or not isinstance(latest, int) or latest >= end:
            raise
        raise Busy(
            f"{part.reader.partition} ended at offset {end} when reading began, and its broker "
            f"serves offsets up to {latest} only: what follows was lost in a take-over, or its "
            "nodes do not have it yet",
            hint="try again; `vq cluster status` tells of the nodes, and of what was lost",
        ) from error


# Several --------------------------------------------------------------------------------------
async def _merged(
    parts: Sequence[_Part], wanted: Filter, size: int
) -> AsyncIterator[Sequence[Message]]:
    """Yield the messages of all partitions, the one that was sent first before the others."""
    streams = [_read(part, wanted, size) for part in parts]
    waiting: list[deque[Message]] = [deque() for _ in parts]
    heap: list[tuple[int, int]] = []

    async def queue(index: int) -> None:
        """Put the next message of a partition into the heap."""
        while not waiting[index]:
            try:
                waiting[index].extend(await anext(streams[index]))
            except StopAsyncIteration:
                return
        heapq.heappush(heap, (waiting[index][0].id, index))

    for index in range(len(parts)):
        await queue(index)
    ready: list[Message] = []
    while heap:
        _, index = heapq.heappop(heap)
        ready.append(waiting[index].popleft())
        if not waiting[index] or len(ready) >= _READY_MAX:
            yield ready  # before the next request, which may take long or fail
            ready = []
        await queue(index)
    if ready:
        yield ready


class _Mark(NamedTuple):
    """What is kept of a message while the last ones of several partitions are looked for."""

    offset: int
    sent_ms: int
    part: int  # the index of its partition


async def _last(parts: Sequence[_Part], count: int, wanted: Filter, size: int) -> list[_Part]:
    """Return the partitions with the places from which they have the last ``count`` messages.

    Two passes: this one keeps a time and an offset of each message, and no contents.
    """
    newest: list[_Mark] = []
    for index, part in enumerate(parts):
        newest = merge_last(
            [newest, await _tail(part, index, count, wanted, size)], count, _sent_ms
        )
    starts = [part.end for part in parts]
    for mark in newest:
        starts[mark.part] = min(starts[mark.part], mark.offset)
    return [_Part(part.reader, start, part.end) for part, start in zip(parts, starts, strict=True)]


def _sent_ms(mark: _Mark) -> int:
    return mark.sent_ms


async def _tail(part: _Part, index: int, count: int, wanted: Filter, size: int) -> list[_Mark]:
    """Return marks of the last messages of a partition; the times do not fall."""

    found = await part.reader.last(
        OffsetBounds(part.start, part.end),
        count,
        lambda: Decoder(part.reader.partition, wanted=wanted),
        lambda message: _Mark(message.offset, time_ms_of(message.id), index),
        size=size,
        wanted=wanted,
    )
    latest = itertools.accumulate((mark.sent_ms for mark in found), max)
    return [mark._replace(sent_ms=ms) for mark, ms in zip(found, latest, strict=True)]


async def _followed(
    parts: Sequence[_Part], wanted: Filter, size: int
) -> AsyncIterator[Sequence[Message]]:
    """Yield what comes after the ends of partitions, until one of them cannot be read."""
    arrived: asyncio.Queue[Sequence[Message] | Exception] = asyncio.Queue(maxsize=len(parts))

    async def follow(part: _Part) -> None:
        try:
            async for some in _read(part, wanted, size, follow=True):
                await arrived.put(some)
        except Exception as error:  # noqa: BLE001 - raised below, behind what came before it
            await arrived.put(error)

    tasks = [begin_task(follow(part)) for part in parts]
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
