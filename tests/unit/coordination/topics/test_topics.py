"""Topics: making, describing, growing, moving, deleting; with faults at every call."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from support.coordination import FAULTS, client_of, disarm, known, strike

from vq.coordination.groups import claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import summaries, topics
from vq.coordination.topics.placement import move
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import BadVersion, ConnectionLost, NoNode, SessionExpired
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, Registration
from vq.coordination.tree.values.consumers import CommittedOffset, Owner
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.topics import CREATING, TopicNode
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.model import FlushMode, Replication, Span, TopicOrigin, TopicPartition, TopicSettings
from vq.testing.loop import clock_of_loop

pytestmark = pytest.mark.virtual_time


async def add_broker(client: MemoryCoordinator, group: str, *, pool: str | None = None) -> None:
    """Put a live broker group into the tree."""
    await client.create(BrokerGroup.path(group), BrokerGroup(pool=pool).encode(), parents=True)
    node = Registration(host="127.0.0.1", port=1)
    stat = await client.create(
        Registration.path(group, "n1"), node.encode(), ephemeral=True, parents=True
    )
    state = GroupState(epoch=1, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await client.create(GroupState.path(group), state.encode())


@pytest.fixture
async def client() -> AsyncIterator[MemoryCoordinator]:
    """A client of a cluster with two broker groups and one in a pool, kept by another session."""
    ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
    async with client_of(ensemble) as brokers, client_of(ensemble) as made:
        await add_broker(brokers, "b1")
        await add_broker(brokers, "b2")
        await add_broker(brokers, "b3", pool="fast")
        yield made


async def test_a_topic_is_spread_over_the_live_groups(client) -> None:
    """Five partitions over two groups, each open from offset 0."""
    settings = TopicSettings(partitions=5, flush=FlushMode.ASYNC, retention_hours=None)
    view = await topics.create_topic(client, "t", settings, rng=random.Random(1))
    assert [p.partition for p in view.partitions] == [0, 1, 2, 3, 4]
    assert Counter(p.writer_group for p in view.partitions) == {"b1": 3, "b2": 2}
    assert all(p.spans == (Span(p.writer_group, 0),) for p in view.partitions)
    assert view.settings == settings
    assert await topics.list_topics(client) == ["t"]
    assert await topics.describe_topic(client, "t") == view


async def test_topics_fill_the_least_loaded_group(client) -> None:
    """What groups hold already counts."""
    await topics.create_topic(client, "a", TopicSettings(partitions=3))
    view = await topics.create_topic(client, "b", TopicSettings(partitions=1))
    assert view.partitions[0].writer_group == "b2"


async def test_a_topic_can_be_for_one_group_alone(client) -> None:
    view = await topics.create_topic(client, "a", TopicSettings(partitions=3), group="b1")
    assert {each.writer_group for each in view.partitions} == {"b1"}
    with pytest.raises(CoordinationError):
        await topics.create_topic(client, "b", TopicSettings(partitions=1), group="b9")
    assert await topics.list_topics(client) == ["a"]


async def test_a_topic_lives_in_its_pool(client) -> None:
    """With one, and without one."""
    fast = await topics.create_topic(client, "a", TopicSettings(partitions=3, pool="fast"))
    assert {each.writer_group for each in fast.partitions} == {"b3"}
    common = await topics.create_topic(client, "b", TopicSettings(partitions=3))
    assert {each.writer_group for each in common.partitions} == {"b1", "b2"}


async def test_a_name_is_taken_once(client) -> None:
    """The second topic of a name is refused and changes nothing."""
    first = await topics.create_topic(client, "t")
    with pytest.raises(TopicExists, match="'t' exists already"):
        await topics.create_topic(client, "t", TopicSettings(partitions=9))
    assert await topics.describe_topic(client, "t") == first


async def test_racing_creators_make_one_topic(client) -> None:
    """Exactly one wins, the others are told."""
    made = await asyncio.gather(
        *(topics.create_topic(client, "t") for _ in range(5)), return_exceptions=True
    )
    assert Counter(type(each).__name__ for each in made) == {"TopicView": 1, "TopicExists": 4}


async def test_no_broker_no_topic(client) -> None:
    """Refused with what to do, before anything is written."""
    with pytest.raises(CoordinationError, match=r"pool 'none'.*vq broker"):
        await topics.create_topic(client, "t", TopicSettings(pool="none"))
    assert await topics.list_topics(client) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "x" * 201])
async def test_bad_names_are_refused(client, name: str) -> None:
    """Names become znode and directory names."""
    with pytest.raises(InvalidArgument):
        await topics.create_topic(client, name)


async def test_an_unknown_topic_says_how_to_make_it(client) -> None:
    """The message carries the command."""
    with pytest.raises(UnknownTopic, match="vq topic create t"):
        await topics.describe_topic(client, "t")
    with pytest.raises(UnknownTopic):
        await topics.delete_topic(client, "t")


async def test_a_large_topic_is_made_in_steps_and_seen_whole(client) -> None:
    """More partitions than one multi takes; it is hidden until all are there."""
    settings = TopicSettings(partitions=1_201)
    view = await topics.create_topic(client, "t", settings)
    assert len(view.partitions) == 1_201
    await topics.delete_topic(client, "t")
    assert await topics.list_topics(client) == []


async def test_a_topic_left_half_made_is_hidden_and_can_be_deleted(client) -> None:
    """Its maker died between two steps."""
    topic = TopicNode(id="x", settings=TopicSettings(partitions=9), phase=CREATING)
    await client.create(TopicNode.path("t"), topic.encode(), parents=True)
    with pytest.raises(UnknownTopic, match="creating"):
        await topics.describe_topic(client, "t")
    with pytest.raises(TopicExists, match="vq topic delete t"):
        await topics.create_topic(client, "t")
    await topics.delete_topic(client, "t")
    await topics.create_topic(client, "t")


async def test_a_deleted_topic_takes_the_groups_progress_along(client) -> None:
    """Its namesake starts from the beginning, with another id."""
    first = await topics.create_topic(client, "t")
    mine = await claims.claim(client, "g", "m", TopicPartition("t", 0))
    await ZooKeeperOffsets(client).commit([(mine, CommittedOffset(offset=5))])
    await topics.delete_topic(client, "t")
    second = await topics.create_topic(client, "t")
    assert second.id != first.id
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {}
    late = await ZooKeeperOffsets(client).commit([(mine, CommittedOffset(offset=9))])
    assert late.stale == (TopicPartition("t", 0),)


async def test_a_deleted_topic_takes_along_what_somebody_else_put_below_it(client) -> None:
    """A node that no vq makes is no reason to leave half a topic."""
    await topics.create_topic(client, "t")
    await client.create(f"{TopicNode.path('t')}/notes/by/hand", b"?", parents=True)
    await topics.delete_topic(client, "t")
    assert await client.exists(TopicNode.path("t")) is None
    await topics.create_topic(client, "t")


async def test_deleted_topics_are_remembered(client) -> None:
    """By id, the last ones; a topic that is merely missing was not deleted."""
    made = [await topics.create_topic(client, f"t{number}") for number in range(4)]
    with patch("vq.coordination.tree.values.topics.DELETED_TOPICS_MAX", 2):
        for view in made[:3]:
            await topics.delete_topic(client, view.name)
    assert [await topics.was_deleted(client, view.id) for view in made] == [
        False,
        True,
        True,
        False,
    ]
    assert not await topics.was_deleted(client, "")


async def test_partitions_are_added_at_the_end(client) -> None:
    """The old ones stay where they are; the settings say the new number."""
    before = await topics.create_topic(client, "t", TopicSettings(partitions=2))
    after = await topics.add_partitions(client, "t", 3)
    assert after.partitions[:2] == before.partitions
    assert after.settings.partitions == len(after.partitions) == 5
    assert after.id == before.id
    changes = PlacementChanges.decode("", (await client.get(PlacementChanges.path("t"))).data)
    assert changes.partitions == (4,)
    with pytest.raises(InvalidArgument):
        await topics.add_partitions(client, "t", 0)


async def test_settings_are_replaced(client) -> None:
    """All but the number of partitions."""
    before = await topics.create_topic(client, "t", TopicSettings(partitions=2))
    wanted = replace(before.settings, retention_hours=1)
    after = await topics.change_settings(client, "t", wanted)
    assert after.settings == wanted
    assert after.version == before.version + 1
    assert (await topics.change_settings(client, "t", wanted)).version == after.version
    with pytest.raises(InvalidArgument, match="2 partitions"):
        await topics.change_settings(client, "t", replace(wanted, partitions=3))


async def test_two_operators_do_not_undo_each_others_settings(client) -> None:
    """The second one comes between the read and the write of the first one."""
    await topics.create_topic(client, "t")
    tries = 0

    def shorter(before: TopicSettings) -> TopicSettings:
        nonlocal tries
        tries += 1
        return replace(before, retention_hours=5)

    async def close() -> None:
        await topics.alter_settings(client, "t", lambda before: replace(before, writable=False))

    real, closed = client.set, asyncio.Event()

    async def late(*args: Any, **fields: Any) -> Any:
        if tries == 1 and not closed.is_set():
            closed.set()
            await close()
        return await real(*args, **fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "set", late)
        view = await topics.alter_settings(client, "t", shorter)
    assert (view.settings.retention_hours, view.settings.writable) == (5, False)
    assert tries == 2


async def test_replication_is_stored_and_changed(client) -> None:
    """Given as text, too; brokers compare it by identity."""
    made = await topics.create_topic(client, "t", TopicSettings(replication="async"))
    assert made.settings.replication is Replication.ASYNC
    wanted = replace(made.settings, replication="sync", min_insync=2)
    changed = await topics.change_settings(client, "t", wanted)
    assert changed.settings.replication is Replication.SYNC
    assert changed.settings.min_insync == 2


async def test_a_move_is_listed_and_leaves_the_topic_alone(client) -> None:
    """One watch on the list tells of it; another move of the same version is refused."""
    before = await topics.create_topic(client, "t", TopicSettings(partitions=2))
    moved = move(before.partitions[0], 100, "b2")
    after = await topics.change_placement(client, before, moved)
    assert after.partitions[0] == moved
    assert after.partition_versions == (1, 0)
    with pytest.raises(BadVersion):
        await topics.change_placement(client, before, move(before.partitions[0], 7, "b2"))
    other = move(before.partitions[1], 9, "b1")
    await topics.change_placement(client, before, other)
    now = await topics.describe_topic(client, "t")
    assert now.partitions == (moved, other)
    assert (now.version, now.changes) == (before.version, before.changes + 2)
    changes = PlacementChanges.decode("", (await client.get(PlacementChanges.path("t"))).data)
    assert changes.partitions == (0, 1)


async def test_a_move_is_refused_in_another_epoch_of_a_group(client) -> None:
    """Its masters were asked in an earlier one; also if that changes at the last moment."""
    before = await topics.create_topic(client, "t", TopicSettings(partitions=2))
    path = GroupState.path("b1")
    state = GroupState(epoch=4, master="n1", insync=("n1",), incarnations={})
    await client.set(path, state.encode())
    moved = move(before.partitions[0], 100, "b2")
    with pytest.raises(BadVersion, match="brokers/b1/state"):
        await topics.change_placement(client, before, moved, epochs={"b1": 3})
    multi = client.multi

    async def elected_meanwhile(operations: Any) -> Any:
        await client.set(path, replace(state, epoch=5).encode())
        client.multi = multi
        return await multi(operations)

    client.multi = elected_meanwhile
    with pytest.raises(BadVersion):
        await topics.change_placement(client, before, moved, epochs={"b1": 4})
    assert (await topics.describe_topic(client, "t")) == before
    after = await topics.change_placement(client, before, moved, epochs={"b1": 5})
    assert after.partitions[0] == moved


async def test_a_partition_is_touched_once(client) -> None:
    """Its version rises, its value stays; who knew another version is refused."""
    before = await topics.create_topic(client, "t", TopicSettings(partitions=2))
    await topics.touch_partition(client, "t", 1, 0)
    now = await topics.describe_topic(client, "t")
    assert (now.partitions, now.partition_versions) == (before.partitions, (0, 1))
    with pytest.raises(BadVersion):
        await topics.touch_partition(client, "t", 1, 0)
    await topics.delete_topic(client, "t")
    with pytest.raises((NoNode, UnknownTopic)):
        await topics.touch_partition(client, "t", 1, 1)


async def test_moves_at_once_do_not_hinder_one_another(client) -> None:
    """They share one list; each of them is written and listed."""
    view = await topics.create_topic(client, "t", TopicSettings(partitions=8))
    targets = [move(p, 5, "b2" if p.writer_group == "b1" else "b1") for p in view.partitions]
    await asyncio.gather(*(topics.change_placement(client, view, each) for each in targets))
    now = await topics.describe_topic(client, "t")
    assert now.partitions == tuple(targets)
    assert now.changes == view.changes + 8


async def test_a_move_of_a_topic_made_again_is_refused(client) -> None:
    """The mover's view is of the deleted one."""
    before = await topics.create_topic(client, "t")
    await topics.delete_topic(client, "t")
    await topics.create_topic(client, "t")
    with pytest.raises(UnknownTopic, match="created again"):
        await topics.change_placement(client, before, move(before.partitions[0], 1, "b2"))


async def topic_story(client: MemoryCoordinator) -> None:
    """Make a topic, grow it, move a partition, each tried again after a fault."""
    steps = ["make", "grow", "move"]
    rng = random.Random(7)
    while steps:
        try:
            if steps[0] == "make":
                await topics.create_topic(client, "t", TopicSettings(partitions=2), rng=rng)
            view = await topics.describe_topic(client, "t")
            if steps[0] == "grow" and len(view.partitions) == 2:
                await topics.add_partitions(client, "t", 1)
            if steps[0] == "move" and len(view.partitions[2].spans) == 1:
                placement = view.partitions[2]
                target = "b2" if placement.writer_group == "b1" else "b1"
                await topics.change_placement(client, view, move(placement, 10, target))
        except (ConnectionLost, SessionExpired):
            continue
        except TopicExists:
            assert steps[0] == "make"
        del steps[0]


@pytest.mark.parametrize("fault", FAULTS)
async def test_topic_changes_survive_a_fault_at_every_call(fault: str) -> None:
    """Whichever call is struck, the end is the same topic, moved once."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(clock=clock_of_loop(), reconnect_delay_s=0.0)
        async with client_of(ensemble) as brokers, client_of(ensemble) as client:
            await add_broker(brokers, "b1")
            await add_broker(brokers, "b2")
            strike(ensemble, client, fault, skip)
            await topic_story(client)
            was_struck = disarm(client)
            view = await topics.describe_topic(client, "t")
            assert len(view.partitions) == 3
            assert [len(p.spans) for p in view.partitions] == [1, 1, 2]
        if not was_struck:
            break
        skip += 1
    assert skip > 15


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_deletion_survives_a_fault_at_every_call(fault: str) -> None:
    """Tried again until the topic is unknown; nothing is left of it."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(clock=clock_of_loop(), reconnect_delay_s=0.0)
        async with client_of(ensemble) as brokers, client_of(ensemble) as client:
            await add_broker(brokers, "b1")
            await topics.create_topic(client, "t", TopicSettings(partitions=2))
            mine = await claims.claim(client, "g", "m", TopicPartition("t", 0))
            await ZooKeeperOffsets(client).commit([(mine, CommittedOffset(offset=5))])
            strike(ensemble, client, fault, skip)
            for _ in range(5):
                try:
                    await topics.delete_topic(client, "t")
                except (ConnectionLost, SessionExpired):
                    continue
                except UnknownTopic:
                    pass
                break
            was_struck = disarm(client)
            assert await topics.list_topics(client) == []
            for parent in (Owner.parent, CommittedOffset.parent):
                assert await client.exists(parent("g", "t")) is None
        if not was_struck:
            break
        skip += 1
    assert skip > 10


async def test_a_claim_on_a_deleted_topic_commits_nothing_into_its_namesake(client) -> None:
    """A member slept through the deletion; its generation must not come round again."""
    partition = TopicPartition("t", 0)
    await topics.create_topic(client, "t")
    slept = await claims.claim(client, "g", "m1", partition)
    done = await ZooKeeperOffsets(client).commit(
        [(slept, CommittedOffset(offset=500, member="m1"))]
    )
    await topics.delete_topic(client, "t")
    await topics.create_topic(client, "t")
    fresh = await known(client, await claims.claim(client, "g", "m2", partition))
    assert fresh.committed is None
    progress = CommittedOffset(offset=10, member="m2")
    assert (await ZooKeeperOffsets(client).commit([(fresh, progress)])).stale == ()
    late = await ZooKeeperOffsets(client).commit(
        [(done.done[partition], CommittedOffset(offset=600))]
    )
    assert late.stale == (partition,)
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {partition: progress}


async def test_progress_is_reset_on_a_topic_made_anew(client) -> None:
    """Also when the group has not claimed anything of it since."""
    partition = TopicPartition("t", 0)
    await topics.create_topic(client, "t")
    await claims.claim(client, "g", "m1", partition)
    await topics.delete_topic(client, "t")
    await topics.create_topic(client, "t")
    await ZooKeeperOffsets(client).reset("g", partition, CommittedOffset(offset=7))
    mine = await known(client, await claims.claim(client, "g", "m1", partition))
    assert mine.committed == CommittedOffset(offset=7)


async def test_a_touch_that_read_an_old_placement_writes_nothing(
    client: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lags behind at the first read and has caught up at the write."""
    view = await topics.create_topic(client, "t")
    path = Partition.path("t", 0)
    old = await client.get(path)
    moved = move(view.partitions[0], 5, "b3")
    await topics.change_placement(client, view, moved)
    get = client.get

    async def lag(asked: str, **fields: Any) -> Any:
        return old if asked == path else await get(asked, **fields)

    with monkeypatch.context() as changed:
        changed.setattr(client, "get", lag)
        with pytest.raises(BadVersion):
            await topics.touch_partition(client, "t", 0, 1)
    now = await topics.describe_topic(client, "t")
    assert (now.partitions, now.partition_versions) == ((moved,), (1,))


async def test_a_topic_keeps_its_origin(client) -> None:
    """Whatever is changed: it says who created the topic."""
    origin = TopicOrigin(client="c", host="h", time_ms=7, auto=True)
    await topics.create_topic(client, "t", TopicSettings(partitions=2), origin=origin)
    view = await topics.change_settings(client, "t", TopicSettings(partitions=2, retention_hours=5))
    assert view.origin == origin
    assert (await topics.add_partitions(client, "t", 1)).origin == origin
    [summary] = await summaries.summarize_topics(client)
    assert summary.origin == origin
    await topics.create_topic(client, "large", TopicSettings(partitions=501), origin=origin)
    assert (await topics.describe_topic(client, "large")).origin == origin
