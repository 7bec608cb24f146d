"""A program that forks while its threads send, as a process of its own.

    python -m support.forking_process HISTORIES ZOOKEEPER CLUSTER TOPIC FORKS SEED PARENT

The threads send in every way and note it (``support.history``). The main thread forks at random
moments. A child checks that its parent's factory and producer refuse it and that no future waits
for ever, and then ends as programs end: by ``sys.exit``, by ``os._exit``, or as a child of
``multiprocessing``. A child that hangs ends with a traceback. The exit code is 0 if that of every
child is; children of what kind were made is printed as JSON.
"""

import faulthandler
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from support.history import History

import vq
from vq.devtools.processes import die_with
from vq.errors import InvalidState

#: A child that takes longer hangs.
HANGS_S = 60.0
#: How many of its parent's last futures a child examines.
_KEPT = 500
_PAUSE_S = 0.02

Send = Callable[[History, str, int], object]


class Parent:
    """A factory with a producer, and threads that send with it until ``end``."""

    def __init__(self, config: vq.MessageFactoryConfig, topic: str, histories: Path) -> None:
        self.config = config
        self.topic = topic
        self.factory = vq.MessageFactory(config).open()
        self.producer = self.factory.create_producer(vq.ProducerConfig(batch_records=10))
        self._futures: deque[vq.SendFuture | None] = deque(maxlen=_KEPT)
        self._stop = threading.Event()
        ways: dict[str, Send] = {
            "async": self._async,
            "late": self._late,
            "sync": self._sync,
            "sync2": self._sync,
        }
        self._threads = [
            threading.Thread(target=self._work, args=(histories / f"{name}.jsonl", way))
            for name, way in ways.items()
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Have every message get its outcome, and shut down."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.factory.shutdown()

    # Its threads ------------------------------------------------------------------------------
    def _work(self, path: Path, send: Send) -> None:
        with History(path) as history:
            number = 0
            while not self._stop.is_set():
                send(history, path.stem, number)
                number += 1
            self.producer.flush()

    def _message(self, name: str, number: int) -> vq.Message:
        key = str(number % 3) if number % 2 else None
        return vq.Message(self.topic, f"{name}-{number:07d}".encode(), key=key)

    def _async(self, history: History, name: str, number: int) -> None:
        self._futures.append(history.send(self.producer, self._message(name, number)))
        time.sleep(0.0005)

    def _late(self, history: History, name: str, number: int) -> None:
        """Most of these expire, so that a fork may come just then."""
        self._futures.append(history.send(self.producer, self._message(name, number), 0.0))
        time.sleep(0.0005)

    def _sync(self, history: History, name: str, number: int) -> None:
        history.send_sync(self.producer, self._message(name, number), HANGS_S)

    # Its children -----------------------------------------------------------------------------
    def be_child(self) -> None:
        """Check, in a child, that its parent's objects refuse it with a clear error."""
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        message = vq.Message(self.topic, b"of a child")
        for call in (
            lambda: self.producer.send_async(message),
            lambda: self.producer.send_async(message._replace(key="k")),
            lambda: self.producer.send_sync(message),
            lambda: self.producer.publish("other"),
            self.producer.flush,
            self.producer.metrics,
            self.factory.create_producer,
            self.factory.create_consumer,
            self.factory.get_status,
        ):
            refusal = ""
            try:
                call()
            except InvalidState as error:
                refusal = str(error)
            assert "fork" in refusal, refusal or "not refused"
        stranded = [each for each in self._futures if each is not None and not each.done()]
        assert not stranded, f"{len(stranded)} futures of {len(self._futures)} have no outcome"
        self.producer.close()
        self.factory.shutdown()
        faulthandler.cancel_dump_traceback_later()
        faulthandler.dump_traceback_later(HANGS_S, exit=True)  # until the end of the process


def fork(parent: Parent, kind: str) -> int:
    """Make one child and wait for its end; return its exit code."""
    if kind == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=parent.be_child)
        process.start()
        process.join()
        return process.exitcode or 0
    child = os.fork()
    if child == 0:
        parent.be_child()
        if kind == "exit":
            sys.exit(0)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(
    histories: str, zookeeper: str, cluster: str, topic: str, forks: str, seed: str, parent: str
) -> int:
    """Fork so many times; return how many children failed."""
    die_with(int(parent))
    rng = random.Random(int(seed))
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster)
    sending = Parent(config, topic, Path(histories))
    made: Counter[str] = Counter()
    failed = 0
    for number in range(int(forks)):
        time.sleep(rng.random() * _PAUSE_S)
        kind = ("_exit", "exit", "multiprocessing")[number % 3]
        made[kind] += 1
        failed += fork(sending, kind) != 0
    sending.end()
    print(json.dumps(made))
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
