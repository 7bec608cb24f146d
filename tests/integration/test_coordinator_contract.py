"""The contract of the Coordinator port: one suite over the in-memory twin and a real ZooKeeper.

Whatever holds here holds in simulations and in production alike, so the twin cannot drift.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.waiting import WAIT_S, block_until, until_true
from support.zookeeper import ZooKeeperRoot, admin, expire_session

from vq.clock import SystemClock
from vq.coordination.coordinator import (
    NODE_BYTES_MAX,
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    EventKind,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    Set,
    WatchEvent,
)
from vq.coordination.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.zk import ZooKeeperCoordinator
from vq.errors import CoordinationError, InvalidArgument, InvalidState


class Ensemble:
    """What the suite needs of either implementation, beyond the port itself."""

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        raise AssertionError

    async def expire(self, client: Coordinator) -> None:
        raise AssertionError

    async def blink(self, client: Coordinator) -> None:
        """Break the connection once; the client finds its way back."""
        raise AssertionError

    def lose_next_reply(self, client: Coordinator) -> None:
        raise AssertionError

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        """Hold the answer to the client's next call back."""
        raise AssertionError

    def expire_unheard(self, client: Coordinator) -> None:
        """Hold the loop up until the client's session has ended and the next one is there."""
        raise AssertionError

    def outlive_next(self, client: Coordinator) -> None:
        """Have the next call sent in the session after the one it is begun in."""
        raise AssertionError

    def lag(self, client: Coordinator) -> None:
        """Let the client's server fall behind, where that can be had."""
        raise AssertionError

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        """Hold the loop up until the call under way is answered and ``path`` changed after it."""
        raise AssertionError


class InMemory(Ensemble):
    """The twin."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._ensemble = MemoryEnsemble()

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        made = self._ensemble.coordinator(cluster, **({"session_timeout_s": 4.0} | options))
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    async def expire(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.expire(client)

    async def blink(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.blink(client)

    def lose_next_reply(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.lose_next_reply(client)

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        assert isinstance(client, MemoryCoordinator)
        client._reply_pipe._delay = lambda: seconds

    def expire_unheard(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.expire_unheard(client)

    def outlive_next(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.outlive_next(client)

    def lag(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.lag(client)

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        assert isinstance(client, MemoryCoordinator)
        while not client._reply_pipe._items:
            await asyncio.sleep(0)
        self._ensemble.apply([Set(client._full(path), b"changed")], 0)


class Real(Ensemble):
    """A real ZooKeeper."""

    def __init__(self, stack: AsyncExitStack, root: ZooKeeperRoot) -> None:
        self._stack = stack
        self._root = root

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        made = self._root.coordinator(cluster, **options)
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    async def expire(self, client: Coordinator) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        await asyncio.to_thread(expire_session, client)

    async def blink(self, client: Coordinator) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        assert client._client is not None
        client._client._connection._socket.shutdown(2)

    def lose_next_reply(self, client: Coordinator) -> None:
        """Cut the connection when the next answer to a request (not to a ping) is to be read."""
        assert isinstance(client, ZooKeeperCoordinator)
        assert client._client is not None
        connection = client._client._connection
        read = connection._read_response

        def cut(*_: Any) -> None:
            connection._read_response = read
            from kazoo.protocol.connection import ConnectionDropped

            raise ConnectionDropped("cut by the test")

        connection._read_response = cut

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        assert client._client is not None
        connection = client._client._connection
        read = connection._read_response

        def late(*arguments: Any) -> Any:
            connection._read_response = read
            time.sleep(seconds)  # of kazoo's thread
            return read(*arguments)

        connection._read_response = late

    def expire_unheard(self, client: Coordinator) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        assert client._client is not None
        before = client.session_id
        expire_session(client)  # blocks
        block_until(lambda: _session_of(client) not in {0, before})

    def outlive_next(self, client: Coordinator) -> None:
        """End the session between the look at it and the sending, which no check can close."""
        assert isinstance(client, ZooKeeperCoordinator)
        kazoo = client._client
        assert kazoo is not None
        send = kazoo._call

        def late(*arguments: Any) -> Any:
            kazoo._call = send
            self.expire_unheard(client)
            return send(*arguments)

        kazoo._call = late

    def lag(self, client: Coordinator) -> None:
        """Nothing to do: the only server of an ensemble is never behind, and need not be."""

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        assert client._client is not None
        kazoo = client._client
        full = client._full(path)
        block_until(lambda: bool(kazoo._data_watchers.get(full)))  # so the answer was read
        with admin(client._hosts) as other:
            other.set(full, b"changed")
        block_until(lambda: not kazoo._data_watchers.get(full))  # and the event was
        kazoo.exists_async("/").get(timeout=WAIT_S)  # what came before it was handed to the loop


def _session_of(client: ZooKeeperCoordinator) -> int:
    identity = client._client.client_id if client._client is not None else None
    return identity[0] if identity else 0


@pytest.fixture(params=["memory", "real"])
async def ensemble(request: pytest.FixtureRequest) -> AsyncIterator[Ensemble]:
    """Either implementation; every client it made is closed afterwards."""
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield InMemory(stack)
        else:
            yield Real(stack, request.getfixturevalue("zookeeper_root"))


@pytest.fixture(autouse=True)
def _need_zookeeper(request: pytest.FixtureRequest) -> None:
    """Start the real server outside of the running loop, for it blocks."""
    if "real" in request.node.callspec.id:
        request.getfixturevalue("zookeeper_root")


class Hints:
    """Collects watch events, and waits for them with a deadline."""

    def __init__(self) -> None:
        self.seen: list[WatchEvent] = []
        self._came = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.seen.append(event)
        self._came.set()

    async def next(self) -> WatchEvent:
        async with asyncio.timeout(WAIT_S):
            while not self.seen:
                self._came.clear()
                await self._came.wait()
        return self.seen.pop(0)


class States:
    """Counts the transitions a listener is told."""

    def __init__(self, client: Coordinator) -> None:
        self.seen: list[SessionState] = []
        self._came = asyncio.Event()
        self.remove = client.add_listener(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        self.seen.append(state)
        self._came.set()

    async def until(self, *wanted: SessionState) -> None:
        await self._until(lambda: tuple(self.seen[-len(wanted) :]) == wanted)

    async def until_seen(self, wanted: SessionState) -> None:
        """The same for a state that may have passed already."""
        await self._until(lambda: wanted in self.seen)

    async def _until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not met():
                self._came.clear()
                await self._came.wait()


# Values and versions ----------------------------------------------------------------------------
async def test_a_created_node_is_read_back_with_its_stat(ensemble: Ensemble) -> None:
    """Create returns the stat that get shows; a new node has version 0 and no owner."""
    client = await ensemble.client()
    stat = await client.create("a", b"value")
    node = await client.get("a")
    assert node.data == b"value"
    assert node.stat == stat
    assert (stat.version, stat.ephemeral_owner) == (0, 0)
    assert stat.czxid > 0
    assert abs(stat.mtime_ms - SystemClock().wall_ms()) < 60_000


async def test_set_raises_the_version_and_refuses_an_old_one(ensemble: Ensemble) -> None:
    """A versioned set is compare-and-set; -1 sets whatever is there."""
    client = await ensemble.client()
    await client.create("a", b"0")
    assert (await client.set("a", b"1", version=0)).version == 1
    with pytest.raises(BadVersion) as caught:
        await client.set("a", b"2", version=0)
    assert caught.value.path == "a"
    assert (await client.set("a", b"3")).version == 2
    assert (await client.get("a")).data == b"3"


async def test_a_node_made_again_has_a_new_czxid_and_version_0(ensemble: Ensemble) -> None:
    """Why a version check on a re-created node is no fence, and the czxid is an incarnation."""
    client = await ensemble.client()
    first = await client.create("a")
    await client.set("a", b"x")
    await client.delete("a")
    second = await client.create("a")
    assert second.version == 0
    assert second.czxid > first.czxid


async def test_missing_nodes_are_told(ensemble: Ensemble) -> None:
    """Reads and writes of a missing node raise NoNode with its path; exists returns None."""
    client = await ensemble.client()
    assert await client.exists("no") is None
    for call in (
        client.get("no"),
        client.children("no"),
        client.set("no", b""),
        client.delete("no"),
    ):
        with pytest.raises(NoNode) as caught:
            await call
        assert caught.value.path == "no"
    with pytest.raises(NoNode):
        await client.create("no/child")


async def test_a_node_is_created_once(ensemble: Ensemble) -> None:
    """The second create raises NodeExists and changes nothing."""
    client = await ensemble.client()
    await client.create("a", b"first")
    with pytest.raises(NodeExists):
        await client.create("a", b"second")
    assert (await client.get("a")).data == b"first"


async def test_parents_are_made_on_request(ensemble: Ensemble) -> None:
    """With parents=True the missing nodes above are made, empty and persistent."""
    client = await ensemble.client()
    await client.create("a/b/c", b"x", parents=True, ephemeral=True)
    assert (await client.get("a/b")).data == b""
    await client.create("a/b/d", parents=True)
    assert await client.children("a/b") == ["c", "d"]


async def test_children_are_sorted_names(ensemble: Ensemble) -> None:
    """Names only, sorted; the root is the empty path."""
    client = await ensemble.client()
    for name in ("b", "c", "a"):
        await client.create(name)
    assert await client.children("") == ["a", "b", "c"]


async def test_delete_checks_version_and_children(ensemble: Ensemble) -> None:
    """A delete with an old version, or of a node with children, changes nothing."""
    client = await ensemble.client()
    await client.create("a/b", parents=True)
    with pytest.raises(NotEmpty):
        await client.delete("a")
    with pytest.raises(BadVersion):
        await client.delete("a/b", version=3)
    await client.delete("a/b", version=0)
    assert await client.children("a") == []


async def test_clusters_do_not_see_each_other(ensemble: Ensemble) -> None:
    """Paths are relative to the cluster's root."""
    one, two = await ensemble.client("one"), await ensemble.client("two")
    await one.create("a", b"1")
    assert await two.exists("a") is None


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", "a/../b", ".", "a\0b"])
async def test_paths_that_are_not_ours_are_refused(ensemble: Ensemble, path: str) -> None:
    """Absolute and dotted paths never reach ZooKeeper."""
    client = await ensemble.client()
    with pytest.raises(InvalidArgument):
        await client.create(path)


async def test_values_have_a_bound(ensemble: Ensemble) -> None:
    """The largest value is taken, one byte more is refused before it is sent."""
    client = await ensemble.client()
    await client.create("a", b"x" * NODE_BYTES_MAX)
    assert len((await client.get("a")).data) == NODE_BYTES_MAX
    with pytest.raises(InvalidArgument, match=str(NODE_BYTES_MAX)):
        await client.set("a", b"x" * (NODE_BYTES_MAX + 1))


# multi ------------------------------------------------------------------------------------------
async def test_a_multi_applies_everything(ensemble: Ensemble) -> None:
    """All four operations work together; a Set answers with its new stat."""
    client = await ensemble.client()
    await client.create("a", b"0")
    await client.create("b")
    results = await client.multi(
        [Check("a", 0), Set("a", b"1", 0), Create("c", b"new", True), Delete("b")]
    )
    assert [r is not None for r in results] == [False, True, False, False]
    assert results[1] is not None
    assert results[1].version == 1
    assert await client.children("") == ["a", "c"]
    assert (await client.get("c")).stat.ephemeral_owner == client.session_id


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Check("a", 7), BadVersion),
        (Check("no", -1), NoNode),
        (Set("a", b"2", 7), BadVersion),
        (Set("no", b"2"), NoNode),
        (Create("a"), NodeExists),
        (Create("no/child"), NoNode),
        (Delete("a", 7), BadVersion),
        (Delete("no"), NoNode),
        (Delete("parent"), NotEmpty),
    ],
)
async def test_a_multi_with_a_failing_part_raises_and_changes_nothing(
    ensemble: Ensemble, operation: Any, error: type[CoordinationError]
) -> None:
    """The error is that of the failing part and names its index; nothing else was applied."""
    client = await ensemble.client()
    await client.create("a", b"0")
    await client.create("parent/child", parents=True)
    with pytest.raises(error) as caught:
        await client.multi([Set("a", b"1"), Create("d"), operation, Create("e")])
    # The failing part is seen in the tree as the parts before it left it.
    assert caught.value.details["index"] == 2
    assert caught.value.details["path"] == operation.path
    assert (await client.get("a")).data == b"0"
    assert await client.children("") == ["a", "parent"]


async def test_a_multi_may_replace_a_node(ensemble: Ensemble) -> None:
    """Delete and create of one path in one multi: the new node has a new czxid."""
    client = await ensemble.client()
    before = await client.create("a", b"old", ephemeral=True)
    await client.multi([Delete("a", 0), Create("a", b"new", True)])
    after = await client.get("a")
    assert after.data == b"new"
    assert after.stat.czxid > before.czxid


async def test_multis_are_atomic_between_clients(ensemble: Ensemble) -> None:
    """Of many compare-and-sets on one version exactly one wins."""
    one, two = await ensemble.client(), await ensemble.client()
    await one.create("a", b"")

    async def attempt(client: Coordinator, name: str) -> bool:
        try:
            await client.multi([Set("a", name.encode(), 0), Create(name)])
        except BadVersion:
            return False
        return True

    tries = [attempt(client, f"{n}-{i}") for i in range(8) for n, client in enumerate((one, two))]
    won = await asyncio.gather(*tries)
    assert sum(won) == 1
    assert len(await one.children("")) == 2


async def test_a_multi_has_bounds(ensemble: Ensemble) -> None:
    """Empty and oversize multis are refused before they are sent."""
    client = await ensemble.client()
    with pytest.raises(InvalidArgument):
        await client.multi([])
    with pytest.raises(InvalidArgument):
        await client.multi([Check("", -1)] * 1001)
    with pytest.raises(InvalidArgument):
        await client.multi([Create("a", b"x" * NODE_BYTES_MAX), Create("b", b"x")])


# Watches ----------------------------------------------------------------------------------------
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
    begin = asyncio.get_running_loop().time()
    if isinstance(client, MemoryCoordinator):
        assert hints.seen
    assert (await hints.next()).kind is EventKind.CHANGED
    assert asyncio.get_running_loop().time() - begin < 2.0


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


# Sessions ---------------------------------------------------------------------------------------
async def test_a_clean_close_takes_the_ephemerals_along(ensemble: Ensemble) -> None:
    """They are gone as soon as close returns; persistent nodes stay."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("eph", ephemeral=True)
    await client.create("per")
    await client.close()
    await other.sync()
    assert await other.children("") == ["per"]
    assert client.state is SessionState.CLOSED
    assert client.session_id == 0
    assert client.last_reply_monotonic == -math.inf
    with pytest.raises(InvalidState):
        await client.get("per")
    await client.close()


async def test_ephemerals_carry_their_session(ensemble: Ensemble) -> None:
    """Two sessions differ, and each node says whose it is."""
    one, two = await ensemble.client(), await ensemble.client()
    await one.create("a", ephemeral=True)
    stat = await two.exists("a")
    assert stat is not None
    assert stat.ephemeral_owner == one.session_id
    assert one.session_id != two.session_id
    with pytest.raises(CoordinationError):
        await two.create("a/child")


async def test_a_blink_keeps_session_and_ephemerals(ensemble: Ensemble) -> None:
    """Connection loss is not session loss: SUSPENDED, then CONNECTED with the same session."""
    client = await ensemble.client(session_timeout_s=30.0)
    session = client.session_id
    await client.create("eph", ephemeral=True)
    states = States(client)
    await ensemble.blink(client)
    await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert SessionState.LOST not in states.seen
    assert client.session_id == session
    assert await client.exists("eph") is not None


async def test_an_expired_session_is_lost_and_followed_by_a_new_one(ensemble: Ensemble) -> None:
    """LOST is always told, then CONNECTED with another session id; ephemerals are gone."""
    client, other = await ensemble.client(), await ensemble.client()
    session = client.session_id
    await client.create("eph", ephemeral=True)
    await client.create("per")
    states = States(client)
    await ensemble.expire(client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    assert states.seen.count(SessionState.LOST) == 1
    assert client.session_id not in {0, session}
    assert await other.exists("eph") is None
    await client.create("eph", ephemeral=True)
    assert (await client.get("eph")).stat.ephemeral_owner == client.session_id


async def test_an_expired_session_can_be_expired_again(ensemble: Ensemble) -> None:
    """The coordinator survives any number of lost sessions."""
    client = await ensemble.client()
    states = States(client)
    sessions = {client.session_id}
    for _ in range(3):
        await ensemble.expire(client)
        await states.until(SessionState.LOST, SessionState.CONNECTED)
        states.seen.clear()
        sessions.add(client.session_id)
    assert len(sessions) == 4


CALLS: dict[str, Callable[[Coordinator], Awaitable[object]]] = {
    "create": lambda client: client.create("new", b"", ephemeral=True),
    "set": lambda client: client.set("a", b"1"),
    "delete": lambda client: client.delete("a"),
    "multi": lambda client: client.multi([Set("a", b"1"), Create("new", b"", True)]),
    "get": lambda client: client.get("a"),
    "exists": lambda client: client.exists("a"),
    "children": lambda client: client.children("a"),
    "sync": lambda client: client.sync(),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_is_not_sent_in_the_session_after_its_own(
    ensemble: Ensemble, call: str
) -> None:
    """The loop was held up while the session ended: SessionExpired, and nothing was applied."""
    client, other = await ensemble.client(), await ensemble.client()
    await client.create("a", b"0")
    session = client.session_id
    states = States(client)
    ensemble.expire_unheard(client)
    assert client.session_id == session  # the news waits
    with pytest.raises(SessionExpired):
        await CALLS[call](client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    await other.sync()
    assert (await other.get("a")).data == b"0"
    assert await other.exists("new") is None


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_outlived_its_session_is_not_said_to_be_done(
    ensemble: Ensemble, call: str
) -> None:
    """What was sent in the next session is unknown to its caller, who reads; reads ask again."""
    client = await ensemble.client()
    await client.create("a", b"0")
    session = client.session_id
    ensemble.outlive_next(client)
    with pytest.raises((ConnectionLost, SessionExpired)) as caught:
        await CALLS[call](client)
    assert client.session_id not in {0, session}
    if call in {"get", "exists", "children"}:
        assert caught.type is SessionExpired
        return
    assert caught.type is ConnectionLost  # SessionExpired would say that nothing was applied
    if call in {"create", "multi"}:
        made = await client.exists("new")
        assert made is not None
        assert made.ephemeral_owner == client.session_id


@pytest.mark.slow
async def test_a_refusal_that_outlived_its_session_applied_nothing(ensemble: Ensemble) -> None:
    """It is no news of the session that the call was begun in: SessionExpired."""
    client = await ensemble.client()
    await client.create("a", b"0")
    ensemble.outlive_next(client)
    with pytest.raises(SessionExpired):
        await client.set("a", b"1", version=7)
    assert (await client.get("a")).stat.version == 0


async def test_calls_during_a_blink_wait_for_the_connection(ensemble: Ensemble) -> None:
    """SUSPENDED pauses; it does not fail what was not sent yet."""
    client = await ensemble.client()
    await client.create("a", b"0")
    states = States(client)
    await ensemble.blink(client)
    await states.until_seen(SessionState.SUSPENDED)
    assert (await client.get("a")).data == b"0"


async def test_a_lost_reply_says_unknown_and_the_write_was_applied(ensemble: Ensemble) -> None:
    """The caller gets ConnectionLost and settles it by reading; nothing was sent twice."""
    client = await ensemble.client(session_timeout_s=30.0)  # no heartbeat's answer is the next
    await client.create("a", b"0")
    ensemble.lose_next_reply(client)
    with pytest.raises(ConnectionLost):
        await client.set("a", b"1")
    node = await client.get("a")
    assert (node.data, node.stat.version) == (b"1", 1)


async def test_a_lost_reply_of_a_multi_leaves_it_applied_once(ensemble: Ensemble) -> None:
    """The same for a multi; repeating it with its version fails, so it cannot apply twice."""
    client = await ensemble.client(session_timeout_s=30.0)
    await client.create("a", b"0")
    operations = [Set("a", b"1", 0), Create("b", b"", True)]
    ensemble.lose_next_reply(client)
    with pytest.raises(ConnectionLost):
        await client.multi(operations)
    with pytest.raises(BadVersion):
        await client.multi(operations)
    assert await client.children("") == ["a", "b"]


async def test_the_lease_is_renewed_by_answers_and_by_the_heartbeat(ensemble: Ensemble) -> None:
    """last_reply_monotonic is the sending time of an answered write or sync."""
    clock = SystemClock()
    client = await ensemble.client()
    before = clock.monotonic()
    await client.sync()
    assert before <= client.last_reply_monotonic <= clock.monotonic()
    last = client.last_reply_monotonic

    async def renewed() -> bool:
        await asyncio.sleep(0.02)
        return client.last_reply_monotonic > last

    await until_true(renewed)


async def test_the_lease_counts_from_the_sending_not_from_the_answer(ensemble: Ensemble) -> None:
    """What proves that the session lived is that the request was carried out."""
    clock = SystemClock()
    client = await ensemble.client(session_timeout_s=30.0)  # no heartbeat's answer is the next
    held_s = 0.3
    ensemble.delay_next_answer(client, held_s)
    before = clock.monotonic()
    await client.sync()
    after = clock.monotonic()
    assert before <= client.last_reply_monotonic <= after - held_s


async def test_a_refusal_is_an_answer_too(ensemble: Ensemble) -> None:
    """A failed compare-and-set proves that the session lives."""
    clock = SystemClock()
    client = await ensemble.client()
    await client.create("a")
    before = clock.monotonic()
    with pytest.raises(NodeExists):
        await client.create("a")
    assert client.last_reply_monotonic >= before


async def test_a_lost_session_has_no_lease(ensemble: Ensemble) -> None:
    """From SUSPENDED on the lease only ages; at LOST it is gone."""
    client = await ensemble.client()
    await client.sync()
    at_loss = []
    client.add_listener(
        lambda state: (
            at_loss.append(client.last_reply_monotonic) if state is SessionState.LOST else None
        )
    )
    states = States(client)
    await ensemble.expire(client)
    await states.until(SessionState.LOST, SessionState.CONNECTED)
    assert at_loss == [-math.inf]


async def test_a_removed_or_failing_listener_harms_nobody(ensemble: Ensemble) -> None:
    """Removed ones hear nothing more; one that raises does not keep the news from others."""
    client = await ensemble.client()

    def bad(_: SessionState) -> None:
        raise ValueError("bad listener")

    client.add_listener(bad)
    removed = States(client)
    removed.remove()
    states = States(client)
    await ensemble.blink(client)
    await states.until(SessionState.SUSPENDED, SessionState.CONNECTED)
    assert removed.seen == []


async def test_many_calls_at_once_are_all_answered(ensemble: Ensemble) -> None:
    """More calls than may be in flight wait their turn."""
    client = await ensemble.client()
    await client.create("a")
    await asyncio.gather(*(client.set("a", b"x") for _ in range(1500)))
    assert (await client.get("a")).stat.version == 1500


async def test_a_cancelled_call_harms_nobody(ensemble: Ensemble) -> None:
    """Its answer is dropped; later calls work."""
    client = await ensemble.client()
    await client.create("a")
    call = asyncio.ensure_future(client.set("a", b"1"))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.sync()
    assert (await client.get("a")).stat.version in {0, 1}


async def test_a_coordinator_starts_once(ensemble: Ensemble) -> None:
    """A second start is a mistake; so is a call before the first."""
    client = await ensemble.client()
    with pytest.raises(InvalidState):
        await client.start()


async def test_many_clients_start_together(ensemble: Ensemble) -> None:
    """They may all make the cluster's root."""
    clients = await asyncio.gather(*(ensemble.client("fresh") for _ in range(5)))
    assert len({client.session_id for client in clients}) == 5
