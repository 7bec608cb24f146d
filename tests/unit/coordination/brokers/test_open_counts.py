"""The counts of open partitions: true after every change, corrected where they are not."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.coordination import FAULTS, LeadingBroker, client_of, disarm, strike

from vq.coordination.brokers.group_views import groups
from vq.coordination.brokers.open_counts import (
    COUNTS_PER_MULTI_MAX,
    OpenCount,
    correct_counts,
    count_operations,
    read_counts,
)
from vq.coordination.topics import summaries, topics
from vq.coordination.topics.placement import close_span, move
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import ConnectionLost, SessionExpired
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.reading import count_partitions, read_summary
from vq.coordination.tree.values.brokers import OpenPartitions
from vq.coordination.tree.values.partitions import OPEN_GROUPS_MAX, PlacementChanges
from vq.errors import CoordinationError, UnknownTopic
from vq.model import Span, TopicSettings
from vq.testing.loop import clock_of_loop

GROUPS = ("b1", "b2", "b3")


@asynccontextmanager
async def brokers_of(ensemble: MemoryEnsemble) -> AsyncIterator[None]:
    """A broker that leads each group."""
    async with client_of(ensemble) as client:
        brokers = [LeadingBroker(client, group=group) for group in GROUPS]
        for broker in brokers:
            await broker.start()
        yield
        for broker in brokers:
            await broker.stop()


@pytest.fixture
async def client(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with brokers_of(ensemble), client_of(ensemble) as made:
        yield made


async def counts(client: MemoryCoordinator) -> dict[str, int | None]:
    """The counts of all groups."""
    found = await read_counts(client, GROUPS)
    return {name: None if count is None else count.open for name, count in found.items()}


async def check(client: MemoryCoordinator) -> None:
    """Compare every count with what the partitions say."""
    actual = await count_partitions(client)
    assert await counts(client) == {name: actual[name] for name in GROUPS}
    for name in await topics.list_topics(client):
        view = await topics.describe_topic(client, name)
        listed = await client.get(PlacementChanges.path(name))
        changes = PlacementChanges.of_node("", listed.data, listed.stat.version)
        assert changes.open == Counter(each.writer_group or "" for each in view.partitions)


async def test_a_group_begins_with_a_count(client) -> None:
    assert await counts(client) == dict.fromkeys(GROUPS, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_counts_follow_every_change(client, seed: int) -> None:
    """Topics made, grown, moved, closed and deleted at random."""
    rng = random.Random(seed)
    for number in range(40):
        names = await topics.list_topics(client)
        kind = rng.choice(["make", "grow", "move", "close", "delete", "touch"])
        if kind == "make" or not names:
            settings = TopicSettings(partitions=rng.randint(1, 7))
            await topics.create_topic(client, f"t{number}", settings)
            continue
        name = rng.choice(names)
        view = await topics.describe_topic(client, name)
        placement = rng.choice(view.partitions)
        if kind == "grow":
            await topics.add_partitions(client, name, rng.randint(1, 3))
        elif kind == "delete":
            await topics.delete_topic(client, name)
        elif kind == "touch":
            partition = placement.partition
            version = view.partition_versions[partition]
            await topics.touch_partition(client, name, partition, version)
        elif placement.writer_group is not None:
            start = placement.spans[-1].start
            others = [each for each in GROUPS if each != placement.writer_group]
            changed = (
                close_span(placement, start + 1)
                if kind == "close"
                else move(placement, start + 1, rng.choice(others))
            )
            await topics.change_placement(client, view, changed)
        await check(client)
    await check(client)


async def test_a_large_topic_is_counted_when_it_is_ready(client) -> None:
    """Made in steps; one left half-made counts for nothing, nor does its deletion."""
    await topics.create_topic(client, "t", TopicSettings(partitions=1_201))
    await check(client)
    await topics.delete_topic(client, "t")
    await check(client)
    with pytest.MonkeyPatch.context() as patch:

        async def die(*_: object) -> None:
            raise ConnectionLost("the maker died")

        patch.setattr(topics, "create_rest", die)
        with pytest.raises(ConnectionLost):
            await topics.create_topic(client, "t", TopicSettings(partitions=1_201))
    assert await counts(client) == dict.fromkeys(GROUPS, 0)
    await topics.delete_topic(client, "t")
    assert await counts(client) == dict.fromkeys(GROUPS, 0)


async def test_makers_at_once_do_not_hinder_one_another(client) -> None:
    """They write the same counts; each topic is made, and the whole is balanced."""
    await asyncio.gather(
        *(topics.create_topic(client, f"t{n}", TopicSettings(partitions=2)) for n in range(9))
    )
    await check(client)
    assert set((await counts(client)).values()) == {6}


async def story(client: MemoryCoordinator) -> None:
    """Make a topic, grow it, move a partition, delete it; each tried again after a fault."""
    steps = ["make", "grow", "move", "delete"]
    while steps:
        try:
            await do(client, steps[0])
        except (ConnectionLost, SessionExpired):
            continue
        except (TopicExists, UnknownTopic):
            assert steps[0] in {"make", "delete"}
        del steps[0]


async def do(client: MemoryCoordinator, step: str) -> None:
    """Do a step, unless it was done by a try whose answer was lost."""
    if step == "make":
        await topics.create_topic(client, "t", TopicSettings(partitions=2))
        return
    if step == "delete":
        await topics.delete_topic(client, "t")
        return
    view = await topics.describe_topic(client, "t")
    if step == "grow" and len(view.partitions) == 2:
        await topics.add_partitions(client, "t", 1)
    if step == "move" and len(view.partitions[2].spans) == 1:
        placement = view.partitions[2]
        target = "b2" if placement.writer_group == "b1" else "b1"
        await topics.change_placement(client, view, move(placement, 10, target))


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("fault", FAULTS)
async def test_counts_survive_a_fault_at_every_call(fault: str) -> None:
    """Whichever call is struck, nothing is counted twice or left counted."""
    ensemble, skip = MemoryEnsemble(clock=clock_of_loop(), reconnect_delay_s=0.0), 0
    async with brokers_of(ensemble):
        async with client_of(ensemble) as client:
            await topics.create_topic(client, "other", TopicSettings(partitions=4))
        was_struck = True
        while was_struck:  # each story ends as it began: without its topic
            async with client_of(ensemble) as client:
                strike(ensemble, client, fault, skip)
                await story(client)
                was_struck = disarm(client)
                assert await topics.list_topics(client) == ["other"]
                await check(client)
            skip += was_struck
    assert skip > 30


# Corrections ----------------------------------------------------------------------------------
async def test_wrong_missing_and_damaged_counts_are_corrected(client) -> None:
    await topics.create_topic(client, "t", TopicSettings(partitions=5))
    right = await counts(client)
    await client.set(OpenPartitions.path("b1"), OpenPartitions(open=77).encode())
    await client.set(OpenPartitions.path("b2"), b"{damaged")
    await client.delete(OpenPartitions.path("b3"))
    assert (await counts(client)) == {"b1": 77, "b2": None, "b3": None}
    await correct_counts(client, await read_counts(client, GROUPS), await count_partitions(client))
    assert await counts(client) == right


async def test_a_correction_that_was_overtaken_changes_nothing(client) -> None:
    """A topic made after its count was read: what was added is not taken away."""
    await client.set(OpenPartitions.path("b1"), OpenPartitions(open=9).encode())
    before = await read_counts(client, GROUPS)
    actual = await count_partitions(client)
    await topics.create_topic(client, "t", TopicSettings(partitions=6))
    await correct_counts(client, before, actual)
    assert await counts(client) == {"b1": 11, "b2": 2, "b3": 2}


async def test_a_correction_of_a_group_that_is_gone_is_left_out(client) -> None:
    await correct_counts(client, {"gone": None, "went": OpenCount(3, 0)}, {})
    assert await read_counts(client, ["gone", "went"]) == {"gone": None, "went": None}


async def test_without_counts_partitions_are_counted(client) -> None:
    """A tree that an older vq made: placement is as balanced, only slower."""
    await topics.create_topic(client, "t", TopicSettings(partitions=4))
    for group in GROUPS:
        await client.delete(OpenPartitions.path(group))
    assert {each.group: each.partitions for each in await groups(client)} == {
        "b1": 2,
        "b2": 1,
        "b3": 1,
    }
    view = await topics.create_topic(client, "u", TopicSettings(partitions=2))
    assert {each.writer_group for each in view.partitions} == {"b2", "b3"}
    assert await counts(client) == dict.fromkeys(GROUPS)
    await topics.delete_topic(client, "t")


async def test_a_count_never_falls_below_zero(client) -> None:
    await topics.create_topic(client, "t", TopicSettings(partitions=3))
    await client.set(OpenPartitions.path("b1"), OpenPartitions(open=0).encode())
    await topics.delete_topic(client, "t")
    assert await counts(client) == dict.fromkeys(GROUPS, 0)


async def test_a_multi_takes_a_bounded_number_of_counts(client) -> None:
    """A topic on very many groups leaves the last ones to the brokers to correct."""
    for number in range(COUNTS_PER_MULTI_MAX + 5):
        path = OpenPartitions.path(f"g{number}")
        await client.create(path, OpenPartitions(open=0).encode(), parents=True)
    changes = {f"g{number}": 1 for number in range(COUNTS_PER_MULTI_MAX + 5)}
    assert len(await count_operations(client, changes)) == COUNTS_PER_MULTI_MAX


# Summaries ------------------------------------------------------------------------------------
async def test_a_summary_says_where_partitions_are_open(client) -> None:
    await topics.create_topic(client, "t", TopicSettings(partitions=4))
    view = await topics.describe_topic(client, "t")
    await topics.change_placement(client, view, close_span(view.partitions[0], 0))
    [summary] = await summaries.summarize_topics(client)
    assert (summary.name, summary.id, summary.settings) == ("t", view.id, view.settings)
    assert summary.open == {"": 1, "b1": 1, "b2": 1, "b3": 1}
    assert await read_summary(client, "no") is None


@pytest.mark.parametrize("data", [b"", b'{"v": 1, "version": 1, "partitions": [0]}', b"{}"])
async def test_a_list_without_counts_has_the_partitions_read(client, data: bytes) -> None:
    """An older vq writes none; what is damaged says nothing."""
    await topics.create_topic(client, "t", TopicSettings(partitions=3))
    await client.set(PlacementChanges.path("t"), data)
    summary = await read_summary(client, "t")
    assert summary is not None
    assert summary.open == {"b1": 1, "b2": 1, "b3": 1}


async def test_counts_that_do_not_add_up_are_not_believed(client) -> None:
    """Partitions that were added without them."""
    await topics.create_topic(client, "t", TopicSettings(partitions=3))
    data = PlacementChanges(version=1, open={"b1": 2}).encode()
    await client.set(PlacementChanges.path("t"), data)
    summary = await read_summary(client, "t")
    assert summary is not None
    assert summary.open == {"b1": 1, "b2": 1, "b3": 1}


def test_a_list_counts_a_bounded_number_of_groups() -> None:
    """Everybody who follows a topic reads its list again and again."""
    counted = {f"g{number}": 1 for number in range(OPEN_GROUPS_MAX + 1)}
    data = PlacementChanges(open=counted).encode()
    assert PlacementChanges.decode("", data).open is None


async def test_topics_that_are_being_made_or_deleted_are_not_listed(client) -> None:
    """They neither hide the others nor are they shown."""
    await topics.create_topic(client, "t")
    with pytest.MonkeyPatch.context() as patch:

        async def die(*_: object) -> None:
            raise CoordinationError("the maker died")

        patch.setattr(topics, "create_rest", die)
        with pytest.raises(CoordinationError):
            await topics.create_topic(client, "u", TopicSettings(partitions=501))
    assert [each.name for each in await summaries.summarize_topics(client)] == ["t"]
    assert Span("b1", 0) in (await topics.describe_topic(client, "t")).partitions[0].spans
