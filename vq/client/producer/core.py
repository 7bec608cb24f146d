"""The producer's core: takes messages from any thread, sends batches from the loop.

    caller's thread                         loop
    intake, enqueue ── wake ──▶ pump: spread over partitions ▶ queue decides ▶ connection ▶ broker
                                                  replies ▶ queue ▶ futures, callbacks

Per message there is one object (its future) and no task, timer, lock or loop call; batches form by
themselves from what arrives while earlier ones are on their way.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

from vq.client.cluster import ClusterClient
from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import SendCallback, SendFuture
from vq.client.ids import IdsUsedUp
from vq.client.producer.batch import Batch
from vq.client.producer.blocking_sender import BlockingConnection, LaneHooks, SyncLane
from vq.client.producer.head import TAG_HEAD_BYTES_MAX, Heads
from vq.client.producer.intake import TAKEN_IN_BYTES_MAX, make_intake
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Partitioner
from vq.client.producer.puts import put_header, settle
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import (
    BufferFull,
    ConnectionCut,
    InvalidArgument,
    InvalidState,
    MessageTooLarge,
    NotPublished,
    NotSent,
    PermissionRefused,
    UnknownTopic,
    Unreachable,
    VqError,
)
from vq.model import Address, Message, TopicPartition, check_timeout
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.format import Command
from vq.remoting.frames import Frame

logger = logging.getLogger(__name__)
_CLOSED = "the producer is closed"
_TICK_S = 0.1
#: A broker that has not answered a batch for so long is asked again on a new connection; the stamp
#: keeps what it stored meanwhile from being stored twice.
_SILENCE_S = 10.0
#: The most that a message takes of the buffer which the intake may take in.
_TAKEN_IN_COUNTED_MAX = TAKEN_IN_BYTES_MAX + TAG_HEAD_BYTES_MAX + MESSAGE_OVERHEAD_BYTES


class ProducerCore:
    """One producer: one producer id, one line of batches per partition.

    ``take`` and ``enqueue`` may be called from any thread; everything else belongs to the loop.
    A message goes to ``take`` first, and to ``enqueue`` if it was not taken.

    Attributes:
        take: Takes a plain message in at once, see ``intake.Intake.take``.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        *,
        partitioner: Partitioner | None = None,
        future: type[SendFuture] = SendFuture,
    ) -> None:
        self._future = future
        self.config = config
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._clock = cluster.clock.monotonic
        self._partitioner = partitioner
        self._send_timeout_s = config.send_timeout_s
        self._topics: dict[str, TopicQueues] = {}
        self._taking: dict[str, TopicQueues] = {}  # the same until nothing is taken any more
        self._lock = threading.Lock()
        self._more_room = threading.Condition(self._lock)
        self._waiting_for_room = 0
        self._lanes: dict[Address, SyncLane] = {}
        self._leaving: list[PartitionQueue] = []  # given up, not yet closed
        self._loop_thread = threading.get_ident()
        self._closed = ""  # why nothing is taken any more
        self._heads = Heads()
        self._intake = make_intake(
            self._lock,
            self._clock,
            config.send_timeout_s,
            self._wake_loop,
            self._heads.of_tags,
            TAKEN_IN_BYTES_MAX if partitioner is None else -1,
            future,
        )
        self.take = self._intake.take
        # Under the lock. The room may go below 0 by one message, and by what was taken in.
        self._room = 0
        self._set_room(config.buffer_bytes)
        # Told when messages get their outcome, in this order.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._remove_listener = cluster.on_change(self._routes_changed)

    # Topics -----------------------------------------------------------------------------------
    async def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them; needed before the first ``enqueue`` to it.

        Raises:
            UnknownTopic: There is no such topic.
            PermissionRefused: The topic is not writable.
        """
        self._check_open()
        await self._cluster.lease_slot()
        routes = await self._cluster.track(topic)
        if not routes.topic(topic).settings.writable:
            raise PermissionRefused(f"topic {topic} is not writable: its settings say so")
        self._check_open()
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = TopicQueues(
                topic,
                routes.topic(topic).id,
                self._make_queue,
                partitioner=self._partitioner,
                first_turn=self._cluster.rng.randrange(1024),
            )
        self._follow(queues)
        self._taking[topic] = queues
        self._open_line(queues)

    def _make_queue(self, where: TopicPartition) -> PartitionQueue:
        return PartitionQueue(where, self._new_producer_id, self.config, self._ended)

    def _new_producer_id(self) -> int:
        return self._cluster.rng.getrandbits(63) | 1

    def _follow(self, queues: TopicQueues) -> None:
        routes = self._cluster.routes
        view = routes.topics.get(queues.topic)
        if view is None or view.id != queues.topic_id:
            self._leave(queues, UnknownTopic(f"topic {queues.topic} was deleted"))
            return
        writable = [
            placement.partition
            for placement in view.partitions
            if placement.writer_group is not None and routes.master(placement.writer_group)
        ]
        queues.update(view.settings, len(view.partitions), writable)
        if self._taking.get(queues.topic) is queues:
            self._open_line(queues)

    def _open_line(self, queues: TopicQueues) -> None:
        """Have the intake take a topic's messages, unless the topic was given up meanwhile."""
        if queues.refusal is None:
            self._intake.lines[queues.topic] = (queues.taken_in, queues.message_bytes_max)

    def _leave(self, queues: TopicQueues, error: VqError) -> None:
        """Give up a topic and everything that waits for it.

        If it is published again its lines have other producer ids: they count from 0 again, which
        a log that remembers these would take for resends of their first batches.
        """
        self._topics.pop(queues.topic, None)
        self._taking.pop(queues.topic, None)
        self._intake.lines.pop(queues.topic, None)
        with self._lock:
            self._refuse(queues, error)
            for queue in queues.queues:
                queue.closed = error
            self._leaving += queues.queues
        self._close_leaving()

    def _close_leaving(self) -> None:
        """Close the queues that were given up, except those that a blocking sender holds now."""
        with self._lock:  # a blocking sender adds to the list
            left, self._leaving = self._leaving, []
        for queue in left:
            if not self._enter(queue):
                with self._lock:
                    self._leaving.append(queue)  # the holder wakes the loop
                continue
            try:
                assert queue.closed is not None
                queue.close(queue.closed)
            finally:
                queue.busy = False

    def _routes_changed(self) -> None:
        for queues in list(self._topics.values()):
            self._follow(queues)
        self._drop_lanes()
        self._pump()

    def _drop_lanes(self) -> None:
        """Close the lanes to brokers that lead nothing any more."""
        masters = {master.address for master in self._cluster.routes.masters.values()}
        with self._lock:
            for address in [each for each in self._lanes if each not in masters]:
                if self._lanes[address].close_idle():
                    del self._lanes[address]

    # Any thread -------------------------------------------------------------------------------
    def enqueue(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
        *,
        block: bool = True,
        direct: bool = False,
    ) -> SendFuture:
        """Take any message; it is sent from the loop, in order per partition and thread.

        Args:
            message: What to send.
            callback: Called on the loop with the outcome.
            timeout: Seconds until there must be an outcome; None: as configured.
            block: Wait while the buffer is full, at most until the send's deadline; never on the
                loop's own thread, which alone makes room.
            direct: Return only once there is an outcome; the caller's thread does the round trip
                itself where nothing else is on the way to the partition (``sync_lane``). Not on
                the loop.

        Raises:
            InvalidArgument, MessageTooLarge: The message is unusable; nothing was taken.
            NotPublished: The topic was not published by this producer.
            UnknownTopic: The topic was deleted meanwhile.
            InvalidState: The producer is closed.
            BufferFull: No room until the deadline (at once, without ``block``).
        """
        if not isinstance(message, Message):
            raise InvalidArgument(f"a message is a vq.Message, not {type(message).__name__}")
        topic, content, tag, key, headers = message[:5]
        queues = self._taking.get(topic) if isinstance(topic, str) else None
        if queues is None:
            raise self._not_published(topic)
        if type(content) is not bytes:
            content = _as_bytes(content)
        size = len(content)
        if size > queues.message_bytes_max:
            raise MessageTooLarge(
                f"message of {size} bytes; topic {topic} takes at most {queues.message_bytes_max}"
            )
        head = None
        if key is not None or headers is not None:
            head = self._heads.of(tag, key, headers)
        elif tag is not None:
            known = self._heads.of_tags.get(tag) if isinstance(tag, str) else None
            head = known or self._heads.of_tag(tag)
        bound = self._send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = self._clock() + bound
        future = self._future(content, head, callback, deadline)
        with self._lock:
            self._take_in(queues)  # what was sent before comes before
            if self._room <= 0:
                self._wait_for_room(deadline, block=block)
            queue = queues.next_turn() if key is None else queues.for_key(key)
            self._set_room(self._room - future.size - MESSAGE_OVERHEAD_BYTES)
            lane = self._lane(queue) if direct else None
            if lane is not None:
                entry = lane.join(queue, future)
            else:
                queue.pending.append(future)
                self._wake_loop()
        if lane is not None:
            lane.run(entry)
        elif direct:
            future.exception()
        return future

    def _take_in(self, queues: TopicQueues) -> None:
        """Spread what a topic has taken in over its partitions; the lock is held.

        Not once it was refused: what is appended then, its caller takes back.
        """
        if queues.taken_in and queues.refusal is None:
            self._spread(queues)

    def _take_all_in(self) -> None:
        """Do so for every topic; the lock is held."""
        for queues in self._topics.values():
            self._take_in(queues)

    def _refuse(self, queues: TopicQueues, error: VqError) -> None:
        """Have a topic take nothing from now on, and spread what it has; the lock is held."""
        queues.refuse(error)
        self._spread(queues)

    def _spread(self, queues: TopicQueues) -> None:
        count, size = queues.spread()
        self._set_room(self._room - size - count * MESSAGE_OVERHEAD_BYTES)

    def _set_room(self, room: int) -> None:
        """Note how much room there is in the buffer; the lock is held."""
        self._room = room
        # Each line may take in so many before anybody counts them.
        self._intake.most = room // (_TAKEN_IN_COUNTED_MAX * (len(self._intake.lines) or 1))

    def _lane(self, queue: PartitionQueue) -> SyncLane | None:
        """Return the lane that may carry a partition now, if any; the lock is held."""
        if not (queue.held or queue.is_free()):
            return None
        master = self._master_of(queue)
        if master is None or not self._cluster.ids_ready:
            return None
        lane = self._lanes.get(master)
        if lane is None:
            config = self._cluster.config
            connection = BlockingConnection(
                master,
                client_id=config.client_id,
                cluster=config.cluster,
                timeout=config.connect_timeout_s,
            )
            hooks = LaneHooks(
                lock=self._lock,
                now=self._clock,
                take_ids=self._cluster.take_ids,
                settle=self._settle,
                give_back=self._give_back,
                give_up=self._give_up,
            )
            lane = self._lanes[master] = SyncLane(connection, hooks)
        return lane

    def _give_back(self, queue: PartitionQueue, futures: list[SendFuture]) -> None:
        """Have the loop take over a queue; called by blocking senders."""
        with self._lock:
            queue.pending += futures
            if queue.closed is not None:
                self._leaving.append(queue)
            self._wake_loop()

    def _give_up(self, queue: PartitionQueue, future: SendFuture) -> None:
        """Fail a message that waited for its turn until its deadline."""
        future.fail(NotSent(f"{queue.where}: not sent within its deadline, others came first"))
        self._ended(1, future.size)

    def _wake_loop(self) -> None:
        if self._intake.awake:
            return
        try:
            self._intake.awake = True
            self._loop.call_soon_threadsafe(self._pump)
        except BaseException:  # a signal handler raised, perhaps before the loop was told
            self._intake.awake = False
            raise

    def _not_published(self, topic: object) -> VqError:
        if self._closed:
            return InvalidState(self._closed)
        if not isinstance(topic, str):
            return InvalidArgument(f"topic {topic!r} is {type(topic).__name__}; give text")
        return NotPublished(f"topic {topic!r} was not published by this producer")

    def _wait_for_room(self, deadline: float, *, block: bool) -> None:
        """Return once there is room; the lock is held. Half the buffer must drain before that."""
        if threading.get_ident() == self._loop_thread:
            block = False  # waiting here would keep the loop from making room
        self._waiting_for_room += 1
        try:
            while self._room < self.config.buffer_bytes // 2:
                left = deadline - self._clock()
                if not block or left <= 0 or not self._more_room.wait(left):
                    raise BufferFull(
                        f"messages of {self.config.buffer_bytes - self._room} bytes wait already, "
                        f"buffer_bytes is {self.config.buffer_bytes}"
                    )
                self._check_open()
        finally:
            self._waiting_for_room -= 1

    def _is_full(self) -> bool:
        """Return whether ``enqueue`` would have to wait now."""
        with self._lock:
            self._take_all_in()
            return self._room <= 0

    async def wait_for_room(self, timeout: float | None) -> None:
        """Return once ``enqueue`` need not wait; for callers on the loop.

        Raises:
            BufferFull: There was no room within the send's deadline.
        """
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        try:
            async with asyncio.timeout(bound):
                await self._until(lambda: not self._is_full())
        except TimeoutError:
            raise BufferFull(f"no room for a message within {bound:g} s") from None

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidState(self._closed)

    # The loop ---------------------------------------------------------------------------------
    def _pump(self) -> None:
        """Send whatever can be sent now."""
        self._intake.awake = False
        with self._lock:
            self._take_all_in()
        now = self._clock()
        retry_at = 0.0
        busy = False
        if self._leaving:
            self._close_leaving()
        for queues in self._topics.values():
            for queue in queues.queues:
                if queue.pending or queue.in_flight:
                    busy = True
                    if self._enter(queue):
                        self._pump_queue(queue, now)
                    if queue.retry_at > now:
                        retry_at = min(retry_at or queue.retry_at, queue.retry_at)
        if retry_at:
            self._pump_at(retry_at)
        if (busy or self._leaving) and self._tick_timer is None:
            self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    def _enter(self, queue: PartitionQueue) -> bool:
        """Keep blocking senders from a queue; False when one holds it (it wakes the loop)."""
        with self._lock:
            if queue.held:
                return False
            queue.busy = True
            return True

    def _pump_queue(self, queue: PartitionQueue, now: float) -> None:
        """Send what can be sent of a queue that was entered, and leave it."""
        try:
            master = self._master_of(queue)
            connection = None if master is None else self._cluster.live_connection(master)
            if connection is not None and self._cluster.ids_ready:
                while (batch := queue.next_to_send(now, self._cluster.take_ids)) is not None:
                    self._send(queue, batch, connection)
        except IdsUsedUp:
            pass  # the cluster tells when there are more; each message has its deadline
        except VqError as error:
            queue.refuse_pending(NotSent(f"{queue.where}: {error}"))
        except Exception:
            logger.exception("%s: sending stumbled, and goes on", queue.where)
        finally:
            queue.busy = False

    def _master_of(self, queue: PartitionQueue) -> Address | None:
        routes = self._cluster.routes
        view = routes.topics.get(queue.where.topic)
        if view is None or queue.where.partition >= len(view.partitions):
            return None
        group = view.partitions[queue.where.partition].writer_group
        master = None if group is None else routes.master(group)
        if master is None:
            return None
        address, queue.epoch = master
        return address

    def _send(self, queue: PartitionQueue, batch: Batch, connection: BrokerConnection) -> None:
        attempt = batch.attempts
        timer = self._loop.call_later(_SILENCE_S, self._no_answer, queue, connection)

        def on_reply(frame: Frame | None) -> None:
            timer.cancel()
            if attempt == batch.attempts and batch.sent:
                self._on_answer(queue, batch, frame)

        try:
            connection.send(Command.PUT, put_header(queue, batch), batch.body, on_reply)
        except VqError as error:
            timer.cancel()
            if isinstance(error, ConnectionCut):
                error = Unreachable(str(error))  # it has ended: nothing was sent
            queue.on_refused(batch, error, self._clock())

    def _no_answer(self, queue: PartitionQueue, connection: BrokerConnection) -> None:
        logger.warning("%s: the broker does not answer; connecting anew", queue.where)
        connection.close()

    def _on_answer(self, queue: PartitionQueue, batch: Batch, frame: Frame | None) -> None:
        """Act on an answer to a batch in the line."""
        if not self._enter(queue):
            return  # never: while the batch is in the line nobody else may hold the queue
        try:
            self._settle(queue, batch, frame)
        finally:
            queue.busy = False
        if not self._intake.awake:
            self._intake.awake = True
            self._loop.call_soon(self._pump)

    def _settle(self, queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None) -> None:
        """Act on an answer; on the loop, or by a blocking sender that holds the queue."""
        error = settle(queue, batch, answer, self._clock())
        if error is not None and error.refresh_routes:
            self._loop.call_soon_threadsafe(self._cluster.refresh, queue.where.topic)

    def _ended(self, count: int, size: int) -> None:
        """Some messages have their outcome; called by the queues."""
        with self._lock:
            self._set_room(self._room + size + count * MESSAGE_OVERHEAD_BYTES)
            if self._waiting_for_room:
                self._more_room.notify_all()
        if self._waiters:
            self._loop.call_soon_threadsafe(self._wake_waiters)

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Return once ``reached()``; it is asked again whenever messages got their outcome.

        Register first, then look: blocking senders settle messages in their own threads, and one
        that does so between the look and the registration would wake nobody.
        """
        while True:
            waiter = self._loop.create_future()
            self._waiters[waiter] = None
            try:
                if reached():
                    return
                await waiter
            finally:
                self._waiters.pop(waiter, None)

    def _pump_at(self, when: float) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_timer = self._loop.call_later(max(0.0, when - self._clock()), self._pump)

    def _tick(self) -> None:
        """Give up what is past its deadline, and look again soon while anything is left."""
        self._tick_timer = None
        now = self._clock()
        for queues in self._topics.values():
            for queue in queues.queues:
                if not (queue.in_flight or queue.pending):
                    continue
                if not self._enter(queue):
                    queue.drop_late(now)  # what waits behind a blocking sender
                    continue
                try:
                    queue.on_tick(now)
                finally:
                    queue.busy = False
        self._pump()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return bool(self._closed)

    def refuse(self, why: str) -> None:
        """Take nothing any more; ``take`` and ``enqueue`` look at nothing but the topics."""
        self._closed = why
        self._taking = {}
        self._intake.lines.clear()

    def forsake(self, why: str) -> None:
        """Give up everything in the child of a fork: no thread here will ever get an answer.

        Takes no lock: one may be held for ever, by a thread that is not there.
        """
        self.refuse(why)
        for queues in self._topics.values():
            waiting = queues.taken_in[:]
            for queue in queues.queues:
                waiting += queue.pending
                for batch in queue.in_flight:
                    waiting += batch.items
            for item in waiting:
                if item.outcome is None:
                    item.outcome = InvalidState(why)

    async def flush(self) -> None:
        """Wait until every message taken so far has its outcome (each has a deadline)."""
        taken = self._without_outcome()

        def all_done() -> bool:
            while taken and taken[-1].done():
                taken.pop()
            return not taken

        await self._until(all_done)

    def _without_outcome(self) -> list[SendFuture]:
        """Return every message that may have no outcome yet."""
        with self._lock:
            self._take_all_in()
            taken = [future for lane in self._lanes.values() for future in lane.futures]
            for queue in self._queues():
                taken += queue.pending
                if not queue.held:  # else a lane has them, and changes ``in_flight`` any time
                    for batch in queue.in_flight:
                        taken += batch.items
        return taken

    def _queues(self) -> list[PartitionQueue]:
        every = [queue for queues in self._topics.values() for queue in queues.queues]
        return every + self._leaving

    async def close(self) -> None:
        """Refuse new messages, wait for those taken, stop. May be called again."""
        if not self._closed:
            self.refuse(_CLOSED)
            with self._lock:
                for queues in self._topics.values():
                    self._refuse(queues, InvalidState(_CLOSED))
                self._more_room.notify_all()
            self._closing = self._loop.create_task(self._finish())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        await self.flush()
        self._remove_listener()
        for lane in self._lanes.values():
            lane.close()
        for timer in (self._retry_timer, self._tick_timer):
            if timer is not None:
                timer.cancel()


def _as_bytes(content: object) -> bytes:
    if not isinstance(content, bytes | bytearray | memoryview):
        shown = repr(content)[:40]
        raise InvalidArgument(
            f"content {shown} is {type(content).__name__}; give bytes (text: content.encode())"
        )
    return bytes(content)
