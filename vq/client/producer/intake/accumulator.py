"""The accumulator: keeps the messages of all threads, within bounds of bytes and number.

    append ── plain, and space left? ── its topic's list ── wake the sender, if it sleeps
      └─ no: append_any checks the message, waits for space, finds the partition of a key

``append`` is the appender's, see there.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from vq.client.config import (
    MESSAGE_OVERHEAD_BYTES,
    ProducerConfig,
    WhenFull,
    buffer_messages_of,
)
from vq.client.future import ANY_PARTITION, BlockingSendFuture, SendCallback, SendFuture
from vq.client.producer.intake.appender import make_appender, not_plain
from vq.client.producer.intake.delays import due_ms_of, is_delayed, waits_in
from vq.client.producer.intake.stages import Head, Stages, check_topic_of
from vq.client.producer.metrics import Waiting
from vq.client.producer.queue.batch import Ended
from vq.client.producer.queue.futures import bytes_of
from vq.client.producer.queue.partition_queue import BatchLeader, Leader, PartitionQueue
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.clock import Clock
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    NotPublished,
    VqError,
)
from vq.model import Message, TopicPartition, check_timeout
from vq.reserved import DELAYED_TOPIC, check_own_name
from vq.waits import step_aside

F = TypeVar("F", bound=SendFuture)


class Accumulator:
    """The messages of one producer that have no outcome yet, by topic, and the space they use.

    Any thread may call ``append`` and ``append_any``; the other methods say who calls them. A
    caller tries ``append`` first, and ``append_any`` if the message is not plain.

    Attributes:
        append, append_unheard: See ``Appender.append``.
        lock: Guards the topics, their queues' ``owner`` and ``pending``, and the space. Reentrant:
            a finalizer or a signal handler may run anywhere and append.
        topics: The published topics; they change under the lock.
        pass_plain: A plain message passes all stages unchanged.
        stalled: Which partition takes no messages, and why, while the buffer is full; the sender
            sets it.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        wake: Callable[[], None],
        *,
        stages: Stages,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        """Make an empty accumulator on the sender's thread, which must never wait for space.

        Args:
            config: Deadlines and the size of the buffer.
            clock: Says when a message was appended.
            wake: Wakes the sender; any thread.
            stages: What a message that is not plain passes before it is appended.
            future: The class of the future that is made for each message.
        """
        self.lock = threading.RLock()
        self._held_here: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        self.config = config
        self._now = clock.monotonic
        self._clock = clock
        self._wake = wake
        self._future = future
        self._space_came = threading.Condition(self.lock)
        self.waiting_threads = 0  # threads that wait for space
        self._waits = 0  # that have ended
        self.stalled = ""
        self._wait_s = 0.0
        self._sender_thread = threading.get_ident()
        self._closed = ""  # why nothing is appended any more
        self._stages = stages
        self.appender = make_appender(
            self.lock,
            clock.monotonic,
            config.send_timeout_s,
            self.wake_sender,
            stages.heads.of_tags,
            config.buffer_bytes,
            buffer_messages_of(config),
            future,
        )
        self.topics = self.appender.topics
        self.append = self.appender.append if stages.pass_plain else not_plain
        self.append_unheard = self.appender.append_unheard if stages.pass_plain else not_plain
        self.pass_plain = stages.pass_plain

    # Any thread -------------------------------------------------------------------------------
    def append_any(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
        *,
        block: bool = True,
    ) -> SendFuture:
        """Append any message of a send that does not wait for its outcome.

        Args:
            message: The message to send.
            callback: Called on the sender's loop with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
            block: Wait while the buffer is full, at most until the send's deadline, if
                ``when_full`` of the configuration says so too. The sender's own thread never waits,
                because only this thread frees space.

        Raises:
            InvalidArgument, MessageTooLarge: The message is invalid; nothing was appended.
            NotPublished: This producer has not published the topic, or it was deleted since.
            InvalidState: The producer is closed.
            BufferFull: There was no space until the deadline. Raised at once without ``block``, and
                in a finalizer or signal handler that interrupted a call of the same producer.
        """
        # Waiting would release the lock of an interrupted call.
        may_wait = self.config.when_full is WhenFull.BLOCK and not self._held_here()
        future, queues = self._prepared(self._future, message, callback, timeout)
        while not self.appender.put(future, queues):
            with self.lock:
                self._make_ready(queues, future.deadline, block=block and may_wait)
        return future

    def prepare_any(
        self, message: Message, callback: SendCallback | None
    ) -> tuple[SendFuture, TopicQueues]:
        """Return the future of a message that is not appended, and its topic; see ``append_any``.

        Its partition is chosen, or ``ANY_PARTITION``.

        Raises:
            VqError: See ``append_any``.
        """
        future, queues = self._prepared(self._future, message, callback, None)
        if self._closed:
            raise InvalidState(self._closed)
        return future, queues

    def append_waited(
        self, message: Message, timeout: float | None
    ) -> tuple[PartitionQueue, BlockingSendFuture]:
        """Put the message of a blocking send into its queue; return queue and future.

        The sender is not woken, because the calling thread may send the message: it calls ``claim``
        next.

        Raises:
            InvalidState: A finalizer or a signal handler that interrupted a call of the same
                producer would wait for itself.
            VqError: See ``append_any``.
        """
        self.check_not_inside()
        future, queues = self._prepared(BlockingSendFuture, message, None, timeout)
        with self.lock:
            self._make_ready(queues, future.deadline, block=True)
            queue = queues.queue_of(future)
            queue.pending += (future,)  # no call between these two: see ``topic_queues``
            self.appender.use(future.size, 1)
        return queue, future

    def target(self, topic: str) -> tuple[TopicQueues, int]:
        """Return a topic's queues, and the partition for the keyless messages of one batch.

        Raises:
            NotPublished, InvalidState: See ``append_any``.
        """
        with self.lock:
            queues = self._published(topic)
            return queues, queues.next_partition()

    def prepare(
        self,
        message: Message,
        callback: SendCallback | None,
        queues: TopicQueues,
        deadline: float,
    ) -> SendFuture:
        """Return the future of a message that passed all stages, for ``append_many``.

        Raises:
            InvalidArgument, MessageTooLarge: A stage refuses the message.
        """
        if queues.topic == DELAYED_TOPIC:
            check_own_name(message.topic)
            due_ms = max(1, due_ms_of(message, self._clock.wall_ms()))
            to = self._published(message.topic)
            content, head, queues, partition = self._delayed(message, to, due_ms)
        else:
            if queues.is_own:
                check_topic_of(message)
            content, head, partition = self._stages.prepare(message, queues)
        return self._future(content, head, callback, deadline, partition, self._now())

    def append_many(
        self,
        futures: list[SendFuture],
        queues: TopicQueues,
        deadline: float,
        *,
        block: bool,
        may_follow: Callable[[], bool] | None = None,
        leader: BatchLeader | None = None,
    ) -> int:
        """Append prepared messages of one topic, as many as there is space for, in order.

        Args:
            futures: At least one; each has its partition.
            queues: The topic.
            deadline: Monotonic time; with ``block``, wait for space until then, whatever
                ``when_full`` says: the caller waits for the outcomes anyway.
            block: Wait for space.
            may_follow: Asked once there is space, under the lock; if it returns False, nothing is
                appended.
            leader: Gets the queue to lead, if these messages are one batch of it, and nothing else
                of it is waiting or under way. Then it sends them; otherwise the sender does.

        Returns:
            How many were appended; 0: they may not follow.

        Raises:
            BufferFull, NotPublished, InvalidState: Nothing was appended, see ``append_any``.
        """
        with self.lock:
            self._make_ready(queues, deadline, block=block)
            if may_follow is not None and not may_follow():
                return 0
            appender = self.appender
            count, size = len(futures), bytes_of(futures)
            if appender.places < count or appender.space <= size + count * MESSAGE_OVERHEAD_BYTES:
                count, size = 0, 0
                for future in futures[: appender.places]:
                    if appender.space <= size + count * MESSAGE_OVERHEAD_BYTES:
                        break
                    size += future.size
                    count += 1
            if leader is not None and leader.leads and count == len(futures):
                queue = queues.free_queue_of(futures)
                if queue is not None:
                    claimed = futures[:]
                    leader.is_busy = True  # no call between these: see ``topic_queues``
                    leader.queue = queue
                    queue.claimed = claimed
                    queue.owner = leader
                    appender.use(size, count)
                    return count
            queues.directed = True
            queues.appended += futures[:count]
            appender.use(size, count)
        self.wake_sender()
        return count

    def check_not_inside(self) -> None:
        """Raise if this thread is inside a call of this accumulator; it is going to wait.

        A send that it interrupted is left to the sender, see ``blocking_sender``.

        Raises:
            InvalidState: A finalizer or a signal handler that interrupted a call of the same
                producer would wait for itself.
        """
        if self._held_here():
            raise self.inside()
        step_aside()

    @property
    def is_held_here(self) -> bool:
        """Whether this thread has the lock."""
        return self._held_here()

    def inside(self) -> InvalidState:
        """Return the error of a thread that is inside a call of this accumulator."""
        return InvalidState(
            "a blocking call of a finalizer or signal handler, while its thread is inside the "
            "same producer, would wait for itself; use send_async there"
        )

    def _prepared(
        self,
        make: type[F],
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
    ) -> tuple[F, TopicQueues]:
        """Return the future of a message that passed all stages, and its topic."""
        if not isinstance(message, Message):
            raise InvalidArgument(f"a message is a vq.Message, not {type(message).__name__}")
        queues = self._published(message.topic)
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        now = self._now()
        if queues.is_own:
            check_topic_of(message)
        if is_delayed(message):
            due_ms = due_ms_of(message, self._clock.wall_ms())
            if due_ms:
                content, head, queues, partition = self._delayed(message, queues, due_ms)
                return make(content, head, callback, now + bound, partition, now), queues
        content, head, partition = self._stages.prepare(message, queues)
        return make(content, head, callback, now + bound, partition, now), queues

    def _delayed(
        self, message: Message, queues: TopicQueues, due_ms: int
    ) -> tuple[bytes, Head | None, TopicQueues, int]:
        """Return a delayed message, and the topic and the partition in which it waits."""
        if self.config.identity is not None:
            raise InvalidArgument(
                "a producer with an identity sends no delayed messages: whoever takes over from it "
                "could not tell which of them are stored; send them with another producer"
            )
        waiting = self._published(DELAYED_TOPIC)
        partition = queues.partition_of(message)
        if partition == ANY_PARTITION:
            with self.lock:
                partition = queues.next_partition()
        to = TopicPartition(queues.topic, partition)
        content, head, _ = self._stages.prepare(message, queues, (due_ms, to))
        delay_ms = due_ms - self._clock.wall_ms()
        return content, head, waiting, waits_in(to, delay_ms, len(waiting.queues))

    def _make_ready(self, queues: TopicQueues, deadline: float, *, block: bool) -> None:
        """Have space for a message of a topic that is still there; the caller has the lock."""
        appender, topic = self.appender, queues.topic
        if appender.space <= 0 or appender.places <= 0:
            self._wait_for_space(deadline, block=block)
        if self._closed or self.topics.get(topic) is not queues:
            self._published(topic)  # raises if it is closed, or the topic was deleted
            raise NotPublished(f"topic {topic} was deleted and created again meanwhile")

    def lead(self, queue: PartitionQueue, future: BlockingSendFuture) -> bool:
        """Let the thread of ``future`` lead a queue, if it may; return whether it does."""
        with self.lock:
            return queue.lead(future)

    def claim(self, queue: PartitionQueue, future: BlockingSendFuture) -> list[SendFuture] | None:
        """Let the thread of ``future`` lead a queue: it sends what this returns, and leaves.

        Return None if the queue has another owner, which sends the message or passes the lead.
        """
        with self.lock:
            claimed = queue.claim(future)
            is_led = isinstance(queue.owner, Leader)
            if not is_led and future.outcome is None:
                self.hurry_sender()
            return claimed

    def leave(self, queue: PartitionQueue, leader: Leader) -> None:
        """Release a queue if this thread leads it, and wake its next owner."""
        with self.lock:
            if queue.owner is leader and queue.leave():
                self.wake_sender()

    def hand_to_sender(self, queue: PartitionQueue, leader: Leader) -> None:
        """Release a queue whose thread leaves without an outcome: the sender takes over."""
        with self.lock:
            leader.leads = False
            if queue.owner is leader:
                queue.leave()
            self.wake_sender()

    def wake_sender(self) -> None:
        """Schedule a run of the sender, unless one is scheduled."""
        try:
            if self.awake:
                return
            self.awake = True
            self._wake()
        except BaseException:  # a signal handler raised, perhaps before the sender was woken
            self.awake = False
            self._wake()  # other threads saw ``awake`` and rely on it
            raise

    def hurry_sender(self) -> None:
        """Schedule a run of the sender, also while it ignores appends because batches linger."""
        if self.config.linger_ms:
            self.awake = False
        self.wake_sender()

    def end_linger(self) -> None:
        """Have no batch linger while somebody waits for what the batch holds."""
        if self.config.linger_ms:
            self.hurry_sender()

    @property
    def is_short_of_space(self) -> bool:
        """Whether threads wait for space, or the next message would be refused or have to wait."""
        return self.waiting_threads > 0 or not self.has_space()

    @property
    def awake(self) -> bool:
        """Whether a run of the sender is scheduled; the sender clears it before it looks."""
        return self.appender.awake

    @awake.setter
    def awake(self, awake: bool) -> None:
        self.appender.awake = awake

    def give_back(self, ended: Ended) -> None:
        """Free the space of messages that have their outcome, once."""
        with self.lock:
            if not ended.freed:
                ended.freed = True  # no call between these two: see ``topic_queues``
                self.appender.use(-ended.size, -ended.count)
            if self.waiting_threads:
                self._space_came.notify_all()

    def waiting(self) -> Waiting:
        """Return how many messages have no outcome yet, and their bytes without the overhead."""
        with self.lock:
            count = buffer_messages_of(self.config) - self.appender.places
            used = self.config.buffer_bytes - self.appender.space
            size = used - count * MESSAGE_OVERHEAD_BYTES
            return Waiting(count, size, self._waits, self._wait_s)

    def count_wait(self, seconds: float) -> None:
        """Count a wait for space that has ended."""
        with self.lock:
            self._waits += 1
            self._wait_s += seconds

    def has_space(self) -> bool:
        """Return whether ``append_any`` would find space now."""
        return self.appender.space > 0 and self.appender.places > 0

    @property
    def places_left(self) -> int:
        """How many more messages the buffer takes if they are empty; larger ones may be fewer."""
        space, places = self.appender.space, self.appender.places
        return max(0, min(places, -(-space // MESSAGE_OVERHEAD_BYTES)))

    def _published(self, topic: object) -> TopicQueues:
        queues = self.topics.get(topic) if isinstance(topic, str) else None
        if self._closed:
            raise InvalidState(self._closed)
        if not isinstance(topic, str):
            raise InvalidArgument(f"topic {topic!r} is {type(topic).__name__}; give text")
        if queues is None:
            raise NotPublished(f"this producer has not published topic {topic!r}")
        return queues

    def _wait_for_space(self, deadline: float, *, block: bool) -> None:
        """Wait until half of the buffer is free; the caller has the lock."""
        if threading.get_ident() == self._sender_thread:
            block = False  # waiting here would keep the sender from freeing space
        appender = self.appender
        space = self.config.buffer_bytes // 2
        places = (buffer_messages_of(self.config) + 1) // 2
        self.waiting_threads += 1
        begin = self._now() if block else 0.0
        try:
            if block:
                self.hurry_sender()
            while appender.space < space or appender.places < places:
                left = deadline - self._now()
                if not block or left <= 0 or not self._wait_for_change(left):
                    raise self._full()
                if self._closed:
                    raise InvalidState(self._closed)
        finally:
            self.waiting_threads -= 1
            if block:
                self.count_wait(self._now() - begin)

    def _wait_for_change(self, seconds: float) -> bool:
        try:
            return self._space_came.wait(seconds)
        except BaseException:  # a signal handler raised, perhaps before the lock was taken again
            if not self._held_here():
                self.lock.acquire()
            raise

    def _full(self) -> BufferFull:
        config = self.config
        messages_max = buffer_messages_of(config)
        return self.full(
            f"the buffer is full: {messages_max - self.appender.places} messages use "
            f"{config.buffer_bytes - self.appender.space} bytes; buffer_messages is "
            f"{messages_max}, buffer_bytes is {config.buffer_bytes}"
        )

    def full(self, what: str) -> BufferFull:
        """Return the error of a message that found no space; it has the cause if that is known."""
        if not self.stalled:
            return BufferFull(what)
        return BufferFull(
            f"{what}; {self.stalled}", hint="`vq cluster status` shows which brokers are up"
        )

    # The sender -------------------------------------------------------------------------------
    def drain(self) -> list[tuple[TopicQueues, Exception]]:
        """Move all appended messages to the queues of their partitions.

        Returns:
            The topics whose messages could not be moved, and why; the others were drained.
        """
        broken: list[tuple[TopicQueues, Exception]] = []
        with self.lock:
            for queues in self.topics.values():
                if queues.appended or queues.shares:
                    try:
                        queues.drain()
                    except Exception as error:  # noqa: BLE001 - the sender decides and logs it
                        broken.append((queues, error))
        return broken

    def drain_topic_of(self, queue: PartitionQueue) -> None:
        """Move the appended messages of a queue's topic to their queues; see ``drain``."""
        with self.lock:
            queues = self.topics.get(queue.partition.topic)
            if queues is not None and (queues.appended or queues.shares):
                with contextlib.suppress(Exception):  # the sender meets and logs it again
                    queues.drain()

    def set_aside(self, queue: PartitionQueue) -> list[SendFuture]:
        """Decide about messages that wait for an unavailable partition; see ``TopicQueues``.

        The sender owns the queue. It is woken for those that are dealt to other partitions.
        """
        with self.lock:
            queues = self.topics.get(queue.partition.topic)
            refused, moved = ([], False) if queues is None else queues.set_aside(queue)
        if moved:
            self.wake_sender()
        return refused

    def enter(self, queue: PartitionQueue) -> bool:
        """Make the sender the owner of a queue; return False while a blocking sender owns it."""
        with self.lock:
            return queue.enter()

    def drop_late(self, queue: PartitionQueue, now: float) -> None:
        """Fail late messages in a queue that a blocking sender owns."""
        queue.finish_failing()
        with self.lock:  # that thread removes messages from ``pending``, too
            queue.take_late(now)
        queue.finish_failing()

    def open(self, queues: TopicQueues) -> None:
        """Accept messages for a topic from now on."""
        with self.lock:
            self.topics[queues.topic] = queues

    def remove(self, queues: TopicQueues, error: VqError) -> None:
        """Accept no more messages for a topic; the caller closes its queues."""
        with self.lock:
            self.topics.pop(queues.topic, None)
            try:
                queues.drain()
            except Exception:  # noqa: BLE001 - all of them get the same error, in whichever queue they are
                queues.drain_to_one()
            for queue in queues.queues:
                queue.closed = error

    def close(self, why: str) -> None:
        """Refuse new messages and end all waits for space; accepted messages stay."""
        with self.lock:
            self.mark_closed(why)
            self._space_came.notify_all()

    def mark_closed(self, why: str) -> None:
        """Refuse new messages, without the lock: in the child of a fork its holder is gone."""
        self._closed = why
        self.appender.closed = True

    @property
    def closed(self) -> str:
        """Why messages are refused; empty while it is open."""
        return self._closed

    def queues(self) -> list[PartitionQueue]:
        """Return the queues of all topics."""
        return [queue for queues in self.topics.values() for queue in queues.queues]
