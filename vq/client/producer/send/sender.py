"""The sender: on the loop, sends batches to the brokers and turns answers into outcomes.

    accumulator ─ drain ─▶ queues decide what is next ─▶ connection ─▶ broker
    futures, callbacks ◀─ queues ◀─ ``apply_answer`` ◀──── replies

A message costs no task, timer, lock or loop call of its own. Messages that are appended while
earlier batches are in flight form the next batch.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.ids import IdsUsedUp
from vq.client.loop_calls import call_soon
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.intake.space_line import SpaceLine
from vq.client.producer.intake.stages import Stages
from vq.client.producer.queue.batch import Batch, Ended
from vq.client.producer.queue.partition_queue import PartitionQueue
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.spread.following import FullPartitions
from vq.client.producer.spread.partitioner import DEFAULT, SpreadKind, strategy_of
from vq.client.producer.spread.spread import Spread, make_spread
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.reading import TopicView
from vq.errors import (
    ConnectionCut,
    DiskFull,
    NotSent,
    PartitionUnavailable,
    TimedOut,
    Unreachable,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import Address, TopicPartition
from vq.remoting.broker_connection import SMALL_BYTES, BrokerConnection
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.shown import shown_error
from vq.tasks import begin_task

logger = get_logger(__name__)
TICK_S = 0.1
#: While the sender rests, it runs again after this, also without an answer.
REST_S = 0.005
#: So much later for each queue, since the sender then looks at all of them.
_REST_QUEUE_S = 0.000_1
_REPORT = "this is a defect of vq: report it with the traceback in the log"
#: Without an answer for so long, the error of a full buffer names the broker.
_STALLED_S = 1.0
#: Without an answer for so long, connect again and resend; the stamp prevents a second copy.
SILENCE_S = 10.0


class Sender:
    """Sends the messages of one producer. Loop-bound, except where a method says so.

    It is the host of the producer's queues, see ``partition_queue.Host``.

    Attributes:
        accumulator: Holds the messages; it wakes this sender.
        space_line: The tasks that wait for space.
        config, context: See ``Host``.
        now: Monotonic time. Any thread.
        take_ids: Returns so many new message ids, see ``ClusterClient.take_ids``. Any thread.
        waiters: Woken when messages get their outcome, in this order.
        tick_timer: Of the next look whether something is due.
        rest_timer: Of the end of a rest, while appends do not wake the sender.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ProducerConfig,
        *,
        stages: Stages,
        future: type[SendFuture],
    ) -> None:
        self.config = config
        self.context = cluster.context
        self.now = cluster.clock.monotonic
        self.take_ids = cluster.take_ids
        self._cluster = cluster
        self.loop = asyncio.get_running_loop()
        self._context = cluster.context.copy()  # of what it does by itself, for all senders
        self.dropped: list[TopicQueues] = []  # some of their queues are not yet closed
        self.waiters: dict[asyncio.Future[None], None] = {}
        self._retry_timer: asyncio.TimerHandle | None = None
        self.tick_timer: asyncio.TimerHandle | None = None
        self.rest_timer: asyncio.TimerHandle | None = None
        self._turn: PartitionQueue | None = None  # a quota kept it back while others sent
        self._abandoned = False
        self._telling: set[asyncio.Task[None]] = set()
        self._linger_s = config.linger_ms / 1000
        self.accumulator = Accumulator(
            config, cluster.clock, self._wake, stages=stages, future=future
        )
        self.space_line = SpaceLine(self.accumulator)
        self._full = FullPartitions(cluster.clock, self.accumulator.topics)

    # Any thread -------------------------------------------------------------------------------
    def _wake(self) -> None:
        if not self._abandoned:
            try:
                self.loop.call_soon_threadsafe(self.send_waiting, context=self._context)
            except RuntimeError:  # the loop has ended
                if not self.accumulator.closed:
                    raise
            else:
                return
        self.accumulator.awake = False  # each of the last blocking senders comes here
        with self.accumulator.lock:  # they may leave their queues at the same time
            self._close_dropped()

    def master_of(self, queue: PartitionQueue) -> Address | None:
        """Return the broker for a queue's batches and note it; the queue's owner calls.

        None: the partition is unavailable, or no message ids can be made now.
        """
        routes = self._cluster.routes
        view = routes.topics.get(queue.partition.topic)
        if view is None or queue.partition.partition >= len(view.partitions):
            return None
        group = view.partitions[queue.partition.partition].writer_group
        master = None if group is None else routes.master(group)
        if master is None or not self._cluster.ids_ready:
            return None
        address, epoch = master
        queue.led_by(address, epoch)
        return None if address in self._cluster.unreachable else address

    def apply_answer(
        self, queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None
    ) -> None:
        """Turn an answer to a batch into outcomes; the queue's owner calls."""
        error = queue.apply_answer(batch, answer, self.now())
        if isinstance(error, DiskFull):
            call_soon(self.loop, self._full.note, queue.partition)
        if error is not None and error.refresh_routes:
            call_soon(self.loop, self._cluster.refresh, queue.partition.topic, error)

    def new_producer_id(self) -> int:
        """See ``Host.new_producer_id``."""
        return self._cluster.rng.getrandbits(63) | 1

    def make_spread(self, is_waiting: Callable[[int], bool]) -> Spread:
        """See ``Host.make_spread``."""
        strategy = strategy_of(self.config.partitioner) or DEFAULT
        return make_spread(
            SpreadKind.SINGLE if self.config.ordered else strategy.spread,
            self._cluster.rng,
            full=self.config.batch_records,
            is_waiting=is_waiting,
        )

    def on_ended(self, ended: Ended) -> None:
        """Free the space of messages that have their outcome; called by the queues."""
        self.accumulator.give_back(ended)
        if self.waiters or self.space_line.waiting:
            call_soon(self.loop, self.wake_waiters)

    # Sending ----------------------------------------------------------------------------------
    def send_waiting(self) -> None:
        """Send all that can be sent now."""
        try:
            if not self._abandoned:
                self._send_waiting()
        except BaseException:  # a signal handler raised: threads saw ``awake`` and rely on it
            self.accumulator.awake = False
            self._ensure_tick()
            raise

    def _send_behind(self) -> None:
        self._context.run(self.send_waiting)

    def _send_waiting(self) -> None:
        self._end_rest()
        self.accumulator.awake = False
        raised: Exception | None = None
        for queues, error in self.accumulator.drain():
            try:
                self._drop_broken(queues, error)
            except Exception as again:  # noqa: BLE001 - raised below
                raised = again
        now = self.now()
        retry_at = 0.0
        if self.dropped:
            self._ensure_tick()
            self._close_dropped()
        may_rest = not self.dropped
        found = self.accumulator.queues()
        awaited = bool(self.waiters) or self.space_line.waiting
        hurry = not self._linger_s or awaited or self.accumulator.is_short_of_space
        linger_until = 0.0
        waits_s, turn = math.inf, None
        for queue in found if self._turn is None else self._in_turn(found):
            if queue.is_busy:
                self._ensure_tick()
                if self.accumulator.enter(queue):
                    try:
                        queue_waits_s, sent = self._send_from(queue, now, hurry=hurry)
                        if queue_waits_s:
                            waits_s = min(waits_s, queue_waits_s)
                            turn = turn or (None if sent else queue)
                    except Exception as error:  # noqa: BLE001 - the other queues first
                        raised = error
                if not hurry and queue.pending and (until := queue.lingers_until(now)):
                    linger_until = min(linger_until or until, until)
                if queue.retry_at > now:
                    retry_at = min(retry_at or queue.retry_at, queue.retry_at)
            may_rest = may_rest and queue.may_rest
        self._turn = turn
        if waits_s < math.inf:
            retry_at = min(retry_at or math.inf, now + waits_s)
        if retry_at:
            self._send_at(min(retry_at, linger_until or retry_at))
        elif linger_until:
            # Some queues at a time.
            self._rest(len(found), max(linger_until - now, self._linger_s / 2))
        elif may_rest and self.tick_timer is not None:
            self._rest(len(found))
        if raised is not None:
            raise raised

    def _in_turn(self, queues: Sequence[PartitionQueue]) -> Sequence[PartitionQueue]:
        """Return the queues; first the one that had to let others go before, for a quota."""
        at = next((n for n, queue in enumerate(queues) if queue is self._turn), 0)
        return [*queues[at:], *queues[:at]]

    def _drop_broken(self, queues: TopicQueues, error: Exception) -> None:
        """Fail the messages of a topic that cannot be dealt out; the next send publishes it anew.

        This is a defect of vq. It must harm no other topic, and no deadline.
        """
        why = f"the producer's state of topic {queues.topic} is broken: {shown_error(error)}"
        self.drop_topic(queues, NotSent(f"{why}; nothing was sent", hint=_REPORT))
        logger.error("messages cannot be dealt out", topic=queues.topic, exc_info=error)

    def _rest(self, queues: int, most_s: float = math.inf) -> None:
        """Ignore appends until the next answer, because nothing can be sent before that.

        Otherwise each append would cost an iteration of the loop.
        """
        rest_s = min(REST_S + _REST_QUEUE_S * queues, most_s)
        self.rest_timer = self.loop.call_later(rest_s, self.send_waiting)
        self.accumulator.awake = True

    def _end_rest(self) -> None:
        if self.rest_timer is not None:
            self.rest_timer.cancel()
            self.rest_timer = None

    def _ensure_tick(self) -> None:
        """Schedule the next tick before any step that may raise."""
        if self.tick_timer is None:
            self.tick_timer = self.loop.call_later(TICK_S, self.tick)

    def _send_from(self, queue: PartitionQueue, now: float, *, hurry: bool) -> tuple[float, int]:
        """Send all that can be sent from a queue that the sender owns, and release it.

        Returns:
            For how long a quota keeps back what is left, 0: it does not; and how many were sent.
        """
        waits_s, sent = 0.0, 0
        try:
            queue.finish_failing()
            master = self.master_of(queue)
            connection = None if master is None else self._cluster.live_connection(master)
            if master is None:
                self._fail_refused(queue)
                self._set_aside(queue)
            if connection is not None:
                while not (waits_s := _waits_s(queue, connection)):
                    batch = queue.next_to_send(now, self.take_ids, hurry=hurry)
                    if batch is None:
                        break
                    self._put(queue, batch, connection)
                    sent += 1
                    if queue.has_failed:
                        self._fail_rest(queue)
                    elif not queue.pending and queue.in_flight and batch is queue.in_flight[-1]:
                        break  # nothing follows it
        except IdsUsedUp:
            pass  # the cluster calls back when there are more; each message has its deadline
        except VqError as error:
            queue.fail_pending(NotSent(f"{queue.partition}: {error}"))
        except Exception as error:
            queue.refuse_unencodable(
                NotSent(f"{queue.partition}: not sent: {shown_error(error)}", hint=_REPORT)
            )
            logger.exception("sending from a queue failed", partition=queue.partition)
        except BaseException:  # a signal handler raised, perhaps before a batch was on its way
            queue.on_unanswered([batch for batch in queue.in_flight if batch.sent], now)
            raise
        finally:
            self._leave(queue)
        return waits_s, sent

    def _leave(self, queue: PartitionQueue) -> None:
        try:
            queue.finish_failing()
            if queue.has_failed:
                self._fail_rest(queue)
        finally:
            queue.owner = None

    def _fail_rest(self, queue: PartitionQueue) -> None:
        """In an ordered producer: fail what threads appended while an earlier message failed."""
        self.accumulator.drain_topic_of(queue)
        queue.fail_rest()

    def _fail_refused(self, queue: PartitionQueue) -> None:
        """Fail what waits for a broker that does not take this client: no retry helps."""
        view = self._cluster.routes.topics.get(queue.partition.topic)
        if view is None or queue.partition.partition >= len(view.partitions):
            return
        group = view.partitions[queue.partition.partition].writer_group
        master = None if group is None else self._cluster.routes.master(group)
        failures = None if master is None else self._cluster.unreachable.get(master[0])
        if master is None or failures is None or failures.refusal is None:
            return
        self._cluster.live_connection(master[0])  # tries again, for messages that come later
        refusal = self._cluster.connections.refusal(master[0])
        if refusal is not None:
            queue.fail_pending(refusal)

    def _set_aside(self, queue: PartitionQueue) -> None:
        """Move or refuse messages that wait for an unavailable partition, if the policy says so."""
        refused = self.accumulator.set_aside(queue)
        if refused:
            queue.refuse(refused, self._unavailable(queue.partition))

    def why_waiting(self, partition: TopicPartition) -> str:
        """Return why nothing can be sent to a partition now; empty: it can."""
        cluster = self._cluster
        view = cluster.routes.topics.get(partition.topic)
        if view is None or partition.partition >= len(view.partitions):
            return f"{partition} does not exist"
        group = view.partitions[partition.partition].writer_group
        if group is None:
            return "it has no broker group"
        master = cluster.routes.master(group)
        if master is None:
            return f"broker group {group} has no master"
        failures = cluster.unreachable.get(master[0])
        if failures is not None:
            cause = failures.cause.removeprefix(f"cannot connect to {master[0]}: ")
            return f"its broker {group} at {master[0]} cannot be reached ({cause})"
        if not cluster.ids_ready:
            return "message ids cannot be made, because ZooKeeper does not answer"
        if cluster.live_connection(master[0]) is None:
            return f"there is no connection to its broker {group} at {master[0]} yet"
        return ""

    def _unavailable(self, partition: TopicPartition) -> PartitionUnavailable:
        why = self.why_waiting(partition) or "its broker could not be reached"
        return PartitionUnavailable(
            f"{partition} is unavailable: {why}; nothing was sent: send the message again later, "
            "or set on_unavailable to 'wait' or 'any'"
        )

    def _put(self, queue: PartitionQueue, batch: Batch, connection: BrokerConnection) -> None:
        attempt = batch.attempts
        timer = self.loop.call_later(SILENCE_S, self.on_silence, queue, connection)

        def on_reply(frame: Frame | None) -> None:
            timer.cancel()
            if attempt == batch.attempts and batch.sent:
                self._on_answer(queue, batch, frame, connection)

        try:
            connection.send(Command.PUT, queue.put_header(batch), batch.body, on_reply)
        except VqError as error:
            timer.cancel()
            if isinstance(error, ConnectionCut):
                error = Unreachable(str(error))  # the connection was closed: nothing was sent
            queue.on_refused(batch, error, self.now())

    def on_silence(self, queue: PartitionQueue, connection: BrokerConnection) -> None:
        partition, address = queue.partition, connection.address
        view = self._cluster.routes.topics.get(partition.topic)
        if view is None or view.settings.min_insync < 2:
            _log_silence(partition, address, "")
        else:  # it may wait for other nodes
            telling = self._tell_silence(view, partition, address)
            task = begin_task(telling, self._cluster.context)
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
        connection.close()

    async def _tell_silence(
        self, view: TopicView, partition: TopicPartition, address: Address
    ) -> None:
        """Log why a batch has no answer: a broker gives none while too few nodes are in sync."""
        why, wanted = "", view.settings.min_insync
        with contextlib.suppress(VqError, TimeoutError, IndexError):
            group = view.partitions[partition.partition].writer_group
            async with asyncio.timeout(_STALLED_S):
                state = group and await read_state(self._cluster.coordinator, group)
            if state and len(state.insync) < wanted:
                why = (
                    f"{len(state.insync)} node(s) of broker group {group} in sync, the topic's "
                    f"min_insync is {wanted}"
                )
        _log_silence(partition, address, why)

    def _on_answer(
        self,
        queue: PartitionQueue,
        batch: Batch,
        frame: Frame | None,
        connection: BrokerConnection,
    ) -> None:
        """Apply an answer; a blocking sender does not claim a queue with batches in flight."""
        self.accumulator.enter(queue)
        try:
            queue.finish_failing()
            self.apply_answer(queue, batch, frame)
        finally:
            self._leave(queue)
        if not self.accumulator.awake or self.rest_timer is not None:
            self._end_rest()
            self.accumulator.awake = True
            connection.afterwards(self._send_behind)

    # Time -------------------------------------------------------------------------------------
    def _send_at(self, when: float) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._retry_timer = self.loop.call_later(max(0.0, when - self.now()), self.send_waiting)

    def tick(self) -> None:
        """Fail messages past their deadline; tick again while any message is left."""
        raised: Exception | None = None
        try:
            self.tick_timer = None
            now = self.now()
            for queue in self.accumulator.queues():
                try:
                    self._tick_queue(queue, now)
                except Exception as error:  # noqa: BLE001 - the other queues first
                    raised = error
                    late = f"{queue.partition}: no certain outcome in time: {shown_error(error)}"
                    queue.fail_late(now, TimedOut(late))
        finally:  # the application's logging may raise
            self.send_waiting()
        self.accumulator.stalled = self._stalled(now)
        if raised is not None:
            raise raised

    def _tick_queue(self, queue: PartitionQueue, now: float) -> None:
        if not queue.is_busy:
            return
        if not self.accumulator.enter(queue):
            self.accumulator.drop_late(queue, now)
            return
        try:
            queue.on_tick(now)
        finally:
            self._leave(queue)

    def _stalled(self, now: float) -> str:
        """Return which partition takes no messages and why, if the buffer is full; "": none."""
        if not self.accumulator.is_short_of_space:
            return ""
        for queue in self.accumulator.queues():
            silence = queue.silence(now)
            if silence > _STALLED_S:
                broker = f"its broker {queue.master} has not answered for {silence:.0f} s"
                return f"{queue.partition} takes none: {broker}"
            why = self.why_waiting(queue.partition) if queue.pending else ""
            if why:
                return f"{queue.partition} takes none: {why}"
        return ""

    # Topics -----------------------------------------------------------------------------------
    def drop_topic(self, queues: TopicQueues, error: VqError) -> None:
        """Fail all messages of a topic and forget its queues.

        If the topic is published again, its new queues have other producer ids. Their sequences
        start at 0 again, which under the old ids the broker would take for resends.
        """
        try:
            self.dropped.append(queues)  # first: a topic is here or in the accumulator always
            self.accumulator.remove(queues, error)
        except BaseException:  # a signal handler raised
            if queues not in self.dropped:
                self.dropped.append(queues)
            self.accumulator.remove(queues, error)
            raise
        self._close_dropped()

    def topics(self) -> list[TopicQueues]:
        """Return all topics with messages that may have no outcome yet; one may be there twice."""
        return [*self.dropped, *self.accumulator.topics.values()]

    def _close_dropped(self) -> None:
        """Close the queues of dropped topics, except those that a blocking sender owns now."""
        for queues in list(self.dropped):
            left = [queue for queue in queues.queues if not self._close_queue(queue)]
            if not left:
                self.dropped.remove(queues)

    def _close_queue(self, queue: PartitionQueue) -> bool:
        """Close a queue of a dropped topic; return False while a blocking sender owns it."""
        if not self.accumulator.enter(queue):
            return False  # its owner wakes the sender
        try:
            assert queue.closed is not None
            queue.close(queue.closed)
        finally:
            queue.owner = None
        return True

    # Waiting ----------------------------------------------------------------------------------
    def without_outcome(self) -> list[SendFuture]:
        """Return every message that may have no outcome yet, and wake the sender for them.

        A signal handler may have raised in a thread after it appended a message and before it woke
        the sender.
        """
        self.accumulator.drain()
        self.accumulator.wake_sender()
        with self.accumulator.lock:
            found = [
                future
                for queues in self.topics()
                for queue in queues.queues
                for future in queue.without_outcome()
            ]
            for queues in self.topics():
                found += queues.appended  # could not be drained
            return found

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until ``reached()`` is true; evaluate it whenever messages get their outcome.

        Register first, then evaluate. A blocking sender applies answers in its own thread; an
        answer between evaluation and registration would not wake this caller.
        """
        while True:
            waiter = self.loop.create_future()
            self.waiters[waiter] = None
            try:
                if reached():
                    return
                if self._linger_s:
                    self.loop.call_soon(self.send_waiting, context=self._context)
                await waiter
            finally:
                self.waiters.pop(waiter, None)

    def check_all(self) -> None:
        """Do what a sending thread may have left undone when a signal handler raised in it."""
        self.accumulator.wake_sender()
        call_soon(self.loop, self.wake_waiters)

    def wake_waiters(self) -> None:
        """Have every caller of ``wait_until`` evaluate its condition again, and use the space."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.space_line.wake()

    def close(self) -> None:
        """Stop the timers; no message is left."""
        self._full.stop()
        for timer in (self._retry_timer, self.tick_timer, self.rest_timer):
            if timer is not None:
                timer.cancel()

    def abandon(self) -> None:
        """Stop, because the loop ends: whoever leaves a dropped queue closes it from now on.

        The loop may never run what is scheduled now.
        """
        self.close()
        self._abandoned = True
        self._wake()


def _waits_s(queue: PartitionQueue, connection: BrokerConnection) -> float:
    """Return for how many seconds the next batch of a queue should not be sent; 0: now."""
    waits_s = connection.waits_s()
    if waits_s and connection.takes_small and queue.next_bytes <= SMALL_BYTES:
        return 0.0
    return waits_s


def _log_silence(partition: TopicPartition, address: Address, why: str) -> None:
    """Log that a batch has no answer for long; ``why``: "" if the broker is silent."""
    if why:
        logger.warning(
            "messages are not acknowledged, sending again",
            broker=address,
            partition=partition,
            cause=why,
        )
    else:
        logger.warning(
            "broker does not answer, connecting again", broker=address, partition=partition
        )
