"""Accounts: somebody manages them whatever happens at once, and a change ends what was before."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from support.accounts import at_the_same_time
from support.console import fresh_database

from vq.console.accounts import accounts
from vq.console.accounts.accounts import (
    AccountRole,
    add_account,
    change_account,
    list_accounts,
    remove_account,
    verified,
)
from vq.console.accounts.sessions import begin_session, find_session
from vq.console.accounts.tokens import (
    TOKENS_PER_ACCOUNT_MAX,
    TokenExists,
    UnknownToken,
    find_access_token,
    list_access_tokens,
    make_access_token,
    revoke_access_token,
)
from vq.console.database import schema
from vq.console.database.database import Database
from vq.errors import InvalidArgument

PASSWORD = "a long password"
VIEWER, OPERATOR, ADMIN = AccountRole


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """With two admins."""
    monkeypatch.setattr(accounts, "HASHER", PasswordHasher(1, 8, 1))
    with fresh_database(tmp_path) as made:
        for name in ("anna", "bert"):
            made.run_here(lambda each, name=name: add_account(each, name, ADMIN, PASSWORD))
        yield made


@pytest.mark.parametrize(
    "second",
    [
        lambda each: change_account(each, "bert", role=VIEWER),
        lambda each: change_account(each, "bert", disabled=True),
        lambda each: remove_account(each, "bert"),
    ],
    ids=["demoted", "disabled", "removed"],
)
def test_two_admins_who_demote_each_other_leave_one(database: Database, second) -> None:
    first, other = at_the_same_time(
        database, lambda each: change_account(each, "anna", role=VIEWER), second
    )
    assert first is None
    assert isinstance(other, InvalidArgument)
    assert [each.name for each in database.run_here(list_accounts) if each.role is ADMIN] == [
        "bert"
    ]


@pytest.mark.parametrize(
    "changes", [{"password": "another password"}, {"role": VIEWER}, {"disabled": True}, None]
)
def test_who_logs_in_while_the_account_is_changed_has_no_session(
    database: Database, changes: dict[str, object] | None
) -> None:
    """The password was right before the change, and the session begins after it."""
    run = database.run_here
    account = run(lambda each: verified(each, "anna", PASSWORD))
    assert account is not None
    if changes is None:
        run(lambda each: remove_account(each, "anna"))
        run(lambda each: add_account(each, "anna", VIEWER, PASSWORD))
    else:
        run(lambda each: change_account(each, "anna", **changes))
    token = run(lambda each: begin_session(each, "anna", "::1", changed_ms=account.changed_ms))
    assert run(lambda each: find_session(each, token, 12)) is None


def test_two_changes_in_one_millisecond_are_two(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "now_ms", lambda: 1)
    run = database.run_here
    before = run(lambda each: begin_session(each, "anna", "::1"))
    run(lambda each: change_account(each, "anna", password="another password"))
    changed = [each.changed_ms for each in run(list_accounts)]
    run(lambda each: change_account(each, "anna", role=VIEWER))
    assert run(list_accounts)[0].changed_ms > changed[0]
    assert run(lambda each: find_session(each, before, 12)) is None


def test_a_token_is_kept_as_a_hash_and_found_by_what_was_shown(database: Database) -> None:
    run = database.run_here
    token = run(lambda each: make_access_token(each, "anna", "ci", OPERATOR, 30, "bert"))
    path = Path(database.name.removeprefix("sqlite+pysqlite:///"))
    stored = b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
    assert token.encode() not in stored
    found = run(lambda each: find_access_token(each, token))
    assert found is not None
    assert (found.account, found.name, found.role, found.made_by) == (
        "anna",
        "ci",
        OPERATOR,
        "bert",
    )
    for wrong in ("", token[:-1], f"{token}x", "vqt_"):
        assert run(lambda each, wrong=wrong: find_access_token(each, wrong)) is None
    run(lambda each: revoke_access_token(each, "anna", "ci"))
    assert run(lambda each: find_access_token(each, token)) is None
    with pytest.raises(UnknownToken):
        run(lambda each: revoke_access_token(each, "anna", "ci"))


def test_a_token_may_do_no_more_than_its_account_may_now(database: Database) -> None:
    run = database.run_here
    token = run(lambda each: make_access_token(each, "anna", "ci", OPERATOR, 30))

    def role() -> AccountRole | None:
        found = run(lambda each: find_access_token(each, token))
        return None if found is None else found.role

    run(lambda each: change_account(each, "anna", role=VIEWER))
    assert role() is VIEWER
    run(lambda each: change_account(each, "anna", role=ADMIN))
    assert role() is OPERATOR
    run(lambda each: change_account(each, "anna", disabled=True))
    assert role() is None
    run(lambda each: change_account(each, "anna", disabled=False))
    assert role() is OPERATOR
    run(lambda each: remove_account(each, "anna"))
    run(lambda each: add_account(each, "anna", ADMIN, PASSWORD))
    assert role() is None  # it was of another anna


def test_a_token_that_was_made_while_its_account_was_removed_is_of_no_later_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database.run_here
    token = run(lambda each: make_access_token(each, "anna", "ci", VIEWER, 30))
    run(lambda each: each.execute(schema.accounts.delete().where(schema.accounts.c.name == "anna")))
    assert run(lambda each: find_access_token(each, token)) is None
    later = accounts.now_ms() + 1
    monkeypatch.setattr(accounts, "now_ms", lambda: later)
    run(lambda each: add_account(each, "anna", ADMIN, PASSWORD))
    assert run(lambda each: find_access_token(each, token)) is None


def test_a_token_ends_and_is_forgotten_when_the_next_one_is_made(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database.run_here
    token = run(lambda each: make_access_token(each, "anna", "ci", VIEWER, 1))
    with pytest.raises(TokenExists):
        run(lambda each: make_access_token(each, "anna", "ci", VIEWER, 1))
    ended = accounts.now_ms() + 86_400_000
    monkeypatch.setattr("vq.console.accounts.tokens.now_ms", lambda: ended)
    assert run(lambda each: find_access_token(each, token)) is None
    assert [each.has_ended for each in run(list_access_tokens)] == [True]
    run(lambda each: make_access_token(each, "anna", "next", VIEWER, 1))
    assert [each.name for each in run(list_access_tokens)] == ["next"]


def test_a_token_is_refused_with_the_bound(database: Database) -> None:
    run = database.run_here
    run(lambda each: add_account(each, "carl", OPERATOR, None))
    for name, role, days, why in (
        ("ci", ADMIN, 30, "operator"),
        ("ci", VIEWER, 0, "1 to 366 days"),
        ("ci", VIEWER, 367, "1 to 366 days"),
        ("a b", VIEWER, 30, "token"),
        ("", VIEWER, 30, "token"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            run(lambda each, of=(name, role, days): make_access_token(each, "carl", *of))
    for number in range(TOKENS_PER_ACCOUNT_MAX):
        run(lambda each, name=f"t{number}": make_access_token(each, "carl", name, VIEWER, 30))
    with pytest.raises(InvalidArgument, match="the most"):
        run(lambda each: make_access_token(each, "carl", "more", VIEWER, 30))


def test_a_command_that_verifies_no_password_makes_no_hash(monkeypatch) -> None:
    """One takes 64 MiB and tens of milliseconds; the import of the module made one."""

    def make(*_: object) -> str:
        raise AssertionError("a hash was made")

    monkeypatch.setattr(PasswordHasher, "hash", make)
    runpy.run_path(accounts.__file__)
