"""The offsets that partitions hold: their ends, the one of a time, and the messages between two.

Loop-bound functions on a ``ClusterClient``. A number that no broker answers is None, never 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.bounds import check_between, check_whole
from vq.client.cluster import ClusterClient
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    InvalidArgument,
    NotAuthenticated,
    NotMaster,
    PermissionRefused,
    TimedOut,
    Unreachable,
    VqError,
)
from vq.limits import OFFSET_MAX
from vq.log_lines import get_logger
from vq.model import Address, NodeInfo, PartitionPlacement, Span, TopicPartition, time_ms_of
from vq.operations.brokers.brokers import master_and_epoch
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetRequest, GetResponse, OffsetsRequest, OffsetsResponse
from vq.store.records.format import (
    CONTROL_BYTES,
    FLAG_CONTROL,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
)
from vq.tasks import begin_task

logger = get_logger(__name__)

_TIME_MS_MAX: Final = (1 << 63) - 1
#: A control record, and the header of the message behind it.
_FIRST_BYTES: Final = CONTROL_BYTES + RECORD_HEADER_BYTES
#: Control records in a row: where a partition was moved, or its topic has copies.
_CONTROLS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class PartitionEnds:
    """The offsets a partition holds, ``[earliest, latest)``; ``log_end`` may be ahead of it.

    ``latest_number`` is the number of the first message behind ``latest``: so many messages the
    partition ever had. None: not known.
    """

    earliest: int
    latest: int
    log_end: int
    latest_number: int | None = None


async def ends_of(
    cluster: ClusterClient, placements: Sequence[PartitionPlacement], topic_id: str = ""
) -> dict[int, PartitionEnds | None]:
    """Return the ends of all partitions of a topic; ZooKeeper is asked for masters only.

    ``topic_id``: brokers tell nothing of another topic that has the name now; "": of any.

    Raises:
        NotAuthenticated: A broker does not take this user.
        PermissionRefused: The topic is not readable; ``NotAuthorized``: by this user.
    """
    inspector = Inspector(cluster, topic_id)
    ends = await gather_all(inspector.ends(each) for each in placements)
    return dict(enumerate(ends))


async def offsets_at_time(
    cluster: ClusterClient, topic: str, time_ms: int
) -> dict[int, int | None]:
    """Return, by partition, the first batch stored at or after ``time_ms`` (since 1970, UTC).

    A partition's end where none is that young; None: a broker is silent.

    Raises:
        UnknownTopic: There is no such topic.
        PermissionRefused: It is not readable.
    """
    check_time("time_ms", time_ms)
    view = await topics.describe_topic(cluster.coordinator, topic)
    inspector = Inspector(cluster)
    found = await gather_all(inspector.offset_at_time(each, time_ms) for each in view.partitions)
    return dict(enumerate(found))


async def numbers_at(
    cluster: ClusterClient, topic: str, offsets: Mapping[int, int]
) -> dict[int, int | None]:
    """Return, by partition, the number of the first message at an offset or behind it.

    The number of a message is how many messages its partition had before it, from its first one
    ever, whatever was deleted since. None: it is not known, or a broker is silent.

    Args:
        cluster: Where.
        topic: The topic.
        offsets: By partition an offset that it keeps, or its end.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        PermissionRefused: The topic is not readable.
    """
    return await _each(cluster, topic, offsets, Inspector(cluster).number_at)


async def offsets_at_numbers(
    cluster: ClusterClient, topic: str, numbers: Mapping[int, int]
) -> dict[int, int | None]:
    """Return, by partition, where the first message of a number or a higher one begins.

    A partition's end where no message has such a number; None: it is not known, or a broker is
    silent. For numbers see ``numbers_at``.

    Args:
        cluster: Where.
        topic: The topic.
        numbers: By partition a number.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        PermissionRefused: The topic is not readable.
    """
    return await _each(cluster, topic, numbers, Inspector(cluster).offset_at_number)


async def _each(
    cluster: ClusterClient,
    topic: str,
    values: Mapping[int, int],
    ask: Callable[[PartitionPlacement, int], Awaitable[int | None]],
) -> dict[int, int | None]:
    for partition, value in values.items():
        check_whole("partition", partition)
        check_whole("value", value)
        if not 0 <= value <= OFFSET_MAX:
            raise InvalidArgument(
                f"{value} of partition {partition} is no offset or number: it is outside "
                f"[0, {OFFSET_MAX}]"
            )
    view = await topics.describe_topic(cluster.coordinator, topic)
    for partition in values:
        topics.check_partition(view, partition)
    found = await gather_all(ask(view.partitions[each], at) for each, at in values.items())
    return dict(zip(values, found, strict=True))


def check_time(what: str, time_ms: int) -> None:
    """Check a time in milliseconds since 1970.

    Raises:
        InvalidArgument: It is none.
    """
    check_between(what, time_ms, 0, _TIME_MS_MAX, "ms since 1970")


def no_answer(partition: TopicPartition) -> NotMaster:
    """Return the error for a partition that no broker told about when it was asked."""
    return NotMaster(
        f"no answer from the broker of {partition}",
        hint="`vq cluster status` says why: it does not run, it cannot be reached, or it does not "
        "take this client (TLS, user)",
    )


class Inspector:
    """Asks brokers about partitions; remembers masters, so use one per question.

    It also remembers who gave no answer in time, and does not ask again: of a broker that hangs,
    thousands of partitions would each wait for the time-out. Counts take long and have a memory of
    their own.
    """

    def __init__(self, cluster: ClusterClient, topic_id: str = "") -> None:
        self._cluster = cluster
        self._topic_id = topic_id  # of the only topic that may be meant; "": any
        self._masters: dict[str, asyncio.Task[tuple[NodeInfo, int] | None]] = {}
        self._silent: set[tuple[Address, bool]] = set()  # of counts, or of all else

    async def ends(self, placement: PartitionPlacement) -> PartitionEnds | None:
        """Return the ends of a partition, None when a broker that knows one does not answer.

        Raises:
            PermissionRefused: The topic is not readable.
        """
        if not placement.spans:
            return None
        newest = await self._offsets(placement, placement.spans[-1])
        if newest is None:
            return None
        for span in placement.spans[:-1]:
            answer = await self._offsets(placement, span)
            if answer is None:
                return None
            if span.end is None or answer.earliest < span.end:  # else all of it was deleted
                return _ends(answer.earliest, newest)
        return _ends(newest.earliest, newest)

    async def ends_if_told(self, placement: PartitionPlacement) -> PartitionEnds | None:
        """Return the ends of a partition, None when a broker tells them not, for whatever cause."""
        try:
            return await self.ends(placement)
        except (NotAuthenticated, PermissionRefused):
            return None

    async def offset_at_time(self, placement: PartitionPlacement, time_ms: int) -> int | None:
        """Return the first batch stored at or after ``time_ms``, the end when none is that young.

        None when a broker that must be asked does not answer.

        Raises:
            PermissionRefused: The topic is not readable.
        """
        for span in placement.spans:
            answer = await self._ask(placement, span, OffsetsRequest(by_time=True, time_ms=time_ms))
            if answer is None:
                return None
            if span.end is None or answer.offset < span.end:
                return answer.offset
        return placement.spans[-1].end if placement.spans else None  # it takes no more messages

    async def number_at(self, placement: PartitionPlacement, offset: int) -> int | None:
        """Return the number of the first message that begins at ``offset`` or behind it.

        None when the broker that holds the offset does not know it, or does not answer.

        Raises:
            PermissionRefused: The topic is not readable.
        """
        span = placement.span_at(offset) or (placement.spans[-1] if placement.spans else None)
        if span is None:
            return None
        request = OffsetsRequest(number=True, number_offset=offset)
        answer = await self._ask(placement, span, request)
        return answer.number if answer is not None and answer.number_known else None

    async def offset_at_number(self, placement: PartitionPlacement, number: int) -> int | None:
        """Return where the first message of this number or a higher one begins; else the end.

        None when a broker that must be asked does not know it, or does not answer.

        Raises:
            PermissionRefused: The topic is not readable.
        """
        ends = [each.first_number for each in placement.spans[1:]]
        for span, end_number in zip(placement.spans, [*ends, None], strict=True):
            if end_number is not None and end_number <= number:
                continue
            request = OffsetsRequest(by_number=True, at_number=number)
            answer = await self._ask(placement, span, request)
            if answer is None or not answer.offset_known:
                return None
            if span.end is None or answer.offset < span.end:
                return answer.offset
        return placement.spans[-1].end if placement.spans else None  # it takes no more messages

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

    async def age_s(self, placement: PartitionPlacement, offset: int) -> float | None:
        """Return how long ago the first message from ``offset`` on was sent, as its id says.

        None when a broker does not answer, or there is no message.
        """
        time_ms = await self.sent_ms(placement, offset)
        if time_ms is None:
            return None
        return max(0.0, (self._cluster.clock.wall_ms() - time_ms) / 1000)

    async def sent_ms(self, placement: PartitionPlacement, offset: int) -> int | None:
        """Return when the first message from ``offset`` on was sent, in milliseconds since 1970.

        None when a broker does not answer, or there is no message.
        """
        for _ in range(_CONTROLS_MAX):
            span = placement.span_at(offset)
            found = None if span is None else await self._master(span.group)
            if found is None:
                return None
            request = GetRequest(
                topic=placement.topic,
                partition=placement.partition,
                offset=offset,
                max_bytes=_FIRST_BYTES,
                epoch=found[1],
            )
            asked = await self._request(found[0].address, Command.GET, request)
            if asked is None:
                return None
            answer, body = asked
            assert isinstance(answer, GetResponse)
            time_ms, offset = _first_time(bytes(body), offset)
            if time_ms is not None or not body:
                return time_ms
        return None

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
        request.topic_id = self._topic_id
        asked = await self._request(master.address, Command.OFFSETS, request, request.count)
        if asked is None:
            return None
        assert isinstance(asked[0], OffsetsResponse)
        return asked[0]

    async def _request(
        self, address: Address, command: int, request: Any, is_count: bool = False
    ) -> tuple[Any, bytes] | None:
        """Return the answer of a broker; None: it gives none, or refuses.

        Raises:
            NotAuthenticated: It does not take this user.
            PermissionRefused: The topic is not readable, or the user has no right to it, so its
                ends are not told.
        """
        if (address, is_count) in self._silent or (address, False) in self._silent:
            return None
        try:
            return await self._cluster.request(address, command, request)
        except (TimedOut, Unreachable):
            self._silent.add((address, is_count))
        except NotAuthenticated:
            raise  # each broker would refuse it; none of them is down
        except PermissionRefused:
            if command == Command.OFFSETS and not is_count:
                raise  # else whoever asks takes a closed topic for a broker that is down
        except VqError:
            pass
        return None

    async def _master(self, group: str) -> tuple[NodeInfo, int] | None:
        task = self._masters.get(group)
        if task is None:
            task = begin_task(self._find_master(group))
            self._masters[group] = task
        return await task

    async def _find_master(self, group: str) -> tuple[NodeInfo, int] | None:
        try:
            return await master_and_epoch(self._cluster, group)
        except Unreadable as error:
            logger.warning("master of a broker group cannot be read", group=group, error=error)
            return None


def _ends(earliest: int, newest: OffsetsResponse) -> PartitionEnds:
    number = newest.latest_number if newest.latest_number_known else None
    return PartitionEnds(earliest, newest.latest, newest.log_end_offset, number)


def _first_time(body: bytes, offset: int) -> tuple[int | None, int]:
    """Return when the first message of ``body`` was sent, and where to look on without one."""
    position = 0
    while position + RECORD_HEADER_BYTES <= len(body):
        length, _, message_id, flag = RECORD_HEADER.unpack_from(body, position)
        if not flag & FLAG_CONTROL:
            return time_ms_of(message_id), offset
        position += RECORD_HEADER_BYTES + length
    return None, offset + position
