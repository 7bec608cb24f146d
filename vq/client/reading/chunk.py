"""The answer to one read: bytes of a partition, or the records that a filter let through. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from vq.limits import FETCH_ANSWER_BYTES
from vq.remoting.wire_pb2 import FetchResult, GetResponse


class Chunk(NamedTuple):
    """One reply: the bytes ``[offset, next_offset)`` of the partition, or the matching records.

    ``offsets`` is None for raw bytes; for a filtered reply it has the offset of every record in
    ``body``, and ``next_offset`` is where reading goes on. ``at_end``: there were no bytes behind
    these, so that the last record must be whole.
    """

    offset: int
    next_offset: int
    body: bytes
    offsets: Sequence[int] | None
    at_end: bool = False

    @property
    def size(self) -> int:
        """What it counts for in the prefetch bound: a filter may leave many without a record."""
        return len(self.body) + FETCH_ANSWER_BYTES


class Rest(NamedTuple):
    """The beginning of a record that goes on in the next chunk.

    Attributes:
        size: The bytes that are there.
        missing: Those that it lacks, as far as can be told from them; more than 0 if ``size`` is.
    """

    size: int = 0
    missing: int = 0


NO_REST = Rest()


def chunk_of(response: GetResponse | FetchResult, body: bytes) -> Chunk:
    """Return the reply to a GET, or a result of a FETCH, as a chunk."""
    if response.filtered:
        return Chunk(response.offset, response.next_offset, body, list(response.offsets))
    end = response.offset + len(body)
    return Chunk(response.offset, end, body, None, at_end=end == response.high_watermark)
