"""A console over a cluster in memory."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from support.broker import MemoryCluster
from support.console import RunningConsole, fresh_database, running

from vq.console.accounts import accounts
from vq.console.clusters import site
from vq.console.database.database import Database


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords that are cheap to hash, and looks that follow each other fast."""
    monkeypatch.setattr(accounts, "HASHER", PasswordHasher(1, 8, 1))
    monkeypatch.setattr(site, "NAMES_S", 0.1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A database at the newest schema."""
    with fresh_database(tmp_path) as made:
        yield made


@pytest.fixture
async def console(cluster: MemoryCluster, database: Database) -> AsyncIterator[RunningConsole]:
    """A console that asks nobody to log in, and lets everybody act."""
    async with running(cluster, database, open=True) as made:
        yield made
