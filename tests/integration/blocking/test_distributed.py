"""Transactions of messages and rows: all stored or nothing, also after a crash at any step.

Real PostgreSQL and MariaDB take part, and the decision is in vq's journal.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
import transaction
from support.blocking import contents, read_all
from support.cases import case
from support.cluster import ProcessCluster
from support.databases import mariadb, postgresql
from support.distributing_process import DECIDED, STEPS
from support.threads import spawn

import vq
import vq.datamanager
from vq.branches import FORMAT_ID
from vq.testing.waiting import PROCESSES_WAIT_S, WAIT_S, block_until

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def databases() -> Iterator[tuple[str, str]]:
    """A PostgreSQL and a MariaDB, with a table ``done`` each."""
    with postgresql() as first, mariadb() as second:
        for url in (first, second):
            with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
                connection.execute(sa.text("CREATE TABLE done (what VARCHAR(40) PRIMARY KEY)"))
        yield first, second


@pytest.fixture
def connections(databases: tuple[str, str]) -> Iterator[tuple[Any, Any]]:
    with (
        psycopg.connect(plain(databases[0])) as first,
        pymysql.connect(unix_socket=socket_of(databases[1]), user="root", database="vq") as second,
    ):
        yield first, second


def plain(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


def socket_of(url: str) -> str:
    return str(sa.make_url(url).query["unix_socket"])


def rows(url: str) -> set[str]:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return set(connection.execute(sa.text("SELECT what FROM done")).scalars())


def stored(
    factory: vq.MessageFactory, topic: str, databases: tuple[str, str]
) -> tuple[set[str], set[str], set[str]]:
    """What the topic and the databases have."""
    messages = [each for found in read_all(factory, topic).values() for each in found]
    return {each.decode() for each in contents(messages)}, rows(databases[0]), rows(databases[1])


def insert(connections: tuple[Any, Any], what: str) -> None:
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO done VALUES (%s)", (what,))


def test_a_crash_at_any_step_leaves_all_or_nothing(
    cluster: ProcessCluster,
    factory: vq.MessageFactory,
    topic: str,
    databases: tuple[str, str],
) -> None:
    """Once ``vq tx recover`` has asked the journal what became of what is prepared."""
    given = [cluster.zookeeper, cluster.name, topic, plain(databases[0]), socket_of(databases[1])]
    programs = {
        step: subprocess.Popen(
            [sys.executable, "-m", "support.distributing_process", *given, step],
            cwd=TESTS,
            stderr=subprocess.PIPE,
            text=True,
        )
        for step in (*STEPS, "end")
    }
    for step, program in programs.items():
        _, said = program.communicate(timeout=PROCESSES_WAIT_S)
        assert program.returncode == (0 if step == "end" else -9), (step, said)
    admin = factory.admin
    young = [each for url in databases for each in admin.list_branches(url)]
    in_databases = [each for each in young if each.database is not None]
    assert len(in_databases) == 1 + 2 + 2 + 2 + 1
    assert {(each.state.name, each.end) for each in in_databases} == {
        ("UNKNOWN", "wait"),
        ("PREPARED", "wait"),
        ("COMMITTED", "commit"),
    }
    with psycopg.connect(plain(databases[0])) as foreign:
        foreign.tpc_begin(foreign.xid(FORMAT_ID, "other-cluster.7", "1.1"))
        foreign.execute("INSERT INTO done VALUES ('foreign')")
        foreign.tpc_prepare()
        foreign.tpc_rollback()

    def recovered() -> bool:
        """MariaDB needs a moment to see that a program is gone."""
        left = []
        for url in databases:
            command = ("tx", "recover", "--database", url, "--older-than", "0", "--yes")
            if cluster.vq(*command).returncode:
                return False
            left += admin.list_branches(url, older_than_s=0)
        return not left

    block_until(recovered, "nothing is prepared any more")
    expected = {*STEPS[DECIDED:], "end"}
    found = stored(factory, topic, databases)
    for step in (*STEPS, "end"):
        with case(step):
            assert [step in each for each in found] == [step in expected] * 3
    kept = {each.number for each in admin.list_transactions(kept=True)}
    for number in kept:  # who was killed could not say that all know it
        admin.forget_transaction(number)
    assert len(kept) <= len(STEPS) - DECIDED
    assert admin.list_transactions(kept=True) == []


def test_all_is_committed_or_rolled_back(
    factory: vq.MessageFactory,
    topic: str,
    databases: tuple[str, str],
    connections: tuple[Any, Any],
) -> None:
    """Also if a database cannot prepare, or an operator has rolled back; then all go on."""
    producer = factory.create_producer()

    def send(what: str, *, then: Any = None) -> None:
        with vq.distributed(producer, *connections) as both:
            producer.send_sync(vq.Message(topic, what.encode()))
            insert(connections, what)
            if then is not None:
                then(both)

    send("committed")

    def fails(_: vq.DistributedTransaction) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send("raised", then=fails)

    def by_operator(both: vq.DistributedTransaction) -> None:
        both.prepare()
        factory.admin.roll_back_transaction(both.number)
        factory.admin.forget_transaction(both.number)

    with pytest.raises(vq.TransactionRefused, match="is rolled back by"):
        send("by an operator", then=by_operator)

    def breaks(_: vq.DistributedTransaction) -> None:
        with pytest.raises(psycopg.errors.UniqueViolation):
            connections[0].execute("INSERT INTO done VALUES ('committed')")

    def ends(_: vq.DistributedTransaction) -> None:
        connections[0].execute("ROLLBACK")

    for what, then in (("cannot prepare", breaks), ("ended by hand", ends)):
        with pytest.raises(vq.InvalidState, match="a statement has failed"):
            send(what, then=then)
    send("again")
    for found in stored(factory, topic, databases):
        assert {"committed", "again"} <= found
        assert not found & {"raised", "by an operator", "cannot prepare", "ended by hand"}
    assert factory.admin.list_transactions(kept=True) == []
    with pytest.raises(vq.InvalidArgument, match="SQLite has no two phases"):
        vq.distributed(producer, sqlite3.connect(":memory:"))
    assert producer.send_sync(vq.Message(topic, b"plain")).offset >= 0


def test_work_that_a_connection_has_begun_is_left_alone(
    factory: vq.MessageFactory, topic: str, connections: tuple[Any, Any]
) -> None:
    """A connection that is in a transaction is refused, and loses nothing; a cursor is refused."""
    producer = factory.create_producer()
    insert(connections, "begun before")
    with pytest.raises(psycopg.ProgrammingError, match="INTRANS"):
        vq.distributed(producer, connections[0])
    with pytest.raises(vq.InvalidState, match="commit it or roll it back before"):
        vq.distributed(producer, connections[1])
    for connection in connections:
        with connection.cursor() as cursor:
            cursor.execute("SELECT what FROM done WHERE what = 'begun before'")
            assert len(cursor.fetchall()) == 1
            with pytest.raises(vq.InvalidArgument, match="no two-phase methods"):
                vq.distributed(producer, cursor)
        connection.rollback()
    with vq.distributed(producer, *connections):
        producer.send_sync(vq.Message(topic, b"after"))


def test_the_package_transaction_commits_and_aborts(
    factory: vq.MessageFactory,
    topic: str,
    databases: tuple[str, str],
    connections: tuple[Any, Any],
) -> None:
    """vq is the last to commit; what another resource cannot do in its vote has all rolled back."""
    producer = factory.create_producer()
    steps: list[str] = []

    class Other(vq.datamanager.DataManager):
        """Another resource, which may fail in its vote."""

        def __init__(self, key: str, fails: bool) -> None:
            self.transaction_manager = transaction.manager
            self.key, self.fails = key, fails

        def sortKey(self) -> str:
            return self.key

        def tpc_vote(self, _: Any) -> None:
            if self.fails:
                raise ZeroDivisionError

        def tpc_finish(self, _: Any) -> None:
            found = stored(factory, topic, databases)
            steps.append("before vq" if "by the package" not in found[0] else "behind vq")

        def abort(self, _: Any) -> None:
            steps.append("aborted")

        tpc_abort = abort

    for what, fails in (("by the package", False), ("aborted by vote", True)):
        transaction.begin()
        vq.datamanager.join(producer, *connections)
        transaction.get().join(Other("~" if not fails else "~~~", fails))
        producer.send_sync(vq.Message(topic, what.encode()))
        insert(connections, what)
        if fails:
            with pytest.raises(ZeroDivisionError):
                transaction.commit()
            transaction.abort()
        else:
            transaction.commit()
    vq.datamanager.join(producer, *connections)
    insert(connections, "aborted at once")
    with pytest.raises(TypeError, match=r"[Ss]avepoints"):
        transaction.savepoint()
    transaction.abort()
    transaction.abort()
    assert steps[0] == "before vq"
    for found in stored(factory, topic, databases):
        assert "by the package" in found
        assert not found & {"aborted by vote", "aborted at once"}


def test_a_branch_that_a_deadlock_has_ended_is_rolled_back(
    factory: vq.MessageFactory,
    topic: str,
    databases: tuple[str, str],
    connections: tuple[Any, Any],
) -> None:
    """MariaDB has ended it by itself; the connection takes part in the next transaction."""
    producer = factory.create_producer()
    engine = sa.create_engine(databases[1], poolclass=sa.NullPool)
    mine = connections[1].cursor()

    def waits() -> bool:
        with engine.connect() as watcher:
            found = watcher.execute(sa.text("SELECT * FROM information_schema.innodb_lock_waits"))
            return found.first() is not None

    def deadlocks(other: sa.Connection) -> None:
        with vq.distributed(producer, connections[1]):
            producer.send_sync(vq.Message(topic, b"never"))
            mine.execute("DELETE FROM done WHERE what = 'first'")
            deleted = spawn(lambda: other.execute(sa.text("DELETE FROM done WHERE what = 'first'")))
            block_until(waits)
            try:
                mine.execute("DELETE FROM done WHERE what = 'second'")
            finally:
                deleted.result(WAIT_S)

    with engine.begin() as other:
        other.execute(sa.text("INSERT INTO done VALUES ('first'), ('second')"))
    with engine.connect() as other:
        other.execute(sa.text("INSERT INTO done VALUES ('a'), ('b'), ('c')"))  # so it is spared
        other.execute(sa.text("DELETE FROM done WHERE what = 'second'"))
        with pytest.raises(pymysql.OperationalError, match="Deadlock"):
            deadlocks(other)
        other.rollback()
    with vq.distributed(producer, connections[1]):
        mine.execute("INSERT INTO done VALUES ('behind a deadlock')")
    assert {"first", "second", "behind a deadlock"} <= rows(databases[1])
    assert [each for found in read_all(factory, topic).values() for each in found] == []
    engine.dispose()


def test_nothing_is_kept_for_databases_that_are_not_there(
    factory: vq.MessageFactory, topic: str
) -> None:
    """Only databases follow a decision: beside other resources of the package there are none."""
    producer = factory.create_producer()
    transaction.begin()
    vq.datamanager.join(producer)
    producer.send_sync(vq.Message(topic, b"by the package"))
    transaction.commit()
    with vq.distributed(producer):
        producer.send_sync(vq.Message(topic, b"alone"))
    messages = [each for found in read_all(factory, topic).values() for each in found]
    assert sorted(contents(messages)) == [b"alone", b"by the package"]
    assert factory.admin.list_transactions(kept=True) == []


def test_a_postgresql_that_prepares_nothing_is_named(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, databases: tuple[str, str]
) -> None:
    """It is so unless it is set: by ``vq doctor``, and before anything is stored."""
    producer = factory.create_producer()
    with postgresql(prepares=0) as url:
        told = cluster.vq("doctor", "--local", "--database", url, "--database", databases[1])
        assert told.returncode == 1
        said = told.stdout.decode()
        assert "max_prepared_transactions = 0" in said
        assert "takes part in transactions" in said
        with psycopg.connect(plain(url)) as connection:
            both = vq.distributed(producer, connection)
            connection.execute("CREATE TABLE t (n integer)")
            producer.send_sync(vq.Message(topic, b"never"))
            with pytest.raises(psycopg.Error, match="max_prepared_transactions"):
                both.commit()
            assert connection.closed
        with psycopg.connect(plain(url)) as connection:
            assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)
    assert [each for found in read_all(factory, topic).values() for each in found] == []
