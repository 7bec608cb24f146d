"""A producer of half messages whose local work is rows of SQLite, and which is killed.

    python half_process.py ZOOKEEPER CLUSTER TOPIC DATABASE PARENT

Six of its threads are past their local work, or before it, when it kills itself: none of them has
decided.
"""

import os
import signal
import sqlite3
import sys
import threading

import vq
from vq.devtools.processes import die_with

PENDING = 6


def insert(database: str, id: int) -> None:
    with sqlite3.connect(database, timeout=30) as connection:
        connection.execute("INSERT INTO done VALUES (?)", (id,))


def main(zookeeper: str, cluster: str, topic: str, database: str, parent: str) -> None:
    """Send, and be killed."""
    die_with(int(parent))
    together = threading.Barrier(PENDING)

    def execute(message: vq.Message, kind: str) -> vq.TransactionResolution:
        if kind == "dropped":
            return vq.ROLLBACK
        if kind in {"stored", "done"}:
            insert(database, message.id)
        if kind == "stored":
            return vq.COMMIT
        together.wait()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is killed")

    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=2.0)
    settings = vq.ProducerConfig(
        producer_group="shop",
        transaction_listener=vq.TransactionListener(execute, lambda _message: vq.UNKNOWN),
        check_after_s=1.0,
        check_interval_s=1.0,
        checks_max=1_000,
    )
    with vq.MessageFactory(config) as factory:
        producer = factory.create_producer(settings)
        for kind in ("stored", "dropped"):
            producer.send_half(vq.Message(topic, kind.encode()), kind)
        for number in range(PENDING):
            kind = "done" if number % 2 else "not done"
            message = vq.Message(topic, b"%s %d" % (kind.encode(), number))
            threading.Thread(target=producer.send_half, args=(message, kind)).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
