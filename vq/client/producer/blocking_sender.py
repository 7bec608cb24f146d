"""``send_sync`` without the event loop: the caller's own thread does the round trip.

Handing a message to another thread and waiting for the answer costs two thread switches, about as
much as the round trip itself. So a blocking sender uses a socket of its own. When several threads
send at once, the first one leads: it sends whatever waits as one batch per partition while the
others wait, and hands the lead to one of those that came meanwhile.

    thread 1   lead ── batch(1) ──────▶ ◀── answer ── hand over ──▶ returns
    thread 2        waits ························· lead ── batch(2, 3) ──▶ ◀── answer ──▶ returns
    thread 3             waits ······················································▶ returns

A lane only carries a partition whose line is empty, so messages never overtake one another; the
line is *held* meanwhile, and the loop leaves it alone. Whatever is not plainly stored (a refusal, a
cut, a time-out) goes back to the line, and the loop settles it with the same stamps.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vq import limits
from vq.client.future import SendFuture
from vq.client.producer.batch import Batch
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.puts import put_header
from vq.errors import Unreachable, VqError
from vq.model import Address
from vq.remoting.broker_connection import LIBRARY
from vq.remoting.connection import ClientConnection, Closing, Opened, Reply
from vq.remoting.format import Command
from vq.remoting.frames import Buffer, Frame

_RECEIVE_BYTES = 64 * limits.KIB
#: A broker that has not answered for so long is left to the loop, which connects anew; a line is
#: held no longer than that.
_PATIENCE_S = 10.0


class BlockingConnection:
    """A plain socket to one broker, used by one thread at a time; connects when first used."""

    def __init__(self, address: Address, *, client_id: str, cluster: str, timeout: float) -> None:
        self._address = address
        self._client_id = client_id
        self._cluster = cluster
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._state = ClientConnection()

    def exchange(
        self, command: int, requests: list[tuple[bytes, bytes]], timeout: float
    ) -> list[Frame]:
        """Send requests (header, body) at once, return the answers in their order.

        All of it, connecting too, takes at most ``timeout`` seconds.

        Raises:
            Unreachable: No connection could be made; nothing was sent.
            OSError: The connection ended, or the time; it is closed now.
            VqError: The broker sent what is no answer; likewise.
        """
        deadline = time.monotonic() + timeout
        try:
            if self._socket is None:
                self._socket = self._connect(min(deadline, time.monotonic() + self._timeout))
            return self._exchange(self._socket, command, requests, deadline)
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> socket.socket:
        try:
            sock = socket.create_connection(self._address, _left(deadline))
            try:
                self._say_hello(sock, deadline)
            except BaseException:
                sock.close()
                raise
        except (OSError, VqError) as error:
            raise Unreachable(f"cannot connect to {self._address}: {error}") from error
        return sock

    def _say_hello(self, sock: socket.socket, deadline: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._state = ClientConnection()
        hello = self._state.hello(client_id=self._client_id, library=LIBRARY, cluster=self._cluster)
        sock.sendall(b"".join(hello))
        while not any(isinstance(event, Opened) for event in self._receive(sock, deadline)):
            pass

    def _receive(self, sock: socket.socket, deadline: float) -> list[Opened | Reply]:
        """Wait for the next bytes and return what they mean."""
        sock.settimeout(_left(deadline))
        data = sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError(f"{self._address} closed the connection")
        events: list[Opened | Reply] = []
        for event in self._state.receive_data(data):
            if isinstance(event, Closing):
                raise event.error
            events.append(event)
        return events

    def _exchange(
        self,
        sock: socket.socket,
        command: int,
        requests: list[tuple[bytes, bytes]],
        deadline: float,
    ) -> list[Frame]:
        out: list[Buffer] = []
        for number, (header, body) in enumerate(requests):
            out += self._state.request(command, header, body, context=number)[1]
        sock.settimeout(_left(deadline))
        sock.sendall(b"".join(out))
        answers: dict[int, Frame] = {}
        while len(answers) < len(requests):
            for event in self._receive(sock, deadline):
                assert isinstance(event, Reply)
                answers[event.context] = event.frame
        return [answers[number] for number in range(len(requests))]

    def interrupt(self) -> None:
        """Have another thread's ``exchange`` end soon. Closing its socket here would free the
        number of a descriptor that it still reads from."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection; the next use makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _left(deadline: float) -> float:
    """Return the seconds until ``deadline`` as a socket's time-out.

    Raises:
        TimeoutError: None are left.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer in time")
    return min(left, limits.TIMEOUT_S_MAX)


@dataclass(slots=True, eq=False)
class Entry:
    """One thread that waits in a lane."""

    queue: PartitionQueue
    future: SendFuture
    turn: threading.Lock = field(default_factory=threading.Lock)  # released: outcome, or lead

    def __post_init__(self) -> None:
        self.turn.acquire()


@dataclass(frozen=True, slots=True)
class LaneHooks:
    """What a lane needs of its producer.

    Attributes:
        lock: The producer's; guards ``held``, ``busy`` and what waits in lanes.
        now: Monotonic time.
        take_ids: New message ids.
        settle: Tells a queue what an answer means, refreshes routes where it says so.
        give_back: Has the loop take over a queue, with the futures that were not sent.
        give_up: Fails a future that was in no queue within its deadline.
    """

    lock: threading.Lock
    now: Callable[[], float]
    take_ids: Callable[[int], list[int]]
    settle: Callable[[PartitionQueue, Batch, Frame | VqError | None], None]
    give_back: Callable[[PartitionQueue, list[SendFuture]], None]
    give_up: Callable[[PartitionQueue, SendFuture], None]


class SyncLane:
    """The blocking way to one broker.

    Whatever happens to the thread that leads, the others get their outcome: what it had in hand
    goes back to the loop, and the lead goes on to the next one.
    """

    def __init__(self, connection: BlockingConnection, hooks: LaneHooks) -> None:
        self._connection = connection
        self._hooks = hooks
        self._waiting: list[Entry] = []
        self._leader: Entry | None = None
        self._leading: list[Entry] = []  # what the leader has in hand
        self._was_shared = False  # the last exchange carried messages of several threads
        self._closed = False

    @property
    def futures(self) -> list[SendFuture]:
        """What was taken and not yet seen to its end here; the lock is held."""
        return [entry.future for entry in (*self._leading, *self._waiting)]

    def join(self, queue: PartitionQueue, future: SendFuture) -> Entry:
        """Put a message into the lane; the lock is held. ``run`` comes next, without it."""
        entry = Entry(queue, future)
        self._waiting.append(entry)
        future.waiters = [entry.turn.release]
        if self._leader is None:
            self._leader = entry
            entry.turn.release()
        return entry

    def run(self, entry: Entry) -> None:
        """Wait for the outcome of ``entry``, leading the lane if it is our turn to."""
        try:
            if self._wait_for_turn(entry) and entry.future.outcome is None:
                self._lead()
                # Settled by the exchange, or by the loop within the deadline of the message.
                if entry.future.outcome is None:
                    entry.future.exception()
        except BaseException:  # a signal handler raised, such as that of ctrl-C
            self._drop_out(entry)
            raise

    def _wait_for_turn(self, entry: Entry) -> bool:
        """Return True with the outcome or the lead, False once the message was given up."""
        left = entry.future.deadline - self._hooks.now()
        if entry.turn.acquire(timeout=min(max(0.0, left), threading.TIMEOUT_MAX)):
            return True
        with self._hooks.lock:
            late = entry in self._waiting and self._leader is not entry
            if late:
                self._waiting.remove(entry)
        if late:
            self._hooks.give_up(entry.queue, entry.future)
            return False
        # Whoever has it in hand ends within this deadline as well; or the lead is ours by now.
        return entry.turn.acquire()

    def _drop_out(self, entry: Entry) -> None:
        """The thread of ``entry`` goes away; what it waited for is left to the loop."""
        with self._hooks.lock:
            waits = entry in self._waiting
            if waits:
                self._waiting.remove(entry)
            if self._leader is entry:
                entry.turn.acquire(blocking=False)  # its outcome releases it once more
                self._pass_lead()
        if waits:
            self._hooks.give_back(entry.queue, [entry.future])

    def _pass_lead(self) -> None:
        """Give the lead to the next in line; the lock is held."""
        self._leading = []
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.turn.release()
        elif self._closed:
            self._connection.close()

    def _lead(self) -> None:
        if self._was_shared:
            time.sleep(0)  # those it answered come back in a moment: let them into this batch
        self._send_waiting()
        with self._hooks.lock:
            self._pass_lead()

    def _send_waiting(self) -> None:
        hooks = self._hooks
        now = hooks.now()
        with hooks.lock:
            self._leading, self._waiting = self._waiting, []
            self._was_shared = len(self._leading) > 1
            late = [entry for entry in self._leading if entry.future.deadline <= now]
            lines: dict[PartitionQueue, list[SendFuture]] = {}
            for entry in self._leading:
                if entry.future.deadline > now:
                    lines.setdefault(entry.queue, []).append(entry.future)
            ours = [queue for queue in lines if queue.hold()]
        batches: list[tuple[PartitionQueue, Batch]] = []
        try:
            self._make_batches(ours, lines, batches)
            self._exchange(batches)
        finally:
            for queue, batch in batches:
                if batch.sent:  # something unforeseen came between
                    hooks.settle(queue, batch, None)
            with hooks.lock:
                for queue in ours:
                    queue.held = False
            for queue, futures in lines.items():
                hooks.give_back(queue, futures)
            for queue in ours:
                if queue.pending or queue.in_flight:
                    hooks.give_back(queue, [])
            for entry in late:
                hooks.give_up(entry.queue, entry.future)

    def _make_batches(
        self,
        queues: list[PartitionQueue],
        lines: dict[PartitionQueue, list[SendFuture]],
        batches: list[tuple[PartitionQueue, Batch]],
    ) -> None:
        """Move what waits for ``queues`` from ``lines`` into a batch each, as much as fits."""
        for queue in queues:
            items = queue.fitting(lines[queue])
            try:
                ids = self._hooks.take_ids(len(items))
            except VqError:
                return  # the loop meets the same, and tells the messages
            batches.append((queue, queue.batch_of(items, ids)))
            lines[queue] = lines[queue][len(items) :]
            if not lines[queue]:
                del lines[queue]

    def _exchange(self, batches: list[tuple[PartitionQueue, Batch]]) -> None:
        if not batches:
            return
        requests = [(put_header(queue, batch), batch.body) for queue, batch in batches]
        left = min(batch.deadline for _, batch in batches) - self._hooks.now()
        left = min(left, _PATIENCE_S)
        answers: Sequence[Frame | VqError | None]
        try:
            answers = self._connection.exchange(Command.PUT, requests, left)
        except Unreachable as error:
            answers = [error] * len(batches)
        except (OSError, VqError):
            answers = [None] * len(batches)
        for (queue, batch), answer in zip(batches, answers, strict=True):
            self._hooks.settle(queue, batch, answer)

    def close(self) -> None:
        """End the connection, at once or when the thread that uses it is done with it."""
        with self._hooks.lock:
            self._closed = True
            if self._leader is None:
                self._connection.close()
            else:
                self._connection.interrupt()

    def close_idle(self) -> bool:
        """End the connection if no thread uses it; return whether it did. The lock is held."""
        if self._leader is None:
            self._connection.close()
        return self._leader is None
