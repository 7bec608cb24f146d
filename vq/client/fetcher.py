"""Reads one partition ahead of its consumer: raw bytes, from wherever they lie now.

Loop-bound. One GET is under way at a time; the next one leaves as soon as the reply is there and
the consumer has not fallen behind by more than the prefetch bound. The fetcher does not look at
records: a reply may end inside one, the next goes on at that very byte, and the decoder joins them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vq import limits
from vq.client.cluster import ClusterClient
from vq.errors import InternalError, OutcomeUnknown, ProtocolError, VqError
from vq.model import TopicPartition
from vq.remoting import messages
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import Header
from vq.remoting.wire_pb2 import GetRequest, GetResponse

logger = logging.getLogger(__name__)
_CHUNK_OVERHEAD_BYTES = 512
_BACKOFF_S = 0.02
_BACKOFF_MAX_S = 1.0
#: Pauses before bytes that failed a check are read again: long enough that damage on disk, which
#: stays, costs next to nothing.
_AGAIN_S = 0.1
_AGAIN_MAX_S = 30.0
#: A broker that has not answered this long after the hold ended is asked again elsewhere.
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Chunk:
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
        return len(self.body) + _CHUNK_OVERHEAD_BYTES


def chunk_of(response: GetResponse, body: bytes) -> Chunk:
    """Return the reply to a GET as a chunk."""
    if response.filtered:
        return Chunk(response.offset, response.next_offset, body, list(response.offsets))
    end = response.offset + len(body)
    return Chunk(response.offset, end, body, None, at_end=end == response.high_watermark)


class PartitionFetcher:
    """Fetches from ``offset`` on until stopped; hands chunks to ``on_chunk`` in order."""

    def __init__(
        self,
        cluster: ClusterClient,
        where: TopicPartition,
        offset: int,
        *,
        length: int,
        prefetch_bytes: int,
        max_wait_s: float,
        tags: Sequence[str],
        on_chunk: Callable[[Chunk], None],
        on_error: Callable[[VqError | None], None],
    ) -> None:
        self.where = where
        self.position = offset
        self.high_watermark = -1  # unknown until the first reply
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._length = min(length, limits.FETCH_BYTES_MAX)
        self._prefetch_bytes = prefetch_bytes
        self._max_wait_s = max_wait_s
        self._tags = list(tags)
        view = cluster.routes.topics.get(where.topic)
        self._topic_id = view.id if view is not None else ""  # offsets mean nothing elsewhere
        self._on_chunk = on_chunk
        self._on_error = on_error  # None: what was told before is over
        self._told = False
        self._buffered = 0
        self._request = 0  # number of the GET under way, 0: none; later answers to others are stale
        self._requests = 0
        self._validate = True
        self._stopped = False
        self._backoff_s = _BACKOFF_S
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.Task[None] | None = None  # reads bytes that failed a check once more
        self._again_at = -1
        self._again_tries = 0
        self._remove_listener = cluster.on_change(self._maybe_fetch)

    def start(self) -> None:
        """Begin to fetch."""
        self._maybe_fetch()

    def stop(self) -> None:
        """Fetch no more; a reply under way is dropped."""
        self._stopped = True
        self._remove_listener()
        if self._timer is not None:
            self._timer.cancel()
        if self._again is not None:
            self._again.cancel()

    def fetch_again(self, offset: int) -> None:
        """Forget what was fetched; read from ``offset`` on, after a pause, on a new connection.

        For bytes that failed a check: they may have been damaged on the way, by this connection or
        by what lies between, or on the broker's disk, where they may be put right.
        """
        if self._stopped:
            return
        self._again_tries = self._again_tries + 1 if offset == self._again_at else 1
        self._again_at = self.position = offset
        self._buffered = 0
        self._request = 0
        self._validate = True
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.create_task(self._fetch_again())

    async def _fetch_again(self) -> None:
        pause = min(_AGAIN_S * 2 ** min(self._again_tries - 1, 16), _AGAIN_MAX_S)
        await asyncio.sleep(pause * (0.75 + 0.5 * self._cluster.rng.random()))
        offset = self.position
        try:
            address, epoch = self._cluster.master_at(self.where, offset)
            request = self._get_request(epoch, max_wait_s=0.0)
            response, body = await self._cluster.request(
                address, Command.GET, request, timeout=_GRACE_S, anew=True
            )
        except VqError as error:
            self._again = None
            self._failed(error)
            return
        self._again = None
        self._take(response, body)

    def consumed(self, size: int) -> None:
        """The consumer is done with ``size`` bytes of chunks."""
        self._buffered -= size
        self._maybe_fetch()

    def _maybe_fetch(self) -> None:
        if (
            self._stopped
            or self._request
            or self._timer is not None
            or self._again is not None
            or self._buffered >= self._prefetch_bytes
        ):
            return
        try:
            address, epoch = self._cluster.master_at(self.where, self.position)
        except VqError as error:
            self._failed(error)
            return
        connection = self._cluster.live_connection(address)
        if connection is None:
            return  # called again when the attempt to connect has ended
        header = self._get_request(epoch, max_wait_s=self._max_wait_s).SerializeToString()
        self._requests += 1
        number = self._request = self._requests
        timer = self._loop.call_later(
            self._max_wait_s + _GRACE_S, self._no_answer, number, connection.close
        )

        def on_reply(frame: Frame | None) -> None:
            timer.cancel()
            if number == self._request and not self._stopped:
                self._request = 0
                self._on_reply(frame)

        try:
            connection.send(Command.GET, header, b"", on_reply)
        except VqError:  # it has just ended, or takes no more for now
            timer.cancel()
            self._request = 0
            self._retry_later()

    def _get_request(self, epoch: int, *, max_wait_s: float) -> GetRequest:
        return GetRequest(
            topic=self.where.topic,
            partition=self.where.partition,
            offset=self.position,
            max_bytes=self._length,
            max_wait_ms=int(max_wait_s * 1000),
            tags=self._tags,
            validate=self._validate,
            epoch=epoch,
            topic_id=self._topic_id,
        )

    def _no_answer(self, number: int, close: Callable[[], None]) -> None:
        if number == self._request and not self._stopped:
            logger.warning("%s: the broker does not answer; connecting anew", self.where)
            close()

    def _on_reply(self, frame: Frame | None) -> None:
        if frame is None:
            self._retry_later()
            return
        try:
            response = messages.decode_reply(frame)
        except VqError as error:
            self._failed(error)
            return
        self._take(response, frame.body)

    def _take(self, response: Header, body: bytes) -> None:
        """Hand a reply on, and ask for what follows."""
        assert isinstance(response, GetResponse)
        if response.offset != self.position:
            self._failed(
                ProtocolError(
                    f"{self.where}: asked for offset {self.position}, the answer is for "
                    f"{response.offset}"
                )
            )
            return
        if self._told:
            self._told = False
            self._on_error(None)
        self._backoff_s = _BACKOFF_S
        self._validate = False
        self.high_watermark = response.high_watermark
        chunk = chunk_of(response, body)
        if chunk.next_offset > self.position:
            self.position = chunk.next_offset
            self._buffered += chunk.size
            self._on_chunk(chunk)
        self._maybe_fetch()

    def _failed(self, error: VqError) -> None:
        if error.refresh_routes:
            self._cluster.refresh(self.where.topic)
        passes = isinstance(error, OutcomeUnknown) and not isinstance(error, InternalError)
        if not (error.retriable or error.refresh_routes or passes):
            self._told = True
            self._on_error(error)
            self._backoff_s = _BACKOFF_MAX_S
        self._retry_later()

    def _retry_later(self) -> None:
        if self._timer is None and not self._stopped:
            pause = self._backoff_s * (0.5 + self._cluster.rng.random())
            self._backoff_s = min(self._backoff_s * 2, _BACKOFF_MAX_S)
            self._timer = self._loop.call_later(pause, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._maybe_fetch()
