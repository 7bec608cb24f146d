"""The answer to one FETCH while it is gathered, and the request that waits for it."""

from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.broker.partition.context import Timer
from vq.errors import VqError
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.frames import Buffer
from vq.remoting.messages import describe_error

#: Header bytes that a result takes at most in either encoding, its error and offsets not counted,
#: and each of its offsets.
_RESULT_BYTES: Final = 224
_OFFSET_BYTES: Final = 10
#: An answer takes no further result beyond this; the largest one still fits behind it.
_HEADER_BYTES_MAX: Final = limits.FRAME_HEADER_BYTES_MAX - 256 * limits.KIB


@dataclass(slots=True)
class FetchWait:
    """A FETCH that waits for its answer.

    Attributes:
        max_bytes: What the answer should have at most.
        wait_s: How long the client wants to wait for something to tell.
        timed_out: That time is up, or was none.
        timer: Of that time.
    """

    request_id: RequestId
    max_bytes: int
    wait_s: float
    timed_out: bool
    timer: Timer | None = None

    def stop_timer(self) -> None:
        """Be told no more when the time is up."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class FetchAnswer:
    """The results gathered so far, and their bytes.

    Attributes:
        response: The header.
        parts: The body.
        size: Of the body.
        scans: Steps of filters that were done for it.
    """

    __slots__ = ("_header_bytes", "parts", "response", "scans", "size")

    def __init__(self) -> None:
        self.response = wire.FetchResponse()
        self.parts: list[Buffer] = []
        self.size = 0
        self.scans = 0
        self._header_bytes = 0

    @property
    def has_results(self) -> bool:
        """Whether there is something to tell."""
        return bool(self.response.results)

    def is_full(self, max_bytes: int) -> bool:
        """Whether it takes no further result, when its body should have ``max_bytes`` at most."""
        return (
            self.size >= max_bytes
            or self._header_bytes >= _HEADER_BYTES_MAX
            or len(self.response.results) >= limits.FETCH_PARTITIONS_PER_REQUEST_MAX
        )

    def add(self, result: wire.FetchResult, slices: list[memoryview], offsets: list[int]) -> None:
        """Count a result that was added to the response, with its bytes."""
        self.parts += slices
        self.size += result.size
        self._header_bytes += _RESULT_BYTES + _OFFSET_BYTES * len(offsets)

    def add_error(self, handle: int, offset: int, error: VqError) -> None:
        """Add a result that is an error."""
        result = self.response.results.add(handle=handle, offset=offset)
        describe_error(error, result)
        self._header_bytes += _RESULT_BYTES + 2 * result.ByteSize()
