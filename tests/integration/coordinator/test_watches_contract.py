"""A watch tells of a change once, and no reader misses a change behind a stale read."""

import asyncio

import pytest
from support.coordinator_contract import Ensemble, Hints, States

from vq.coordination.tree.coordinator import EventKind, NodeExists, NoNode, SessionState, WatchEvent
from vq.coordination.tree.memory import MemoryCoordinator
from vq.testing.waiting import until_true


async def test_a_watch_fires_once(ensemble: Ensemble) -> None:
    """One-shot: the second change is not told unless the watch is set again."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    hints = Hints()
    await client.get("a", watch=hints)
    await other.set("a", b"1")
    assert await hints.next() == WatchEvent(EventKind.CHANGED, "a")
    await other.set("a", b"2")
    await client.sync()
    await client.get("a")
    assert hints.seen == []


async def test_equal_watches_on_one_path_fire_once(ensemble: Ensemble) -> None:
    """Setting the same watch again does not add another."""
    client = await ensemble.client()
    await client.create("a")
    hints = Hints()
    for _ in range(5):
        await client.get("a", watch=hints)
    await client.set("a", b"1")
    await hints.next()
    await client.get("a")
    assert hints.seen == []


async def test_exists_watches_a_node_that_is_not_there_yet(ensemble: Ensemble) -> None:
    """It tells of the creation; a get of a missing node leaves no watch."""
    client = await ensemble.client()
    hints, none = Hints(), Hints()
    assert await client.exists("a", watch=hints) is None
    with pytest.raises(NoNode):
        await client.get("a", watch=none)
    with pytest.raises(NoNode):
        await client.children("a", watch=none)
    await client.create("a")
    assert await hints.next() == WatchEvent(EventKind.CREATED, "a")
    await client.get("a")
    assert none.seen == []


async def test_children_watches_tell_of_names_not_of_values(ensemble: Ensemble) -> None:
    """A child that comes or goes is told; a child whose value changes is not."""
    client = await ensemble.client()
    await client.create("a/b", parents=True)
    hints = Hints()
    await client.children("a", watch=hints)
    await client.set("a/b", b"x")
    await client.set("a", b"x")
    await client.create("a/c")
    assert await hints.next() == WatchEvent(EventKind.CHILDREN, "a")
    await client.children("a", watch=hints)
    await client.delete("a/c")
    assert await hints.next() == WatchEvent(EventKind.CHILDREN, "a")


async def test_a_deletion_is_told_to_both_kinds_of_watch(ensemble: Ensemble) -> None:
    """Value and children watches see DELETED."""
    client = await ensemble.client()
    await client.create("a")
    value, names = Hints(), Hints()
    await client.get("a", watch=value)
    await client.children("a", watch=names)
    await client.delete("a")
    assert (await value.next()).kind is EventKind.DELETED
    assert (await names.next()).kind is EventKind.DELETED


async def test_an_event_comes_before_a_read_that_shows_the_change(ensemble: Ensemble) -> None:
    """Who sees the new value has had the hint already, or gets it in this very turn.

    With a real ZooKeeper the two come by different threads: the hint may be a little later.
    """
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    hints = Hints()
    await client.get("a", watch=hints)
    await other.set("a", b"1")

    async def shows() -> bool:
        return (await client.get("a")).data == b"1"

    await until_true(shows)
    await asyncio.sleep(0)
    if isinstance(client, MemoryCoordinator):
        assert hints.seen
    assert (await hints.next()).kind is EventKind.CHANGED


async def test_a_lost_connection_is_told_to_every_watch(ensemble: Ensemble) -> None:
    """DISCONNECTED means: the watch is gone, read again."""
    client = await ensemble.client()
    await client.create("a")
    hints = Hints()
    states = States(client)
    await client.get("a", watch=hints)
    await ensemble.blink(client)
    assert await hints.next() == WatchEvent(EventKind.DISCONNECTED, "")  # whichever path it was on
    await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    await client.set("a", b"1")
    await client.sync()
    assert hints.seen == []


async def test_a_watch_may_be_called_before_its_reader_resumes(ensemble: Ensemble) -> None:
    """Answer and event may reach the loop in one turn: a hint must not be lost then."""
    client = await ensemble.client()
    await client.create("a", b"0")
    order: list[str] = []

    async def read() -> bytes:
        node = await client.get("a", watch=lambda _: order.append("hint"))
        order.append("read")
        return node.data

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    await ensemble.answer_and_change(client, "a")
    assert await reading == b"0"
    assert order == ["hint", "read"]


async def test_a_stale_read_is_followed_by_a_hint(ensemble: Ensemble) -> None:
    """A server may be behind: what a read does not show, its watch tells of."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    ensemble.lag(client)
    await other.set("a", b"1")
    hints = Hints()
    shown = (await client.get("a", watch=hints)).data
    await client.sync()
    if shown == b"0":
        assert await hints.next() == WatchEvent(EventKind.CHANGED, "a")
    assert (await client.get("a")).data == b"1"
    assert hints.seen == []


@pytest.mark.parametrize("how", ["sync", "write", "refused write", "blink"])
async def test_after_a_sync_or_a_write_reads_are_fresh(ensemble: Ensemble, how: str) -> None:
    """So they are when the connection was made anew, and the value before is never seen again."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    await client.create("b/c", parents=True)
    ensemble.lag(client)
    await other.set("a", b"1")
    await other.create("b/d")
    match how:
        case "sync":
            await client.sync()
        case "write":
            await client.set("b", b"x")
        case "refused write":
            with pytest.raises(NodeExists):
                await client.create("b/c")
        case _:
            states = States(client)
            await ensemble.blink(client)
            await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
            await client.sync()
    assert (await client.get("a")).data == b"1"
    assert await client.children("b") == ["c", "d"]
    assert await client.exists("b/d") is not None


async def test_a_failing_watch_harms_nobody_else(ensemble: Ensemble) -> None:
    """An exception in one callback is logged; others are called."""
    client = await ensemble.client()
    await client.create("a")
    hints = Hints()

    def bad(_: WatchEvent) -> None:
        raise ValueError("bad watch")

    await client.get("a", watch=bad)
    await client.get("a", watch=hints)
    await client.set("a", b"1")
    assert (await hints.next()).kind is EventKind.CHANGED
    assert (await client.get("a")).data == b"1"
