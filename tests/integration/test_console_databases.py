"""The console remembers the same in SQLite, PostgreSQL and MariaDB, however it is called."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from support.accounts import at_the_same_time
from support.databases import mariadb, postgresql

from vq.console.accounts.accounts import (
    AccountExists,
    AccountRole,
    add_account,
    change_account,
    list_accounts,
    remove_account,
    verified,
)
from vq.console.accounts.sessions import begin_session, find_session
from vq.console.accounts.tokens import find_access_token, make_access_token
from vq.console.acts.door import text_of
from vq.console.clusters.history import read_series, store_minute
from vq.console.database.database import Database
from vq.console.database.schema import audit, masks, plans
from vq.errors import InvalidArgument

PASSWORD = "a long password"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of each kind, as a person writes it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'console.db'}"
        return
    server = {"postgresql": postgresql, "mariadb": mariadb}[request.param]
    with server() as found:
        yield found.replace("+psycopg", "").replace("+pymysql", "")


def test_a_database_keeps_what_the_console_remembers(url: str) -> None:
    """One test for each kind, so that a server is started once."""
    _consoles_start_together(url)
    with closing(Database(url)) as database:
        database.upgrade()
        _accounts(database)
        _long_texts(database)
        _names_that_differ_in_capitals(database)


def _consoles_start_together(url: str) -> None:
    failed = []

    def start() -> None:
        try:
            with closing(Database(url)) as database:
                database.upgrade()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []


def _accounts(database: Database) -> None:
    run = database.run_here
    run(lambda each: add_account(each, "Anna", AccountRole.ADMIN, PASSWORD))
    with pytest.raises(AccountExists):
        run(lambda each: add_account(each, "anna", AccountRole.VIEWER, PASSWORD))
    assert run(lambda each: verified(each, "anna", PASSWORD)) is None
    assert run(lambda each: verified(each, "Anna", PASSWORD)) is not None
    token = run(lambda each: begin_session(each, "Anna", "::1"))
    session = run(lambda each: find_session(each, token, 12))
    assert session is not None
    assert session.role is AccountRole.ADMIN
    run(lambda each: add_account(each, "bert", AccountRole.ADMIN, None))
    run(lambda each: change_account(each, "Anna", role=AccountRole.VIEWER))
    assert run(lambda each: find_session(each, token, 12)) is None
    run(lambda each: remove_account(each, "Anna"))
    assert [each.name for each in run(list_accounts)] == ["bert"]
    made = run(lambda each: make_access_token(each, "bert", "ci", AccountRole.OPERATOR, 1))
    assert run(lambda each: find_access_token(each, made)) is not None
    run(lambda each: add_account(each, "carl", AccountRole.ADMIN, None))
    first, second = at_the_same_time(
        database,
        lambda each: change_account(each, "bert", role=AccountRole.VIEWER),
        lambda each: change_account(each, "carl", role=AccountRole.VIEWER),
    )
    assert first is None
    assert isinstance(second, InvalidArgument), second
    assert [each.role for each in run(list_accounts)] == [AccountRole.VIEWER, AccountRole.ADMIN]


def _long_texts(database: Database) -> None:
    """The longest text that the audit takes, of characters of four bytes; a plan of a megabyte."""
    text = text_of("\U0001f600" * 100_000)
    entry = dict.fromkeys(("person", "address", "cluster", "act", "outcome"), "x") | {
        "time_ms": 1,
        "subject": "\U0001f600" * 255,
        "arguments": text,
        "before": text,
        "after": text,
        "error": text[:20_000],
    }
    plan = {"cluster": "c", "made_ms": 1, "person": "p", "state": "draft", "outcome": text}
    document = '"' + "é" * 1_000_000 + '"'
    database.run_here(lambda each: each.execute(audit.insert().values(**entry)))
    database.run_here(lambda each: each.execute(plans.insert().values(plan=document, **plan)))
    found = database.run_here(lambda each: each.execute(sqlalchemy.select(audit)).one())
    assert (found.id, found.arguments) == (1, text)
    kept = database.run_here(lambda each: each.execute(sqlalchemy.select(plans.c.plan)).scalar())
    assert kept == document


def _names_that_differ_in_capitals(database: Database) -> None:
    """Groups ``orders`` and ``Orders`` are two, and so are topics."""
    minute = int(time.time()) // 60 * 60 - 60
    values = {"lag_bytes orders": [1.0], "lag_bytes Orders": [5.0]}
    for _ in range(2):  # as a console that was started again
        database.run_here(lambda each: store_minute(each, "c", minute, values))
    _, found = database.run_here(
        lambda each: read_series(each, "c", list(values), minute - 600, minute)
    )
    assert {name: each[-1] for name, each in found.items()} == {
        "lag_bytes orders": 1.0,
        "lag_bytes Orders": 5.0,
    }
    for topic in ("t", "T"):
        database.run_here(
            lambda each, topic=topic: each.execute(masks.insert().values(cluster="c", topic=topic))
        )
    database.run_here(lambda each: each.execute(masks.delete().where(masks.c.topic == "t")))
    left = database.run_here(lambda each: each.execute(sqlalchemy.select(masks.c.topic)).scalar())
    assert left == "T"
