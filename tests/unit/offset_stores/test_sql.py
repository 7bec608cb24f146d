"""Offsets in the transaction of the results: whatever connection, and only once for a message."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session
from support.cases import case
from support.coordination import at

from vq.client.consumer.deliver.stored_results import passing
from vq.errors import AlreadyHandled, GenerationStale, InvalidArgument, InvalidState
from vq.model import Message
from vq.offset_stores.sql import SqlOffsetStore
from vq.offset_stores.table import Commit, Fence, Key, RowClaim

KEY, FENCE = Key("c", "g", "t", 0), Fence(1, 1)


def message(number: int, partition: int = 0) -> Message:
    """The message at ``10 * number``."""
    return Message("t", b"", id=number, partition=partition)._replace(
        offset=10 * number, next_offset=10 * number + 10
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlOffsetStore]:
    """A store in which a member has claimed the partition, and begins at 0."""
    with SqlOffsetStore(f"sqlite:///{path}", timeout_s=0.2) as found:
        found.open()
        claimed(found, FENCE)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE results (number INTEGER)")
        yield found


def claimed(store: SqlOffsetStore, fence: Fence, **options: Any) -> None:
    """Have a member claim the partition; at first it commits where it begins."""
    [row] = store.begin({KEY: RowClaim(fence, "m1", **options)}).values()
    if not isinstance(row, Exception) and row.offset is None:
        store.commit([Commit(KEY, fence, at(0))])


def place(store: SqlOffsetStore) -> int:
    offset = store.read("c", "g", ["t"])[KEY].offset
    assert offset is not None
    return offset.offset


def results(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("SELECT number FROM results")]


def by_connection(path: Path, number: int, commit: Callable[[Any], None]) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO results VALUES (:n)"), {"n": number})
        commit(connection)


def by_session(path: Path, number: int, commit: Callable[[Any], None]) -> None:
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with Session(engine) as session, session.begin():
        session.execute(sa.text("INSERT INTO results VALUES (:n)"), {"n": number})
        commit(session)


def by_driver(path: Path, number: int, commit: Callable[[Any], None]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO results VALUES (?)", (number,))
        commit(connection)


WAYS = (by_connection, by_session, by_driver)


def test_offset_and_results_are_stored_together_or_not_at_all(
    store: SqlOffsetStore, path: Path
) -> None:
    for number, way in enumerate(WAYS):
        with case(way.__name__):
            way(path, number, lambda c, n=number: store.commit_in(c, message(n)))
            assert results(path)[-1] == number
            assert place(store) == 10 * number + 10

            def fails(connection: Any, n: int = number) -> None:
                store.commit_in(connection, message(n + 1))
                raise RuntimeError("behind the commit")

            with pytest.raises(RuntimeError):
                way(path, number, fails)
            assert results(path) == list(range(number + 1))
            assert place(store) == 10 * number + 10


def test_the_results_of_a_message_are_stored_once(store: SqlOffsetStore, path: Path) -> None:
    """The COMMIT was done, and its answer was lost: the message comes again, to any claim."""
    for way in WAYS:
        with case(way.__name__):
            if not results(path):
                way(path, 0, lambda c: store.commit_in(c, message(0)))
            with pytest.raises(AlreadyHandled):
                way(path, 0, lambda c: store.commit_in(c, message(0)))
            assert results(path) == [0]
    claimed(store, Fence(1, 2))
    with pytest.raises(AlreadyHandled):
        by_driver(path, 0, lambda c: store.commit_in(c, message(0)))
    assert results(path) == [0]


def test_a_zombie_stores_nothing(store: SqlOffsetStore, path: Path) -> None:
    """Another process has claimed the partition; this one does not know it yet."""
    with SqlOffsetStore(f"sqlite:///{path}") as other:
        claimed(other, Fence(1, 2))
        for way in WAYS:
            with case(way.__name__), pytest.raises(GenerationStale, match=r"\(1, 2\)"):
                way(path, 0, lambda c: store.commit_in(c, message(0)))
        by_driver(path, 0, lambda c: other.commit_in(c, message(0)))
    assert results(path) == [0]


def test_a_list_is_committed_as_a_whole(store: SqlOffsetStore, path: Path) -> None:
    some = [message(0), message(1), message(2)]
    by_driver(path, 0, lambda c: store.commit_in(c, some[:2]))
    assert place(store) == 20

    def listener(given: Any) -> None:
        by_driver(path, 1, lambda c: store.commit_in(c, given))

    assert passing(listener)(some) is None, "the third one is given at once"
    assert passing(listener)(some[:2]) is None
    assert passing(listener)(some[2:]) is None
    assert passing(listener)(message(1)) is None
    assert results(path) == [0, 1]


def test_what_the_application_has_committed_is_not_taken_back(
    store: SqlOffsetStore, path: Path
) -> None:
    """The consumer commits less, meanwhile, or more; and never waits for an open transaction."""
    by_driver(path, 0, lambda c: store.commit_in(c, message(0)))
    [row] = store.commit([Commit(KEY, FENCE, at(0))]).values()
    assert place(store) == 10
    assert not isinstance(row, Exception)
    assert row.offset is not None
    assert row.offset.offset == 10
    with closing(sqlite3.connect(path)) as connection, connection:
        store.commit_in(connection, message(1))
        store.commit([Commit(KEY, FENCE, at(10))])
    assert place(store) == 20
    store.commit([Commit(KEY, FENCE, at(25))])  # behind messages that a filter leaves out
    assert place(store) == 25


def _refused(store: SqlOffsetStore, connection: Any) -> None:
    with pytest.raises(InvalidState, match="autocommit"):
        store.commit_in(connection, message(0))


def test_what_would_not_be_safe_is_refused(store: SqlOffsetStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        _refused(store, connection)
        connection.execute("BEGIN")
        store.commit_in(connection, message(0))
        connection.execute("ROLLBACK")
    alone = sa.create_engine(
        f"sqlite:///{path}", poolclass=sa.NullPool, isolation_level="AUTOCOMMIT"
    )
    with alone.connect() as sa_connection:
        _refused(store, sa_connection)
    assert place(store) == 0
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with pytest.raises(InvalidArgument, match="give a SQLAlchemy Connection or Session"):
        store.commit_in(engine, message(1))
    with pytest.raises(InvalidState, match="no consumer with this store"):
        store.commit_in(None, message(0, partition=5))
    with pytest.raises(InvalidState, match="comes from the retry topic"):
        store.commit_in(None, message(0)._replace(next_offset=-1))
    with pytest.raises(InvalidState, match="no consumer of group 'x'"):
        store.commit_in(None, message(0), group="x")
    other = Key("c", "h", "t", 0)
    store.begin({other: RowClaim(FENCE, "m1")})
    with pytest.raises(InvalidState, match="groups g, h of this process"):
        store.commit_in(None, message(0))
    claimed(store, FENCE, in_order=False)
    with pytest.raises(InvalidState, match="mode='orderly'"):
        store.commit_in(None, message(0), group="g")


def test_urls_and_their_passwords(tmp_path: Path) -> None:
    """No password in what is shown; what cannot be a store is refused with what can."""
    with SqlOffsetStore("postgresql://shop:secret@db.example/shop") as store:
        assert "secret" not in f"{store!r} {store.shown}"
        assert "db.example" in store.shown
    refused = {
        "sqlite://": "in memory",
        "sqlite:///:memory:": "in memory",
        "oracle://x/y": "takes mariadb, mysql, postgresql, sqlite",
        "shop:secret@db": "is not one of SQLAlchemy",
    }
    for url, why in refused.items():
        with case(url), pytest.raises(InvalidArgument, match=why) as told:
            SqlOffsetStore(url)
        assert "secret" not in str(told.value)
    for options in ({"table": "a-b"}, {"table": "x" * 51}, {"timeout_s": 0}, {"timeout_s": True}):
        with case(options), pytest.raises(InvalidArgument):
            SqlOffsetStore(f"sqlite:///{tmp_path / 'o.db'}", **options)


def test_tables_of_a_newer_vq_are_refused(path: Path) -> None:
    with SqlOffsetStore(f"sqlite:///{path}") as store:
        identity = store.open()
        assert store.open() == identity
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE vq_offsets_schema SET version = 2")
    newer = SqlOffsetStore(f"sqlite:///{path}")
    with newer, pytest.raises(InvalidState, match="have version 2, this vq knows 1"):
        newer.open()
