"""Members of a shared group in a run: processes that are killed and stopped like brokers.

They have a topic of their own, with one producer: what they cost does not depend on the others.

    {"kind": "got", "call": "h0-1:17", "value": …, "attempts": 1}           a listener got a message
    {"kind": "says", "call": …, "what": "extend", "seconds": 3.0}           it is about to say so
    {"kind": "said", "call": …, "outcome": "ok"}                            what it was told

``shared_judge`` says what must hold. A process is this module, run with the settings as JSON.
"""

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support.cluster import ProcessCluster
from support.faults import Sender, Way, client_of
from support.history import Event, History, name_of, read_histories
from support.judge import Anomaly, Reign
from support.shared_judge import Call, Said, SharedEvidence, deliveries_of, judge_shared

import vq
from vq.errors import LeaseLost, UnknownTopic, VqError
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

GROUP: Final = "pool"
TOPIC: Final = "pool"
PARTITIONS: Final = 2
#: Messages in a second.
RATE: Final = 40.0
LEASE_S: Final = 3.0
MAX_DELIVERIES: Final = 5
WORKERS: Final = 12
#: How often it is looked whether all is done: each look asks brokers and ZooKeeper.
_LOOK_S: Final = 0.3
#: A message of the producer; one of so many is poison: its listeners always fail.
_SENT: Final = re.compile(r"p0-(\d{7})-")
_POISON_EVERY: Final = 53
#: So many keys the messages have in a group that keeps their order; one of three has none.
_KEYS: Final = 40
#: So many listeners of a hundred say something late, extend the lease up to the last moment, give
#: the message back, or only return. The others acknowledge at once.
_LATE: Final = 1
_EXTENDS: Final = 1
_GIVES_BACK: Final = 3
_RETURNS: Final = 20


def is_poison(value: str) -> bool:
    """Whether the listeners of the message with this value always fail."""
    found = _SENT.match(value)
    return found is not None and int(found[1]) % _POISON_EVERY == 7


def key_of(number: int) -> str | None:
    """Return the key of the message with this number, where the order of keys is kept."""
    return None if number % 3 == 0 else str(number % _KEYS)


class Sharers:
    """The running members, and what they read.

    Args:
        cluster: Of the run.
        factory: The producer is made from it.
        histories: The directory of their histories, of nobody else.
        count: How many processes.
        keyed: The group keeps the order of keys.

    Attributes:
        sender: The producer, not started.
    """

    def __init__(
        self,
        cluster: ProcessCluster,
        factory: vq.MessageFactory,
        histories: Path,
        count: int,
        *,
        keyed: bool,
    ) -> None:
        self._cluster = cluster
        self._keyed = keyed
        self._histories = histories
        self._starts = itertools.count(1)
        self._running: list[subprocess.Popen[bytes]] = []
        self._begun: dict[int, Path] = {}  # by process: its history, which it makes first
        histories.mkdir(parents=True, exist_ok=True)
        cluster.vq_json("topic", "create", TOPIC, "--partitions", str(PARTITIONS))
        for _ in range(count):
            self._running.append(self._start())
        self.sender: Final = Sender(
            factory,
            TOPIC,
            histories / "p0.jsonl",
            rate=RATE,
            way=lambda number: Way(key_of(number) if keyed else None),
        )

    def _start(self) -> "subprocess.Popen[bytes]":
        name = f"h{next(self._starts)}"
        settings = {
            "zookeeper": self._cluster.zookeeper,
            "cluster": self._cluster.name,
            "history": str(self._histories / f"{name}.jsonl"),
            "mode": "keyed" if self._keyed else "concurrent",
        }
        with (self._histories / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.chaos.shared", json.dumps(settings)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._begun[process.pid] = Path(settings["history"])
        return process

    def kill(self, rng: random.Random) -> bool:
        """SIGKILL of a member; another process takes its place. Return whether it ran."""
        at = rng.randrange(len(self._running))
        process = self._running[at]
        process.kill()
        died = process.wait(PROCESSES_WAIT_S) == -signal.SIGKILL
        self._running[at] = self._start()
        return died

    def pause(self, rng: random.Random, seconds: float) -> bool:
        """SIGSTOP of a member for a time; return whether it lived through it."""
        process = rng.choice(self._running)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return process.poll() is None

    def wait_done(self) -> None:
        """Send no more and wait until nothing is open; return also if not: the judge tells."""
        self.sender.finish()
        with client_of(self._cluster) as factory:

            def is_done() -> bool:
                time.sleep(_LOOK_S)
                try:
                    found = factory.admin.describe_group(GROUP)
                except VqError:
                    return False
                return bool(found.partitions) and not any(
                    each.lag_messages for each in found.partitions
                )

            try:
                block_until(is_done, timeout_s=PROCESSES_WAIT_S)
            except AssertionError:
                pass

    def finish(self) -> None:
        """Have all members end in order."""
        block_until(self._all_have_begun, timeout_s=PROCESSES_WAIT_S)
        for process in self._running:
            process.terminate()
        codes = [process.wait(PROCESSES_WAIT_S) for process in self._running]
        assert not any(codes), f"members ended with {codes}: see {self._histories}"

    def _all_have_begun(self) -> bool:
        """Whether each has its history, or has died: before that SIGTERM only kills it."""
        return all(
            self._begun[each.pid].exists() or each.poll() is not None for each in self._running
        )

    def stop(self) -> None:
        """End all of them whatever happens."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()

    # Judge --------------------------------------------------------------------------------------
    def judge(self, reigns: Iterable[Reign]) -> list[Anomaly]:
        """Return what is wrong.

        Args:
            reigns: Who led which group; their time is that of the wall clock.
        """
        histories = read_histories(self._histories.glob("*.jsonl"))
        sent = [
            event for events in histories.values() for event in events if event["kind"] == "sent"
        ]
        owed = {event["value"] for event in sent}
        wall = time.monotonic() - time.time()
        evidence = SharedEvidence(
            calls=_calls(histories),
            owed=frozenset(owed),
            poison=frozenset(filter(is_poison, owed)),
            letters=self._letters(),
            max_deliveries=MAX_DELIVERIES,
            take_overs=[each.at + wall for each in reigns if each.epoch > 1],
            queues=_queues(sent) if self._keyed else (),
        )
        wrong = [Anomaly("shared", line) for line in judge_shared(evidence)]
        if len(evidence.calls) < len(owed) or not evidence.letters:
            wrong.append(Anomaly("void", f"{len(evidence.calls)} calls for {len(owed)} messages"))
        return wrong

    def _letters(self) -> dict[str, list[int]]:
        letters: dict[str, list[int]] = {}
        with client_of(self._cluster) as factory:
            try:
                for each in factory.admin.read_dead_letters(GROUP):
                    counts = letters.setdefault(name_of(each.message.content), [])
                    counts.append(deliveries_of(each.failure))
            except UnknownTopic:
                pass  # nothing was given up
        return letters


def _queues(sent: Iterable[Event]) -> list[list[str]]:
    """Return the messages of each key of each partition, in their order."""
    queues: dict[tuple[int, str], list[str]] = {}
    for event in sorted(sent, key=lambda each: (each["partition"], each["offset"])):
        found = _SENT.match(event["value"])
        if found is not None and (key := key_of(int(found[1]))) is not None:
            queues.setdefault((event["partition"], key), []).append(event["value"])
    return list(queues.values())


def _calls(histories: Mapping[str, Sequence[Event]]) -> list[Call]:
    """Return what the listeners of all members got and said, in the order of time."""
    calls: dict[str, Call] = {}
    for who, events in histories.items():
        for event in events:
            if event["kind"] == "got":
                calls[event["call"]] = Call(
                    event["value"], who, event["at"], event["attempts"], LEASE_S
                )
            elif event["kind"] == "says":
                said = Said(event["what"], event["at"], event["seconds"])
                calls[event["call"]].said.append(said)
            elif event["kind"] == "said":
                said = calls[event["call"]].said[-1]
                said.told, said.outcome = event["at"], event["outcome"]
    return sorted(calls.values(), key=lambda each: each.at)


# The process --------------------------------------------------------------------------------------
class _Listener:
    """What a member does with its messages. Called in many threads."""

    def __init__(self, history: History, name: str) -> None:
        self._history = history
        self._name = name
        self._calls = itertools.count(1)
        self._rng = random.Random(name)

    def __call__(self, message: Any) -> None:
        call, value = f"{self._name}:{next(self._calls)}", name_of(message.content)
        self._history.note("got", call=call, value=value, attempts=message.attempts)
        if is_poison(value):
            self._says(call, "raise")
            raise OSError(f"{value} cannot be handled")
        if not self._handle(call, message):
            self._says(call, "return")

    def _handle(self, call: str, message: Any) -> bool:
        """Return whether it was said what becomes of the message: otherwise it is done."""
        draw = self._rng.randrange(100)
        if draw < _LATE:
            time.sleep(LEASE_S * self._rng.uniform(0.95, 1.3))
        elif draw < _LATE + _EXTENDS:
            for share in (0.5, self._rng.choice((0.97, 0.99))):
                if not self._say(call, "extend", lambda: message.extend(LEASE_S), LEASE_S):
                    return False
                time.sleep(LEASE_S * share)
        elif draw < _LATE + _EXTENDS + _GIVES_BACK:
            self._say(call, "nack", lambda: message.nack(0.2), 0.2)
            return True
        elif draw < _LATE + _EXTENDS + _GIVES_BACK + _RETURNS:
            return False
        self._say(call, "ack", message.ack)
        return True

    def _says(self, call: str, what: str, seconds: float = 0.0) -> None:
        self._history.note("says", call=call, what=what, seconds=seconds)

    def _say(self, call: str, what: str, say: Callable[[], object], seconds: float = 0.0) -> bool:
        self._says(call, what, seconds)
        try:
            say()
        except LeaseLost:
            outcome = "lost"
        except VqError:
            outcome = "unknown"
        else:
            outcome = "ok"
        self._history.note("said", call=call, outcome=outcome)
        return outcome == "ok"


def main(settings: Mapping[str, str]) -> None:
    """Be a member until SIGTERM."""
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    path = Path(settings["history"])
    config = vq.MessageFactoryConfig(
        zookeeper=settings["zookeeper"],
        cluster=settings["cluster"],
        session_timeout_s=10.0,
        start_timeout_s=PROCESSES_WAIT_S,
    )
    with History(path) as history, vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(
                group=GROUP,
                model="shared",
                mode=settings["mode"],
                workers=WORKERS,
                lease_s=LEASE_S,
                max_deliveries=MAX_DELIVERIES,
                retry_backoff=(0.1, 0.4),
                commit_interval_s=0.2,
                start_position="earliest",
            )
        )
        consumer.subscribe(TOPIC, listener=_Listener(history, path.stem)).start()
        ends.wait()
        consumer.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
