"""Reading topics as consistent snapshots, while others change them."""

import asyncio
import random
from dataclasses import replace

import pytest
from support.coordination import LeadingBroker

from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Delete, Set, WatchEvent
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.reading import (
    AT_ONCE_MAX,
    children_or_none,
    count_partitions,
    gather_all,
    read_topic,
)
from vq.coordination.tree.values.partitions import (
    PLACEMENT_CHANGES_MAX,
    Partition,
    PlacementChanges,
)
from vq.coordination.tree.values.topics import DELETING, TopicNode
from vq.errors import CoordinationError, UnknownTopic
from vq.model import PartitionPlacement, Span, TopicSettings
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def put_topic(client: MemoryCoordinator, name: str, *groups: str) -> None:
    """Write a topic into the tree by hand, one partition on each group."""
    topic = TopicNode(id="id", settings=TopicSettings(partitions=len(groups)))
    await client.create(TopicNode.path(name), topic.encode(), parents=True)
    for number, group in enumerate(groups):
        value = Partition(spans=(Span(group, 0),))
        await client.create(Partition.path(name, number), value.encode(), parents=True)


async def test_a_snapshot_never_mixes_two_versions(client) -> None:
    """A mover flips two partitions together again and again; readers never see them differ."""
    await put_topic(client, "t", "a", "a")
    topic = (await client.get(TopicNode.path("t"))).data
    stop = False

    async def flip() -> None:
        for turn in range(10_000):
            if stop:
                return
            value = Partition(spans=(Span("ab"[turn % 2], 0),)).encode()
            await client.multi(
                [
                    Set(Partition.path("t", 0), value),
                    Set(Partition.path("t", 1), value),
                    Set(TopicNode.path("t"), topic),
                ]
            )
            if turn % 3 == 0:
                await asyncio.sleep(0.001)

    flipping = asyncio.ensure_future(flip())
    for _ in range(30):
        try:
            view = await read_topic(client, "t")
        except CoordinationError:
            continue  # too many changes in a row: said, not guessed
        assert len({p.writer_group for p in view.partitions}) == 1
    stop = True
    await flipping


async def change(client: MemoryCoordinator, rng: random.Random) -> None:
    """Change topic ``t`` in one of the ways there are."""
    view = await topics.describe_topic(client, "t")
    number = rng.randrange(len(view.partitions))
    kind = rng.choice(["move"] * 6 + ["touch", "grow", "settings", "anew", "by hand", "old list"])
    path = PlacementChanges.path("t")
    if kind == "move":
        moved = PartitionPlacement("t", number, (Span(rng.choice("ab"), rng.randrange(99)),))
        await topics.change_placement(client, view, moved)
    elif kind == "touch":
        await topics.touch_partition(client, "t", number, view.partition_versions[number])
    elif kind == "grow":
        await topics.add_partitions(client, "t", 1)
    elif kind == "settings":
        settings = replace(view.settings, retention_hours=rng.randrange(1, 99))
        await topics.change_settings(client, "t", settings)
    elif kind == "anew":
        await topics.delete_topic(client, "t")
        await topics.create_topic(client, "t", TopicSettings(partitions=rng.randint(1, 4)))
    elif kind == "by hand":  # an operator writes a partition, and the list without an entry
        value = Partition(spans=(Span("c", 0),))
        await client.set(Partition.path("t", number), value.encode())
        await client.set(path, (await client.get(path)).data)
    else:
        await client.set(path, rng.choice([b"", b"{", b'{"v": 9}']))


@pytest.mark.parametrize("seed", range(10))
async def test_what_changed_is_all_that_has_to_be_read(ensemble, client, seed: int) -> None:
    """Whatever happened to a topic meanwhile, a view brought up to date is as one read anew."""
    rng = random.Random(seed)
    broker = LeadingBroker(client, group="a")
    await broker.start()
    known = await topics.create_topic(client, "t", TopicSettings(partitions=3))
    for _ in range(40):
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            await change(client, rng)
        before = known
        known = await read_topic(client, "t", known=known)
        anew = await read_topic(client, "t")
        assert known == anew
        assert (known is before) == (before == anew)
    await broker.stop()


async def test_more_changes_than_are_listed_are_read_all_the_same(client) -> None:
    """Who was away for long reads everything once."""
    await put_topic(client, "t", "a", "a")
    await client.set(PlacementChanges.path("t"), PlacementChanges(version=1).encode())
    known = await read_topic(client, "t")
    for version in range(PLACEMENT_CHANGES_MAX + 1):
        await topics.touch_partition(client, "t", version % 2, version // 2)
    now = await read_topic(client, "t", known=known)
    assert now == await read_topic(client, "t") != known


async def test_a_partition_that_is_missing_is_no_old_one(client) -> None:
    """A view brought up to date does not keep what is gone."""
    await put_topic(client, "t", "a", "b")
    known = await read_topic(client, "t")
    await topics.touch_partition(client, "t", 1, 0)
    await client.delete(Partition.path("t", 1))
    with pytest.raises(CoordinationError, match="restore"):
        await read_topic(client, "t", known=known)


async def test_a_missing_topic_leaves_a_watch(client) -> None:
    """So who waits for it hears of its creation."""
    hints: list[WatchEvent] = []
    with pytest.raises(UnknownTopic):
        await read_topic(client, "t", watch=hints.append)
    await put_topic(client, "t", "a")
    await until(lambda: hints)


async def test_a_topic_without_one_of_its_partitions_is_damage(client) -> None:
    """It is said, and what to do; nothing is guessed."""
    await put_topic(client, "t", "a", "b")
    await client.multi([Delete(Partition.path("t", 1))])
    with pytest.raises(CoordinationError, match=r"partitions 0 to 1.*restore"):
        await read_topic(client, "t")


async def test_a_topic_in_deletion_is_unknown_unless_asked_for(client) -> None:
    """Clients do not see it, its deletion does."""
    await put_topic(client, "t", "a")
    topic = TopicNode(id="id", settings=TopicSettings(), phase=DELETING)
    await client.set(TopicNode.path("t"), topic.encode())
    with pytest.raises(UnknownTopic, match="deleting"):
        await read_topic(client, "t")
    assert (await read_topic(client, "t", any_phase=True)).phase == DELETING


async def test_open_partitions_are_counted_by_group(client) -> None:
    """Over all topics; closed spans do not count."""
    await put_topic(client, "t", "a", "b", "a")
    await put_topic(client, "u", "a", "b")
    closed = Partition(spans=(Span("b", 0, 5),))
    await client.set(Partition.path("u", 1), closed.encode())
    assert await count_partitions(client) == {"a": 3, "b": 1}


async def test_children_of_a_missing_node_are_none_and_watched(client) -> None:
    """The watch fires when the node comes."""
    hints: list[WatchEvent] = []
    assert await children_or_none(client, "no") == []
    assert await children_or_none(client, "no", watch=hints.append) == []
    await client.create("no/child", parents=True)
    await until(lambda: hints)
    assert await children_or_none(client, "no", watch=hints.append) == ["child"]


async def test_gathering_waits_for_all_before_it_raises() -> None:
    """No call is left running behind the caller's back."""
    done = []

    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number == 0:
            raise CoordinationError("first")
        await asyncio.sleep(0)
        done.append(number)
        return number

    with pytest.raises(CoordinationError, match="first"):
        await gather_all(work(number) for number in range(3))
    assert done == [1, 2]
    assert await gather_all(work(number) for number in (4, 5)) == [4, 5]


async def test_gathering_has_a_bounded_number_of_calls_under_way() -> None:
    """A reader of 20 000 partitions does not have its last calls wait until they fail."""
    under_way, most = 0, 0

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number == 300:
            raise CoordinationError("enough")
        return number

    assert await gather_all(work(number) for number in range(300)) == list(range(300))
    assert most == AT_ONCE_MAX
    begun = []
    with pytest.raises(CoordinationError, match="enough"):
        await gather_all(work(begun.append(number) or number) for number in range(10_000))
    assert len(begun) < 300 + AT_ONCE_MAX + 1
