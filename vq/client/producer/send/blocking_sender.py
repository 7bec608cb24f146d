"""Sends that wait, without the event loop: the caller's own thread does the round trip.

Handing a message to the loop's thread and waiting for the answer costs two thread switches, about
as much as the round trip. So a thread claims the queue of its partition, if only blocking sends are
before its message, and *leads*: it sends the messages of all blocking senders as one batch over a
connection of its own, and applies the answer. The other threads sleep. When the leader leaves, the
thread of the first waiting message takes the lead.

    thread 1   lead ── batch(1) ──▶ ◀── answer ── pass the lead ──▶ returns
    thread 2       sleeps ························ lead ── batch(2, 3) ──▶ ◀── answer ──▶ returns
    thread 3            sleeps ···················································▶ returns

Threads that shared a batch have their answers at the same time, and most send again. So the next
leader *gathers*: it waits while their messages come, instead of sending the first of them alone.

The handler of a signal may wait for what the thread that it interrupted has to send: with ``flush``
or ``close``, say. Then that thread *steps aside*: the sender on the loop has its message, or sends
the batch that is under way again with the same stamp, and a later answer is passed over.

The thread of ``send_batch`` leads only if nothing else of the partition waits or is under way, and
only with what is one batch. All else it leaves to the loop, where batches follow each other without
waiting for answers.

Messages with callbacks are not sent here: callbacks run on the loop. A batch that is not stored at
once (a refusal, a cut connection, a time-out) stays in the queue, and the sender on the loop sends
it again with the same stamp.
"""

import functools
import math
import operator
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from vq.client.cluster import ClusterClient
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.intake.batch_send import BatchSend
from vq.client.producer.queue.partition_queue import BatchLeader, Leader, PartitionQueue
from vq.client.producer.send.sender import Sender
from vq.errors import NotAuthenticated, Unreachable, VqError
from vq.model import Address
from vq.remoting.blocking_connection import BlockingConnection
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.waits import DUTIES

#: The longest exchange. After it the thread leaves the batch to the loop, which connects again.
_PATIENCE_S = 10.0
#: How long a leading thread waits for further messages at most, and for each that it sees.
_GATHER_S = 0.002
_LOOK_S = 0.0001
#: Connections to one broker. If all are in use, a thread leaves its message to the loop.
_CONNECTIONS_MAX = 4
_deadline = operator.attrgetter("deadline")
T = TypeVar("T")


class BlockingConnections:
    """Connections for threads, each used by one at a time. Any thread.

    Args:
        cluster: Says how to connect.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._in_use: dict[BlockingConnection, Address] = {}
        self._closed = False

    def connect(self, address: Address) -> BlockingConnection:
        """Return a new connection; it connects at its first use."""
        config = self._cluster.config
        return BlockingConnection(
            self._cluster.network,
            address,
            client_id=config.client_id,
            cluster=config.cluster,
            timeout=config.connect_timeout_s,
            login=self._cluster.login,
        )

    def borrow(self, address: Address) -> BlockingConnection | None:
        """Return a connection that no thread uses; None at the bound, or when closed."""
        with self._lock:
            if self._closed:
                return None
            idle = self._idle.get(address)
            if idle:
                connection = idle.pop()
            elif list(self._in_use.values()).count(address) < _CONNECTIONS_MAX:
                connection = self.connect(address)
            else:
                return None
            self._in_use[connection] = address
            return connection

    def give_back(self, connection: BlockingConnection) -> None:
        """Make a borrowed connection available to the next thread."""
        with self._lock:
            address = self._in_use.pop(connection)
            if self._closed:
                connection.close()
            else:
                self._idle.setdefault(address, []).append(connection)

    def keep_only(self, addresses: set[Address]) -> None:
        """Close the idle connections to all other addresses."""
        with self._lock:
            for address in self._idle.keys() - addresses:
                for connection in self._idle.pop(address):
                    connection.close()

    def close(self) -> None:
        """Close all connections; interrupt those in use, which close when given back."""
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                for connection in idle:
                    connection.close()
            self._idle.clear()
            for connection in self._in_use:
                connection.interrupt()


class BlockingSender:
    """Sends messages from their own threads. Any thread.

    In an ordered producer no thread leads: the loop sends for all of them, because a failure must
    end all messages behind it in one place.

    Args:
        sender: The one on the loop: it has the messages, knows the brokers and applies answers.
        connections: Connections to the brokers.
    """

    def __init__(self, sender: Sender, connections: BlockingConnections) -> None:
        self._sender = sender
        self._accumulator = sender.accumulator
        self._connections = connections
        self._may_lead = not sender.config.ordered

    def send(self, queue: PartitionQueue, future: BlockingSendFuture) -> None:
        """Return once an appended message has its outcome; the sending thread calls it."""
        try:
            self._as_leader(future, functools.partial(self._send, queue, future))
        finally:  # a signal handler raised, or the message expired just as it got the lead
            if future.outcome is None or queue.owner is future:
                self._accumulator.hand_to_sender(queue, future)

    def _send(self, queue: PartitionQueue, future: BlockingSendFuture) -> None:
        accumulator = self._accumulator
        while future.outcome is None:
            may_lead = queue.owner is None or queue.owner is future
            if queue.shared and may_lead and accumulator.lead(queue, future):
                self._gather(queue, future)
            claimed = accumulator.claim(queue, future)
            if claimed is not None:
                deadline = min(map(_deadline, claimed), default=0.0)
                self._lead(queue, future, claimed, deadline)
                continue
            future.is_busy = False
            if not future.sleep(future.deadline - self._sender.now()):
                accumulator.wake_sender()  # the sender fails late messages
                future.sleep(math.inf)
            future.is_busy = True

    def append(self, batch: BatchSend, topic: str) -> bool:
        """Append a chunk of a batch, see ``BatchSend.append``; send it, if this thread may lead.

        What this thread does not send, the loop does: some messages may have no outcome yet.
        """
        leader = BatchLeader()
        try:
            return self._as_leader(leader, functools.partial(self._append, batch, topic, leader))
        finally:  # a signal handler raised
            if leader.queue is not None and leader.queue.owner is leader:
                self._accumulator.hand_to_sender(leader.queue, leader)

    def _append(self, batch: BatchSend, topic: str, leader: BatchLeader) -> bool:
        is_last = batch.append(topic, block=True, leader=leader)
        queue = leader.queue
        if queue is not None:
            self._lead(queue, leader, queue.claimed, batch.deadline)
        return is_last

    def _as_leader(self, leader: Leader, work: Callable[[], T]) -> T:
        """Do some work of this thread, which may lead, and steps aside for handlers of signals."""
        here = threading.get_ident()
        interrupted = DUTIES.get(here)
        try:
            DUTIES[here] = functools.partial(self._step_aside, leader)
            leader.leads = self._may_lead
            return work()
        finally:
            leader.leads = False  # first: a signal handler may interrupt the next lines as well
            if interrupted is None:
                DUTIES.pop(here, None)
            else:
                DUTIES[here] = interrupted

    def _step_aside(self, leader: Leader) -> None:
        """See ``waits.step_aside``; the thread calls it in a handler of a signal."""
        if leader.is_busy or self._accumulator.is_held_here:
            raise self._accumulator.inside()
        leader.leads = False
        self._accumulator.hurry_sender()

    def _gather(self, queue: PartitionQueue, future: BlockingSendFuture) -> None:
        """Give the threads that were just answered the time to send again, to share a batch.

        The leading thread waits as long as messages come, until there are as many as last time.
        """
        now = self._sender.now
        until = min(now() + _GATHER_S, future.deadline)
        before = 0
        future.is_busy = False
        while before < len(queue.pending) < queue.shared and now() < until:
            before = len(queue.pending)
            if future.sleep(_LOOK_S):
                break  # it has its outcome, perhaps: it was late
        future.is_busy = True

    def _lead(
        self, queue: PartitionQueue, leader: Leader, items: Sequence[SendFuture], deadline: float
    ) -> None:
        """Send one batch of waiting messages, the first deadline of which is given; leave."""
        try:
            if not items:
                return  # the sender on the loop has failed all of them: they were late
            master = self._sender.master_of(queue)
            connection = None if master is None else self._connections.borrow(master)
            if connection is not None:
                try:
                    self._exchange(queue, leader, items, deadline, connection)
                finally:
                    self._connections.give_back(connection)
        finally:
            self._accumulator.leave(queue, leader)

    def _exchange(
        self,
        queue: PartitionQueue,
        leader: Leader,
        items: Sequence[SendFuture],
        deadline: float,
        connection: BlockingConnection,
    ) -> None:
        left = min(deadline - self._sender.now(), _PATIENCE_S)
        if left <= 0:
            return
        try:
            ids = self._sender.take_ids(len(items))
        except VqError:
            return  # the sender on the loop gets the same error and fails the messages
        batch = queue.batch_of(items, ids)
        answer: Frame | VqError | None = None
        try:
            header = queue.put_header(batch)
            leader.is_busy = False
            answer = connection.exchange(Command.PUT, header, batch.body, left)
        except Unreachable as error:  # nothing was sent
            refusal = error.__cause__  # no retry helps if the broker does not take this client
            answer = refusal if isinstance(refusal, NotAuthenticated) else error
        except (OSError, VqError):
            pass  # it may be stored
        finally:  # a signal handler may have raised
            leader.is_busy = True
            if leader.leads:  # else the sender on the loop has the batch
                self._sender.apply_answer(queue, batch, answer)
