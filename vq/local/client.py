"""A local queue that another process has open: the API of ``LocalQueue`` over its socket."""

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from vq.bounds import check_number, check_whole
from vq.client.kinds import check_text
from vq.client.producer.intake.stages import Heads
from vq.clock import SystemClock
from vq.errors import ConnectionCut, InvalidState, Unreachable
from vq.local.files.damage import DamagedMessages, damaged_in
from vq.local.files.storage import QUEUE_NAME
from vq.local.items import LocalItem, check_item, content_of, delay_of
from vq.local.looks import ListedMessage, LocalQueueMetrics, MessageStanding
from vq.local.many import complete_each, taken, whole_numbers
from vq.local.settings import given_directory, several
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
from vq.model import Message, check_timeout

#: A longer wait is asked for anew, so that the owner notices a client that was killed.
_TAKE_S: Final = 30.0
_HELLO_S: Final = 10.0
#: Connections that are kept for the next request.
_IDLE_MAX: Final = 16
_DRAIN_LOOK_S: Final = 0.05
_HANDLE_BITS: Final = 62
_monotonic: Final = time.monotonic


class LocalQueueClient:
    """A queue whose owner serves it (``vq local serve``, ``LocalQueueServer``): the same methods.

    Any thread may use it; requests at the same time have a connection each. What this process has
    taken and not completed is given to others when it ends, or closes. In the child of a fork it is
    closed, and its parent's goes on.

    Args:
        directory: Of the queue.

    Raises:
        Unreachable: Nobody serves it.
        UnsupportedVersion: The owner is another version of vq.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = given_directory(directory) / SOCKET_NAME
        self._client = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._presence: socket.socket | None = None  # while it is open, this client is there
        self._idle: list[socket.socket] = []
        self._used: set[socket.socket] = set()
        # Handles of takes. Those of two clients differ, so an item of another one names nothing.
        self._numbers = itertools.count(secrets.randbits(_HANDLE_BITS))
        self._untaken: list[int] = []  # takes whose answer was not read
        self._closed = False
        self.name = ""
        _MADE.add(self)
        self._keep(self._connection())

    def _leave_to_parent(self) -> None:
        """Close what a child of a fork has of it: the owner shall notice that the parent ended."""
        self._lock = threading.Lock()  # another thread may have had it
        self._closed = True
        for connection in (*self._idle, *self._used, self._presence):
            if connection is not None:
                connection.close()
        self._idle, self._used, self._presence = [], set(), None

    def _connection(self) -> socket.socket:
        """Return a connection for one request."""
        if self._closed:
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
            if not (self._path.parent / QUEUE_NAME).exists():
                raise Unreachable(
                    f"{self._path.parent} has no local queue",
                    hint="give the directory that a LocalQueue was opened with",
                ) from error
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
            if isinstance(error, OSError) and error.errno is not None:  # none of a signal handler
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
        values, body = written_item(LocalItem(content_of(message), self.name, head=head))
        if delay_s is None:
            delay_s = delay_of(message, SystemClock().wall_ms())
        if delay_s is not None:
            check_number("delay_s", delay_s)
        check_whole("priority", priority)
        if idempotency_key is not None:
            check_text("idempotency_key", idempotency_key)
        asked = {
            "do": "put",
            **values,
            "delay_s": delay_s,
            "priority": priority,
            "idempotency_key": idempotency_key,
            "wait": bool(wait),
            "timeout": None if timeout is None else check_timeout(timeout),
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
        for count, each in enumerate(several("contents", contents), 1):  # noqa: B007  the count is the result
            self.put(each, priority=priority, wait=False, timeout=timeout)
        if wait and count:
            self.flush()
        return count

    def flush(self) -> None:
        """Return once all that was put and completed before is durable."""
        self._ask({"do": "flush"})

    def take(self, timeout: float | None = None) -> LocalItem | None:
        """Return the next message, which nobody else has now; None: none came in time."""
        deadline = None if timeout is None else _monotonic() + check_timeout(timeout)
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
        return taken(self.take, self._give_back, count, timeout)

    def _give_back(self, item: LocalItem) -> None:
        """Have the owner give a message to others; the next request says so."""
        with self._lock:
            self._untaken.append(item.number)

    def _handle(self, item: object) -> int:
        return check_item(item, self.name).number

    def complete(self, item: LocalItem, *, wait: bool = False) -> None:
        """Note that a message is done; see ``LocalQueue.complete``."""
        self._ask({"do": "complete", "handle": self._handle(item), "wait": bool(wait)})

    def complete_many(self, items: Iterable[LocalItem], *, wait: bool = False) -> None:
        """Complete each of them; see ``LocalQueue.complete_many``."""
        complete_each(self.complete, items, self.flush if wait else None)

    def fail(self, item: LocalItem, *, delay_s: float | None = None) -> None:
        """Give a message back; see ``LocalQueue.fail``."""
        if delay_s is not None:
            check_number("delay_s", delay_s)
        self._ask({"do": "fail", "handle": self._handle(item), "delay_s": delay_s})

    def extend(self, item: LocalItem) -> None:
        """Begin the lease of a message anew."""
        self._ask({"do": "extend", "handle": self._handle(item)})

    def peek(self) -> Message | None:
        """Return the message that would be given next, and leave it there; None: there is none."""
        found = self.list(1, standing=MessageStanding.READY)
        return found[0].message if found else None

    def list(
        self, limit: int = 100, *, standing: MessageStanding | str | None = None
    ) -> Sequence[ListedMessage]:
        """Return up to ``limit`` messages, of 16 MiB at most; see ``LocalQueue.list``."""
        check_whole("limit", limit)
        text = None if standing is None else str(standing)
        found = self._ask({"do": "list", "limit": limit, "standing": text}).values["found"]
        return [_listed(each) for each in found]

    def damaged(self) -> Sequence[DamagedMessages]:
        """Return what could not be read; see ``LocalQueue.damaged``."""
        directory = self._path.parent
        return damaged_in(directory, os.listdir(directory))

    def requeue(self, ids: Iterable[int] | None = None) -> int:
        """Give messages now that wait for a time; see ``LocalQueue.requeue``."""
        wanted = None if ids is None else whole_numbers("ids", ids)
        return int(self._ask({"do": "requeue", "ids": wanted}).values["count"])

    def purge(self) -> int:
        """Complete all messages that no taker has; return how many, once that is durable."""
        return int(self._ask({"do": "purge"}).values["count"])

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every message is completed; False: some are not, in time."""
        deadline = None if timeout is None else _monotonic() + check_timeout(timeout)
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

    def __exit__(self, *_: object) -> None:
        self.close()


_MADE: Final = weakref.WeakSet[LocalQueueClient]()


def _leave_all() -> None:
    for client in list(_MADE):
        client._leave_to_parent()


os.register_at_fork(after_in_child=_leave_all)


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
