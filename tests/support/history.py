"""The events of a fault run's clients, one file per client, one JSON object per line.

    {"at": 12.034, "kind": "send", "value": "w0-000017-…"}          about to be sent
    {"at": 12.036, "kind": "sent", "value": …, "partition": 0, "offset": 4711}
    {"at": 12.036, "kind": "refused", "value": …, "error": "DiskFull"}      certainly not stored
    {"at": 15.034, "kind": "unknown", "value": …, "error": "TimedOut"}      perhaps stored
    {"at": 12.040, "kind": "received", "value": …, "partition": 0, "offset": 4711}
    {"at": 12.050, "kind": "done", "partition": 0, "offset": 4711}      where a listener says so
    {"at": 14.036, "kind": "waits", "value": …}     acknowledged, and delayed: see ``chaos.delays``
    {"at": 20.000, "kind": "end"}                    the client ended in order: nothing is left open

``at`` is the monotonic clock of the machine, the same in every process. A line is written whole
with one call, so that a killed client leaves whole lines. ``support.judge`` reads the files.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import vq
from vq.errors import InvalidState

Event = dict[str, Any]
_SHOWN = 48


def name_of(payload: bytes) -> str:
    """Return what stands for a payload in histories: itself, or its begin and its digest."""
    if len(payload) <= _SHOWN:
        return payload.decode("latin-1")
    digest = hashlib.sha256(payload).hexdigest()[:16]
    return f"{payload[:24].decode('latin-1')}#{len(payload)}#{digest}"


class History:
    """Writes the history of one client. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, kind: str, **fields: Any) -> None:
        """Write one event."""
        event = {"at": round(time.monotonic(), 6), "kind": kind, **fields}
        os.write(self._fd, json.dumps(event).encode() + b"\n")

    def send(
        self, producer: vq.MessageProducer, message: vq.Message, timeout: float | None = None
    ) -> vq.SendFuture | None:
        """Send a message and note its outcome when it comes; return None if it was not accepted."""
        value = name_of(message.content)
        self.note("send", value=value)
        try:
            return producer.send_async(message, self._on_outcome(value), timeout)
        except vq.VqError as error:
            self.failed(value, error)
            return None

    def send_sync(
        self, producer: vq.MessageProducer, message: vq.Message, timeout: float
    ) -> vq.SendResult | None:
        """Send a message, wait for its outcome and note it; None: it was not acknowledged."""
        value = name_of(message.content)
        self.note("send", value=value)
        try:
            result = producer.send_sync(message, timeout)
        except vq.VqError as error:
            self.failed(value, error)
            return None
        self.note("sent", value=value, partition=result.partition, offset=result.offset)
        return result

    def _on_outcome(self, value: str) -> Callable[[vq.SendResult | None, vq.VqError | None], None]:
        def note(result: vq.SendResult | None, error: vq.VqError | None) -> None:
            if result is not None:
                self.note("sent", value=value, partition=result.partition, offset=result.offset)
            elif error is not None:
                self.failed(value, error)

        return note

    def failed(self, value: str, error: vq.VqError) -> None:
        """Note that a send was refused, or that its outcome is unknown."""
        certain = isinstance(error, vq.Refused | InvalidState)
        kind = "refused" if certain else "unknown"
        self.note(kind, value=value, error=type(error).__name__)

    def received(self, message: vq.Message) -> None:
        """Note a message that a consumer was given."""
        self.note(
            "received",
            value=name_of(message.content),
            partition=message.partition,
            offset=message.offset,
        )

    def done(self, message: vq.Message) -> None:
        """Note that a listener has done a message."""
        self.note("done", partition=message.partition, offset=message.offset)

    def close(self) -> None:
        """Note the end in order. May be called again."""
        if self._fd >= 0:
            self.note("end")
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_history(path: Path) -> list[Event]:
    """Return the events of one client; a last line cut short by a kill is left out."""
    lines = path.read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def read_histories(paths: Iterable[Path]) -> dict[str, list[Event]]:
    """Return the events of several clients by the names of their files."""
    return {path.stem: read_history(path) for path in sorted(paths)}
