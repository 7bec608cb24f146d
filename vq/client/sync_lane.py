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

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from vq import limits
from vq.client.batch import Batch
from vq.client.connection import LIBRARY
from vq.client.future import SendFuture
from vq.client.partition_queue import PartitionQueue
from vq.client.puts import put_header
from vq.errors import VqError
from vq.model import Address
from vq.remoting.connection import ClientConnection, Closing, Opened, Reply
from vq.remoting.format import Command
from vq.remoting.frames import Buffer, Frame

_RECEIVE_BYTES = 64 * limits.KIB


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

        Raises:
            OSError: The connection could not be made, or ended; it is closed now.
            VqError: The broker refused HELLO, or sent what is no frame; likewise.
        """
        try:
            if self._socket is None:
                self._socket = self._connect()
            return self._exchange(self._socket, command, requests, timeout)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(self._address, self._timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._state = ClientConnection()
            hello = self._state.hello(
                client_id=self._client_id, library=LIBRARY, cluster=self._cluster
            )
            sock.sendall(b"".join(hello))
            while not any(isinstance(event, Opened) for event in self._receive(sock)):
                pass
        except BaseException:
            sock.close()
            raise
        return sock

    def _receive(self, sock: socket.socket) -> list[Opened | Reply]:
        """Return what the next bytes mean; the socket's time-out bounds the wait for them."""
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
        self, sock: socket.socket, command: int, requests: list[tuple[bytes, bytes]], timeout: float
    ) -> list[Frame]:
        out: list[Buffer] = []
        for number, (header, body) in enumerate(requests):
            out += self._state.request(command, header, body, context=number)[1]
        sock.settimeout(timeout)
        sock.sendall(b"".join(out))
        answers: dict[int, Frame] = {}
        while len(answers) < len(requests):
            for event in self._receive(sock):
                assert isinstance(event, Reply)
                answers[event.context] = event.frame
        return [answers[number] for number in range(len(requests))]

    def close(self) -> None:
        """End the connection; the next use makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


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
    """

    lock: threading.Lock
    now: Callable[[], float]
    take_ids: Callable[[int], list[int]]
    settle: Callable[[PartitionQueue, Batch, Frame | None], None]
    give_back: Callable[[PartitionQueue, list[SendFuture]], None]


class SyncLane:
    """The blocking way to one broker."""

    def __init__(self, connection: BlockingConnection, hooks: LaneHooks) -> None:
        self._connection = connection
        self._hooks = hooks
        self._waiting: list[Entry] = []
        self._led = False

    def join(self, queue: PartitionQueue, future: SendFuture) -> Entry:
        """Put a message into the lane; the lock is held. ``run`` comes next, without it."""
        entry = Entry(queue, future)
        self._waiting.append(entry)
        future.waiters = [entry.turn.release]
        if not self._led:
            self._led = True
            entry.turn.release()
        return entry

    def run(self, entry: Entry) -> None:
        """Wait for the outcome of ``entry``, leading the lane if it is our turn to."""
        entry.turn.acquire()
        if entry.future.outcome is None:
            self._lead()
            # Settled by the exchange, or by the loop within the deadline of the message.
            if entry.future.outcome is None:
                entry.future.exception()

    def _lead(self) -> None:
        try:
            self._send_waiting()
        finally:
            with self._hooks.lock:
                if self._waiting:
                    self._waiting[0].turn.release()
                else:
                    self._led = False

    def _send_waiting(self) -> None:
        with self._hooks.lock:
            entries, self._waiting = self._waiting, []
            lines: dict[PartitionQueue, list[SendFuture]] = {}
            for entry in entries:
                lines.setdefault(entry.queue, []).append(entry.future)
            ours = [queue for queue in lines if queue.hold()]
        for queue, futures in lines.items():
            if queue not in ours:
                self._hooks.give_back(queue, futures)
        batches = [
            (queue, queue.batch_of(lines[queue], self._hooks.take_ids(len(lines[queue]))))
            for queue in ours
        ]
        try:
            self._exchange(batches)
        finally:
            for queue in ours:
                with self._hooks.lock:
                    queue.held = False
                if queue.pending or queue.in_flight:
                    self._hooks.give_back(queue, [])

    def _exchange(self, batches: list[tuple[PartitionQueue, Batch]]) -> None:
        if not batches:
            return
        requests = [(put_header(queue.where, batch), batch.body) for queue, batch in batches]
        left = min(batch.deadline for _, batch in batches) - self._hooks.now()
        answers: list[Frame] | list[None]
        try:
            answers = self._connection.exchange(Command.PUT, requests, max(0.001, left))
        except (OSError, VqError):
            answers = [None] * len(batches)
        for (queue, batch), answer in zip(batches, answers, strict=True):
            self._hooks.settle(queue, batch, answer)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
