"""A member of a consumer group as a process of its own, which a test may kill or stop.

    python member_process.py HISTORY ZOOKEEPER CLUSTER GROUP TOPIC SESSION_S PARENT STRATEGY

Notes every message it is given (``support.history``); the name of the history is its name in the
group. Ends in order on SIGTERM, and with its parent.
"""

import signal
import sys
import threading
from pathlib import Path

from support.history import History

import vq
from vq.devtools.processes import die_with


def main(
    history: str,
    zookeeper: str,
    cluster: str,
    group: str,
    topic: str,
    session_s: str,
    parent: str,
    strategy: str,
) -> None:
    """Run the member until SIGTERM."""
    die_with(int(parent))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    config = vq.MessageFactoryConfig(
        zookeeper=zookeeper, cluster=cluster, session_timeout_s=float(session_s)
    )
    path = Path(history)
    with History(path) as notes, vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(
                group=group,
                member_id=path.stem,
                commit_interval_s=0.2,
                max_wait_s=1.0,
                strategy=strategy,
            )
        )
        consumer.subscribe(topic, 64 * 1024, notes.received).start()
        stop.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
