"""A process with one member in each of several groups, which a test may kill or stop.

    python -m support.mode_process HISTORIES NAME ZOOKEEPER CLUSTER TOPIC SESSION_S PARENT

The groups are those of ``support.modes``. Each member notes what it is given and what it has done
in ``HISTORIES/<group>/<name>.jsonl``. It ends in order on SIGTERM, and with its parent.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.history import History
from support.modes import GROUPS, fails, number_of

import vq
from vq.devtools.processes import die_with
from vq.testing.waiting import PROCESSES_WAIT_S

#: One of so many messages takes long.
_SLOW_EVERY = 61
_SLOW_S = 0.3
_LOOK_S = 0.5
#: So long that what comes again after a crash is bounded by number, not by time.
_COMMIT_S = 60.0


def main(
    histories: str,
    name: str,
    zookeeper: str,
    cluster: str,
    topic: str,
    session_s: str,
    parent: str,
) -> None:
    """Run the members until SIGTERM."""
    die_with(int(parent))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = vq.MessageFactoryConfig(
        zookeeper=zookeeper,
        cluster=cluster,
        session_timeout_s=float(session_s),
        start_timeout_s=PROCESSES_WAIT_S,  # it may be cut off before it has begun
    )
    with ExitStack() as stack:
        factory = stack.enter_context(vq.MessageFactory(config))
        for group, settings in GROUPS.items():
            path = Path(histories) / group / f"{name}.jsonl"
            notes = stack.enter_context(History(path))
            consumer = factory.create_consumer(
                vq.ConsumerConfig(
                    group=group,
                    member_id=name,
                    commit_interval_s=_COMMIT_S,
                    max_wait_s=1.0,
                    **settings,  # type: ignore[arg-type]
                )
            )
            stack.enter_context(consumer)
            consumer.subscribe(topic, 64 * 1024, listener_of(group, notes)).start()
        while not stop.wait(_LOOK_S):  # a signal that another thread gets does not end a wait
            pass


def listener_of(group: str, notes: History) -> Callable[[Any], Any]:
    """Return a listener that does the first messages of a list, up to one that fails."""

    def handle(given: vq.Message | list[vq.Message]) -> vq.Retry | None:
        messages = given if isinstance(given, list) else [given]
        for message in messages:
            notes.received(message)
        for done, message in enumerate(messages):
            if fails(group, message):
                if number_of(message.content) % 2 or len(messages) > 1:
                    return vq.Retry(done=done)
                raise ValueError("not now")
            if number_of(message.content) % _SLOW_EVERY == 0:
                time.sleep(_SLOW_S)
            notes.done(message)
        return None

    return handle


if __name__ == "__main__":
    main(*sys.argv[1:])
