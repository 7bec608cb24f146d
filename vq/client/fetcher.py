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
from vq.errors import OutcomeUnknown, ProtocolError, VqError
from vq.model import TopicPartition
from vq.remoting import messages
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import GetRequest, GetResponse

logger = logging.getLogger(__name__)
_CHUNK_OVERHEAD_BYTES = 512
_BACKOFF_S = 0.02
_BACKOFF_MAX_S = 1.0
#: A broker that has not answered this long after the hold ended is asked again elsewhere.
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One reply: the bytes ``[offset, next_offset)`` of the partition, or the matching records.

    ``offsets`` is None for raw bytes; for a filtered reply it has the offset of every record in
    ``body``, and ``next_offset`` is where reading goes on.
    """

    offset: int
    next_offset: int
    body: bytes
    offsets: Sequence[int] | None

    @property
    def size(self) -> int:
        """What it counts for in the prefetch bound: a filter may leave many without a record."""
        return len(self.body) + _CHUNK_OVERHEAD_BYTES


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
        on_error: Callable[[VqError], None],
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
        self._on_error = on_error
        self._buffered = 0
        self._request = 0  # number of the GET under way, 0: none; later answers to others are stale
        self._requests = 0
        self._validate = True
        self._stopped = False
        self._backoff_s = _BACKOFF_S
        self._timer: asyncio.TimerHandle | None = None
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

    def consumed(self, size: int) -> None:
        """The consumer is done with ``size`` bytes of chunks."""
        self._buffered -= size
        self._maybe_fetch()

    def _maybe_fetch(self) -> None:
        if (
            self._stopped
            or self._request
            or self._timer is not None
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
        header = GetRequest(
            topic=self.where.topic,
            partition=self.where.partition,
            offset=self.position,
            max_bytes=self._length,
            max_wait_ms=int(self._max_wait_s * 1000),
            tags=self._tags,
            validate=self._validate,
            epoch=epoch,
            topic_id=self._topic_id,
        ).SerializeToString()
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
            assert isinstance(response, GetResponse)
            if response.offset != self.position:
                raise ProtocolError(
                    f"{self.where}: asked for offset {self.position}, the answer is for "
                    f"{response.offset}"
                )
        except VqError as error:
            self._failed(error)
            return
        self._backoff_s = _BACKOFF_S
        self._validate = False
        self.high_watermark = response.high_watermark
        body = frame.body
        if response.filtered:
            chunk = Chunk(response.offset, response.next_offset, body, list(response.offsets))
        else:
            chunk = Chunk(response.offset, response.offset + len(body), body, None)
        if chunk.next_offset > self.position:
            self.position = chunk.next_offset
            self._buffered += chunk.size
            self._on_chunk(chunk)
        self._maybe_fetch()

    def _failed(self, error: VqError) -> None:
        if error.refresh_routes:
            self._cluster.refresh(self.where.topic)
        if not (error.retriable or error.refresh_routes or isinstance(error, OutcomeUnknown)):
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
