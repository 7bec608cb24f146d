"""A partition that is read, as fetch sessions and the buffer space see it."""

from typing import Protocol

from vq.errors import VqError
from vq.message_filter import Filter
from vq.model import TopicPartition
from vq.remoting.wire_pb2 import FetchResult


class Asker(Protocol):
    """One partition that is read; in practice a ``fetcher.PartitionFetcher``.

    Attributes:
        asked: Bytes asked for that have not come yet; 0 when it waits for no answer.
        buffered: Bytes that have come and are not consumed, the beginning of a record included.
        missing: Bytes it must ask for at least to go on, while it waits for space.
        behind: More data are known to be there.
        at_once: It wants an answer also when there are no data: after an error, only an answer
            shows that the error is over.
        last_epoch: Of the batch before its position, as an answer told it; 0: not known.
        unsure: A broker has come up anew, so whoever answers next must have what was read.
    """

    partition: TopicPartition
    position: int
    validate: bool
    topic_id: str
    wanted: Filter
    asked: int
    buffered: int
    at_once: bool

    @property
    def unsure(self) -> bool: ...

    @property
    def last_epoch(self) -> int: ...

    @property
    def missing(self) -> int: ...

    @property
    def behind(self) -> bool: ...

    def count(self) -> None:
        """Report ``asked`` and ``buffered`` to the buffer space, as they are now."""
        ...

    def go_on(self) -> None:
        """There may be space now for what is ``missing``."""
        ...

    def took(self, result: FetchResult, body: bytes, *, again: bool = False) -> None:
        """The answer: bytes at ``position``.

        With ``again`` what follows them is asked for already, with what is left of ``asked``.
        """
        ...

    def failed(self, error: VqError) -> None:
        """The answer: why there are none. It asks again when that may help."""
        ...

    def delayed(self, error: VqError, answered_at: float | None = None) -> None:
        """Why it is asked for once more; the answer comes later.

        ``answered_at``: when the broker last answered, by the loop's time, for whatever partition:
        one without new messages has no answer of its own.
        """
        ...
