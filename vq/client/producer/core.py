"""The producer's core: one accumulator, one sender on the loop and one blocking sender.

caller's thread                                   loop
accumulator.append, append_any ─────────────────▶ sender ─▶ broker
send_blocking ─▶ blocking sender ─▶ broker          │
futures, callbacks ◀────────────── apply_answer ◀───┘
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping

from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.intake.appender import not_plain
from vq.client.producer.intake.batch_send import BatchSend
from vq.client.producer.intake.delays import due_ms_of, is_delayed, topics_of
from vq.client.producer.intake.space_line import Turn
from vq.client.producer.intake.stages import Stages, check_topic_of
from vq.client.producer.interceptors import Interceptors
from vq.client.producer.metrics import Meter, ProducerMetrics
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.send.blocking_sender import BlockingConnections, BlockingSender
from vq.client.producer.send.cancelling import cancel
from vq.client.producer.send.sender import Sender
from vq.client.producer.send.unheard import (
    AT_EXIT,
    SAY_AFTER_S,
    OnewayLog,
    log_lost,
    log_wait,
    nobody_learns,
)
from vq.client.producer.spread.following import LoadFollower
from vq.client.producer.spread.partitioner import strategy_of, wants_load
from vq.client.producer.transaction.checks import LoopCalls, ProducerChecks, ThreadCalls
from vq.client.producer.transaction.half import HalfMessage
from vq.client.producer.transaction.transaction import Transactions
from vq.client.producer.transaction.two_phase import TwoPhase
from vq.client.requests import OpenRequest, OpenRequests
from vq.coordination.topics.routes import Routes
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    NotPublished,
    NotSent,
    TimedOut,
    TopicClosed,
    UnknownTopic,
    VqError,
)
from vq.model import (
    Address,
    Cancellation,
    Message,
    SendResult,
    TopicSettings,
    check_name,
    check_timeout,
)
from vq.reserved import DELAYED_TOPIC, answered_topic, check_own_name, replies_topic
from vq.shown import shown
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
        raise _deleted(topic) from error


def _deleted(topic: str) -> UnknownTopic:
    return UnknownTopic(
        f"topic {topic} was deleted while the message was sent; it is not stored",
        hint="send it again if the topic is to exist",
    )


class ProducerCore:
    """One producer: one producer id and one queue of batches per partition.

    Any thread may call ``append``, ``append_any`` and ``send_blocking``; all other methods run on
    the loop.

    Attributes:
        interceptors: Every way to send begins with them; None: there are none.
        append: Appends a plain message, see ``accumulator.Appender.append``. With interceptors no
            message is plain.
        append_unheard: Appends a plain one-way message, see ``Appender.append_unheard``.
        append_any: Appends any message, see ``accumulator.Accumulator.append_any``.
        oneway: Logs the one-way messages that are not stored.
        config: How it batches, waits and tries again.
        cluster, sender, accumulator, connections, follower: Its parts. Without a strategy that
            follows the load there is no follower.
        space_line: The tasks that wait for space.
        transactions: Those of its application.
        requests: Those that wait for a reply.
        checks: Answers what became of half messages; None: it has no listener for them.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        *,
        future: type[SendFuture] = SendFuture,
        in_threads: bool = True,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self._stages = Stages(config)
        self.sender = Sender(cluster, config, stages=self._stages, future=future)
        self.accumulator = self.sender.accumulator
        self.space_line = self.sender.space_line
        self.interceptors = Interceptors(config.interceptors) if config.interceptors else None
        self.append = self.accumulator.append if self.interceptors is None else not_plain
        self.append_unheard = (
            self.accumulator.append_unheard if self.interceptors is None else not_plain
        )
        self.append_any = self.accumulator.append_any
        self._meter = Meter(cluster.clock)
        self.oneway = OnewayLog(asyncio.get_running_loop(), cluster.clock)
        self.connections = BlockingConnections(cluster)
        self._blocking_sender = BlockingSender(self.sender, self.connections)
        strategy = strategy_of(config.partitioner)
        sense = None if strategy is None else strategy.sense
        follows = sense is not None or wants_load(config.partitioner)
        self.follower = LoadFollower(cluster, sense, self.accumulator.topics) if follows else None
        self.transactions = Transactions(cluster, self.accumulator, config)
        self.two_phase = TwoPhase(self.transactions)
        self.requests = OpenRequests(cluster)
        self.checks: ProducerChecks | None = None
        if config.transaction_listener is not None:
            kind = ThreadCalls if in_threads else LoopCalls
            self.checks = ProducerChecks(cluster, config, kind(config.check_timeout_s))
        self._known_topics: set[str] = set()  # ids of those that were opened, with an identity
        self._closing: asyncio.Task[None] | None = None
        self._remove_listener = cluster.on_change(self._routes_changed)

    # Topics -----------------------------------------------------------------------------------
    async def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them. Call it before the first message to the topic.

        Raises:
            InvalidArgument: Its name is not valid, or reserved for vq's own topics.
            UnknownTopic: There is no such topic, and the cluster does not let producers create it.
            TopicClosed: The topic is closed for writes.
        """
        self._check_open()
        check_own_name(topic)
        await self.cluster.lease_slot()
        self._open(topic, await self.cluster.track_or_create(topic))

    async def publish_existing(self, topic: str) -> TopicSettings | None:
        """Publish a topic for a send, which creates it only if the message is right.

        Returns:
            None if the topic is published. If it is missing, the settings with which ``publish``
            creates it: pass them to ``check`` first.

        Raises:
            InvalidArgument, UnknownTopic, TopicClosed: See ``publish``.
        """
        self._check_open()
        await self.cluster.lease_slot()
        if topic == DELAYED_TOPIC:
            self._open(topic, await self.cluster.track_internal(DELAYED_TOPIC))
            return None
        if answered_topic(topic) is not None:  # made by who asks; ``missing`` has seen a reply
            self._open(topic, await self.cluster.track(topic))
            return None
        check_own_name(topic)
        settings = await self.cluster.track_or_see(topic)
        if settings is None:
            self._open(topic, self.cluster.routes)
        return settings

    def check(self, message: Message, settings: TopicSettings) -> bool:
        """Return True if a new topic with these settings could take a message. Any thread.

        The message passes all stages, as it does again when it is sent.

        Raises:
            InvalidArgument, MessageTooLarge: A stage refuses the message.
        """
        meter = Meter(self.cluster.clock).topic(message.topic)
        trial = TopicQueues(message.topic, "", self.sender, meter)
        trial.update(settings, settings.partitions, range(settings.partitions))
        if is_delayed(message):
            due_ms_of(message, self.cluster.clock.wall_ms())
        self._stages.prepare(message, trial)
        return True

    def _open(self, topic: str, routes: Routes) -> None:
        if not routes.topic(topic).settings.writable:
            raise TopicClosed(f"topic {topic} is closed for writes")
        self._check_open()
        queues = self.accumulator.topics.get(topic)
        if queues is None:
            topic_id = routes.topic(topic).id
            if self.config.identity is not None:
                self._check_new(topic, topic_id)
            queues = TopicQueues(topic, topic_id, self.sender, self._meter.topic(topic))
            self._follow(queues)
            self.accumulator.open(queues)
            if self.follower is not None:
                self.follower.look_soon()

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

    def _follow(self, queues: TopicQueues) -> bool:
        """Apply the routes to a topic's queues; False: the topic was deleted or created again."""
        routes = self.cluster.routes
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
            if master[0] in self.cluster.unreachable:
                unreachable.add(master[0])
            else:
                writable.append(placement.partition)
        queues.update(view.settings, len(view.partitions), writable)
        for address in unreachable:  # try again, also while no message waits for it
            self.cluster.live_connection(address)
        return True

    def _routes_changed(self) -> None:
        for queues in list(self.accumulator.topics.values()):
            if not self._follow(queues):
                self.sender.drop_topic(queues, UnknownTopic(f"topic {queues.topic} was deleted"))
                self._meter.forget(queues.topic)
        masters = self.cluster.routes.masters.values()
        addresses = {master.address for master in masters}
        self.connections.keep_only(addresses - self.cluster.unreachable.keys())
        self.sender.send_waiting()

    def _check_open(self) -> None:
        if self.accumulator.closed:
            raise InvalidState(self.accumulator.closed)

    # Sending ----------------------------------------------------------------------------------
    def send_blocking(self, message: Message, timeout: float | None = None) -> SendFuture:
        """Send a message and return once it has its outcome. Any thread but the loop's.

        The caller's thread may do the round trip itself, see ``blocking_sender``.

        Raises:
            VqError: See ``accumulator.Accumulator.append_any``; nothing was appended.
        """
        try:
            queue, future = self.accumulator.append_waited(message, timeout)
            self._blocking_sender.send(queue, future)
        except VqError:
            raise
        except BaseException:  # a signal handler raised, perhaps just after the append
            self.sender.check_all()
            raise
        return future

    def batch_send(self, messages: Iterable[Message], timeout: float | None) -> BatchSend:
        """Return one call of ``send_batch``, of which nothing is appended yet. Any thread.

        Raises:
            InvalidArgument: ``timeout`` is not a number.
            InvalidState: The producer is closed; or see ``Accumulator.check_not_inside``.
        """
        self._check_open()
        self.accumulator.check_not_inside()
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = self.now() + bound
        return BatchSend(self.accumulator, self.config, messages, deadline, self.interceptors)

    def append_batch(self, batch: BatchSend, topic: str) -> bool:
        """Append a chunk of a batch, see ``BatchSend.append``. Any thread but the loop's.

        The caller's thread may do the round trip itself, see ``blocking_sender``.

        Raises:
            UnknownTopic: The topic was deleted since it was published.
            VqError: See ``BatchSend.append``; nothing was appended.
        """
        try:
            return self._blocking_sender.append(batch, topic)
        except NotPublished as error:
            raise _deleted(topic) from error
        except VqError:
            raise
        except BaseException:  # a signal handler raised, perhaps just after the append
            self.sender.check_all()
            raise

    def hurry(self) -> None:
        """Have no message linger for which somebody waits now. Any thread."""
        self.accumulator.hurry_sender()

    def missing(self, message: Message) -> list[str]:
        """Return the topics that are to be published before a message is sent. Any thread.

        Raises:
            InvalidArgument: Its own topic is reserved for what vq sends.
        """
        check_topic_of(message)
        return [each for each in topics_of(message) if each not in self.accumulator.topics]

    def is_published(self, topic: str) -> bool:
        """Return whether messages to a topic are accepted. Any thread."""
        return topic in self.accumulator.topics

    def is_full_for(self, message: Message) -> bool:
        """Whether a message to a published topic would find no space now and has to wait."""
        if self.accumulator.closed or self.accumulator.has_space():
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
        return self.sender.now()

    def time_left(self, batch: BatchSend) -> float:
        """Return the seconds until a batch's deadline, at least 0. Any thread."""
        return max(0.0, batch.deadline - self.now())

    async def ended(self, futures: list[SendFuture]) -> None:
        """Wait on the loop until all of ``futures``, oldest first, have their outcome."""
        left = futures[:]

        def all_done() -> bool:
            while left and left[-1].done():
                left.pop()
            return not left

        await self.sender.wait_until(all_done)

    @contextlib.contextmanager
    def publishing(self, topic: str, timeout: float) -> Iterator[None]:
        """Publish a topic inside this as part of a send: what fails is that nothing was sent.

        Raises:
            NotSent: The topic could not be read or created, or not within ``timeout`` seconds.
        """
        try:
            yield
        except (TimeoutError, TimedOut):
            raise self._routes_late(topic, timeout) from None
        except CoordinationError as error:
            raise NotSent(
                f"topic {topic} could not be published, nothing was sent: {error}", hint=error.hint
            ) from error

    def _routes_late(self, topic: str, timeout: float) -> NotSent:
        if timeout <= 0:
            return NotSent(
                f"topic {topic} is not published, and a time-out of 0 s leaves no time to read its "
                "routes; nothing was sent",
                hint="call publish first, or give the send more time",
            )
        where = self.cluster.config.zookeeper
        return NotSent(
            f"the routes of {topic} could not be read from ZooKeeper within {timeout:g} s; nothing "
            "was sent",
            hint=f"check that ZooKeeper answers at {where}, or give the send more time",
        )

    def join_line(self, message: Message, timeout: float | None) -> Turn | None:
        """Have a message wait in the line for space, and be appended there; None: it does not.

        The caller awaits the turn and calls ``space_line.leave`` then. The result is the outcome,
        or None if there is space now and the caller must append the message: see
        ``SpaceLine.join``.

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
        return self.space_line.join(message, bound)

    def count_full(self, messages: int = 1) -> None:
        """Count messages that were not accepted, because the buffer is full. Any thread."""
        self._meter.buffer_full(messages)

    async def cancel(self, result: SendResult, timeout: float | None = None) -> Cancellation:
        """Have a delayed message delivered to nobody, and say what became of it.

        Raises:
            InvalidArgument: It is not the result of a delayed message.
        """
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return await cancel(self.cluster, result, bound)

    async def prepare(self, half: HalfMessage, timeout_s: float) -> None:
        """Have the broker keep a half message.

        Raises:
            VqError: See ``HalfMessage.prepare``.
        """
        await half.prepare(timeout_s)
        if self.checks is not None:
            self.checks.look_soon()

    def deadline_of(self, message: Message, timeout: float | None) -> float:
        """Return until when a request may wait for its reply, in monotonic time. Any thread.

        Raises:
            InvalidArgument: It is no message, or nobody could answer what is sent to its topic.
            InvalidState: The caller has a transaction: what it sends comes after its commit only.
        """
        if not isinstance(message, Message):
            raise InvalidArgument(f"a message is a vq.Message, not {type(message).__name__}")
        if message.headers is not None and not isinstance(message.headers, Mapping):
            raise InvalidArgument(
                f"headers {shown(message.headers)} are no mapping of text to text"
            )
        replies_topic(check_own_name(check_name("topic", message.topic)))
        if message.delay_s is not None or message.deliver_at is not None:
            raise InvalidArgument(
                "a request with delay_s or deliver_at would wait for a reply to what nobody has "
                "yet; send it later, or send a message without waiting for a reply"
            )
        if self.transactions.open and self.transactions.current() is not None:
            raise InvalidState(
                "a request in a transaction would wait for a reply to what is not sent before the "
                "commit; send it before the transaction, or after it"
            )
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return self.now() + bound

    async def begin_request(self, message: Message, deadline: float) -> OpenRequest:
        """Have the replies to a topic read; return the request that is to be sent.

        Raises:
            NotSent: The topic of replies could not be made or read until then.
            InvalidState: The producer is closed.
            BufferFull: Too many requests wait for replies.
        """
        self._check_open()
        left = max(0.0, deadline - self.now())
        with self.publishing(replies_topic(message.topic), left):
            async with asyncio.timeout(left):
                return await self.requests.begin(message, deadline)

    def metrics(self) -> ProducerMetrics:
        """Return the counts so far. Any thread."""
        return self._meter.read(self.accumulator.waiting(), self.requests.metrics())

    # Close ------------------------------------------------------------------------------------
    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return bool(self.accumulator.closed)

    @property
    def stopped(self) -> bool:
        """Whether ``close`` has ended: every message has its outcome."""
        return self._closing is not None and self._closing.done()

    def abandon_in_child(self, why: str) -> None:
        """Fail every message in the child of a fork, where no answer can arrive.

        It takes no lock: a thread that does not exist in the child may have held it.
        """
        self.accumulator.mark_closed(why)
        self.transactions.abandon_in_child(why)
        for queues in self.sender.topics():
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
        self.accumulator.close(_PROGRAM_ENDED)
        futures = self.sender.without_outcome()
        if not futures:
            return
        timeout_s = self.config.exit_flush_s
        say = asyncio.get_running_loop().call_later(SAY_AFTER_S, log_wait, futures, timeout_s)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.ended(futures)
        finally:  # a cancellation ends the wait early
            say.cancel()
            self._give_up(self._why_unsent())
            log_lost(futures, AT_EXIT)

    def give_up_at_exit(self) -> None:
        """Give up what is not sent, and log how much, when the loop is closed already."""
        self.accumulator.close(_PROGRAM_ENDED)
        futures = self.sender.without_outcome()
        self.oneway.close()  # no timer of it would run any more
        self._give_up(f"{_PROGRAM_ENDED}, and its event loop before it")
        log_lost(futures, AT_EXIT)

    def _why_unsent(self) -> str:
        for queue in self.accumulator.queues():
            why = self.sender.why_waiting(queue.partition) if queue.is_busy else ""
            if why:
                return f"{_PROGRAM_ENDED}, {queue.partition} could not be sent: {why}"
        return f"{_PROGRAM_ENDED} before it was sent"

    def _give_up(self, why: str) -> None:
        """Refuse new messages, and give every waiting one its outcome."""
        self.accumulator.close(why)
        self.transactions.give_up(why, ending=True)
        self.requests.close(why)
        for queues in list(self.accumulator.topics.values()):
            self.sender.drop_topic(queues, NotSent(why))

    def abandon(self, why: str) -> None:
        """Fail every message, because the loop ends before ``close`` was called.

        Messages that a blocking sender is sending get their outcome from its exchange.
        """
        self._give_up(why)
        self.connections.close()
        if self.checks is not None:
            self.checks.stop()
        self.sender.abandon()
        if self.follower is not None:
            self.follower.stop()
        self.sender.wake_waiters()
        self.oneway.close()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far has its outcome (each has a deadline).

        Raises:
            TimedOut: Some have none within ``timeout`` seconds.
        """
        bound = None if timeout is None else check_timeout(timeout)
        waited_for = self.sender.without_outcome()
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
        if not self.accumulator.closed:
            self.accumulator.close(_CLOSED)
            self.transactions.give_up(_CLOSED, ending=False)
            self.requests.close(_CLOSED)
            self._closing = begin_task(self._finish())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        unheard = [each for each in self.sender.without_outcome() if nobody_learns(each)]
        if self.checks is not None:
            await self.checks.close()
        await self.flush()
        log_lost(unheard, "they failed while their producer closed, and nobody waits for them")
        self.oneway.close()
        await self.transactions.close()
        if self.follower is not None:
            self.follower.stop()
            await self.follower.wait_stopped()
        self._remove_listener()
        self.connections.close()
        self.sender.close()
