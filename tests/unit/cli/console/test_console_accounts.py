"""``vq console account …`` and ``token …``: which database they work on, what they do not take."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vq.cli.main import cli
from vq.console.accounts.accounts import list_accounts
from vq.console.database.database import Database, NoDatabase, NoPlace


def vq(*words: str, stdin: str = "") -> Result:
    """Run a command."""
    return CliRunner().invoke(cli, words, input=stdin)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a database."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_database_before_the_word_account_counts(place: Path, monkeypatch) -> None:
    """Also over that of the environment: an account is made nowhere else."""
    monkeypatch.setenv("VQ_CONSOLE_DATABASE", f"sqlite:///{place}/of-the-environment.db")
    url = f"sqlite:///{place}/chosen.db"
    made = vq(
        *("console", "--database", url, "account", "add", "anna", "--no-password"),
    )
    assert made.exit_code == 0, made.output
    assert made.stdout == f"account anna made: viewer, in {url}\n"
    assert [each.name for each in place.iterdir() if each.suffix == ".db"] == ["chosen.db"]
    database = Database(url)
    assert [each.name for each in database.run_here(list_accounts)] == ["anna"]
    database.close()


def test_the_first_account_of_a_database_says_that_it_was_made(place: Path) -> None:
    """A misspelt name makes another console's database: its maker sees it."""
    first = vq("console", "account", "add", "anna", "--no-password")
    assert "made the tables of a new console in sqlite:///vq-console.db" in first.stderr
    second = vq("console", "account", "add", "bob", "--no-password")
    assert second.exit_code == 0
    assert second.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("account", "list"),
        ("account", "change", "anna", "--disable"),
        ("account", "remove", "anna"),
        ("token", "list"),
        ("token", "add", "anna", "ci"),
        ("token", "revoke", "anna", "ci", "--yes"),
    ],
)
def test_nothing_else_makes_a_database(place: Path, words: tuple[str, ...]) -> None:
    """The file is missing, or of another program."""
    (place / "other.db").touch()
    for name, why in (("misspelt.db", "does not exist"), ("other.db", "has no tables")):
        ended = vq("console", *words, "--database", f"sqlite:///{name}")
        assert isinstance(ended.exception, NoDatabase), ended.output
        assert why in str(ended.exception)
        assert name in str(ended.exception)
        assert "--database" in ended.exception.hint
    assert [each.name for each in place.glob("*.db")] == ["other.db"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("no/such/x.db", "the directory 'no/such' does not exist"), (".", "'.' is a directory")],
)
def test_a_wrong_place_is_told_before_a_password_is_asked_for(name: str, says: str) -> None:
    """With the URL as it was given; the input has no password."""
    ended = vq("console", "account", "add", "anna", "--database", f"sqlite:///{name}")
    assert isinstance(ended.exception, NoPlace), ended.output
    assert says in str(ended.exception)
    assert str(ended.exception).startswith(f"sqlite:///{name} ")
    assert "--database" in ended.exception.hint


def test_a_password_that_is_refused_makes_no_database(place: Path) -> None:
    refused = vq("console", "account", "add", "anna", stdin="short\n")
    assert "a password has 10 to 200 characters; this one has 5" in str(refused.exception)
    assert not list(place.iterdir())


def test_a_wrong_url_is_told_before_a_password_is_asked_for() -> None:
    ended = vq("console", "account", "add", "anna", "--database", "foo://x")
    assert "is not one of sqlite:///FILE" in str(ended.exception)


def test_a_change_of_nothing_is_refused() -> None:
    """It would end the sessions of somebody for nothing."""
    vq("console", "account", "add", "anna", "--no-password")
    changed = vq("console", "account", "change", "anna")
    assert changed.exit_code == 2
    assert "--role" in changed.output


def test_two_clusters_have_two_names(place: Path) -> None:
    """One would not be shown, and nobody would know which."""
    started = vq("console", "--cluster", "a", "--port", "0", "--also", "a=127.0.0.1:1")
    assert started.exit_code == 2
    assert "'a'" in started.output
    assert list(place.iterdir()) == []


def test_a_token_is_made_listed_without_it_and_revoked(place: Path) -> None:
    vq("console", "account", "add", "anna", "--role", "operator", "--no-password")
    made = vq("console", "token", "add", "anna", "ci", "--role", "operator", "--json")
    assert made.exit_code == 0, made.output
    token = json.loads(made.stdout)["token"]
    assert token.startswith("vqt_")
    listed = vq("console", "token", "list", "--json")
    [found] = json.loads(listed.stdout)
    assert (found["account"], found["name"], found["role"], found["used_s"]) == (
        "anna",
        "ci",
        "operator",
        None,
    )
    assert token not in listed.output
    planned = vq("console", "token", "revoke", "anna", "ci")
    assert "would be revoked" in planned.stdout
    assert json.loads(vq("console", "token", "list", "--json").stdout)
    assert vq("console", "token", "revoke", "anna", "ci", "--yes").exit_code == 0
    assert json.loads(vq("console", "token", "list", "--json").stdout) == []


def test_a_token_that_may_do_more_than_its_account_is_refused() -> None:
    vq("console", "account", "add", "anna", "--no-password")
    made = vq("console", "token", "add", "anna", "ci", "--role", "admin")
    assert made.exit_code == 1
    assert "viewer" in str(made.exception)
    assert vq("console", "token", "revoke", "anna", "ci").exit_code == 1


def test_a_proxy_that_is_no_address_is_refused(place: Path) -> None:
    started = vq("console", "--port", "0", "--trusted-proxy", "proxy.example")
    assert started.exit_code == 1
    assert "no address and no network" in str(started.exception)
    assert list(place.iterdir()) == []
