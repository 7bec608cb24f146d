"""The owner of a local queue serves it to other processes of its machine over a Unix socket.

One thread for each connection, and one that accepts. A client has a connection for each of its
threads. When its last connection ends, what it had taken is given to others.
"""

import contextlib
import itertools
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from vq.errors import (
    AddressUnavailable,
    InvalidArgument,
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

__all__ = ["LocalQueueServer"]

logger = get_logger(__name__)

CONNECTIONS_MAX: Final = 1_024
_MODE: Final = 0o600
_BACKLOG: Final = 128
_PATH_BYTES_MAX: Final = 107

Answer = tuple[dict[str, Any], bytes]


class LocalQueueServer:
    """Serves an open queue at ``<directory>/@socket`` until it is closed; then close the queue.

    Only processes of the same user can connect.

    Args:
        queue: In a directory.

    Raises:
        InvalidArgument: The queue is in memory, or the path is too long for a socket.
        AddressUnavailable: The socket cannot be made.
    """

    def __init__(self, queue: LocalQueue) -> None:
        directory = queue.directory
        if directory is None:
            raise InvalidArgument("a queue in memory cannot be served; give it a directory")
        self._queue = queue
        self._path = directory / SOCKET_NAME
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._items: dict[int, tuple[str, LocalItem]] = {}  # by handle, with the client
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._clients: Counter[str] = Counter()
        self._listener = _listening(self._path)
        self._thread = threading.Thread(target=self._accept, name="vq-local-serve", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """Of the socket."""
        return self._path

    def close(self) -> None:
        """End all connections; what clients have taken is given to others. May be repeated."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._queue._core.takers.wake_all()
        for thread in connections.values():
            thread.join(timeout=5.0)
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            with self._lock:
                if len(self._connections) >= CONNECTIONS_MAX:
                    logger.warning("too many connections", path=self._path, most=CONNECTIONS_MAX)
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(connection,), name="vq-local-peer", daemon=True
                )
                self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        client = ""
        try:
            with connection:
                client = self._hello(connection)
                while (frame := read_frame(connection)) is not None:
                    self._answer(connection, client, frame)
        except (OSError, ProtocolError) as error:
            logger.info("connection ended", path=self._path, error=error)
        finally:
            with self._lock:
                self._connections.pop(connection, None)
            if client:
                self._leave(client)

    def _hello(self, connection: socket.socket) -> str:
        frame = read_frame(connection)
        if frame is None:
            return ""
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
        write_frame(connection, {"name": self._queue.name})
        return client

    def _leave(self, client: str) -> None:
        """Give what a client has taken to others, once it has no connection."""
        with self._lock:
            self._clients[client] -= 1
            if self._clients[client]:
                return
            del self._clients[client]
            left = [(n, item) for n, (owner, item) in self._items.items() if owner == client]
            for number, _ in left:
                del self._items[number]
        for _, item in left:
            with contextlib.suppress(VqError):
                self._queue.fail(item, delay_s=0)

    def _answer(self, connection: socket.socket, client: str, frame: LocalFrame) -> None:
        act = _ACTS.get(frame.values.get("do", ""))
        try:
            if act is None:
                raise ProtocolError(f"request {frame.values.get('do')!r} is not known")
            values, body = act(self, client, frame)
        except Exception as error:  # noqa: BLE001  the client is told
            values, body = error_of(error), b""
        write_frame(connection, values, body)

    # Requests -------------------------------------------------------------------------------------
    def _put(self, client: str, frame: LocalFrame) -> Answer:
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

    def _flush(self, client: str, frame: LocalFrame) -> Answer:
        self._queue.flush()
        return {}, b""

    def _take(self, client: str, frame: LocalFrame) -> Answer:
        item = self._queue.take(frame.values["timeout"])
        if item is None:
            return {"handle": None}, b""
        handle = next(self._numbers)
        with self._lock:
            self._items[handle] = client, item
        values, body = written_item(item)
        return {**values, "handle": handle}, body

    def _item(self, client: str, frame: LocalFrame) -> LocalItem:
        owner, item = self._items.get(frame.values["handle"], ("", None))
        if item is None or owner != client:
            raise LeaseLost("the message is not with this taker any more")
        return item

    def _forget(self, frame: LocalFrame) -> Answer:
        with self._lock:
            self._items.pop(frame.values["handle"], None)
        return {}, b""

    def _complete(self, client: str, frame: LocalFrame) -> Answer:
        self._queue.complete(self._item(client, frame), wait=frame.values["wait"])
        return self._forget(frame)

    def _fail(self, client: str, frame: LocalFrame) -> Answer:
        self._queue.fail(self._item(client, frame), delay_s=frame.values["delay_s"])
        return self._forget(frame)

    def _extend(self, client: str, frame: LocalFrame) -> Answer:
        self._queue.extend(self._item(client, frame))
        return {}, b""

    def _list(self, client: str, frame: LocalFrame) -> Answer:
        values = frame.values
        found = self._queue.list(values["limit"], standing=values["standing"])
        return {"found": [listed_json(each) for each in found]}, b""

    def _requeue(self, client: str, frame: LocalFrame) -> Answer:
        return {"count": self._queue.requeue(frame.values["ids"])}, b""

    def _purge(self, client: str, frame: LocalFrame) -> Answer:
        return {"count": self._queue.purge()}, b""

    def _metrics(self, client: str, frame: LocalFrame) -> Answer:
        return {**asdict(self._queue.metrics()), "size": len(self._queue)}, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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


_ACTS: Final[dict[str, Callable[[LocalQueueServer, str, LocalFrame], Answer]]] = {
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
