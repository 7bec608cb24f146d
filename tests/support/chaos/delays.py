"""A client of a run that delays its messages and cancels some of them.

    {"kind": "delay", "value": …, "delay_s": 2.0}                   about to be sent
    {"kind": "waits", "value": …}                                   acknowledged: it waits
    {"kind": "cancel", "value": …}                                  about to be cancelled
    {"kind": "recall", "value": …, "outcome": "CANCELLED"}          what became of that

What ends otherwise is noted as with other messages: refused, or unknown. The judge compares this
with when members received what.
"""

import heapq
import random
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from support.chaos.clients import StepClient
from support.history import name_of, read_histories

import vq
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

#: Shorter than a fail-over, about as long, and longer than the node that led is away.
DELAYS_S: Final = (0.05, 0.5, 2.0, 5.0, 12.0, 20.0)
BRIEF_S: Final = (0.05, 0.5, 2.0, 4.0)
RATE: Final = 30.0
#: The share of messages that are cancelled, at some time until they are due or a little later.
_CANCELLED: Final = 0.3
_CANCEL_S: Final = 3.0
_TOO_LATE_S: Final = 0.2
#: From when the last message is due until it and what is behind it have come, at most.
_LATE_S: Final = 20.0


class Delayer(StepClient):
    """Sends delayed messages until ``finish``, and cancels some."""

    def __init__(
        self,
        factory: vq.MessageFactory,
        topic: str,
        path: Path,
        rng: random.Random,
        delays_s: Sequence[float] = DELAYS_S,
    ) -> None:
        super().__init__(factory, topic, path, rng)
        self._delays_s = delays_s
        self._lock = threading.Lock()
        # To be cancelled: when, when it is due, its value, and where it waits.
        self._waiting: list[tuple[float, float, str, vq.SendResult]] = []
        self._last_due = 0.0
        self._begun = time.monotonic()
        self._sent = 0

    def step(self) -> None:
        """Send and cancel."""
        while self._sent < (time.monotonic() - self._begun) * RATE:
            self._send(self._sent)
            self._sent += 1
        self._cancel_due()

    def _send(self, number: int) -> None:
        delay_s = self._rng.choice(self._delays_s)
        cancel_s = self._rng.uniform(0, 1.1 * delay_s) if self._rng.random() < _CANCELLED else None
        content = f"{self._client}-{number:07d}-".encode()
        value = name_of(content)
        self._history.note("delay", value=value, delay_s=delay_s)
        due = time.monotonic() + delay_s
        self._last_due = max(self._last_due, due)

        def ended(result: vq.SendResult | None, error: vq.VqError | None) -> None:
            if result is None:
                assert error is not None
                self._history.failed(value, error)
                return
            self._history.note("waits", value=value)
            if cancel_s is not None:
                with self._lock:
                    at = time.monotonic() + cancel_s
                    heapq.heappush(self._waiting, (at, due, value, result))

        try:
            self._producer.send_async(vq.Message(self._topic, content, delay_s=delay_s), ended)
        except vq.VqError as error:
            self._history.failed(value, error)

    def _next_cancelled(self) -> tuple[str, vq.SendResult] | None:
        """Return the next message to cancel; a fault may have kept it until long after its time."""
        now = time.monotonic()
        with self._lock:
            while self._waiting and self._waiting[0][0] <= now:
                _, due, value, result = heapq.heappop(self._waiting)
                if due > now - _TOO_LATE_S:
                    return value, result
        return None

    def _cancel_due(self) -> None:
        item = self._next_cancelled()
        if item is None:
            return
        value, result = item
        self._history.note("cancel", value=value)
        try:
            outcome = self._producer.cancel(result, _CANCEL_S).name
        except vq.VqError as error:  # the broker could not be asked: it is certainly not cancelled
            outcome = type(error).__name__
        self._history.note("recall", value=value, outcome=outcome)

    def wait_delivered(self, histories: Path) -> None:
        """Wait until each message has come that shall, and each has been due that shall not.

        The judge says what is missing.
        """
        time.sleep(max(0.0, self._last_due - time.monotonic()))
        try:
            block_until(
                lambda: not missing(histories.glob("*.jsonl")),
                timeout_s=max(_LATE_S, PROCESSES_WAIT_S),
            )
        except AssertionError:
            pass


def missing(paths: Iterable[Path]) -> set[str]:
    """Return the delayed messages that shall come and that no member has received."""
    waits: set[str] = set()
    recalled: set[str] = set()
    received: set[str] = set()
    for events in read_histories(paths).values():
        for event in events:
            if event["kind"] == "waits":
                waits.add(event["value"])
            elif event["kind"] == "recall" and event["outcome"] in {"CANCELLED", "UNKNOWN"}:
                recalled.add(event["value"])
            elif event["kind"] == "received":
                received.add(event["value"])
    return waits - recalled - received
