"""Sessions with a real ZooKeeper that is stopped, paused, wiped or killed under its clients.

client ---- kazoo's thread ---- server (killed, paused, wiped, leader lost)
   |                                |
   +-- registration, slot, routes --+   all must find their way back by themselves
"""

import asyncio
import math
import random
import re
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import pytest
from support.chaos_proxy import UP, ChaosProxy
from support.coordination import LeadingBroker
from support.faults import wait_leader
from support.zookeeper import ZooKeeperRoot, expire_session

from vq.client.config import MessageFactoryConfig
from vq.clock import SystemClock
from vq.coordination.brokers.registry import read_state
from vq.coordination.groups import claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.leases.slots import SlotLease
from vq.coordination.topics import topics
from vq.coordination.topics.routes import RouteWatcher
from vq.coordination.tree.coordinator import ConnectionLost, NodeExists, SessionState
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.devtools import zookeeper as zookeeper_module
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.model import Address, TopicPartition
from vq.operations.cluster.doctor import check_cluster
from vq.remoting.ports import free_port
from vq.testing import waiting
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow
until = partial(waiting.until, timeout_s=PROCESSES_WAIT_S)


class Node:
    """A client with everything that lives on its session, and the transitions it saw."""

    def __init__(self, hosts: str, *, session_timeout_s: float = 1.5, root: str = "/vq") -> None:
        self.coordinator = ZooKeeperCoordinator(
            hosts, "test", session_timeout_s=session_timeout_s, root=root
        )
        self.states: list[SessionState] = []
        self.registration = LeadingBroker(self.coordinator, rng=random.Random(1))
        self.slot = SlotLease(self.coordinator, SystemClock())
        self.routes = RouteWatcher(self.coordinator)

    async def start(self) -> None:
        self.coordinator.add_listener(self.states.append)
        await self.coordinator.start()
        await self.registration.start()
        await self.slot.start()
        await patiently(lambda: topics.create_topic(self.coordinator, "t"))
        await patiently(lambda: self.routes.track("t"))
        self.states.clear()

    async def close(self) -> None:
        await self.routes.close()
        await self.slot.stop()
        await self.registration.stop()
        await self.coordinator.close()

    async def whole_again(self) -> None:
        """Wait until everything is there and agrees with the tree."""
        async with asyncio.timeout(PROCESSES_WAIT_S):
            while not await self._is_whole():
                await asyncio.sleep(0.02)

    async def _is_whole(self) -> bool:
        registered, slot = self.registration.registered, self.slot.slot
        if self.coordinator.state is not SessionState.CONNECTED or not registered or slot is None:
            return False
        with suppress(CoordinationError):
            state = await read_state(self.coordinator, "b1")
            held = await self.coordinator.exists(f"slots/{slot}")
            node = await self.coordinator.exists("brokers/b1/nodes/n1")
            return (
                state is not None
                and node is not None
                and held is not None
                and state.epoch == registered.epoch
                and node.czxid == registered.incarnation == state.incarnations["n1"]
                and node.ephemeral_owner == held.ephemeral_owner == self.coordinator.session_id
                and self.routes.snapshot.master("b1") == (Address("127.0.0.1", 1), registered.epoch)
            )
        return False


async def patiently(call: Callable[[], Awaitable[object]]) -> None:
    """Do it again while answers are lost; what it makes may be there then.

    Sessions are short here, and a busy machine is silent for longer.
    """
    async with asyncio.timeout(PROCESSES_WAIT_S):
        while True:
            with suppress(ConnectionLost):
                with suppress(NodeExists, topics.TopicExists):
                    await call()
                return


async def create(coordinator: ZooKeeperCoordinator, path: str) -> None:
    """Make a node, patiently."""
    await patiently(lambda: coordinator.create(path))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def started(stack: AsyncExitStack, hosts: str, **options: float | str) -> Node:
    node = Node(hosts, **options)
    stack.push_async_callback(node.close)
    await node.start()
    await node.whole_again()
    return node


@pytest.fixture
def server(make_zookeeper: Callable[..., EmbeddedZooKeeper]) -> EmbeddedZooKeeper:
    return make_zookeeper(tick_ms=100)


# Expiry -----------------------------------------------------------------------------------------
async def test_everything_on_a_session_is_made_anew_after_its_expiry(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot
) -> None:
    """Registration with a new epoch and incarnation, another slot, routes that show it."""
    node = await started(
        stack, zookeeper_root.hosts, root=zookeeper_root.root, session_timeout_s=10.0
    )
    before, slot = node.registration.registered, node.slot.slot
    await asyncio.to_thread(expire_session, node.coordinator)
    await until(lambda: SessionState.LOST in node.states)
    await node.whole_again()
    after = node.registration.registered
    assert before is not None
    assert after is not None
    assert after.epoch == before.epoch + 1
    assert after.incarnation > before.incarnation
    assert node.slot.slot != slot


async def test_a_consumer_whose_session_expired_cannot_commit_over_its_successor(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot
) -> None:
    """The fence, against the real server."""
    partition = TopicPartition("t", 0)
    zombie, successor = zookeeper_root.coordinator(), zookeeper_root.coordinator()
    for each in (zombie, successor):
        stack.push_async_callback(each.close)
        await each.start()
    old = await claims.claim(zombie, "g", "m1", partition)
    old = (await ZooKeeperOffsets(zombie).commit([(old, CommittedOffset(offset=10))])).done[
        partition
    ]
    session = zombie.session_id
    await asyncio.to_thread(expire_session, zombie)
    new = await claims.claim(successor, "g", "m2", partition)
    await ZooKeeperOffsets(successor).commit([(new, CommittedOffset(offset=20))])
    await until(lambda: zombie.session_id not in {0, session})
    late = await ZooKeeperOffsets(zombie).commit([(old, CommittedOffset(offset=99))])
    assert late.stale == (partition,)
    assert (await ZooKeeperOffsets(successor).read("g", ["t"]))[partition].offset == 20


# Outages ----------------------------------------------------------------------------------------
async def outage(stack: AsyncExitStack, server: EmbeddedZooKeeper, *, seconds: float) -> None:
    """Goal: an outage far longer than the session time-out ends no session.

    The server is killed, stays away, and comes back with its data: sessions did not age meanwhile.
    """
    # Long enough that a machine busy with other tests brings the client back within it.
    node = await started(stack, server.hosts, session_timeout_s=8.0)
    assert node.coordinator.session_timeout_s == 8.0
    session, before = node.coordinator.session_id, node.registration.registered
    await asyncio.to_thread(server.kill)
    await until(lambda: SessionState.SUSPENDED in node.states)
    assert node.routes.snapshot.partitions("t")
    await asyncio.sleep(seconds)
    age_s = SystemClock().monotonic() - node.coordinator.last_reply_monotonic
    assert age_s > node.coordinator.session_timeout_s, "the lease must have run out meanwhile"
    assert SessionState.LOST not in node.states
    await asyncio.to_thread(server.start)
    await until(lambda: node.coordinator.state is SessionState.CONNECTED)
    await node.whole_again()
    assert node.coordinator.session_id == session
    assert node.registration.registered == before
    assert SessionState.LOST not in node.states


async def test_connections_that_are_never_answered_end_no_session(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot
) -> None:
    """A starting server takes connections and forgets them; the one after that is in time."""
    server = Address.parse(zookeeper_root.hosts)
    link = await asyncio.to_thread(stack.enter_context, ChaosProxy(server))
    node = await started(stack, str(link.address), root=zookeeper_root.root, session_timeout_s=6.0)
    session = node.coordinator.session_id
    for _ in range(2):  # the second time patience is what it was
        forgotten = link.forgotten
        await asyncio.to_thread(link.forget, 2)
        await asyncio.to_thread(link.cut_now)
        await until(lambda: SessionState.SUSPENDED in node.states)
        await node.whole_again()
        assert link.forgotten == forgotten + 2
        assert node.coordinator.session_id == session
        assert SessionState.LOST not in node.states
        node.states.clear()


@pytest.mark.long
async def test_an_outage_of_20_seconds_ends_nothing(
    stack: AsyncExitStack, make_zookeeper: Callable[..., EmbeddedZooKeeper]
) -> None:
    """Its short form, with whole processes: ``test_messages_flow_while_zookeeper_is_stopped``."""
    await outage(stack, make_zookeeper(tick_ms=200), seconds=20.0)


async def test_a_paused_server_is_outlived(
    stack: AsyncExitStack, server: EmbeddedZooKeeper
) -> None:
    """SIGSTOP holds the connection but answers nothing; afterwards all is whole again."""
    node = await started(stack, server.hosts)
    server.pause()
    await until(lambda: SessionState.SUSPENDED in node.states)
    await asyncio.sleep(1.5)
    server.resume()
    await node.whole_again()


async def test_calls_end_in_bounded_time_while_the_server_is_paused(
    stack: AsyncExitStack, server: EmbeddedZooKeeper
) -> None:
    """Each raises ConnectionLost within about two session time-outs."""
    node = await started(stack, server.hosts)
    server.pause()
    with pytest.raises(ConnectionLost):
        async with asyncio.timeout(PROCESSES_WAIT_S):
            await node.coordinator.create("a")
    server.resume()
    await node.whole_again()


async def test_a_wiped_server_gets_everything_anew(
    stack: AsyncExitStack, server: EmbeddedZooKeeper
) -> None:
    """kazoo would try its old session for ever, as the server knows older transactions only."""
    node = await started(stack, server.hosts)
    for number in range(200):  # so that the fresh server is certainly behind
        await create(node.coordinator, f"filler-{number}")
    session, before = node.coordinator.session_id, node.registration.registered
    await asyncio.to_thread(server.kill)
    server.wipe()
    await asyncio.to_thread(server.start)
    await until(lambda: node.coordinator.session_id not in {0, session})
    assert SessionState.LOST in node.states
    await until(lambda: node.registration.registered not in {None, before})
    await topics.create_topic(node.coordinator, "t")
    await node.whole_again()


async def test_the_death_of_a_leader_ends_no_session(
    stack: AsyncExitStack, make_zookeeper: Callable[..., EmbeddedZooKeeper]
) -> None:
    """Three servers, the leader killed; the session goes on at another one."""
    ensemble = await asyncio.to_thread(make_zookeeper, servers=3, tick_ms=200)
    node = await started(stack, ensemble.hosts, session_timeout_s=10.0)
    session, before = node.coordinator.session_id, node.registration.registered
    leader = await asyncio.to_thread(wait_leader, ensemble)
    await asyncio.to_thread(ensemble.kill, leader)
    await create(node.coordinator, "after")
    await node.whole_again()
    assert node.coordinator.session_id == session
    assert node.registration.registered == before


# kazoo's own failures ---------------------------------------------------------------------------
async def test_a_dead_kazoo_thread_is_replaced(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot
) -> None:
    """An unexpected exception ends kazoo's connection thread for good; we make a new client."""
    node = await started(stack, zookeeper_root.hosts, root=zookeeper_root.root)
    dead = node.coordinator.kazoo
    assert dead is not None
    errors = []
    threading.excepthook, hook = errors.append, threading.excepthook
    try:

        def die(*_: object) -> None:
            raise RuntimeError("killed by the test")

        dead._connection._read_response = die
        with pytest.raises(ConnectionLost):
            await node.coordinator.sync()
        await until(lambda: node.coordinator.kazoo is not dead)
    finally:
        threading.excepthook = hook
    assert len(errors) == 1
    assert SessionState.LOST in node.states
    await node.whole_again()


async def test_clients_that_die_again_and_again_are_given_up(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebuilding is bounded: at the end the coordinator is CLOSED and says why."""
    coordinator = zookeeper_root.coordinator(session_timeout_s=1.0)
    stack.push_async_callback(coordinator.close)
    await coordinator.start()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def die(*_: object) -> None:
        raise RuntimeError("killed by the test")

    monkeypatch.setattr("kazoo.protocol.connection.ConnectionHandler._read_response", die)
    await until(lambda: coordinator.state is SessionState.CLOSED)
    with pytest.raises(InvalidState, match="restart the process"):
        await coordinator.get("")


# Starting and stopping --------------------------------------------------------------------------
async def test_no_server_is_told_with_address_and_remedy() -> None:
    """Within the time given, and no thread is left behind."""
    hosts = f"127.0.0.1:{free_port()}"
    threads = threading.active_count()
    with pytest.raises(CoordinationError, match=rf"{hosts}.*vq doctor"):
        async with asyncio.timeout(PROCESSES_WAIT_S):
            await ZooKeeperCoordinator(hosts, "test").start(timeout_s=0.3)
    await until(lambda: threading.active_count() <= threads)


async def start_error(servers: str) -> str:
    """Return the text of a start that fails."""
    with pytest.raises(CoordinationError) as caught:
        async with asyncio.timeout(PROCESSES_WAIT_S):
            await ZooKeeperCoordinator(servers, "test").start(timeout_s=0.3)
    return str(caught.value)


async def test_a_refused_connection_a_wrong_name_and_a_stranger_are_three_texts() -> None:
    """And of several servers, each has its cause."""
    closed = f"127.0.0.1:{free_port()}"
    assert f"{closed} refused the connection" in await start_error(closed)
    assert "the name 'nosuch.invalid' cannot be resolved" in await start_error("nosuch.invalid:1")

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as stranger:
        where = f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
        text = await start_error(f"{where},{closed}")
    assert f"the server at {where} is not ZooKeeper; {closed} refused" in text
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"127.0.0.1:{mute.getsockname()[1]}"
        assert f"{where} accepts connections and does not answer" in await start_error(where)


async def test_a_server_that_has_no_connection_left_for_this_host_names_its_limit(
    make_zookeeper: Callable[..., EmbeddedZooKeeper],
    monkeypatch: pytest.MonkeyPatch,
    stack: AsyncExitStack,
) -> None:
    """It closes what is above ``maxClientCnxns`` without a word; doctor says the same."""
    write = zookeeper_module._Server.write_config

    def write_small(server: Any, *arguments: Any, **options: Any) -> None:
        write(server, *arguments, **options)
        path = server.directory / "zoo.cfg"
        text = path.read_text()
        assert "maxClientCnxns=4096" in text
        path.write_text(text.replace("maxClientCnxns=4096", "maxClientCnxns=3"))

    monkeypatch.setattr(zookeeper_module._Server, "write_config", write_small)
    server = make_zookeeper()
    for _ in range(3):
        coordinator = ZooKeeperCoordinator(server.hosts, "test")
        stack.push_async_callback(coordinator.close)
        await coordinator.start(PROCESSES_WAIT_S)
    expected = rf"{server.hosts} accepts connections and closes them at once.*raise maxClientCnxns"
    assert re.search(expected, await start_error(server.hosts))
    findings = await check_cluster(MessageFactoryConfig(zookeeper=server.hosts))
    assert re.search(expected, str(findings)), findings


async def test_a_server_that_accepts_but_never_answers_costs_no_session(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bad address of two delays the start, but does not prevent it."""
    monkeypatch.setattr("kazoo.protocol.connection.random.shuffle", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = f"127.0.0.1:{mute.getsockname()[1]},{zookeeper_root.hosts}"
        coordinator = ZooKeeperCoordinator(
            hosts, "test", session_timeout_s=2.0, root=zookeeper_root.root
        )
        stack.push_async_callback(coordinator.close)
        await coordinator.start(timeout_s=PROCESSES_WAIT_S)
        assert coordinator.state is SessionState.CONNECTED
        mute.settimeout(0)
        mute.accept()[0].close()  # it was tried, as the first one


async def test_a_connection_that_ends_in_the_first_call_is_no_reason_to_give_up(
    stack: AsyncExitStack, zookeeper_root: ZooKeeperRoot
) -> None:
    """There is time left, and what was asked may be asked again."""
    link = stack.enter_context(ChaosProxy(Address.parse(zookeeper_root.hosts)))
    link.cut(UP, 60)  # the request for a session has 49 bytes
    coordinator = ZooKeeperCoordinator(str(link.address), "test", root=zookeeper_root.root)
    stack.push_async_callback(coordinator.close)
    await coordinator.start()
    assert len(link.cuts) == 1
    assert coordinator.state is SessionState.CONNECTED
    assert await coordinator.children("") == []


async def test_the_server_has_the_last_word_on_the_time_out(
    stack: AsyncExitStack, make_zookeeper: Callable[..., EmbeddedZooKeeper]
) -> None:
    """Asked for 1 s and 600 s, it grants 2 ticks and 60 s."""
    server = make_zookeeper(tick_ms=2000)
    for asked, granted in ((1.0, 4.0), (600.0, 60.0)):
        coordinator = ZooKeeperCoordinator(server.hosts, "test", session_timeout_s=asked)
        stack.push_async_callback(coordinator.close)
        await coordinator.start()
        assert coordinator.session_timeout_s == granted


async def test_closing_during_an_outage_leaves_no_client_behind(
    server: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the fresh one that the watchdog was trying: it would connect later, for nobody."""
    made: list[Any] = []
    new_client = ZooKeeperCoordinator._new_client

    def note(coordinator: ZooKeeperCoordinator) -> Any:
        made.append(new_client(coordinator))
        return made[-1]

    monkeypatch.setattr(ZooKeeperCoordinator, "_new_client", note)
    coordinator = ZooKeeperCoordinator(server.hosts, "test", session_timeout_s=2.0)
    await coordinator.start()
    server.stop()
    coordinator._alive_at = -math.inf  # as after a silence long enough
    await until(lambda: len(made) == 2)
    await coordinator.close()
    await until(lambda: all(_is_over(client) for client in made))


def _is_over(client: Any) -> bool:
    """Whether a kazoo client was stopped and its thread has ended."""
    return client._stopped.is_set() and client._connection.connection_stopped.is_set()


async def test_closing_while_cut_off_takes_bounded_time(
    server: EmbeddedZooKeeper,
) -> None:
    """The session ends by itself at the server then, and a call that is under way ends here."""
    coordinator = ZooKeeperCoordinator(server.hosts, "test", session_timeout_s=10.0)
    await coordinator.start()
    server.pause()
    call = asyncio.ensure_future(coordinator.create("a"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(PROCESSES_WAIT_S):
        await coordinator.close()
    with pytest.raises(ConnectionLost, match="closed before the answer"):
        await call
    server.resume()


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ("localhost", "'localhost' has no port; write 'localhost:2181'"),
        ("a:1,b", "'b' has no port; write 'b:2181'"),
        ("a:1/chroot", "a path is not supported; leave out '/chroot'"),
        *((hosts, "host:port") for hosts in ("", "a:0", "a:70000", "a..b:1", "::1:2181")),
    ],
)
def test_addresses_need_host_and_port(hosts: str, told: str) -> None:
    """The message shows the entry that is wrong."""
    with pytest.raises(InvalidArgument, match=told):
        ZooKeeperCoordinator(hosts, "test")
