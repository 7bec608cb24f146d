"""The sender: on the loop, batches out of the accumulator to the brokers, and answers to outcomes.

    accumulator ─ drain ─▶ queues decide what goes next ─▶ connection ─▶ broker
    futures, callbacks ◀─ queues ◀─ ``apply_answer`` ◀──── replies

Per message there is no task, timer, lock or loop call; batches form by themselves from what is
appended while earlier ones are on their way.
"""

import asyncio
from collections.abc import Callable

from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.ids import IdsUsedUp
from vq.client.producer.accumulator import Accumulator
from vq.client.producer.batch import Batch
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.puts import apply_answer, put_header
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import ConnectionCut, NotSent, Unreachable, VqError
from vq.log_lines import get_logger
from vq.model import Address
from vq.remoting.broker_connection import BrokerConnection
from vq.remoting.format import Command
from vq.remoting.frames import Frame

logger = get_logger(__name__)
_TICK_S = 0.1
#: Appends wake the sender again after this, also if no answer has come.
_REST_S = 0.005
#: A broker that has not answered a batch for so long is asked again on a new connection; the stamp
#: keeps what it stored meanwhile from being stored twice.
_SILENCE_S = 10.0


class Sender:
    """Sends what one producer's accumulator holds. Loop-bound, except where a method says so.

    Attributes:
        accumulator: Where messages come from; made here, with the sender to wake.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        *,
        every_plain: bool,
        future: type[SendFuture],
    ) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._clock = cluster.clock.monotonic
        self._leaving: list[PartitionQueue] = []  # given up, not yet closed
        # Told when messages get their outcome, in this order.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None  # while appends do not wake the sender
        self.accumulator = Accumulator(
            config, self._clock, self._wake, every_plain=every_plain, future=future
        )

    # Any thread -------------------------------------------------------------------------------
    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.send_waiting)
        except RuntimeError:  # the loop has ended
            if not self.accumulator.closed:
                raise
            self._close_leaving()  # what the last blocking senders leave behind

    def master_of(self, queue: PartitionQueue) -> Address | None:
        """Return where a queue's batches go now, and note the master's epoch; its owner calls.

        None: nobody leads the partition's group, or no message can be given an id now.
        """
        routes = self._cluster.routes
        view = routes.topics.get(queue.partition.topic)
        if view is None or queue.partition.partition >= len(view.partitions):
            return None
        group = view.partitions[queue.partition.partition].writer_group
        master = None if group is None else routes.master(group)
        if master is None or not self._cluster.ids_ready:
            return None
        address, queue.epoch = master
        return address

    def apply_answer(
        self, queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None
    ) -> None:
        """Turn an answer to a batch into outcomes; the queue's owner calls. See ``puts``."""
        error = apply_answer(queue, batch, answer, self._clock())
        if error is not None and error.refresh_routes:
            self._loop.call_soon_threadsafe(self._cluster.refresh, queue.partition.topic)

    def on_ended(self, count: int, size: int) -> None:
        """Some messages have their outcome; called by the queues."""
        self.accumulator.give_back(count, size)
        if self._waiters:
            self._loop.call_soon_threadsafe(self.wake_waiters)

    # Sending ----------------------------------------------------------------------------------
    def send_waiting(self) -> None:
        """Send whatever can be sent now."""
        self._end_rest()
        self.accumulator.awake = False
        self.accumulator.drain()
        now = self._clock()
        retry_at = 0.0
        if self._leaving:
            self._look_again_soon()
            self._close_leaving()
        may_rest = not self._leaving
        for queue in self.accumulator.queues():
            if queue.pending or queue.in_flight or queue.owner:
                self._look_again_soon()
                if self.accumulator.enter(queue):
                    self._send_from(queue, now)
                if queue.retry_at > now:
                    retry_at = min(retry_at or queue.retry_at, queue.retry_at)
            may_rest = may_rest and queue.may_rest
        if retry_at:
            self._send_at(retry_at)
        elif may_rest and self._tick_timer is not None:
            self._rest()

    def _rest(self) -> None:
        """Let appends wake nobody until the next answer: nothing can be sent before that.

        Each append would cost an iteration of the loop otherwise.
        """
        self._rest_timer = self._loop.call_later(_REST_S, self.send_waiting)
        self.accumulator.awake = True

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _look_again_soon(self) -> None:
        """Have a tick come, whatever is raised before that."""
        if self._tick_timer is None:
            self._tick_timer = self._loop.call_later(_TICK_S, self._tick)

    def _send_from(self, queue: PartitionQueue, now: float) -> None:
        """Send what can be sent of a queue that was entered, and leave it."""
        try:
            master = self.master_of(queue)
            connection = None if master is None else self._cluster.live_connection(master)
            if connection is not None:
                while (batch := queue.next_to_send(now, self._cluster.take_ids)) is not None:
                    self._put(queue, batch, connection)
        except IdsUsedUp:
            pass  # the cluster tells when there are more; each message has its deadline
        except VqError as error:
            queue.refuse_pending(NotSent(f"{queue.partition}: {error}"))
        except Exception:
            logger.exception("sending from a queue failed", partition=queue.partition)
        finally:
            queue.owner = None

    def _put(self, queue: PartitionQueue, batch: Batch, connection: BrokerConnection) -> None:
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
        logger.warning(
            "broker does not answer, connecting again",
            broker=connection.address,
            partition=queue.partition,
        )
        connection.close()

    def _on_answer(self, queue: PartitionQueue, batch: Batch, frame: Frame | None) -> None:
        """Act on an answer to a batch in flight: no blocking sender claims such a queue."""
        self.accumulator.enter(queue)
        try:
            self.apply_answer(queue, batch, frame)
        finally:
            queue.owner = None
        if not self.accumulator.awake or self._rest_timer is not None:
            self._end_rest()
            self.accumulator.awake = True
            self._loop.call_soon(self.send_waiting)

    # Time -------------------------------------------------------------------------------------
    def _send_at(self, when: float) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_timer = self._loop.call_later(max(0.0, when - self._clock()), self.send_waiting)

    def _tick(self) -> None:
        """Give up what is past its deadline, and look again soon while anything is left."""
        self._tick_timer = None
        now = self._clock()
        try:
            for queue in self.accumulator.queues():
                if not (queue.in_flight or queue.pending or queue.owner):
                    continue
                if not self.accumulator.enter(queue):
                    self.accumulator.drop_late(queue, now)
                    continue
                try:
                    queue.on_tick(now)
                finally:
                    queue.owner = None
        finally:  # whatever the application's logging may raise
            self.send_waiting()

    # Topics -----------------------------------------------------------------------------------
    def leave(self, queues: TopicQueues, error: VqError) -> None:
        """Give up a topic and everything that waits for it.

        If it is published again its queues have other producer ids: they count from 0 again, which
        a log that remembers these would take for resends of their first batches.
        """
        self._leaving += self.accumulator.remove(queues, error)
        self._close_leaving()

    def _close_leaving(self) -> None:
        """Close the queues that were given up, except those that a blocking sender has now."""
        for queue in list(self._leaving):
            if not self.accumulator.enter(queue):
                continue  # its owner wakes the sender
            try:
                assert queue.closed is not None
                queue.close(queue.closed)
            finally:
                queue.owner = None
            self._leaving.remove(queue)

    # Waiting ----------------------------------------------------------------------------------
    def without_outcome(self) -> list[SendFuture]:
        """Return every message that may have no outcome yet, and look after all of them soon.

        A signal handler may have raised in a thread just when it had appended a message, before it
        told anybody.
        """
        self.accumulator.drain()
        self.accumulator.wake_sender()
        with self.accumulator.lock:
            every = [*self._leaving, *self.accumulator.queues()]
            return [future for queue in every for future in queue.without_outcome()]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return once ``reached()``; it is asked again whenever messages got their outcome.

        Register first, then look: blocking senders apply answers in their own threads, and one
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

    def look_after(self) -> None:
        """A signal handler raised in a thread that sends: do what it may have left undone."""
        self.accumulator.wake_sender()
        self._loop.call_soon_threadsafe(self.wake_waiters)

    def wake_waiters(self) -> None:
        """Have everybody in ``until`` look again."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Stop; nothing is left to be sent."""
        for timer in (self._retry_timer, self._tick_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
