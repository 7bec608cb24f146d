"""What the asking end of a fetch session knows: FETCH of clients, REPLICATE of copies. Sans I/O.

In here: the handles of partitions, what the next requests name, and which bytes of an answer are
whose. When a request leaves, and what is done with the bytes, is up to the caller.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from vq import limits
from vq.errors import ProtocolError
from vq.remoting.wire_pb2 import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ReplicateRequest,
)

#: Of a header; what is left goes into the next request.
_ITEMS_BYTES_MAX = limits.FRAME_HEADER_BYTES_MAX // 2
#: An item's tag and length, and what the caller adds to it.
_ITEM_BYTES = 32

P = TypeVar("P")


class FetchState(Generic[P]):
    """A session, of partitions ``P``.

    Attributes:
        parts: By handle; also those that rest.
        items: By handle what is asked for and was not sent yet.
        unanswered: How many requests have no answer yet.
    """

    def __init__(self) -> None:
        self.parts: dict[int, P] = {}
        self.items: dict[int, FetchPartition] = {}
        self.unanswered = 0
        self._handles: dict[P, int] = {}
        self._last_handle = 0
        self._removed: list[int] = []  # not sent yet
        self._sequence = 0

    def __len__(self) -> int:
        """How many partitions there are."""
        return len(self.parts)

    def __contains__(self, part: object) -> bool:
        """Whether a partition is in the session."""
        return part in self._handles

    def place(self, part: P) -> tuple[int, bool]:
        """Return the handle of a partition, and whether the next item must say which one it is."""
        handle = self._handles.get(part)
        if handle is not None:
            item = self.items.get(handle)
            return handle, item is not None and bool(item.topic)
        # Never one that was used: an answer to what was removed may be on its way.
        self._last_handle += 1
        self._handles[part] = self._last_handle
        self.parts[self._last_handle] = part
        return self._last_handle, True

    def ask(self, item: FetchPartition) -> None:
        """Have the next request ask for this."""
        self.items[item.handle] = item

    def drop(self, part: P) -> None:
        """Forget a partition that the broker has dropped."""
        handle = self._handles.pop(part)
        del self.parts[handle]
        self.items.pop(handle, None)

    def remove(self, part: P) -> None:
        """Forget a partition, and have the broker forget it."""
        handle = self._handles[part]
        item = self.items.get(handle)
        if item is None or not item.topic:
            self._removed.append(handle)
        self.drop(part)

    @property
    def changed(self) -> bool:
        """Whether the next request has something to tell."""
        return bool(self.items or self._removed)

    def fill(self, request: FetchRequest | ReplicateRequest, most: int) -> None:
        """Name what changed, of ``most`` partitions at most and as many as a header holds."""
        request.sequence = self._sequence
        self._sequence += 1
        request.removed.extend(self._removed)
        self._removed = []
        size = 0
        while self.items and len(request.partitions) < most:
            handle = next(iter(self.items))
            size += self.items[handle].ByteSize() + _ITEM_BYTES
            if size > _ITEMS_BYTES_MAX and request.partitions:
                return
            request.partitions.append(self.items.pop(handle))

    def results(
        self, what: str, response: FetchResponse, body: bytes
    ) -> Iterator[tuple[P, FetchResult, bytes]]:
        """Return each result of an answer with its partition and its bytes.

        Not of partitions that are not in the session any more; they may leave it meanwhile.
        ``what`` names the answer in the error.

        Raises:
            ProtocolError: The answer has not the bytes of its results.
        """
        if sum([result.size for result in response.results]) != len(body):
            raise ProtocolError(
                f"{what} has {len(body)} bytes, not those of its {len(response.results)} results"
            )
        return self._results(response, body)

    def _results(
        self, response: FetchResponse, body: bytes
    ) -> Iterator[tuple[P, FetchResult, bytes]]:
        position = 0
        for result in response.results:
            end = position + result.size
            part = self.parts.get(result.handle)
            if part is not None:  # else it was removed while this was on its way
                yield part, result, body[position:end]
            position = end
