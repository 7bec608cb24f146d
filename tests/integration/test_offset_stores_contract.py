"""Every offset store keeps what a member may rely on: ZooKeeper, a file, and three databases."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.databases import mariadb, postgresql
from support.offset_stores import check_contract

from vq.offset_stores.file import FileOffsetStore
from vq.offset_stores.sql import SqlOffsetStore
from vq.offset_stores.table import OffsetTable


@pytest.fixture(params=["zookeeper", "file", "sqlite", "postgresql", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OffsetTable | None]:
    """A new store of each kind; None: ZooKeeper."""
    if request.param == "zookeeper":
        yield None
        return
    if request.param == "file":
        with closing(FileOffsetStore(tmp_path / "offsets.json")) as found:
            yield found
        return
    if request.param == "sqlite":
        with closing(SqlOffsetStore(f"sqlite:///{tmp_path / 'offsets.db'}")) as found:
            yield found
        return
    server = {"postgresql": postgresql, "mariadb": mariadb}[request.param]
    with server() as url, closing(SqlOffsetStore(url)) as found:
        yield found


async def test_a_store_keeps_the_contract(store: OffsetTable | None) -> None:
    """One test for each kind, so that a server is started once."""
    await check_contract(store, "g")
