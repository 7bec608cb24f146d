"""A program that stores a message and a row in each of two databases, and kills itself at a step.

    python -m support.distributing_process ZOOKEEPER CLUSTER TOPIC POSTGRESQL MARIADB STEP

STEP is one of ``STEPS``, or "end". It is also what the message and the rows say.
"""

import os
import signal
import sys
from typing import Any, Final

import psycopg
import pymysql.connections
import pymysql.cursors

import vq

#: Steps, in their order; the program dies before the first one, or behind another one.
STEPS: Final = (
    "begun",
    "PostgreSQL prepared",
    "both prepared",
    "vq prepared",
    "decided",
    "PostgreSQL committed",
    "both committed",
)
#: From this step on all is stored.
DECIDED: Final = STEPS.index("decided")
STEP = sys.argv[-1]


def passes(step: str) -> None:
    """End the program, as ``kill -9`` does, if it is to end here."""
    if step == STEP:
        os.kill(os.getpid(), signal.SIGKILL)


class Postgres(psycopg.Connection[Any]):
    """A connection that tells of its steps."""

    def tpc_prepare(self) -> None:
        super().tpc_prepare()
        passes("PostgreSQL prepared")

    def tpc_commit(self, xid: Any = None) -> None:
        passes("decided")
        super().tpc_commit(xid)
        passes("PostgreSQL committed")


class Cursor(pymysql.cursors.Cursor):
    """A cursor that tells of its steps."""

    def execute(self, query: Any, args: Any = None) -> int:
        done: int = super().execute(query, args)
        if query.startswith("XA PREPARE"):
            passes("both prepared")
        elif query.startswith("XA COMMIT"):
            passes("both committed")
        return done


def main(zookeeper: str, cluster: str, topic: str, postgresql: str, socket: str) -> None:
    """Make one transaction."""
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster)
    with (
        vq.MessageFactory(config) as factory,
        factory.create_producer() as producer,
        Postgres.connect(postgresql) as first,
        pymysql.connections.Connection(
            unix_socket=socket, user="root", database="vq", cursorclass=Cursor
        ) as second,
        vq.distributed(producer, first, second) as both,
    ):
        producer.send_sync(vq.Message(topic, STEP.encode()))
        for connection in (first, second):
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO done VALUES (%s)", (STEP,))
        passes("begun")
        both.prepare()
        passes("vq prepared")


if __name__ == "__main__":
    main(*sys.argv[1:-1])
