"""A client of a run that makes transactions.

    {"kind": "add", "transaction": "t0-17", "value": …}    about to be added
    {"kind": "asked", "transaction": …}                    about to be committed
    {"kind": "ended", "transaction": …, "state": "committed"}    or "rolled back", or "unknown"

The judge compares this with the log: of a transaction all is there or nothing.
"""

import random
import time
from pathlib import Path
from typing import Final

from support.chaos.clients import StepClient
from support.history import name_of, read_histories

import vq
from vq.errors import TransactionInDoubt, VqError
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

#: Transactions in a second, about, and the most messages of one.
RATE: Final = 15.0
MESSAGES_MAX: Final = 8
#: Shares of those that are rolled back, and that are prepared before they are ended.
_ROLLED_BACK: Final = 0.15
_PREPARED: Final = 0.3
_COMMIT_S: Final = 4.0
#: What is in doubt is asked for again until so long after the faults.
_SETTLE_S: Final = 60.0


class Transactor(StepClient):
    """Makes transactions until ``finish``; then nothing of them is in doubt any more."""

    def __init__(
        self, factory: vq.MessageFactory, topic: str, path: Path, rng: random.Random
    ) -> None:
        id = f"id-{path.stem}" if rng.random() < 0.5 else None
        config = vq.ProducerConfig(transactional_id=id, transaction_timeout_s=30.0)
        super().__init__(factory, topic, path, rng, config)
        self._count = 0
        self._doubts: dict[str, tuple[vq.Transaction, bool]] = {}  # and whether to commit it

    def step(self) -> None:
        """Make a transaction; sometimes, ask again for one that is in doubt."""
        self._stop_asked.wait(self._rng.expovariate(RATE))
        if self._doubts and self._rng.random() < 0.2:
            self._end(*self._rng.choice(list(self._doubts.items())))
        name, self._count = f"{self._client}-{self._count:06d}", self._count + 1
        try:
            transaction = self._producer.begin_transaction()
        except VqError:  # its id could not be taken now
            return
        try:
            self._fill(name, transaction)
        except VqError:  # its time is over
            transaction.rollback()
            self._history.note("ended", transaction=name, state="rolled back")
            return
        commits = self._rng.random() >= _ROLLED_BACK
        if self._rng.random() < _PREPARED:
            try:
                transaction.prepare(_COMMIT_S)
            except TransactionInDoubt:
                self._end(name, (transaction, False))
                return
            except VqError:
                self._history.note("ended", transaction=name, state="rolled back")
                return
            if self._rng.random() < 0.5:  # others come between
                self._doubts[name] = transaction, commits
                return
        self._end(name, (transaction, commits))

    def _fill(self, name: str, transaction: vq.Transaction) -> None:
        for number in range(self._rng.randint(1, MESSAGES_MAX)):
            content = f"{name}/{number:02d}-".encode()
            self._history.note("add", transaction=name, value=name_of(content))
            key = self._rng.choice([None, "a", "b", "c", "d", "e"])
            self._producer.send_async(vq.Message(self._topic, content, key=key))

    def _end(self, name: str, how: tuple[vq.Transaction, bool]) -> bool:
        """Commit it or roll it back; return whether it is known what became of it."""
        transaction, commits = how
        if commits:
            self._history.note("asked", transaction=name)
        state = "committed" if commits else "rolled back"
        try:
            (transaction.commit if commits else transaction.rollback)(_COMMIT_S)
        except VqError as error:
            told = error.details.get("state")
            if told == vq.TransactionState.COMMITTED:
                state = "committed"
            elif isinstance(error, TransactionInDoubt) or not _is_over(transaction):
                self._doubts[name] = how
                return False
            else:
                state = "rolled back"
        self._doubts.pop(name, None)
        self._history.note("ended", transaction=name, state=state)
        return True

    def settle(self) -> None:
        """See ``StepClient``."""
        until = time.monotonic() + _SETTLE_S
        for item in list(self._doubts.items()):
            while not self._end(*item) and time.monotonic() < until:
                time.sleep(0.1)
        for name in self._doubts:
            self._history.note("ended", transaction=name, state="unknown")

    def wait_delivered(self, histories: Path) -> None:
        """See ``StepClient``: all that is committed is received by somebody."""
        committed: set[str] = set()
        values: dict[str, list[str]] = {}
        for event in read_histories([histories / f"{self._client}.jsonl"])[self._client]:
            if event["kind"] == "add":
                values.setdefault(event["transaction"], []).append(event["value"])
            elif event["kind"] == "ended" and event["state"] == "committed":
                committed.update(values[event["transaction"]])

        def all_received() -> bool:
            seen = {
                event["value"]
                for events in read_histories(histories.glob("m*.jsonl")).values()
                for event in events
                if event["kind"] == "received"
            }
            return committed <= seen

        try:
            block_until(all_received, timeout_s=PROCESSES_WAIT_S)
        except AssertionError:
            pass


def _is_over(transaction: vq.Transaction) -> bool:
    """Whether the producer itself knows that nothing of it is stored."""
    try:
        return transaction.outcome(_COMMIT_S) is vq.TransactionState.ROLLED_BACK
    except VqError:
        return False
