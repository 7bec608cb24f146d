"""Routes: what a watcher shows, how it learns of changes, and what it keeps while cut off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.coordination import LeadingBroker, client_of, expire

from vq.coordination.brokers.registry import read_state
from vq.coordination.topics import routes as routes_module
from vq.coordination.topics import topics
from vq.coordination.topics.placement import close_span, move
from vq.coordination.topics.routes import CopyNode, Master, Routes, RouteWatcher
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import InvalidState, UnknownTopic
from vq.model import Address, PartitionState, Span, TopicSettings
from vq.testing.waiting import WAIT_S, until


@pytest.fixture
async def admin(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    """A client of a cluster with two brokers that run beside it."""
    async with client_of(ensemble) as made:
        brokers = [
            LeadingBroker(made, group=group, address=Address("127.0.0.1", port))
            for group, port in (("b1", 1), ("b2", 2))
        ]
        for broker in brokers:
            await broker.start()
        yield made
        for broker in brokers:
            await broker.stop()


@pytest.fixture
async def watcher(client: MemoryCoordinator) -> AsyncIterator[RouteWatcher]:
    made = RouteWatcher(client)
    yield made
    await made.close()


async def test_a_topic_is_shown_with_its_masters(admin, watcher) -> None:
    """Placement, settings, addresses and epochs, in one immutable snapshot."""
    view = await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    placements = await watcher.track("t")
    assert placements == view.partitions
    routes = watcher.snapshot
    assert routes.partitions("t") == view.partitions
    assert routes.topic("t").id == view.id
    assert routes.master("b1") == (Address("127.0.0.1", 1), 1)
    assert routes.master("b2") == (Address("127.0.0.1", 2), 1)
    assert routes.master("b3") is None


async def test_an_unknown_topic_appears_once_it_is_made(admin, watcher) -> None:
    """Tracking it raises now, but is remembered."""
    with pytest.raises(UnknownTopic, match="vq topic create t"):
        await watcher.track("t")
    with pytest.raises(UnknownTopic):
        watcher.snapshot.partitions("t")
    await topics.create_topic(admin, "t")
    await until(lambda: "t" in watcher.snapshot.topics)


async def test_a_move_is_seen(admin, watcher) -> None:
    """First closed, then open elsewhere: spans, not copies."""
    view = await topics.create_topic(admin, "t")
    group = view.partitions[0].writer_group
    target = "b2" if group == "b1" else "b1"
    await watcher.track("t")
    told: list[Routes] = []
    watcher.on_change(told.append)
    view = await topics.change_placement(admin, view, close_span(view.partitions[0], 77))
    await until(lambda: told)
    assert told[-1].partitions("t")[0].state is PartitionState.RO
    started = view.partitions[0]
    reopened = move(close_reopened(started), 77, target)
    await topics.change_placement(admin, view, reopened)
    await until(lambda: watcher.snapshot.partitions("t")[0].writer_group == target)
    assert watcher.snapshot.partitions("t")[0].spans == (Span(group, 0, 77), Span(target, 77))
    await until(lambda: watcher.snapshot.master(target) is not None)


def close_reopened(placement):
    """The same placement with its last span open again, to be moved in one step."""
    spans = (*placement.spans[:-1], replace(placement.spans[-1], end=None))
    return replace(placement, spans=spans)


async def test_a_deleted_topic_vanishes(admin, watcher) -> None:
    """And its namesake is shown with its own id."""
    first = await topics.create_topic(admin, "t")
    await watcher.track("t")
    await topics.delete_topic(admin, "t")
    await until(lambda: "t" not in watcher.snapshot.topics)
    second = await topics.create_topic(admin, "t")
    await until(lambda: "t" in watcher.snapshot.topics)
    assert watcher.snapshot.topic("t").id == second.id != first.id


async def test_a_restarted_master_is_shown_with_its_new_epoch(ensemble, admin, watcher) -> None:
    """None while it is away, then the new epoch."""
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    await watcher.track("t")
    seen: list[int | None] = []

    def note(routes: Routes) -> None:
        master = routes.master("b1")
        seen.append(master[1] if master else None)

    watcher.on_change(note)
    await expire(ensemble, admin)
    await until(lambda: 2 in seen)
    assert seen.index(None) < seen.index(2)


async def test_the_first_master_of_a_group_is_seen(admin, watcher) -> None:
    """The group has no record yet when the client looks: a watch tells when there is one."""
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    path = GroupState.path("b1")
    record = (await admin.get(path)).data
    await admin.delete(path)
    await watcher.track("t")
    assert watcher.snapshot.master("b1") is None
    await admin.create(path, record)
    await until(lambda: watcher.snapshot.master("b1") is not None)


async def test_the_picture_stays_while_zookeeper_is_away(ensemble, admin, client, watcher) -> None:
    """Old routes serve on; a change made meanwhile is read after the reconnection."""
    await topics.create_topic(admin, "t")
    await watcher.track("t")
    ensemble.disconnect(client)
    await topics.add_partitions(admin, "t", 1)
    await until(lambda: client.state is SessionState.SUSPENDED)
    assert len(watcher.snapshot.partitions("t")) == 1
    ensemble.reconnect(client)
    await until(lambda: len(watcher.snapshot.partitions("t")) == 2)


async def test_a_lost_watch_event_is_made_good_by_refresh(ensemble, admin, client, watcher) -> None:
    """Hints may vanish; who was refused by a broker reads again."""
    await topics.create_topic(admin, "t")
    await watcher.track("t")
    ensemble.hold_events(client)
    await topics.add_partitions(admin, "t", 1)
    ensemble.release_events(client, drop=True)
    assert len(watcher.snapshot.partitions("t")) == 1
    assert len(await watcher.refresh("t")) == 2


@pytest.mark.parametrize("how", ["audit", "reconnection"])
async def test_lost_watch_events_are_made_good_by_themselves(ensemble, admin, client, how) -> None:
    """Those of topics, of masters and of a topic to come: by the audit, after a reconnection."""
    watcher = RouteWatcher(client, audit_s=0.01 if how == "audit" else 1_000.0)
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    await watcher.track("t")
    with pytest.raises(UnknownTopic):
        await watcher.track("u")
    ensemble.hold_events(client)
    await topics.add_partitions(admin, "t", 1)
    await topics.create_topic(admin, "u")
    await expire(ensemble, admin)
    async with asyncio.timeout(WAIT_S):
        for group in ("b1", "b2"):
            while (await read_state(admin, group)).epoch < 2:
                await asyncio.sleep(0)
    ensemble.release_events(client, drop=True)
    if how == "reconnection":
        assert watcher.snapshot.master("b1") == (Address("127.0.0.1", 1), 1)
        ensemble.disconnect(client)
        ensemble.reconnect(client)
    await until(lambda: len(watcher.snapshot.partitions("t")) == 3)
    await until(lambda: "u" in watcher.snapshot.topics)
    for number, group in enumerate(("b1", "b2"), start=1):
        address = Address("127.0.0.1", number)
        await until(lambda: watcher.snapshot.master(group) == (address, 2))  # noqa: B023
    await watcher.close()


class SlowFirst:
    """A read whose first answer is held back until ``gate`` is set."""

    def __init__(self, read: Callable[..., Awaitable[Any]]) -> None:
        self._read = read
        self.calls = 0
        self.answered = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self, *args: Any, **fields: Any) -> Any:
        self.calls += 1
        first = self.calls == 1
        found = await self._read(*args, **fields)
        if first:
            self.answered.set()
            await self.gate.wait()
        return found


@pytest.mark.parametrize("what", ["topic", "master"])
async def test_an_older_read_does_not_replace_a_newer_one(
    ensemble, admin, client, watcher, monkeypatch, what
) -> None:
    """Of one topic, or of one group, there is one read at a time."""
    await topics.create_topic(admin, "t")
    await watcher.track("t")
    (placement,) = watcher.snapshot.partitions("t")
    group = placement.writer_group or ""
    ensemble.hold_events(client)
    if what == "topic":
        slow = SlowFirst(routes_module.read_topic)
        monkeypatch.setattr(routes_module, "read_topic", slow)
    else:
        get = client.get
        slow = SlowFirst(get)

        async def get_slowly(path: str, **fields: Any) -> Any:
            return await (slow if path == GroupState.path(group) else get)(path, **fields)

        monkeypatch.setattr(client, "get", get_slowly)
    await topics.add_partitions(admin, "t", 1)
    first = asyncio.ensure_future(watcher.refresh("t"))
    await slow.answered.wait()
    await topics.add_partitions(admin, "t", 1)
    await expire(ensemble, admin)
    async with asyncio.timeout(WAIT_S):
        while (await read_state(admin, group)).epoch < 2:
            await asyncio.sleep(0)
    second = asyncio.ensure_future(watcher.refresh("t"))
    await asyncio.wait({second}, timeout=0.1)  # it would end by now if it did not stand in line
    slow.gate.set()
    await asyncio.gather(first, second)
    assert len(watcher.snapshot.partitions("t")) == 3
    master = watcher.snapshot.master(group)
    assert master is not None
    assert master[1] == 2


async def test_snapshots_never_change(admin, watcher) -> None:
    """A reader that holds one sees one state of the world."""
    await topics.create_topic(admin, "t")
    await watcher.track("t")
    before = watcher.snapshot
    await topics.add_partitions(admin, "t", 1)
    await until(lambda: watcher.snapshot.version > before.version)
    assert len(before.partitions("t")) == 1
    with pytest.raises(TypeError):
        before.topics["u"] = before.topic("t")  # type: ignore[index]


async def test_callbacks_may_fail_or_leave(admin, watcher) -> None:
    """A failing one harms nobody; a removed one hears nothing."""
    await topics.create_topic(admin, "t")
    told: list[Routes] = []

    def bad(_: Routes) -> None:
        raise ValueError("bad callback")

    watcher.on_change(bad)
    remove = watcher.on_change(told.append)
    await watcher.track("t")
    assert told
    remove()
    remove()
    count = len(told)
    await topics.add_partitions(admin, "t", 1)
    await until(lambda: len(watcher.snapshot.partitions("t")) == 2)
    assert len(told) == count


async def test_a_closed_watcher_keeps_its_picture_only(admin, watcher) -> None:
    """No new topics, but the last snapshot can be read."""
    await topics.create_topic(admin, "t")
    await watcher.track("t")
    await watcher.close()
    assert len(watcher.snapshot.partitions("t")) == 1
    with pytest.raises(InvalidState):
        await watcher.track("u")


# Hints --------------------------------------------------------------------------------------------
async def test_a_master_that_a_broker_named_is_used_until_zookeeper_says_as_much(
    ensemble, admin, watcher
) -> None:
    """An answer of a server that lags behind does not replace it; one after a sync does."""
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    await watcher.track("t")
    known = watcher.snapshot.masters["b1"]
    told = Master(Address("127.0.0.1", 9), known.epoch + 1, "n2")
    watcher.hint("b1", told)
    assert watcher.snapshot.master("b1") == (told.address, told.epoch)
    path, served = GroupState.path("b1"), ensemble.served
    await admin.set(path, (await admin.get(path)).data)
    await until(lambda: ensemble.served >= served + 4)  # the watcher has read the group again
    await admin.sync()
    assert watcher.snapshot.masters["b1"] == told
    await watcher.refresh("t")
    assert watcher.snapshot.masters["b1"] == known


async def test_a_hint_of_an_older_epoch_or_of_another_group_changes_nothing(admin, watcher) -> None:
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    await watcher.track("t")
    before = watcher.snapshot
    watcher.hint("b1", Master(Address("127.0.0.1", 9), before.masters["b1"].epoch, "n2"))
    watcher.hint("b9", Master(Address("127.0.0.1", 9), 99, "n2"))
    assert watcher.snapshot is before


async def test_copies_in_sync_are_shown_to_who_asks_for_them(admin, watcher) -> None:
    """Those that are registered as the record says, with their racks; before, none are read."""
    await topics.create_topic(admin, "t", TopicSettings(partitions=2))
    for name, rack in (("n2", "blue"), ("n3", ""), ("n4", "")):
        node = Registration(host="h", port=int(name[1:]), rack=rack)
        await admin.create(Registration.path("b1", name), node.encode())
    state = await read_state(admin, "b1")
    czxid = {
        name: (await admin.get(Registration.path("b1", name))).stat.czxid for name in ("n2", "n4")
    }
    record = replace(
        state,
        insync=(*state.insync, "n2", "n4", "n9"),
        incarnations={**state.incarnations, "n2": czxid["n2"], "n4": czxid["n4"] - 1, "n9": 1},
        directories={**state.directories, "n2": "d2", "n4": "d4", "n9": "d9"},
    )
    await admin.set(GroupState.path("b1"), record.encode())
    await watcher.track("t")
    await until(lambda: watcher.snapshot.master("b1"))
    assert watcher.snapshot.masters["b1"].copies == ()
    watcher.read_copies()
    await until(lambda: watcher.snapshot.masters["b1"].copies)
    assert watcher.snapshot.masters["b1"].copies == (CopyNode("n2", Address("h", 2), "blue"),)
    assert watcher.snapshot.masters["b2"].copies == ()
