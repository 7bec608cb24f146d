"""``vq console account …``: which database it works on, and what it does not take."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vq.cli.main import cli
from vq.console.accounts.accounts import list_accounts
from vq.console.database.database import Database


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
    assert [each.name for each in place.iterdir() if each.suffix == ".db"] == ["chosen.db"]
    database = Database(url)
    assert [each.name for each in database.run_here(list_accounts)] == ["anna"]
    database.close()


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
