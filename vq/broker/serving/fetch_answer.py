"""The answer to one FETCH while it is gathered, and the request that waits for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.broker.base.session import Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context, LaterCall
from vq.broker.partition.places import last_epoch
from vq.broker.partition.ranges import earliest, holding
from vq.broker.serving.fetched_partition import FetchedPartition
from vq.errors import VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.frames import Buffer
from vq.remoting.messages import describe_error

#: A request may be answered so much before its time is up.
TIMER_S: Final = 0.002
#: Header bytes that a result takes at most in either encoding, its error and offsets not counted,
#: and each of its offsets.
_RESULT_BYTES: Final = 224
_OFFSET_BYTES: Final = 10
#: An answer takes no further result beyond this; the largest one still fits behind it.
HEADER_BYTES_MAX: Final = limits.FRAME_HEADER_BYTES_MAX - 256 * limits.KIB


@dataclass(slots=True)
class FetchWait:
    """A FETCH that waits for its answer.

    Attributes:
        max_bytes: What the answer should have at most.
        wait_s: How long the client wants to wait for something to tell.
        until: When that time is up; monotonic.
        timed_out: It is up, or was none.
        again: The request may be answered more than once.
    """

    request_id: RequestId
    max_bytes: int
    wait_s: float
    until: float
    timed_out: bool
    again: bool = False


class FetchTimer:
    """One timer for many requests of a session: as a rule each is answered long before its time.

    Args:
        context: Has the clock, and sets timers.
        ring: Called when the time may be up, see ``ends``.
    """

    __slots__ = ("_context", "_ring", "_rings_at", "_timer")

    def __init__(self, context: Context, ring: Callable[[], None]) -> None:
        self._context = context
        self._ring = ring
        self._timer: LaterCall | None = None
        self._rings_at = 0.0

    def set(self, until: float) -> None:
        """Ring at the latest then."""
        if self._timer is None or until < self._rings_at:
            self.stop()
            self._rings_at = until
            left_s = until - self._context.clock.monotonic()
            self._timer = self._context.call_later(left_s, self._rings)

    def _rings(self) -> None:
        self._timer = None
        self._ring()

    def ends(self, until: float) -> bool:
        """Whether it has rung for that time; else it rings again then. Called when it rings."""
        if until - self._rings_at <= TIMER_S:
            return True
        self.set(until)
        return False

    def stop(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FetchAnswer:
    """The results gathered so far, and their bytes.

    Attributes:
        may_be_empty: It is sent when the time is up, also with nothing to tell.
        parts: The body.
        results: How many partitions it tells of.
        errors: How many of the results are errors.
        size: Of the body.
        scans: Steps of filters that were done for it.
        told: The partitions of results, where the next read of each begins, and its bytes.
    """

    __slots__ = (
        "_header_bytes",
        "_response",
        "errors",
        "parts",
        "results",
        "scans",
        "size",
        "told",
    )

    may_be_empty = True

    def __init__(self) -> None:
        self._response = wire.FetchResponse()
        self.parts: list[Buffer] = []
        self.size = 0
        self.scans = 0
        self.results = 0
        self.errors = 0
        self.told: list[tuple[FetchedPartition, int, int]] = []
        self._header_bytes = 0

    def is_full(self, max_bytes: int) -> bool:
        """Whether it takes no further result, when its body should have ``max_bytes`` at most."""
        return (
            self.size >= max_bytes
            or self._header_bytes >= HEADER_BYTES_MAX
            or self.results >= limits.FETCH_PARTITIONS_PER_REQUEST_MAX
        )

    def add(
        self,
        fetched: FetchedPartition,
        channel: Channel,
        next_offset: int,
        slices: list[memoryview],
        offsets: list[int],
    ) -> None:
        """Add what was read of a partition, perhaps nothing; the next read begins behind it."""
        size = sum(map(len, slices))
        self._response.results.add(
            handle=fetched.handle,
            offset=fetched.offset,
            next_offset=next_offset,
            high_watermark=channel.high_watermark,
            log_start_offset=earliest(channel),
            epoch=channel.read_epoch,
            last_epoch=last_epoch(holding(channel, next_offset - 1), next_offset),
            size=size,
            filtered=fetched.is_filtered,
            offsets=offsets,
            deleted_before=fetched.told_deleted,
        )
        self.results += 1
        self.told.append((fetched, next_offset, size))
        self.parts += slices
        self.size += size
        self._header_bytes += _RESULT_BYTES + _OFFSET_BYTES * len(offsets)

    def add_error(self, handle: int, offset: int, error: VqError) -> None:
        """Add a result that is an error."""
        result = self._response.results.add(handle=handle, offset=offset)
        describe_error(error, result)
        self.results += 1
        self.errors += 1
        self._header_bytes += _RESULT_BYTES + 2 * result.ByteSize()

    def send_again(self, session: Session, request_id: RequestId) -> bool:
        """Answer a request with it, if all partitions can be asked for again with what is left.

        Returns:
            Whether it was answered; then further answers follow.
        """
        if self.errors or not all(each.may_go_on(offset, size) for each, offset, size in self.told):
            return False
        return session.reply_again(request_id, self._response, self.parts)

    def send(self, session: Session, request_id: RequestId) -> None:
        """Answer a request with it."""
        reply(session, request_id, self._response, self.parts)


def reply(
    session: Session,
    request_id: RequestId,
    response: wire.FetchResponse | wire.GetResponse,
    parts: list[Buffer],
) -> None:
    """Answer with a body of these parts."""
    if len(parts) == 1:
        session.reply(request_id, response, parts[0])
    else:
        session.reply_parts(request_id, response, parts)
