"""The producer's core: one accumulator, one sender on the loop and one blocking sender.

caller's thread                                   loop
accumulator.append, append_any ─────────────────▶ sender ─▶ broker
send_blocking ─▶ blocking sender ─▶ broker          │
futures, callbacks ◀────────────── apply_answer ◀───┘
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from vq.client.cluster import ClusterClient
from vq.client.config import OnUnavailable, ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.appender import not_plain
from vq.client.producer.batch_send import BatchSend
from vq.client.producer.blocking_sender import BlockingConnections, BlockingSender
from vq.client.producer.compressor import compressor_of
from vq.client.producer.interceptors import Interceptors
from vq.client.producer.load_follower import LoadFollower
from vq.client.producer.metrics import Meter, ProducerMetrics, TopicMeter
from vq.client.producer.oneway import OnewayLog
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import DEFAULT, Keys, own_choice, strategy_of, wants_load
from vq.client.producer.sender import Sender
from vq.client.producer.space_line import Turn
from vq.client.producer.spread import Single, Spread, make_spread
from vq.client.producer.stages import Stages, serialize_with
from vq.client.producer.topic_queues import TopicQueues
from vq.client.producer.unsent import AT_EXIT, flush_or_give_up, log_lost, nobody_learns
from vq.coordination.topics.routes import Routes
from vq.errors import (
    CoordinationError,
    InvalidState,
    NotPublished,
    NotSent,
    TimedOut,
    TopicClosed,
    UnknownTopic,
    VqError,
)
from vq.model import Address, Message, TopicPartition, TopicSettings, check_timeout
from vq.remoting.blocking_connection import BlockingConnection
from vq.tasks import begin_task

_CLOSED = "the producer is closed"
_PROGRAM_ENDED = "the program ended"


@contextlib.contextmanager
def deleted_if_unpublished(topic: str) -> Iterator[None]:
    """Append messages to a topic that was published a moment ago.

    Raises:
        UnknownTopic: The topic was deleted since.
    """
    try:
        yield
    except NotPublished as error:
        raise UnknownTopic(
            f"topic {topic} was deleted while the message was sent; it is not stored",
            hint="send it again if the topic is to exist",
        ) from error


class ProducerCore:
    """One producer: one producer id and one queue of batches per partition.

    Any thread may call ``append``, ``append_any`` and ``send_blocking``; all other methods run on
    the loop.

    Attributes:
        interceptors: Every way to send begins with them; None: there are none.
        append: Appends a plain message, see ``accumulator.Appender.append``. With interceptors no
            message is plain.
        append_any: Appends any message, see ``accumulator.Accumulator.append_any``.
        oneway: Logs the one-way messages that are not stored.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        *,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        self.config = config
        self._cluster = cluster
        self._strategy = strategy_of(config.partitioner) or DEFAULT
        self._choose = own_choice(config.partitioner)
        self._stages = stages = Stages(
            serialize=serialize_with(config.serializer),
            directs_all=self._choose is not None or self._strategy.keys is Keys.REQUIRED,
        )
        self._sender = Sender(cluster, config, stages=stages, future=future)
        self._accumulator = self._sender.accumulator
        self.interceptors = Interceptors(config.interceptors) if config.interceptors else None
        self.append = self._accumulator.append if self.interceptors is None else not_plain
        self.append_any = self._accumulator.append_any
        self._meter = Meter(cluster.clock.monotonic)
        self.oneway = OnewayLog(asyncio.get_running_loop(), cluster.clock.monotonic)
        self._connections = BlockingConnections(self._blocking_connection)
        self._blocking_sender = BlockingSender(
            self._accumulator,
            self._connections,
            now=cluster.clock.monotonic,
            master_of=self._sender.master_of,
            take_ids=cluster.take_ids,
            apply_answer=self._sender.apply_answer,
            may_lead=not config.ordered,
        )
        sense = self._strategy.sense if self._choose is None else None
        follows = sense is not None or wants_load(config.partitioner)
        self._follower = (
            LoadFollower(cluster, sense, self._accumulator.topics.values) if follows else None
        )
        self._known_topics: set[str] = set()  # ids of those that were opened, with an identity
        self._closing: asyncio.Task[None] | None = None
        self._remove_listener = cluster.on_change(self._routes_changed)

    def _blocking_connection(self, address: Address) -> BlockingConnection:
        config = self._cluster.config
        return BlockingConnection(
            self._cluster.network,
            address,
            client_id=config.client_id,
            cluster=config.cluster,
            timeout=config.connect_timeout_s,
        )

    # Topics -----------------------------------------------------------------------------------
    async def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them. Call it before the first message to the topic.

        Raises:
            UnknownTopic: There is no such topic, and the cluster does not let producers create it.
            TopicClosed: The topic is closed for writes.
        """
        self._check_open()
        await self._cluster.lease_slot()
        self._open(topic, await self._cluster.track_or_create(topic))

    async def publish_existing(self, topic: str) -> TopicSettings | None:
        """Publish a topic for a send, which creates it only if the message is right.

        Returns:
            None if the topic is published. If it is missing, the settings with which ``publish``
            creates it: pass them to ``check`` first.

        Raises:
            UnknownTopic, TopicClosed: See ``publish``.
        """
        self._check_open()
        await self._cluster.lease_slot()
        settings = await self._cluster.track_or_see(topic)
        if settings is None:
            self._open(topic, self._cluster.routes)
        return settings

    def check(self, message: Message, settings: TopicSettings) -> None:
        """Refuse a message that a new topic with these settings could not take. Any thread.

        The message passes all stages, as it does again when it is sent.

        Raises:
            InvalidArgument, MessageTooLarge: A stage refuses the message.
        """
        topic, meter = message.topic, Meter(self._cluster.clock.monotonic)
        trial = self._make_queues(
            topic,
            "",
            lambda partition: PartitionQueue(
                partition, lambda: 1, self.config, self._sender.on_ended, meter.topic(topic)
            ),
            lambda _: Single(random.Random(0)),
            meter.topic(topic),
        )
        trial.update(settings, settings.partitions, range(settings.partitions))
        self._stages.prepare(message, trial)

    def _open(self, topic: str, routes: Routes) -> None:
        if not routes.topic(topic).settings.writable:
            raise TopicClosed(f"topic {topic} is closed for writes")
        self._check_open()
        queues = self._accumulator.topics.get(topic)
        if queues is None:
            topic_id = routes.topic(topic).id
            if self.config.identity is not None:
                self._check_new(topic, topic_id)
            queues = self._make_queues(
                topic, topic_id, self._make_queue, self._make_spread, self._meter.topic(topic)
            )
            self._follow(queues)
            self._accumulator.open(queues)
            if self._follower is not None:
                self._follower.look_soon()

    def _check_new(self, topic: str, topic_id: str) -> None:
        """Check that a producer with an identity has not written to a topic before.

        New queues begin with sequence 0, which the broker would take for resends.
        """
        if topic_id in self._known_topics:
            raise InvalidState(
                f"topic {topic} was deleted and brought back meanwhile; this producer has an "
                "identity and cannot go on there: replace it by one with the next epoch"
            )
        self._known_topics.add(topic_id)

    def _make_queues(
        self,
        topic: str,
        topic_id: str,
        make_queue: Callable[[TopicPartition], PartitionQueue],
        spread: Callable[[Callable[[int], bool]], Spread],
        meter: TopicMeter,
    ) -> TopicQueues:
        return TopicQueues(
            topic,
            topic_id,
            make_queue,
            keys=self._strategy.keys,
            spread=spread,
            choose=self._choose,
            compressor_of=functools.partial(compressor_of, self.config, count=meter.compressed),
            on_unavailable=OnUnavailable(self.config.on_unavailable),
            ordered=self.config.ordered,
        )

    def _make_queue(self, partition: TopicPartition) -> PartitionQueue:
        return PartitionQueue(
            partition,
            self._new_producer_id,
            self.config,
            self._sender.on_ended,
            self._meter.topic(partition.topic),
            functools.partial(self._sender.why_waiting, partition),
            self._cluster.context,
        )

    def _make_spread(self, is_waiting: Callable[[int], bool]) -> Spread:
        if self.config.ordered:
            return Single(self._cluster.rng)
        return make_spread(
            self._strategy.spread,
            self._cluster.rng,
            full=self.config.batch_records,
            is_waiting=is_waiting,
        )

    def _new_producer_id(self) -> int:
        return self._cluster.rng.getrandbits(63) | 1

    def _follow(self, queues: TopicQueues) -> bool:
        """Apply the routes to a topic's queues; False: the topic was deleted or created again."""
        routes = self._cluster.routes
        view = routes.topics.get(queues.topic)
        if view is None or view.id != queues.topic_id:
            return False
        writable: list[int] = []
        unreachable: set[Address] = set()
        for placement in view.partitions:
            group = placement.writer_group
            master = None if group is None else routes.master(group)
            if master is None:
                continue
            if master[0] in self._cluster.unreachable:
                unreachable.add(master[0])
            else:
                writable.append(placement.partition)
        queues.update(view.settings, len(view.partitions), writable)
        for address in unreachable:  # try again, also while no message waits for it
            self._cluster.live_connection(address)
        return True

    def _routes_changed(self) -> None:
        for queues in list(self._accumulator.topics.values()):
            if not self._follow(queues):
                self._sender.drop_topic(queues, UnknownTopic(f"topic {queues.topic} was deleted"))
                self._meter.forget(queues.topic)
        masters = self._cluster.routes.masters.values()
        addresses = {master.address for master in masters}
        self._connections.keep_only(addresses - self._cluster.unreachable.keys())
        self._sender.send_waiting()

    def _check_open(self) -> None:
        if self._accumulator.closed:
            raise InvalidState(self._accumulator.closed)

    # Sending ----------------------------------------------------------------------------------
    def send_blocking(self, message: Message, timeout: float | None = None) -> SendFuture:
        """Send a message and return once it has its outcome. Any thread but the loop's.

        The caller's thread may do the round trip itself, see ``blocking_sender``.

        Raises:
            VqError: See ``accumulator.Accumulator.append_any``; nothing was appended.
        """
        try:
            queue, future = self._accumulator.append_waited(message, timeout)
            self._blocking_sender.send(queue, future)
        except VqError:
            raise
        except BaseException:  # a signal handler raised, perhaps just after the append
            self._sender.check_all()
            raise
        return future

    def batch_send(self, messages: Iterable[Message], timeout: float | None) -> BatchSend:
        """Return one call of ``send_batch``, of which nothing is appended yet. Any thread.

        Raises:
            InvalidArgument: ``timeout`` is not a number.
            InvalidState: The producer is closed; or see ``Accumulator.check_not_inside``.
        """
        self._check_open()
        self._accumulator.check_not_inside()
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = self._cluster.clock.monotonic() + bound
        return BatchSend(self._accumulator, self.config, messages, deadline, self.interceptors)

    def hurry(self) -> None:
        """Have no message linger for which somebody waits now. Any thread."""
        self._accumulator.hurry_sender()

    def is_published(self, topic: str) -> bool:
        """Return whether messages to a topic are accepted. Any thread."""
        return topic in self._accumulator.topics

    def is_full_for(self, message: Message) -> bool:
        """Whether a message to a published topic would find no space now and has to wait."""
        if self._accumulator.closed or self._accumulator.has_space():
            return False
        return isinstance(message, Message) and self.is_published(message.topic)

    def left_of(self, timeout: float | None, since: float) -> float:
        """Return what is left of a send's time, at least 0; ``since``: monotonic time. Any thread.

        Raises:
            InvalidArgument: ``timeout`` is not a number.
        """
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return max(0.0, since + bound - self.now())

    def now(self) -> float:
        """Return monotonic time. Any thread."""
        return self._cluster.clock.monotonic()

    def time_left(self, batch: BatchSend) -> float:
        """Return the seconds until a batch's deadline, at least 0. Any thread."""
        return max(0.0, batch.deadline - self._cluster.clock.monotonic())

    async def ended(self, futures: list[SendFuture]) -> None:
        """Wait on the loop until all of ``futures``, oldest first, have their outcome."""
        left = futures[:]

        def all_done() -> bool:
            while left and left[-1].done():
                left.pop()
            return not left

        await self._sender.wait_until(all_done)

    def routes_late(self, topic: str, timeout: float) -> NotSent:
        """Return the error of a send whose topic could not be published in time."""
        if timeout <= 0:
            return NotSent(
                f"topic {topic} is not published, and a time-out of 0 s leaves no time to read its "
                "routes; nothing was sent",
                hint="call publish first, or give the send more time",
            )
        where = self._cluster.config.zookeeper
        return NotSent(
            f"the routes of {topic} could not be read from ZooKeeper within {timeout:g} s; nothing "
            "was sent",
            hint=f"check that ZooKeeper answers at {where}, or give the send more time",
        )

    def not_published(self, topic: str, error: CoordinationError) -> NotSent:
        """Return the error of a send whose topic could not be read, or not be created."""
        return NotSent(
            f"topic {topic} could not be published, nothing was sent: {error}", hint=error.hint
        )

    def wait_for_space(self, timeout_s: float) -> Coroutine[Any, Any, None]:
        """Return a wait until ``append_any`` finds space; await it before any other wait.

        Raises:
            BufferFull: There is no space within the send's deadline.
        """
        return self._sender.wait_for_space(timeout_s)

    def join_line(self, message: Message, timeout: float | None) -> Turn | None:
        """Have a message wait in the line for space, and be appended there; None: it does not.

        The caller awaits the turn and calls ``leave_line`` then. The result is the outcome, or None
        if there is space now and the caller must append the message: see ``SpaceLine.join``.

        Raises:
            InvalidArgument: ``timeout`` is not a number.
        """
        if (
            self.interceptors is not None
            or not self.is_full_for(message)
            or message.key is not None
            or message.headers
        ):
            return None
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return self._sender.join_line(message, bound)

    def leave_line(self, turn: Turn) -> None:
        """End what ``join_line`` began."""
        self._sender.leave_line(turn)

    def count_full(self, messages: int = 1) -> None:
        """Count messages that were not accepted, because the buffer is full. Any thread."""
        self._meter.buffer_full(messages)

    def metrics(self) -> ProducerMetrics:
        """Return the counts so far. Any thread."""
        return self._meter.read(self._accumulator.waiting())

    # Close ------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return bool(self._accumulator.closed)

    @property
    def stopped(self) -> bool:
        """Whether ``close`` has ended: every message has its outcome."""
        return self._closing is not None and self._closing.done()

    def abandon_in_child(self, why: str) -> None:
        """Fail every message in the child of a fork, where no answer can arrive.

        It takes no lock: a thread that does not exist in the child may have held it.
        """
        self._accumulator.mark_closed(why)
        for queues in self._sender.topics():
            waiting = queues.appended[:]
            for _, share in queues.shares:
                waiting += share
            for queue in queues.queues:
                waiting += queue.without_outcome()
            for item in waiting:
                if item.outcome is None:
                    item.outcome = InvalidState(why)

    async def flush_at_exit(self) -> None:
        """Wait at most ``config.exit_flush_s`` for what is not sent at the end of the program.

        The rest gets its outcome, and one line at ERROR counts it. Call it as the last one.
        """
        self._accumulator.close(_PROGRAM_ENDED)
        futures = self._sender.without_outcome()
        if futures:
            await flush_or_give_up(
                futures,
                timeout_s=self.config.exit_flush_s,
                ended=self.ended,
                give_up=lambda: self._give_up(self._why_unsent()),
            )

    def give_up_at_exit(self) -> None:
        """Give up what is not sent, and log how much, when the loop is closed already."""
        self._accumulator.close(_PROGRAM_ENDED)
        futures = self._sender.without_outcome()
        self.oneway.close()  # no timer of it would run any more
        self._give_up(f"{_PROGRAM_ENDED}, and its event loop before it")
        log_lost(futures, AT_EXIT)

    def _why_unsent(self) -> str:
        for queue in self._accumulator.queues():
            why = self._sender.why_waiting(queue.partition) if queue.is_busy else ""
            if why:
                return f"{_PROGRAM_ENDED}, {queue.partition} could not be sent: {why}"
        return f"{_PROGRAM_ENDED} before it was sent"

    def _give_up(self, why: str) -> None:
        """Refuse new messages, and give every waiting one its outcome."""
        self._accumulator.close(why)
        for queues in list(self._accumulator.topics.values()):
            self._sender.drop_topic(queues, NotSent(why))

    def abandon(self, why: str) -> None:
        """Fail every message, because the loop ends before ``close`` was called.

        Messages that a blocking sender is sending get their outcome from its exchange.
        """
        self._give_up(why)
        self._connections.close()
        self._sender.abandon()
        if self._follower is not None:
            self._follower.stop()
        self._sender.wake_waiters()
        self.oneway.close()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far has its outcome (each has a deadline).

        Raises:
            TimedOut: Some have none within ``timeout`` seconds.
        """
        bound = None if timeout is None else check_timeout(timeout)
        waited_for = self._sender.without_outcome()
        try:
            async with asyncio.timeout(bound):
                await self.ended(waited_for)
        except TimeoutError:
            left = sum(not each.done() for each in waited_for)
            if left:
                raise TimedOut(
                    f"messages without an outcome after {bound:g} s: {left}; their sends go on",
                    details={"open": left},
                    hint="call flush again; every message gets its outcome by its own deadline",
                ) from None

    async def close(self) -> None:
        """Refuse new messages, wait for the outcome of all others, stop. May be called again."""
        if not self._accumulator.closed:
            self._accumulator.close(_CLOSED)
            self._closing = begin_task(self._finish())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        unheard = [each for each in self._sender.without_outcome() if nobody_learns(each)]
        await self.flush()
        log_lost(unheard, "they failed while their producer closed, and nobody waits for them")
        self.oneway.close()
        if self._follower is not None:
            self._follower.stop()
            await self._follower.wait_stopped()
        self._remove_listener()
        self._connections.close()
        self._sender.close()
