"""The owner of a local queue serves it to other processes of its machine over a Unix socket.

One thread for each connection, and one that accepts. A client has one connection as long as it is
there, and others for its requests. When its last one ends, what it had taken is given to others.
"""

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from vq import limits
from vq.errors import (
    AddressUnavailable,
    InvalidArgument,
    InvalidState,
    LeaseLost,
    ProtocolError,
    UnsupportedVersion,
    VqError,
)
from vq.local.items import LocalItem
from vq.local.queue import LocalQueue
from vq.local.wire import (
    LOCAL_PROTOCOL,
    SOCKET_NAME,
    LocalFrame,
    error_of,
    read_frame,
    unpacked_item,
    write_frame,
    written_item,
)
from vq.log_lines import get_logger
from vq.waits import Latch

logger = get_logger(__name__)

CONNECTIONS_MAX: Final = 1_024
_MODE: Final = 0o600
_BACKLOG: Final = 128
_CLOSE_S: Final = 5.0
#: Before the next try to accept, when the process has no descriptor or thread left.
_ACCEPT_PAUSE_S: Final = 0.1
#: So many bytes of contents in one list, at most.
_LISTED_BYTES: Final = 16 * limits.MIB
_PATH_BYTES_MAX: Final = 107
#: So many items are kept before it is looked which of them are with nobody any more.
_ITEMS_LOOK: Final = 64

Answer = tuple[dict[str, Any], bytes]


class LocalQueueServer:
    """Serves an open queue at ``<directory>/@socket`` until it is closed; then close the queue.

    Only processes of the same user can connect.

    Args:
        queue: In a directory.

    Raises:
        InvalidArgument: The queue is in memory, or the path is too long for a socket.
        InvalidState: It is served already.
        AddressUnavailable: The socket cannot be made.
    """

    def __init__(self, queue: LocalQueue) -> None:
        directory = queue.directory
        if directory is None:
            raise InvalidArgument("a queue in memory cannot be served; give it a directory")
        self._queue = queue
        self._path = directory / SOCKET_NAME
        self._lock = threading.Lock()
        self._items: dict[tuple[str, int], LocalItem] = {}  # by client, and its handle
        self._look_at = _ITEMS_LOOK  # so many items
        self._closing = Latch()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._clients: Counter[str] = Counter()
        core = queue._core
        with core.base.lock:
            if core.is_served:
                raise InvalidState(f"the queue is served already at {self._path}")
            core.is_served = True
        try:
            self._listener = _listening(self._path)
        except BaseException:
            core.is_served = False
            raise
        self._thread = threading.Thread(target=self._accept, name="vq-local-serve", daemon=True)
        self._thread.start()
        _MADE.add(self)

    @property
    def path(self) -> Path:
        """Of the socket."""
        return self._path

    def close(self) -> None:
        """End all connections; what clients have taken is given to others. May be repeated.

        In the child of a fork it does nothing: the server is its parent's.
        """
        if self._closing.is_set:
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + _CLOSE_S
        for thread in connections.values():
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._path.unlink(missing_ok=True)
        self._queue._core.is_served = False

    def _leave_to_parent(self) -> None:
        """Close what a child of a fork has of it, so that clients notice the end of the owner."""
        self._closing.set()
        for each in (self._listener, *self._connections):
            each.close()

    def _accept(self) -> None:
        told = False
        while not self._closing.is_set:
            try:
                connection, _ = self._listener.accept()
                told = self._begin(connection) and told
            except (OSError, RuntimeError) as error:  # RuntimeError: there is no thread left
                if not told and not self._closing.is_set:
                    logger.error("cannot accept connections", path=self._path, error=error)
                told = True
                self._closing.wait(_ACCEPT_PAUSE_S)

    def _begin(self, connection: socket.socket) -> bool:
        """Serve a new connection; False: there are too many.

        Raises:
            RuntimeError: There is no thread for it; it is closed.
        """
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="vq-local-peer", daemon=True
        )
        with self._lock:
            is_full = len(self._connections) >= CONNECTIONS_MAX
            if not is_full:
                self._connections[connection] = thread
        if is_full:
            logger.warning("too many connections", path=self._path, most=CONNECTIONS_MAX)
            connection.close()
            return False
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                del self._connections[connection]
            connection.close()
            raise
        return True

    def _serve(self, connection: socket.socket) -> None:
        peer = _Peer(connection)
        try:
            with connection, peer:
                self._hello(peer)
                while peer.client and (frame := read_frame(connection)) is not None:
                    self._answer(peer, frame)
        except (OSError, ProtocolError) as error:
            logger.info("connection ended", path=self._path, error=error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            if peer.client:
                self._leave(peer.client)

    def _hello(self, peer: "_Peer") -> None:
        """Learn whose connection it is; if nobody says it, it stays nobody's."""
        connection = peer.connection
        frame = read_frame(connection)
        if frame is None:
            return
        version, client = frame.values.get("version"), frame.values.get("client")
        if version != LOCAL_PROTOCOL or not isinstance(client, str) or not client:
            refused = UnsupportedVersion(
                f"the client speaks version {version!r}, the owner of the queue {LOCAL_PROTOCOL}",
                hint="use one version of vq in all processes",
            )
            write_frame(connection, error_of(refused))
            raise ProtocolError(refused.message)
        with self._lock:
            self._clients[client] += 1
        peer.client = client  # before the answer: the client may end while it is written
        write_frame(connection, {"name": self._queue.name})

    def _leave(self, client: str) -> None:
        """Give what a client has taken to others, once it has no connection."""
        with self._lock:
            self._clients[client] -= 1
            if self._clients[client]:
                return
            del self._clients[client]
            left = [item for (owner, _), item in self._items.items() if owner == client]
            self._items = {key: item for key, item in self._items.items() if key[0] != client}
        for item in left:
            with contextlib.suppress(VqError):
                self._queue.fail(item, delay_s=0)

    def _give_back(self, client: str, handle: int) -> None:
        """Give to others what a client has not got: no taker has seen it."""
        with self._lock:
            item = self._items.pop((client, handle), None)
        if item is not None:
            self._queue._core.takes.give_back(item)

    def _answer(self, peer: "_Peer", frame: LocalFrame) -> None:
        asked = frame.values
        for handle in asked.get("untaken", ()):
            self._give_back(peer.client, handle)
        act = _ACTS.get(asked.get("do", ""))
        try:
            if act is None:
                raise ProtocolError(f"request {asked.get('do')!r} is not known")
            values, body = act(self, peer, frame)
        except Exception as error:  # noqa: BLE001  the client is told
            values, body = error_of(error), b""
        try:
            write_frame(peer.connection, values, body)
        except OSError:
            if asked.get("do") == "take":
                self._give_back(peer.client, asked["handle"])
            raise

    # Requests -------------------------------------------------------------------------------------
    def _put(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        values = frame.values
        message = unpacked_item(values, frame.body).message
        is_new = self._queue.put(
            message,
            delay_s=values["delay_s"],
            priority=values["priority"],
            idempotency_key=values["idempotency_key"],
            wait=values["wait"],
            timeout=values["timeout"],
        )
        return {"is_new": is_new}, b""

    def _flush(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        self._queue.flush()
        return {}, b""

    def _take(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        item = self._next(peer, frame.values["timeout"])
        if item is None:
            return {"found": False}, b""
        self._note(peer.client, frame.values["handle"], item)
        values, body = written_item(item)
        return {**values, "found": True}, body

    def _note(self, client: str, handle: int, item: LocalItem) -> None:
        """Note who has an item. Those whose leases ended are dropped when they may be many."""
        with self._lock:
            self._items[client, handle] = item
            if len(self._items) < self._look_at:
                return
            opened = self._queue._core.base.opened
            self._items = {key: each for key, each in self._items.items() if each in opened}
            self._look_at = max(2 * len(self._items), _ITEMS_LOOK)

    def _next(self, peer: "_Peer", timeout_s: float) -> LocalItem | None:
        """Take the next message; None: none came in time, or the peer waits no more."""
        takes, deadline = self._queue._core.takes, time.monotonic() + timeout_s
        while (item := takes.take_now()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if not takes.wait_for_message(peer):
                continue
            is_there = peer.wait(left_s)
            if not takes.takers.leave(peer):
                peer.take_wake()
                if not is_there:
                    takes.pass_on()
            if not is_there:
                return None
        return item

    def _item(self, peer: "_Peer", frame: LocalFrame) -> LocalItem:
        item = self._items.get((peer.client, frame.values["handle"]))
        if item is None:
            raise LeaseLost(
                f"the message is not with this taker of queue {self._queue.name!r} any more: it "
                "was completed or failed, its lease or its owner ended, or another one took it"
            )
        return item

    def _forget(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        with self._lock:
            self._items.pop((peer.client, frame.values["handle"]), None)
        return {}, b""

    def _complete(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        try:
            self._queue.complete(self._item(peer, frame), wait=frame.values["wait"])
        except LeaseLost:
            self._forget(peer, frame)
            raise
        return self._forget(peer, frame)

    def _fail(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        try:
            self._queue.fail(self._item(peer, frame), delay_s=frame.values["delay_s"])
        except LeaseLost:
            self._forget(peer, frame)
            raise
        return self._forget(peer, frame)

    def _extend(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        self._queue.extend(self._item(peer, frame))
        return {}, b""

    def _list(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        values = frame.values
        found = self._queue.list(values["limit"], standing=values["standing"])
        listed: list[dict[str, Any]] = []
        size = 0
        for each in found:
            size += len(each.message.content)
            if listed and size > _LISTED_BYTES:
                break
            listed.append(listed_json(each))
        return {"found": listed}, b""

    def _requeue(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        return {"count": self._queue.requeue(frame.values["ids"])}, b""

    def _purge(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        return {"count": self._queue.purge()}, b""

    def _metrics(self, peer: "_Peer", frame: LocalFrame) -> Answer:
        return {**asdict(self._queue.metrics()), "size": len(self._queue)}, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_MADE: Final = weakref.WeakSet[LocalQueueServer]()


def _leave_all() -> None:
    for server in list(_MADE):
        server._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all)


class _Peer:
    """One connection of a client, and what wakes its thread while it waits for a message.

    Attributes:
        connection: The socket.
        client: Of whom it is; "": of nobody yet.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.client = ""
        self._event = -1
        self._poll = select.poll()

    def release(self) -> None:
        """See ``Waker``: have ``wait`` return."""
        os.eventfd_write(self._event, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is woken, or the time is up; False: the client does not wait any more."""
        found = dict(self._poll.poll(timeout_s * 1000))
        return self.connection.fileno() not in found

    def take_wake(self) -> None:
        """Wait for the ``release`` of who has taken this out of the line; it comes at once."""
        os.eventfd_read(self._event)

    def __enter__(self) -> Self:
        self._event = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._event, select.POLLIN)
        self._poll.register(self.connection, select.POLLIN | select.POLLRDHUP)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._event)


def listed_json(each: Any) -> dict[str, Any]:
    """Return a listed message as JSON has it."""
    message = each.message
    key = message.key
    return {
        "id": message.id,
        "standing": str(each.standing),
        "priority": each.priority,
        "attempts": each.attempts,
        "due_ms": each.due_ms,
        "topic": message.topic,
        "content": message.content.hex(),
        "tag": message.tag,
        "key": key.hex() if isinstance(key, bytes) else key,
        "is_bytes": isinstance(key, bytes),
        "headers": None if message.headers is None else dict(message.headers),
    }


_ACTS: Final[dict[str, Callable[[LocalQueueServer, _Peer, LocalFrame], Answer]]] = {
    "put": LocalQueueServer._put,
    "flush": LocalQueueServer._flush,
    "take": LocalQueueServer._take,
    "complete": LocalQueueServer._complete,
    "fail": LocalQueueServer._fail,
    "extend": LocalQueueServer._extend,
    "list": LocalQueueServer._list,
    "requeue": LocalQueueServer._requeue,
    "purge": LocalQueueServer._purge,
    "metrics": LocalQueueServer._metrics,
}


def _listening(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise InvalidArgument(
            f"{path} has {len(os.fsencode(path))} bytes; the path of a socket has at most "
            f"{_PATH_BYTES_MAX}: give the queue a shorter path"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)  # of an owner that was killed: this one has the lock
        before = os.umask(0o777 & ~_MODE)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(f"the socket {path} cannot be made: {error}") from error
    return listener
