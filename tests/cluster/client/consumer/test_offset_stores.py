"""Groups whose offsets are not in ZooKeeper: members, their copies, and what operators do."""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of, send, take, texts, until_committed

from vq import aio
from vq.admin import Target
from vq.client.consumer.group import outside_offsets
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.errors import InvalidArgument, InvalidState, OffsetStoreFailed
from vq.model import TopicPartition
from vq.offset_stores.file import FileOffsetStore
from vq.offset_stores.sql import SqlOffsetStore
from vq.offset_stores.table import Commit, Key, OffsetTable, Outcome, Row, RowClaim
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time

T0 = TopicPartition("t", 0)
SIZE = 88 + 20 + 1  # of a batch with one message of one byte


class Failing(OffsetTable):
    """Another store, which does not answer while ``is_away``."""

    def __init__(self, store: OffsetTable) -> None:
        self.store = store
        self.is_away = False
        self.asked = 0

    @property
    def timeout_s(self) -> float:
        return 5.0

    @property
    def shown(self) -> str:
        return self.store.shown

    def open(self) -> str:
        return self.store.open()

    def begin(self, claimed: Mapping[Key, RowClaim]) -> Outcome:
        self._ask()
        return self.store.begin(claimed)

    def commit(self, commits: Sequence[Commit]) -> Outcome:
        self._ask()
        return self.store.commit(commits)

    def read(self, cluster: str, group: str, topics: Collection[str]) -> dict[Key, Row]:
        self._ask()
        return self.store.read(cluster, group, topics)

    def forget(self, cluster: str, group: str) -> int:
        return self.store.forget(cluster, group)

    def close(self) -> None:
        self.store.close()

    def _ask(self) -> None:
        self.asked += 1
        if self.is_away:
            raise OffsetStoreFailed("the database has moved out")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlOffsetStore]:
    """A database file."""
    with closing(SqlOffsetStore(f"sqlite:///{tmp_path / 'offsets.db'}")) as found:
        yield found


async def copy_of(cluster: MemoryCluster, group: str = "g") -> tuple[int, bool] | None:
    """Return the offset in ZooKeeper, and whether it is a copy."""
    async with cluster.admin() as coordinator:
        found = await ZooKeeperOffsets(coordinator).at(group, T0)
    return None if found is None else (found.offset, found.copied)


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_a_group_goes_on_where_its_store_says(
    cluster: MemoryCluster, factory: aio.MessageFactory, tmp_path: Path, kind: str
) -> None:
    """Also the copy in ZooKeeper is exact once the member was closed."""
    makers = {
        "sqlite": lambda: SqlOffsetStore(f"sqlite:///{tmp_path / 'o.db'}"),
        "file": lambda: FileOffsetStore(tmp_path / "o.json"),
    }
    await send(factory, *texts(1, 2, 3))
    for expected in ([b"1"], [b"2"]):
        with closing(makers[kind]()) as store:
            async with await consumer_of(factory, offset_store=store) as consumer:
                assert await take(consumer, 1) == expected
                assert await consumer.get_offset("t") != {}
    found = await factory.admin.describe_group("g")
    progress = found.partitions[0]
    assert (progress.committed, progress.committed_is_copy) == (2 * SIZE, True)
    assert found.terms.offset_store.startswith(f"{kind}:")
    assert await copy_of(cluster) == (2 * SIZE, True)


async def test_copies_follow_at_a_slow_pace(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    store: SqlOffsetStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that retention and operators see a group that is not closed for weeks."""
    monkeypatch.setattr(outside_offsets, "COPY_S", 0.0)
    await send(factory, *texts(1, 2))
    async with await consumer_of(factory, offset_store=store, commit_interval_s=0.05) as consumer:
        await take(consumer, 2)

        async def is_copied() -> bool:
            return await copy_of(cluster) == (SIZE, True)

        await until_true(is_copied)


async def test_members_with_different_stores_are_refused(
    factory: aio.MessageFactory, store: SqlOffsetStore, tmp_path: Path
) -> None:
    """Each would go on by offsets that the others do not see. Nothing secret is in ZooKeeper."""
    await send(factory, *texts(1))
    async with await consumer_of(factory, offset_store=store) as consumer:
        await take(consumer, 1)
        identity = (await factory.admin.describe_group("g")).terms.offset_store
        assert str(tmp_path) not in identity
        async with await consumer_of(factory) as other:
            with pytest.raises(InvalidArgument, match=f"'{identity}', this member 'zookeeper'"):
                await other.start()
        with closing(FileOffsetStore(tmp_path / "o.json")) as file:
            async with await consumer_of(factory, offset_store=file) as other:
                with pytest.raises(InvalidArgument, match=f"'{identity}', this member 'file:"):
                    await other.start()
        with pytest.raises(InvalidState, match="has members"):
            await factory.admin.alter_group("g", offset_store="any")


async def test_a_store_that_does_not_answer_is_not_taken_for_no_offset(
    factory: aio.MessageFactory, store: SqlOffsetStore
) -> None:
    """The partition waits and says why; then it goes on where it was."""
    await send(factory, *texts(1, 2, 3))
    failing = Failing(store)
    async with await consumer_of(factory, offset_store=failing) as consumer:
        await take(consumer, 1)
    failing.is_away = True
    async with await consumer_of(factory, offset_store=failing) as consumer:
        waiting = asyncio.ensure_future(take(consumer, 2))
        await until(lambda: T0 in consumer.troubles())
        assert "moved out" in str(consumer.troubles()[T0].error)

        async def is_told() -> bool:
            (found,) = (await factory.admin.describe_group("g")).partitions
            return found.stopped is not None and "moved out" in found.stopped

        await until_true(is_told)
        asked = failing.asked
        await until(lambda: failing.asked > asked)  # it is asked again
        assert not waiting.done()
        with pytest.raises(OffsetStoreFailed):
            await consumer.get_offset("t")
        failing.is_away = False
        assert await waiting == [b"2", b"3"]
        assert T0 not in consumer.troubles()


async def test_a_commit_that_fails_is_made_up_for(
    factory: aio.MessageFactory, store: SqlOffsetStore
) -> None:
    await send(factory, *texts(1, 2, 3))
    failing = Failing(store)
    async with await consumer_of(factory, offset_store=failing, commit_interval_s=0.05) as consumer:
        assert await take(consumer, 1) == [b"1"]
        failing.is_away = True
        assert await take(consumer, 1) == [b"2"]
        with pytest.raises(OffsetStoreFailed):
            await consumer.commit()
        failing.is_away = False
        await until_committed(consumer, SIZE)


async def test_a_reset_reaches_the_store(
    factory: aio.MessageFactory, store: SqlOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators have no way into it: the next owner takes it there, also while members run."""
    monkeypatch.setattr(outside_offsets, "COPY_S", 0.0)
    await send(factory, *texts(1, 2, 3))
    async with await consumer_of(factory, offset_store=store) as consumer:
        await take(consumer, 3)
    admin = factory.admin
    await admin.reset("g", await admin.plan_reset("g", Target(goal="earliest")))
    async with await consumer_of(factory, offset_store=store, commit_interval_s=0.05) as consumer:
        assert await take(consumer, 3) == [b"1", b"2", b"3"]
        await admin.reset("g", await admin.plan_reset("g", Target(goal="earliest")), fence=True)
        assert await take(consumer, 1) == [b"1"]
    async with await consumer_of(factory, offset_store=store) as consumer:
        assert await take(consumer, 1) == [b"2"]  # it is not done again


async def test_a_group_moves_from_store_to_store(
    factory: aio.MessageFactory, store: SqlOffsetStore, tmp_path: Path
) -> None:
    """From ZooKeeper to a database, to a file, and back; each goes on where the last one was."""
    await send(factory, *texts(1, 2, 3, 4))
    admin = factory.admin
    async with await consumer_of(factory) as consumer:
        assert await take(consumer, 1) == [b"1"]
    with closing(FileOffsetStore(tmp_path / "o.json")) as file:
        for other, expected in ((store, b"2"), (file, b"3")):
            terms = await admin.alter_group("g", offset_store="any")
            assert terms.offset_store == "any"
            async with await consumer_of(factory, offset_store=other) as consumer:
                assert await take(consumer, 1) == [expected]
    await admin.alter_group("g", offset_store="zookeeper")
    async with await consumer_of(factory) as consumer:
        assert await take(consumer, 1) == [b"4"]
    with pytest.raises(InvalidArgument, match="'mars' is not 'any' or 'zookeeper'"):
        await admin.alter_group("g", offset_store="mars")


async def test_a_clone_goes_on_where_the_copies_are(
    factory: aio.MessageFactory, store: SqlOffsetStore
) -> None:
    """It has the store of its source, with rows of its own."""
    await send(factory, *texts(1, 2, 3))
    async with await consumer_of(factory, offset_store=store) as consumer:
        await take(consumer, 1)
    admin = factory.admin
    await admin.make_group(await admin.plan_clone_group("g", "h"))
    async with await consumer_of(factory, "h", offset_store=store) as consumer:
        assert await take(consumer, 2) == [b"2", b"3"]
    exported = await admin.export_group("h")
    assert exported.terms.offset_store.startswith("sqlite:")
    assert [each.offset for each in exported.offsets] == [3 * SIZE]
