"""A local queue that another process has open: the API of ``LocalQueue`` over its socket."""

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from vq.client.producer.intake.stages import Heads, as_bytes
from vq.clock import SystemClock
from vq.errors import ConnectionCut, InvalidState, LeaseLost, Unreachable
from vq.local.core import delay_of
from vq.local.items import LocalItem
from vq.local.looks import ListedMessage, LocalQueueMetrics, MessageStanding
from vq.local.many import complete_each, taken
from vq.local.storage import DamagedMessages, damaged_in
from vq.local.wire import (
    LOCAL_PROTOCOL,
    SOCKET_NAME,
    LocalFrame,
    raised_by,
    read_frame,
    unpacked_item,
    write_frame,
    written_item,
)
from vq.model import Message

__all__ = ["LocalQueueClient"]

#: A longer wait is asked for anew, so that the owner notices a client that was killed.
_TAKE_S: Final = 30.0
_HELLO_S: Final = 10.0
#: Connections that are kept for the next request.
_IDLE_MAX: Final = 16
_DRAIN_LOOK_S: Final = 0.05
_monotonic: Final = time.monotonic


class LocalQueueClient:
    """A queue whose owner serves it (``vq local serve``, ``LocalQueueServer``): the same methods.

    Any thread may use it; requests at the same time have a connection each. What this process has
    taken and not completed is given to others when it ends, or closes.

    Args:
        directory: Of the queue.

    Raises:
        Unreachable: Nobody serves it.
        UnsupportedVersion: The owner is another version of vq.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory) / SOCKET_NAME
        self._client = secrets.token_hex(8)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._presence: socket.socket | None = None  # while it is open, this client is there
        self._idle: list[socket.socket] = []
        self._used: set[socket.socket] = set()
        self._numbers = itertools.count(1)
        self._untaken: list[int] = []  # takes whose answer was not read
        self._closed = False
        self.name = ""
        self._keep(self._connection())

    def _connection(self) -> socket.socket:
        """Return a connection for one request."""
        if self._closed or self._pid != os.getpid():
            raise InvalidState("the client is closed, or the process was forked: make another one")
        with self._lock:
            if self._presence is None:
                self._presence = self._connected()
            connection = self._idle.pop() if self._idle else self._connected()
            self._used.add(connection)
            return connection

    def _connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_HELLO_S)
            connection.connect(os.fspath(self._path))
            write_frame(connection, {"version": LOCAL_PROTOCOL, "client": self._client})
            frame = read_frame(connection)
            connection.settimeout(None)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            raise Unreachable(
                f"nobody serves the queue at {self._path}: {error}",
                hint=f"run `vq local serve {self._path.parent}`, or have the process that has it "
                "open serve it with vq.local.LocalQueueServer(queue)",
            ) from error
        if frame is None or "error" in frame.values:
            connection.close()
            if frame is None:
                raise Unreachable(f"the owner of {self._path} takes no more connections")
            raise raised_by(frame.values)
        self.name = frame.values["name"]
        return connection

    def _keep(self, connection: socket.socket) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            self._used.discard(connection)
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _end(self, connection: socket.socket, untaken: Iterable[int] = ()) -> None:
        with self._lock:
            self._used.discard(connection)
            self._untaken += untaken
        connection.close()

    def _ask(self, values: dict[str, Any], body: bytes = b"") -> LocalFrame:
        connection = self._connection()
        untaken: list[int] = []
        try:
            if self._untaken:
                with self._lock:
                    untaken, self._untaken = self._untaken, []
                values = {**values, "untaken": untaken}
            write_frame(connection, values, body)
            frame = read_frame(connection)
        except BaseException as error:  # Ctrl-C, too: the answer would be that of the next request
            self._end(
                connection, [*untaken, *([values["handle"]] if values["do"] == "take" else [])]
            )
            if isinstance(error, OSError):
                self._lose_all()
                raise self._cut(values) from error
            raise
        if frame is None:
            self._end(connection)
            self._lose_all()
            raise self._cut(values)
        self._keep(connection)
        if "error" in frame.values:
            raise raised_by(frame.values)
        return frame

    def _lose_all(self) -> None:
        """Drop all connections: their owner has ended, and another one may come."""
        with self._lock:
            lost, self._idle = self._idle, []
            if self._presence is not None:
                lost.append(self._presence)
                self._presence = None
            self._untaken.clear()
        for connection in lost:
            connection.close()

    def _cut(self, values: Mapping[str, Any]) -> ConnectionCut:
        return ConnectionCut(
            f"the owner of {self._path} has ended; it is unknown what became of {values['do']}"
        )

    @property
    def directory(self) -> Path:
        """Where the queue is."""
        return self._path.parent

    def put(
        self,
        content: bytes | Message | Any,
        *,
        delay_s: float | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> bool:
        """Add a message; see ``LocalQueue.put``.

        Raises:
            ConnectionCut: The owner has ended: it is unknown whether the message is stored.
        """
        message = content if isinstance(content, Message) else Message("", content)
        head = Heads.of(message.tag, message.key, message.headers)
        values, body = written_item(LocalItem(as_bytes(message.content), self.name, head=head))
        if delay_s is None:
            delay_s = delay_of(message, SystemClock())
        asked = {
            "do": "put",
            **values,
            "delay_s": delay_s,
            "priority": priority,
            "idempotency_key": idempotency_key,
            "wait": wait,
            "timeout": timeout,
        }
        return bool(self._ask(asked, body).values["is_new"])

    def put_many(
        self,
        contents: Iterable[bytes | Message | Any],
        *,
        priority: int = 0,
        wait: bool = True,
        timeout: float | None = None,
    ) -> int:
        """Add messages one after the other, with one flush; see ``LocalQueue.put_many``.

        Raises:
            ConnectionCut: The owner has ended: it is unknown which messages are stored.
        """
        count = 0
        for count, each in enumerate(contents, 1):  # noqa: B007  the count is the result
            self.put(each, priority=priority, wait=False, timeout=timeout)
        if wait and count:
            self.flush()
        return count

    def flush(self) -> None:
        """Return once all that was put and completed before is durable."""
        self._ask({"do": "flush"})

    def take(self, timeout: float | None = None) -> LocalItem | None:
        """Return the next message, which nobody else has now; None: none came in time."""
        deadline = None if timeout is None else _monotonic() + timeout
        while True:
            left_s = _TAKE_S if deadline is None else max(deadline - _monotonic(), 0.0)
            handle = next(self._numbers)
            asked = {"do": "take", "handle": handle, "timeout": min(left_s, _TAKE_S)}
            frame = self._ask(asked)
            if frame.values["found"]:
                item = unpacked_item(frame.values, frame.body)
                item.number = handle
                return item
            if deadline is not None and _monotonic() >= deadline:
                return None

    def take_many(self, count: int, timeout: float | None = None) -> "Sequence[LocalItem]":
        """Return up to ``count`` messages: what is there once the first one is; [] in vain."""
        return taken(self.take, count, timeout)

    def complete(self, item: LocalItem, *, wait: bool = False) -> None:
        """Note that a message is done; see ``LocalQueue.complete``."""
        self._ask({"do": "complete", "handle": _handle(item), "wait": wait})

    def complete_many(self, items: Iterable[LocalItem], *, wait: bool = False) -> None:
        """Complete each of them; see ``LocalQueue.complete_many``."""
        complete_each(self.complete, items, self.flush if wait else None)

    def fail(self, item: LocalItem, *, delay_s: float | None = None) -> None:
        """Give a message back; see ``LocalQueue.fail``."""
        self._ask({"do": "fail", "handle": _handle(item), "delay_s": delay_s})

    def extend(self, item: LocalItem) -> None:
        """Begin the lease of a message anew."""
        self._ask({"do": "extend", "handle": _handle(item)})

    def peek(self) -> Message | None:
        """Return the message that would be given next, and leave it there; None: there is none."""
        found = self.list(1, standing=MessageStanding.READY)
        return found[0].message if found else None

    def list(
        self, limit: int = 100, *, standing: MessageStanding | str | None = None
    ) -> Sequence[ListedMessage]:
        """Return up to ``limit`` messages, of 16 MiB at most; see ``LocalQueue.list``."""
        text = None if standing is None else str(standing)
        found = self._ask({"do": "list", "limit": limit, "standing": text}).values["found"]
        return [_listed(each) for each in found]

    def damaged(self) -> Sequence[DamagedMessages]:
        """Return what could not be read; see ``LocalQueue.damaged``."""
        directory = self._path.parent
        return damaged_in(directory, os.listdir(directory))

    def requeue(self, ids: Iterable[int] | None = None) -> int:
        """Give messages now that wait for a time; see ``LocalQueue.requeue``."""
        wanted = None if ids is None else list_of(ids)
        return int(self._ask({"do": "requeue", "ids": wanted}).values["count"])

    def purge(self) -> int:
        """Complete all messages that no taker has; return how many, once that is durable."""
        return int(self._ask({"do": "purge"}).values["count"])

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every message is completed; False: some are not, in time."""
        deadline = None if timeout is None else _monotonic() + timeout
        while len(self):
            if deadline is not None and _monotonic() >= deadline:
                return False
            time.sleep(_DRAIN_LOOK_S)
        return True

    def metrics(self) -> LocalQueueMetrics:
        """Return the numbers of the queue."""
        values = self._ask({"do": "metrics"}).values
        return LocalQueueMetrics(**{k: v for k, v in values.items() if k != "size"})

    def __len__(self) -> int:
        """Return how many messages are not completed."""
        return int(self._ask({"do": "metrics"}).values["size"])

    def close(self) -> None:
        """End the connections; what was taken is given to others. May be called again."""
        self._closed = True
        self._lose_all()
        with self._lock:
            used = list(self._used)
        for connection in used:  # a thread waits for its answer
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def list_of(ids: Iterable[int]) -> "Sequence[int]":
    """Return the ids as JSON takes them."""
    return [*ids]


def _handle(item: object) -> int:
    if not isinstance(item, LocalItem):
        raise LeaseLost(f"{item!r} is no item that take() returned")
    return item.number


def _listed(values: Mapping[str, Any]) -> ListedMessage:
    key = values["key"]
    message = Message(
        values["topic"],
        bytes.fromhex(values["content"]),
        values["tag"],
        bytes.fromhex(key) if values["is_bytes"] else key,
        values["headers"],
        id=values["id"],
    )
    return ListedMessage(
        message,
        MessageStanding(values["standing"]),
        values["priority"],
        values["attempts"],
        values["due_ms"],
    )
