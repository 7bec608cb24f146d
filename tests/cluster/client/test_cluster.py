"""What producers and consumers share: routes, connections, message ids; nothing of it is left."""

import asyncio
import logging
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import HOST, cluster_client, started

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.ids import EPOCH_MS, IdsUsedUp
from vq.clock import ManualClock
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import (
    ConnectionCut,
    CoordinationError,
    InvalidArgument,
    InvalidState,
    NotMaster,
    OffsetOutOfRange,
    TimedOut,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from vq.model import Address, TopicPartition, time_ms_of
from vq.remoting import broker_connection as connections
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    PingRequest,
)
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def master(client: ClusterClient) -> Address:
    await client.track("t")
    await until(lambda: client.routes.master("b1"))
    return client.master_at(TopicPartition("t", 0), 0)[0]


async def test_where_the_bytes_of_an_offset_lie(client: ClusterClient) -> None:
    assert await master(client) == client.master_at(TopicPartition("t", 1), 10**12)[0]
    with pytest.raises(UnknownTopic):
        client.master_at(TopicPartition("other", 0), 0)
    with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
        client.master_at(TopicPartition("t", 2), 0)
    with pytest.raises(OffsetOutOfRange):
        client.master_at(TopicPartition("t", 0), -1)


async def test_topics_that_cannot_be(client: ClusterClient) -> None:
    with pytest.raises(UnknownTopic):
        await client.track("missing")
    for name in ("", "a/b", "t/partitions", "..", "x" * 201):
        with pytest.raises(InvalidArgument):
            await client.track(name)


async def test_many_that_ask_for_a_topic_at_once_are_one_look(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    track = client.watcher.track

    async def note(topic: str) -> object:
        looks.append(topic)
        return await track(topic)

    monkeypatch.setattr(client.watcher, "track", note)
    await asyncio.gather(*(client.track("t") for _ in range(100)))
    assert looks == ["t"]
    missing = [client.track("missing") for _ in range(100)]
    ended = await asyncio.gather(*missing, return_exceptions=True)
    assert {type(each) for each in ended} == {UnknownTopic}
    first, second = asyncio.create_task(client.track("t")), asyncio.create_task(client.track("t"))
    await asyncio.sleep(0)
    first.cancel()
    assert "t" in (await second).topics


async def test_a_broker_that_is_gone_has_no_master(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await master(client)
    cluster.ensemble.expire(cluster.coordinators["b1"])
    await until(lambda: client.routes.master("b1") is None)
    with pytest.raises(NotMaster):
        client.master_at(TopicPartition("t", 0), 0)


# Connections ------------------------------------------------------------------------------------
async def test_one_connection_to_one_broker(cluster: MemoryCluster, client: ClusterClient) -> None:
    address = await master(client)
    made = await asyncio.gather(*(client.connection(address) for _ in range(10)))
    assert len(set(made)) == 1
    assert client.live_connection(address) is made[0]
    assert cluster.network.connections == 1


async def test_a_connection_that_ended_is_made_again(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    address = await master(client)
    first = await client.connection(address)
    changes = []
    remove = client.on_change(lambda: changes.append(len(changes)))
    cluster.network.reset_connections(HOST)
    await until(lambda: changes)
    second = await client.connection(address)
    assert second is not first
    remove()
    remove()


async def test_a_connection_that_ended_right_after_its_hello_is_not_kept(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells of its end any more."""
    address = await master(client)
    connect = connections.connect
    cuts = 1

    async def cut_at_once(*arguments: Any, **options: Any) -> connections.BrokerConnection:
        nonlocal cuts
        ended = asyncio.Event()
        on_close = options.pop("on_close")

        def closed(connection: connections.BrokerConnection) -> None:
            on_close(connection)
            ended.set()

        connection = await connect(*arguments, on_close=closed, **options)
        if cuts:
            cuts -= 1
            connection.close()
            await ended.wait()
        return connection

    monkeypatch.setattr(connections, "connect", cut_at_once)
    with pytest.raises(ConnectionCut):
        await client.connection(address)
    assert (await client.request(address, Command.PING, PingRequest()))[1] == b""


async def test_attempts_come_at_growing_intervals_and_one_at_a_time(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Address("nowhere", 1)
    for _ in range(3):
        with pytest.raises(Unreachable):
            await client.connection(nowhere)
    assert client.unreachable[nowhere].attempts == 3
    for _ in range(5):
        assert client.live_connection(nowhere) is None
    assert len(client.connections.attempts()) == 1


async def test_a_broker_that_does_not_lead_names_the_master(client: ClusterClient) -> None:
    """The client goes there before it hears of it from ZooKeeper; nonsense is left alone."""
    await master(client)
    good = {"group": "b1", "master": "n2", "host": "b1-n2", "port": 8123, "epoch": 99}
    before = client.routes
    for wrong in (
        {**good, "port": 0},
        {**good, "host": "a b"},
        {**good, "epoch": "9"},
        {**good, "group": 1},
        {},
    ):
        client.refresh("t", NotMaster("led by n2", details=wrong))
        assert client.routes is before
    client.refresh("t", NotMaster("led by n2", details=good))
    assert client.routes.master("b1") == (Address("b1-n2", 8123), 99)


async def test_a_broker_that_leads_again_is_tried_at_once(
    cluster: MemoryCluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause before the next try grew while it was down."""
    address = await master(client)
    listener = cluster.network.listeners.pop(address)
    with pytest.raises(Unreachable):
        await client.connection(address)
    monkeypatch.setattr(
        "vq.client.broker_connections.RECONNECT", Backoff(first_s=1_000.0, most_s=1_000.0)
    )
    assert client.live_connection(address) is None
    await until(lambda: address in client.connections._pauses)
    cluster.network.listeners[address] = listener
    ensemble = cluster.ensemble
    ensemble.expire(cluster.coordinators["b1"])  # it leads in a new epoch then
    await until(lambda: client.live_connection(address) is not None)
    assert address not in client.unreachable


async def test_a_broker_that_cannot_be_reached_is_a_warning_once_for_each_cause(
    cluster: MemoryCluster, client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody waits for it. Further attempts are told at DEBUG, its return at WARNING."""
    caplog.set_level(logging.DEBUG, "vq.client.broker_connections")
    address = await master(client)
    listener = cluster.network.listeners.pop(address)
    for _ in range(2):
        with pytest.raises(Unreachable, match="nobody listens"):
            await client.connection(address)
    cluster.network.listeners[address] = listener
    await client.connection(address)
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG", "WARNING"]
    assert f"cannot connect to a broker, trying again broker={address} error=" in caplog.text
    assert f"reconnected to a broker broker={address}" in caplog.text


async def test_a_request_has_one_deadline_for_connecting_and_answering(
    cluster: MemoryCluster,
) -> None:
    async with started(cluster, connect_timeout_s=60.0) as client:
        address = await master(client)
        cluster.network.cut(HOST, "b1")
        with pytest.raises(Unreachable, match=r"0\.03 s"):
            await client.request(address, Command.PING, PingRequest(), timeout=0.03)
        cluster.network.heal()
        await client.connection(address)
        cluster.network.cut(HOST, "b1")
        with pytest.raises(TimedOut):
            await client.request(address, Command.PING, PingRequest(), timeout=0.03)
        cluster.network.heal()


@pytest.mark.parametrize(("connecting_s", "left_s"), [(0.0, 5.0), (2.0, 3.0), (6.0, 0.0)])
async def test_an_answer_has_the_time_that_connecting_left(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch, connecting_s: float, left_s: float
) -> None:
    clock = ManualClock()
    given: list[float] = []

    class Connection:
        async def request(self, *_: object, timeout: float) -> tuple[None, bytes]:
            given.append(timeout)
            return None, b""

    async def connect(_: Address) -> Connection:
        clock.advance(connecting_s)
        return Connection()

    monkeypatch.setattr(client, "clock", clock)
    monkeypatch.setattr(client, "connection", connect)
    await client.request(Address("b", 1), Command.PING, PingRequest(), timeout=5.0)
    assert given == [left_s]


async def test_the_end_of_another_connection_to_a_broker_leaves_the_one_in_use(
    client: ClusterClient,
) -> None:
    """Such as one whose HELLO came too late, and that ends after the next attempt succeeded."""
    address = await master(client)
    in_use = await client.connection(address)
    ended = asyncio.Event()

    def closed(connection: connections.BrokerConnection) -> None:
        client.connections._lost(connection)
        ended.set()

    (await client.connections.open(address, closed)).close()
    await ended.wait()
    assert await client.connection(address) is in_use


async def test_a_listener_that_raises_takes_no_other_with_it(
    cluster: MemoryCluster, client: ClusterClient, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def fail() -> None:
        raise RuntimeError("a bug")

    removers = [client.on_change(fail), client.on_change(lambda: told.append(1))]
    await client.connection(await master(client))
    cluster.network.reset_connections(HOST)
    await until(lambda: told)
    assert "a bug" in caplog.text
    for remove in removers:
        remove()


# Message ids ------------------------------------------------------------------------------------
async def test_ids_of_two_clients_never_meet(cluster: MemoryCluster) -> None:
    async with started(cluster) as first, started(cluster, host="other") as second:
        await asyncio.gather(first.lease_slot(), second.lease_slot(), first.lease_slot())
        ids = [first.take_ids(3_000), second.take_ids(3_000), first.take_ids(3_000)]
        assert len({each for some in ids for each in some}) == 9_000


async def test_without_a_session_no_ids_are_made(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await client.lease_slot()
    assert client.ids_ready
    slot = client.slot.slot
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    seen = []
    client.on_change(lambda: seen.append(client.ids_ready))
    cluster.ensemble.expire(coordinator)
    await until(lambda: False in seen and client.ids_ready)
    assert client.slot.slot != slot


async def test_ids_follow_a_clock_that_leapt_once_their_mark_has(cluster: MemoryCluster) -> None:
    """Meanwhile they go on where they were; so after each leap, not the first one alone."""
    clock = ManualClock(wall_ms=EPOCH_MS + 10**9)
    async with started(cluster, clock=clock) as client:
        await client.lease_slot()
        for _ in range(2):
            before = time_ms_of(client.take_ids(1)[0])
            clock.step_wall_ms(3_600_000)
            assert time_ms_of(client.take_ids(1)[0]) == before
            await until(lambda: time_ms_of(client.take_ids(1)[0]) == clock.wall_ms())


async def test_a_log_handler_may_take_ids_when_it_is_told_that_they_lag(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that took some, which must not hold the lock of the ids any more."""
    clock = ManualClock(wall_ms=EPOCH_MS + 10**9)
    locked: list[bool] = []
    async with started(cluster, clock=clock) as client:
        await client.lease_slot()
        handler = logging.Handler()
        monkeypatch.setattr(
            handler, "emit", lambda record: locked.append(client._ids_lock.locked())
        )
        logger = logging.getLogger("vq.client.cluster")
        logger.addHandler(handler)
        try:
            clock.step_wall_ms(3_600_000)
            client.take_ids(1)
        finally:
            logger.removeHandler(handler)
    assert locked == [False]


async def test_without_ids_up_to_the_mark_there_is_a_pause_until_it_moves(
    cluster: MemoryCluster,
) -> None:
    """Whoever sends is told when there are ids again, and after the end there are none."""
    clock = ManualClock(wall_ms=EPOCH_MS + 10**9)
    async with started(cluster, clock=clock) as client:
        await client.lease_slot()
        client.mark_moved(clock.wall_ms())
        told: list[bool] = []
        client.on_change(lambda: told.append(client.ids_ready))
        with pytest.raises(IdsUsedUp):
            client.take_ids(2_000)
        assert not client.ids_ready
        await until(lambda: True in told)
        assert len(client.take_ids(2_000)) == 2_000
    with pytest.raises(IdsUsedUp):
        client.take_ids(1)


async def test_a_slot_that_could_not_be_leased_is_tried_again(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = client.slot.start

    async def fail() -> int:
        raise CoordinationError("not now")

    monkeypatch.setattr(client.slot, "start", fail)
    for _ in range(2):
        with pytest.raises(CoordinationError, match="not now"):
            await client.lease_slot()
    monkeypatch.setattr(client.slot, "start", lease)
    await client.lease_slot()
    assert client.ids_ready


# Ends -------------------------------------------------------------------------------------------
async def test_after_the_end_nothing_is_left(cluster: MemoryCluster) -> None:
    before = asyncio.all_tasks()
    client = cluster_client(cluster)
    await client.start()
    address = await master(client)
    await client.lease_slot()
    await client.connection(address)
    client.live_connection(Address("nowhere", 1))
    client.refresh("t")
    await client.close()
    await client.close()
    await until(lambda: cluster.network.connections == 0)
    await until(lambda: asyncio.all_tasks() <= before)
    with pytest.raises(InvalidState, match="shut down"):
        await client.connection(address)
    assert client.live_connection(address) is None
    client.refresh("t")
    async with cluster.admin() as coordinator:
        names = await coordinator.children("slots")
    assert names == []


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_close_that_is_cancelled_still_ends_the_session(
    cluster: MemoryCluster, steps: int
) -> None:
    """At whichever step; a session that lives keeps what consumers could not delete."""
    client = cluster_client(cluster)
    await client.start()
    await client.lease_slot()
    await client.connection(await master(client))
    closing = asyncio.create_task(client.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await client.close()
    assert client.coordinator.state is SessionState.CLOSED


async def test_closing_while_a_slot_is_leased_ends_the_lease(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    client = cluster_client(cluster)
    await client.start()
    leases = asyncio.Event()

    async def lease() -> None:
        leases.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(client.slot, "start", lease)
    leasing = asyncio.create_task(client.lease_slot())
    await leases.wait()
    await client.close()
    with pytest.raises(InvalidState, match="shut down"):
        await leasing
    await until(lambda: asyncio.all_tasks() <= before)


async def test_whoever_waits_at_the_end_is_told_that_it_is_the_end(
    cluster: MemoryCluster,
) -> None:
    """Not that it was cancelled: it was not."""
    cluster.ensemble.delay = lambda: 0.002
    client = cluster_client(cluster)
    await client.start()
    waiting = [
        asyncio.create_task(client.track("t")),
        asyncio.create_task(client.connection(Address("nowhere", 1))),
        asyncio.create_task(client.track("t")),
    ]
    cluster.network.cut(HOST, "nowhere")
    await until(lambda: client._calls.tasks() and client.connections.attempts())
    waiting.pop().cancel()
    await client.close()
    for each in waiting:
        with pytest.raises(InvalidState, match="shut down"):
            await each
