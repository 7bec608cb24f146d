"""Deleted topics that can be brought back: the tree, the count of the time, the removal."""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from support.coordination import FAULTS, client_of, disarm, strike

from vq.coordination.brokers import registry
from vq.coordination.brokers.open_counts import read_counts
from vq.coordination.groups import claims
from vq.coordination.groups.groups import ensure_group
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import cluster_settings, grace, summaries, topics
from vq.coordination.topics.cluster_settings import create_missing_topic
from vq.coordination.topics.grace import Counted, GraceCounter
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import ConnectionLost, Operation, SessionExpired, Unreadable
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.reading import TopicView, read_topic
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Owner
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import DELETING, IN_GRACE, GraceClock, TopicNode
from vq.errors import CoordinationError, UnknownTopic
from vq.message_filter import ALL
from vq.model import TopicDeletion, TopicOrigin, TopicPartition, TopicSettings

pytestmark = pytest.mark.virtual_time

BY = TopicOrigin(client="operator", host="h", time_ms=1_763_800_000_000)
HOUR_MS = 3_600_000
P = TopicPartition("t", 0)


async def add_broker(client: MemoryCoordinator, group: str) -> None:
    """Put a live broker group into the tree, with a count of its partitions."""
    await registry.ensure_group(client, group)
    node = Registration(host="127.0.0.1", port=1).encode()
    stat = await client.create(Registration.path(group, "n1"), node, ephemeral=True, parents=True)
    state = GroupState(epoch=1, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await client.create(GroupState.path(group), state.encode())


@pytest.fixture
async def client() -> AsyncIterator[MemoryCoordinator]:
    ensemble = MemoryEnsemble()
    async with client_of(ensemble) as brokers, client_of(ensemble) as client:
        await add_broker(brokers, "b1")
        await add_broker(brokers, "b2")
        yield client


async def retire(client: MemoryCoordinator, name: str = "t", *, grace_ms: int = HOUR_MS) -> None:
    await grace.retire_topic(client, name, grace_ms=grace_ms, by=BY)


async def opened(client: MemoryCoordinator) -> list[int]:
    counts = await read_counts(client, ["b1", "b2"])
    return [count.open for count in counts.values() if count and count.open is not None]


async def count_to(client: MemoryCoordinator, ms: int) -> None:
    await client.set(GraceClock.path(), GraceClock(counted_ms=ms).encode())


# Deleting and undeleting ------------------------------------------------------------------------
async def test_an_undeleted_topic_is_as_it_was(client: MemoryCoordinator) -> None:
    """Id, settings, placements and the progress of its groups; meanwhile nobody sees it."""
    settings = TopicSettings(partitions=4, retention_hours=5)
    made = await topics.create_topic(client, "t", settings, origin=BY)
    await ensure_group(client, "g", ConsumerGroup(topics={"t": ALL}))
    claim = await claims.claim(client, "g", "m", P)
    committed = CommittedOffset(offset=7, topic_id=made.id)
    await ZooKeeperOffsets(client).commit([(claim, committed)])
    counts = await opened(client)

    await retire(client)
    with pytest.raises(UnknownTopic, match="was deleted") as error:
        await topics.describe_topic(client, "t")
    assert "vq topic undelete t" in error.value.hint
    assert await summaries.summarize_topics(client) == []
    assert await opened(client) == [count - 2 for count in counts]
    assert [each.name for each in await grace.list_deleted(client)] == ["t"]

    view, changed = await grace.undelete_topic(client, "t")
    assert changed
    assert (view.id, view.settings, view.origin) == (made.id, settings, BY)
    assert (view.partitions, view.partition_versions) == (made.partitions, made.partition_versions)
    assert await opened(client) == counts
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {P: committed}
    assert (await client.exists(TopicNode.path("t"))).czxid == made.created  # type: ignore[union-attr]
    assert await grace.undelete_topic(client, "t") == (view, False)


@pytest.mark.parametrize("fault", FAULTS)
async def test_deleting_and_undeleting_survive_a_fault_at_every_call(fault: str) -> None:
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as brokers, client_of(ensemble) as client:
            await add_broker(brokers, "b1")
            made = await topics.create_topic(brokers, "t", TopicSettings(partitions=2))
            strike(ensemble, client, fault, skip)
            for change in (retire(client), grace.undelete_topic(client, "t")):
                await _again(client, change, undelete=change.__name__ == "undelete_topic")
            was_struck = disarm(client)
            view = await topics.describe_topic(client, "t")
            assert (view.id, view.partitions) == (made.id, made.partitions)
            counts = await read_counts(client, ["b1"])
            assert [each.open for each in counts.values() if each] == [2], "counted twice"
        if not was_struck:
            break
        skip += 1
    assert skip > 8


async def _again(client: MemoryCoordinator, first, *, undelete: bool) -> None:  # type: ignore[no-untyped-def]
    call = first
    while True:
        try:
            await call
        except (ConnectionLost, SessionExpired):
            call = grace.undelete_topic(client, "t") if undelete else retire(client)
        else:
            return


async def test_the_name_of_a_deleted_topic_is_not_free(client: MemoryCoordinator) -> None:
    """A producer that goes on does not make a namesake: the topic could not be brought back."""
    await topics.create_topic(client, "t")
    await retire(client)
    with pytest.raises(TopicExists, match="its name is not free") as error:
        await topics.create_topic(client, "t")
    assert "vq topic undelete t" in error.value.hint
    assert "--now" in error.value.hint
    await cluster_settings.change_settings(
        client, lambda _: cluster_settings.ClusterSettings(may_create=True)
    )
    with pytest.raises(UnknownTopic, match="was deleted"):
        await create_missing_topic(client, "t")
    await topics.delete_topic(client, "t")
    await topics.create_topic(client, "t")


async def test_what_is_made_or_removed_in_part_is_neither_deleted_nor_undeleted(
    client: MemoryCoordinator,
) -> None:
    view = await topics.create_topic(client, "t")
    topic = TopicNode(id=view.id, settings=view.settings, phase=DELETING)
    await client.set(TopicNode.path("t"), topic.encode())
    with pytest.raises(UnknownTopic, match="is deleting"):
        await retire(client)
    with pytest.raises(UnknownTopic, match="removed for good"):
        await grace.undelete_topic(client, "t")
    with pytest.raises(UnknownTopic):
        await grace.undelete_topic(client, "u")


async def test_a_topic_that_cannot_be_read_is_not_deleted_with_a_grace_period(
    client: MemoryCoordinator,
) -> None:
    """Nobody could bring it back."""
    await topics.create_topic(client, "t")
    await client.set(Partition.path("t", 0), b"nonsense")
    with pytest.raises(Unreadable):
        await retire(client)


@pytest.mark.parametrize(
    "wrong", [{"grace_ms": "1"}, {"counted_ms": -1}, {"grace_ms": None}, {"host": 5}], ids=str
)
async def test_a_deletion_that_cannot_be_read_removes_nothing(
    client: MemoryCoordinator, wrong: dict[str, object]
) -> None:
    await topics.create_topic(client, "t")
    await retire(client, grace_ms=0)
    node = await client.get(TopicNode.path("t"))
    document = json.loads(node.data)
    document["deletion"].update(wrong)
    await client.set(TopicNode.path("t"), json.dumps(document).encode())
    await count_to(client, 10 * HOUR_MS)
    assert not await grace.remove_when_due(client, "t", document["id"])
    assert await grace.list_deleted(client) == []
    assert list((await summaries.summarize_readable(client))[1]) == ["t"]


# The count --------------------------------------------------------------------------------------
def test_a_step_lasts_from_after_a_read_to_before_its_change() -> None:
    counter = GraceCounter()
    seven = Counted(ms=500, czxid=1, version=7)
    assert counter.step_ms(seven, asked_s=99.0, answered_s=100.0) == 0
    assert counter.step_ms(seven, asked_s=160.0, answered_s=161.0) == 60_000
    eight = Counted(ms=60_500, czxid=1, version=8)
    assert counter.step_ms(eight, asked_s=170.0, answered_s=171.0) == 0, "another broker was faster"
    assert counter.step_ms(eight, asked_s=181.0, answered_s=182.0) == 10_000
    counter.added(Counted(70_500, 1, 9), answered_s=183.0)
    assert counter.step_ms(Counted(70_500, 1, 9), asked_s=193.0, answered_s=194.0) == 10_000
    counter.forget()
    assert counter.step_ms(Counted(70_500, 1, 9), asked_s=203.0, answered_s=204.0) == 0


def test_no_step_is_long_or_goes_back_whatever_a_clock_says() -> None:
    counter = GraceCounter()
    found = Counted(1, 1, 1)
    counter.step_ms(found, asked_s=0, answered_s=0)
    assert counter.step_ms(found, asked_s=1e9, answered_s=1e9) == grace.STEP_MS_MAX
    assert counter.step_ms(found, asked_s=-5, answered_s=-5) == 0
    assert counter.step_ms(Counted(), asked_s=1, answered_s=1) == 0, "there is no node"
    again = Counted(1, 2, 1)
    assert counter.step_ms(again, asked_s=50, answered_s=50) == 0, "it was made anew"


def test_the_count_never_rises_faster_than_time_however_many_brokers_count() -> None:
    """Brokers read and write at random moments; answers take their time; some are lost."""
    rng = random.Random(5)
    for _ in range(200):
        counters = [GraceCounter() for _ in range(rng.randint(1, 4))]
        tree, now_s = Counted(0, 1, 0), 0.0
        for _ in range(60):
            now_s += rng.uniform(0, 30)
            counter = rng.choice(counters)
            asked_s, found = now_s, tree
            now_s += rng.uniform(0, 5)  # the read is under way
            step_ms = counter.step_ms(found, asked_s=asked_s, answered_s=now_s)
            other = rng.choice(counters)
            if step_ms and rng.random() < 0.2 and other is not counter:
                more_ms = other.step_ms(tree, asked_s=now_s, answered_s=now_s)
                if more_ms:
                    tree = Counted(tree.ms + more_ms, 1, tree.version + 1)
                    other.added(tree, answered_s=now_s)
            if not step_ms:
                continue
            now_s += rng.uniform(0, 5)
            if tree != found:
                counter.forget()  # BadVersion
                continue
            tree = Counted(found.ms + step_ms, 1, found.version + 1)
            if rng.random() < 0.1:
                counter.forget()  # the answer was lost
            else:
                counter.added(tree, answered_s=now_s)
            assert tree.ms <= now_s * 1000


def test_the_time_of_a_topic_runs_from_the_count_at_its_deletion() -> None:
    deletion = TopicDeletion(client="c", host="h", time_ms=0, grace_ms=100, counted_ms=1_000)
    assert [grace.left_ms(deletion, count) for count in (0, 1_000, 1_099, 1_100, 9_999)] == [
        100,
        100,
        1,
        0,
        0,
    ]


# The removal ------------------------------------------------------------------------------------
async def test_a_topic_is_removed_when_its_time_is_up_and_not_before(
    client: MemoryCoordinator,
) -> None:
    view = await topics.create_topic(client, "t")
    await count_to_first(client)
    await count_to(client, 5_000)
    await retire(client)
    await count_to(client, 5_000 + HOUR_MS - 1)
    assert not await grace.remove_when_due(client, "t", view.id)
    await count_to(client, 5_000 + HOUR_MS)
    assert not await grace.remove_when_due(client, "t", "another id")
    assert await grace.remove_when_due(client, "t", view.id)
    assert await topics.was_deleted(client, view.id)
    assert await client.exists(TopicNode.path("t")) is None


async def count_to_first(client: MemoryCoordinator) -> None:
    await client.create(GraceClock.path(), GraceClock(counted_ms=0).encode())


async def test_a_topic_that_was_brought_back_and_deleted_again_has_its_whole_time(
    client: MemoryCoordinator,
) -> None:
    """A broker that knows of the first deletion looks again."""
    view = await topics.create_topic(client, "t")
    await retire(client)
    await count_to(client, HOUR_MS)
    await grace.undelete_topic(client, "t")
    assert not await grace.remove_when_due(client, "t", view.id)
    await retire(client)
    assert not await grace.remove_when_due(client, "t", view.id)
    assert (await read_topic(client, "t", any_phase=True)).phase == IN_GRACE


@pytest.mark.parametrize("first", ["undelete", "remove"])
async def test_an_undelete_and_a_removal_at_once_have_one_winner(
    client: MemoryCoordinator, first: str
) -> None:
    """Both have read the topic; the second write is refused, and decides again."""
    view = await topics.create_topic(client, "t")
    await retire(client, grace_ms=0)
    multi, waiting = client.multi, asyncio.Event()

    async def late(operations):  # type: ignore[no-untyped-def]
        if not waiting.is_set():
            waiting.set()
            client.multi = multi  # type: ignore[method-assign]
            if first == "undelete":
                await grace.undelete_topic(client, "t")
            else:
                await grace.remove_when_due(client, "t", view.id)
        return await multi(operations)

    client.multi = late  # type: ignore[method-assign]
    if first == "undelete":
        assert not await grace.remove_when_due(client, "t", view.id)
        assert (await topics.describe_topic(client, "t")).id == view.id
        assert not await topics.was_deleted(client, view.id)
    else:
        with pytest.raises(UnknownTopic):
            await grace.undelete_topic(client, "t")
        assert await topics.was_deleted(client, view.id)


async def test_a_removal_that_was_begun_is_finished_by_another(client: MemoryCoordinator) -> None:
    view = await topics.create_topic(client, "t", TopicSettings(partitions=3))
    await ensure_group(client, "g", ConsumerGroup(topics={"t": ALL}))
    claim = await claims.claim(client, "g", "m", P)
    await ZooKeeperOffsets(client).commit([(claim, CommittedOffset(offset=7))])
    await retire(client, grace_ms=0)
    multi, calls = client.multi, 0

    async def dies(operations):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("killed")
        return await multi(operations)

    client.multi = dies  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="killed"):
        await grace.remove_when_due(client, "t", view.id)
    client.multi = multi  # type: ignore[method-assign]
    with pytest.raises(UnknownTopic, match="removed for good"):
        await grace.undelete_topic(client, "t")
    assert await grace.remove_when_due(client, "t", "")
    assert await client.exists(TopicNode.path("t")) is None
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {}


class Suspended:
    """Another client finishes a removal, and a namesake is made, before this one's next step."""

    def __init__(self, client: MemoryCoordinator, step: int) -> None:
        self.made: TopicView | None = None
        self._client = client
        self._multi = client.multi
        self._left = step

    async def multi(self, operations: Sequence[Operation]) -> Any:
        self._left -= 1
        if not self._left:
            client = self._client
            client.multi = self._multi  # type: ignore[method-assign]
            await topics.delete_topic(client, "t")
            self.made = await topics.create_topic(client, "t", TopicSettings(partitions=2))
            await commit(client, 3)
        return await self._multi(operations)


async def commit(client: MemoryCoordinator, offset: int) -> None:
    claim = await claims.claim(client, "g", f"m{offset}", P)
    await ZooKeeperOffsets(client).commit([(claim, CommittedOffset(offset=offset))])


async def test_a_client_that_goes_on_late_removes_nothing_of_a_namesake() -> None:
    """It was suspended before any step of a removal but the first, which decides."""
    for step in itertools.count(2):
        ensemble = MemoryEnsemble()
        async with client_of(ensemble) as client:
            await add_broker(client, "b1")
            await topics.create_topic(client, "t", TopicSettings(partitions=2))
            await commit(client, 7)
            await client.delete(Owner.path("g", *P))
            late = Suspended(client, step)
            client.multi = late.multi  # type: ignore[method-assign]
            await topics.delete_topic(client, "t")
            if late.made is None:
                break
            view = await topics.describe_topic(client, "t")
            assert (view.id, len(view.partitions)) == (late.made.id, 2)
            assert (await ZooKeeperOffsets(client).read("g", ["t"]))[P].offset == 3
            assert await client.children(TopicNode.path("t")) == ["partitions"]
    assert step > 5


async def test_a_count_that_cannot_be_read_removes_nothing(client: MemoryCoordinator) -> None:
    view = await topics.create_topic(client, "t")
    await retire(client, grace_ms=0)
    await client.set(GraceClock.path(), b'{"v": 1, "counted_ms": -5}')
    with pytest.raises(CoordinationError):
        await grace.remove_when_due(client, "t", view.id)
    await topics.delete_topic(client, "t")  # an operator decides
