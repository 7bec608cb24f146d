"""Requests that wait for a reply, and the readers that bring the replies.

Loop-bound. Before the first request nothing is made, asked or kept.

    request ─▶ topic ─▶ a listener ─▶ producer.reply ─▶ _vq.replies.<topic>, one partition of it
       ▲                                                      │ by the tag of who asks
       └────────────────────── _ReplyReader ◀─────────────────┘

A producer has one reader for all its requests to a topic. It begins at the end of a partition that
can be read now. When that one cannot be read for a while, later requests get another reader; what
waits at the first one still has until its time is up.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.producer.metrics import RequestMetrics
from vq.client.reading.decode import Decoder
from vq.client.reading.forward import ReadOptions
from vq.client.reading.partition_reader import PartitionReader
from vq.client.shared_calls import SharedCalls
from vq.coordination.topics.reserved_topics import ensure_reserved
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    OutcomeUnknown,
    TimedOut,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Message, SendResult, TopicPartition
from vq.reserved import CORRELATION, REPLY_TO, ReplyAddress, own_headers, replies_topic
from vq.shown import shown
from vq.tasks import begin_task

logger = get_logger(__name__)

#: Requests of one producer that wait for replies; one more is refused.
WAITING_MAX: Final = 65_536
#: A reader that could not read for so long gets no further requests, in seconds.
TROUBLE_S: Final = 2.0
#: How long a broker waits with an answer while there are no replies, in seconds.
_HOLD_S: Final = 10.0
#: So many answered requests are remembered, to tell a doubled reply from a late one.
_ANSWERED_MAX: Final = 1_024
_AGAIN: Final = Backoff(first_s=0.05, most_s=1.0, jitter=0.2)


class OpenRequest:
    """A request from its begin to its reply, its error, or the end of its time.

    Attributes:
        message: What is to be sent, with where the reply goes.
        sent: The callback of the send.
    """

    def __init__(
        self, reader: "_ReplyReader", message: Message, address: ReplyAddress, timeout_s: float
    ) -> None:
        headers = {**(message.headers or {}), **address.headers}
        self.message = message._replace(headers=headers)
        self._reader = reader
        self._correlation = address.correlation
        self._timeout_s = timeout_s
        self._place: SendResult | None = None
        self._unknown: VqError | None = None
        loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[Message] = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._time_is_up)

    def sent(self, result: SendResult | None, error: VqError | None) -> None:
        """Take the outcome of the send. A reply may come where that is unknown."""
        if isinstance(error, OutcomeUnknown):
            self._unknown = error
        elif error is not None:
            self.fail(error)
        self._place = result

    async def reply(self) -> Message:
        """Return the reply.

        Raises:
            Refused: The request is certainly not stored.
            TimedOut: There was none in time.
            InvalidState: The producer was closed.
        """
        return await self._reply

    def answer(self, reply: Message) -> None:
        """Take the reply."""
        self.close()
        if not self._reply.done():
            self._reply.set_result(reply)

    def fail(self, error: VqError) -> None:
        """Wait no longer."""
        self.close()
        if not self._reply.done():
            self._reply.set_exception(error)
            self._reply.exception()  # perhaps nobody asks for it

    def close(self) -> None:
        """Count a reply that comes from now on as a late one. May be called again."""
        self._timer.cancel()
        self._reader.waiting.pop(self._correlation, None)

    def _time_is_up(self) -> None:
        self._reader.counts["unanswered"] += 1
        details: dict[str, int | str] = {"correlation": self._correlation}
        if self._place is not None:
            place = self._place
            details |= {"partition": place.partition, "offset": place.offset, "id": place.id}
            known = f"it is stored at {self.message.topic}-{place.partition}@{place.offset}"
        elif self._unknown is not None:
            known = f"it is unknown whether it is stored: {self._unknown}"
        else:
            known = "no broker has said that it is stored"
        trouble = self._reader.trouble
        if trouble:
            known += f"; replies could not be read: {trouble}"
        self.fail(
            TimedOut(
                f"no reply to a request to {self.message.topic} within {self._timeout_s:.3g} s: "
                f"{known}",
                details=details,
                hint="it may be handled, or will be; a reply that comes now reaches nobody. "
                "`vq group describe` shows whether its readers are behind",
            )
        )


class _ReplyReader:
    """Reads the replies to the requests of one producer to one topic. Begins at once.

    Args:
        cluster: Of the producer.
        reader: Of the partition.
        at: Where it ends now.
        counts: Of all requests of the producer.

    Attributes:
        waiting: The requests by their correlation.
        trouble: Why it cannot read now; "": it can.
    """

    def __init__(
        self, cluster: ClusterClient, reader: PartitionReader, at: int, counts: dict[str, int]
    ) -> None:
        self.waiting: dict[str, OpenRequest] = {}
        self.counts = counts
        self.trouble = ""
        self._since_s = 0.0  # of the trouble
        self._tag = secrets.token_hex(8)
        self._answered: dict[str, None] = {}
        self._cluster = cluster
        self._reader = reader
        self._task = begin_task(self._follow(at), cluster.context)

    def open(self, message: Message, timeout_s: float) -> OpenRequest:
        """Begin a request."""
        partition = self._reader.partition
        correlation = secrets.token_hex(16)  # who cannot read the request cannot answer it
        address = ReplyAddress(partition.topic, partition.partition, self._tag, correlation)
        request = self.waiting[correlation] = OpenRequest(self, message, address, timeout_s)
        return request

    @property
    def is_stale(self) -> bool:
        """Whether later requests are to have another reader."""
        topic = self._cluster.routes.topics.get(self._reader.partition.topic)
        if self._task.done() or topic is None or topic.id != self._reader.topic_id:
            return True
        return bool(self.trouble) and self._reader.clock.monotonic() - self._since_s > TROUBLE_S

    def stop(self, error: VqError) -> None:
        """Read no more; what waits fails."""
        self._task.cancel()
        for request in list(self.waiting.values()):
            request.fail(error)

    async def _follow(self, at: int) -> None:
        """Read what is stored from an offset on, for ever."""
        mine = Filter.of_request((self._tag,))
        options = ReadOptions(align=True, patience_s=0.0, wanted=mine)
        failures = 0
        while True:
            decoder = Decoder(self._reader.partition)
            read = self._reader.read(at, decoder, wait_s=_HOLD_S, options=options)
            try:
                async for messages in read:
                    failures, self.trouble = 0, ""
                    for message in messages:
                        self._take(message)
            except UnknownTopic as error:
                self.trouble = str(error)
                return  # the next request makes the topic again
            except VqError as error:
                failures += 1
                if not self.trouble:
                    self._since_s = self._reader.clock.monotonic()
                    logger.warning(
                        "cannot read replies, trying again",
                        partition=self._reader.partition,
                        error=error,
                    )
                self.trouble = str(error)
                await asyncio.sleep(_AGAIN.pause_s(failures, self._cluster.rng))
                at = read.next_offset
                with contextlib.suppress(VqError):  # the next read tells
                    at, _ = await self._reader.going_on(at, error)

    def _take(self, reply: Message) -> None:
        correlation = (reply.headers or {}).get(CORRELATION, "")
        request = self.waiting.get(correlation)
        if request is None:
            self.counts["doubled" if correlation in self._answered else "late"] += 1
            return
        self._answered[correlation] = None
        while len(self._answered) > _ANSWERED_MAX:
            self._answered.pop(next(iter(self._answered)))
        self.counts["answered"] += 1
        request.answer(reply)


class OpenRequests:
    """The requests of one producer. Only ``metrics`` may be called by any thread."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._calls = SharedCalls(cluster.context)
        self._readers: dict[str, _ReplyReader] = {}
        self._stale: list[_ReplyReader] = []
        self._counts = dict.fromkeys(("answered", "unanswered", "late", "doubled"), 0)
        self._closed = ""

    async def begin(self, message: Message, deadline: float) -> OpenRequest:
        """Return a request that has a reader; the caller sends it.

        Raises:
            BufferFull: Too many wait.
            InvalidState: The producer is closed.
            VqError: The topic of replies cannot be made, or read.
        """
        topic = message.topic
        reader = self._readers.get(topic)
        if reader is None or reader.is_stale:
            reader = await self._calls.share(self._begin, topic)
        if self._closed:
            raise InvalidState(self._closed)
        waiting = self._waiting()
        if waiting >= WAITING_MAX:
            raise BufferFull(
                f"{waiting} requests of this producer wait for replies, the most that may",
                hint="wait for replies before further requests, or give them less time",
            )
        return reader.open(message, max(0.0, deadline - self._cluster.clock.monotonic()))

    async def _begin(self, topic: str) -> _ReplyReader:
        """Have the topic of replies, and a reader at the end of one of its partitions."""
        cluster, name = self._cluster, replies_topic(topic)
        if name not in cluster.routes.topics:
            try:
                await cluster.track(name)
            except UnknownTopic:
                by = cluster.origin(auto=True)
                await ensure_reserved(cluster.coordinator, name, [topic], by)
                await cluster.track(name)
        reader = PartitionReader(cluster, TopicPartition(name, self._choose(name)))
        end = (await reader.bounds()).latest
        before = self._readers.pop(topic, None)
        if before is not None:
            self._stale.append(before)
        self._stop_unused()
        if self._closed:
            raise InvalidState(self._closed)
        made = self._readers[topic] = _ReplyReader(cluster, reader, end, self._counts)
        return made

    def _choose(self, topic: str) -> int:
        """Return a partition, if there is one of those that a broker serves now."""
        routes, unreachable = self._cluster.routes, self._cluster.unreachable
        able, known = [], routes.topic(topic).partitions
        for placement in known:
            master = routes.master(placement.writer_group or "")
            if master is not None and master[0] not in unreachable:
                able.append(placement.partition)
        return self._cluster.rng.choice(able or [each.partition for each in known])

    def _stop_unused(self) -> None:
        for reader in self._stale[:]:
            if not reader.waiting:
                reader.stop(InvalidState("its partition could not be read"))
                self._stale.remove(reader)

    def _waiting(self) -> int:
        return sum(len(each.waiting) for each in (*self._readers.values(), *self._stale))

    def metrics(self) -> RequestMetrics:
        """Return the counts so far. Any thread."""
        return RequestMetrics(waiting=self._waiting(), **self._counts)

    def close(self, why: str) -> None:
        """Wait for no reply any more. May be called again."""
        self._closed = why
        for task in self._calls.tasks():
            task.cancel()
        for reader in (*self._readers.values(), *self._stale):
            reader.stop(InvalidState(why))
        self._readers, self._stale = {}, []


def nobody_reads(request: Message) -> None:
    """Note that the topic of a reply was deleted; a listener that raises it holds its place."""
    logger.info("reply to a topic that was deleted", topic=request.topic, id=request.id)


def reply_to(request: Message, content: Any, headers: Mapping[str, str] | None) -> Message:
    """Return the message that answers a request.

    Raises:
        InvalidArgument: It is no request.
    """
    address = request.reply_to if isinstance(request, Message) else None
    if address is None:
        raise InvalidArgument(
            f"message {shown(request)} is no request: it has no header {REPLY_TO} that names a "
            "topic of replies; `producer.request` sends requests, and `message.reply_to` tells"
        )
    given = own_headers(headers)
    return Message(
        address.topic,
        content,
        address.tag,
        headers={**given, CORRELATION: address.correlation},
        partition=address.partition,
    )
