"""Quotas at a broker, in virtual time: how much gets through, who waits, and who does not.

The peers here send what they like: none of them obeys what an answer tells, unless a test says so.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from support.access import believe_names, connect_as, limit
from support.broker import Client, MemoryCluster, fetched, memory_cluster, message
from support.fetch_requests import add, again

from vq import limits
from vq.broker.connections.metered_connection import MeteredConnection
from vq.broker.node import BrokerNode
from vq.broker.security import accounts
from vq.errors import Throttled
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import FLAG_DELAY, Command
from vq.remoting.messages import decode_error, decode_reply, delay_of
from vq.security.quotas import BURST_S, REFUSED_S_MAX
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

#: Of the body of a PUT.
SIZE: Final = len(message(b"x" * 1_000))


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryCluster]:
    """A node with topic ``t``; who calls itself ``user.NAME`` is that user."""
    believe_names(monkeypatch)
    async with memory_cluster() as made:
        await made.start()
        await made.create_topic("t", partitions=4)
        early = await connect(made, "early")
        for partition in range(4):  # opens their logs
            await early.put("t", partition, [message(b"first")])
        early.close()
        yield made


def node_of(cluster: MemoryCluster) -> BrokerNode:
    return cluster.nodes["b1"]


async def connect(cluster: MemoryCluster, name: str = "alice") -> Client:
    return await connect_as(cluster, node_of(cluster), name)


def now() -> float:
    return asyncio.get_running_loop().time()


def put(client: Client, partition: int = 0, size: int = 1_000) -> "asyncio.Future[Any]":
    return unheard(client.send_put("t", partition, [message(b"x" * size)]))


def ping(client: Client) -> "asyncio.Future[Any]":
    return unheard(client.send(Command.PING, wire.PingRequest()))


def unheard(sent: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
    """A request whose answer nobody may wait for."""
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
    return sent


async def answered(*sent: "asyncio.Future[Any]") -> list[Any]:
    """The frames of the answers, however long they take."""
    async with asyncio.timeout(600):
        return list(await asyncio.gather(*sent))


async def sends_for(
    seconds: float, send: Callable[[Client], "asyncio.Future[Any]"], *clients: Client
) -> int:
    """How many requests are carried out in a time; each client sends one after the other."""
    ends, done = now() + seconds, 0

    async def go_on(client: Client) -> None:
        nonlocal done
        while now() < ends:
            frame = await send(client)
            done += not frame.status and now() <= ends

    async with asyncio.timeout(seconds * 20):
        await asyncio.gather(*map(go_on, clients))
    return done


# How much gets through ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("quota", "each"),
    [
        (f"bytes-in={100 * SIZE}", 1),
        ("requests=100", 1),
        ("messages-in=100", 1),
    ],
)
async def test_who_does_not_obey_gets_its_quota_within_five_percent_over_ten_seconds(
    cluster: MemoryCluster, quota: str, each: int
) -> None:
    await limit(cluster, f"user:alice {quota}")
    done = await sends_for(10.0, put, await connect(cluster))
    assert 950 <= done * each <= 1_050


@pytest.mark.parametrize("connections", [1, 7, 50])
async def test_the_connections_of_a_user_share_its_quota(
    cluster: MemoryCluster, connections: int
) -> None:
    await limit(cluster, "user:alice requests=100")
    clients = [await connect(cluster) for _ in range(connections)]
    assert 950 <= await sends_for(10.0, put, *clients) <= 1_050


async def test_connections_of_a_user_take_turns(cluster: MemoryCluster) -> None:
    """One that sends many requests at once has no more of the quota than one that sends few."""
    await limit(cluster, "user:alice requests=20")
    greedy, modest = await connect(cluster), await connect(cluster)
    for _ in range(40):
        put(greedy)
    await asyncio.sleep(0.5)
    assert await sends_for(1.5, put, modest) >= 10


@pytest.mark.parametrize("max_bytes", [0, 50_000])
async def test_bytes_that_are_read_count_when_they_are_sent(
    cluster: MemoryCluster, max_bytes: int
) -> None:
    """However much is asked for."""
    writer, reader = await connect(cluster, "bob"), await connect(cluster)
    for _ in range(100):
        await answered(writer.send_put("t", 0, [message(b"x" * 10_000)]))
    await limit(cluster, "user:alice bytes-out=1M")
    ends, total = now() + 10.0, 0
    while now() < ends:
        (frame,) = await answered(reader.send_get("t", 0, 0, max_bytes=max_bytes))
        total += len(frame.body) if now() <= ends else 0
    assert total / 10.0 == pytest.approx(limits.MIB, rel=0.05)


async def test_a_message_larger_than_an_answer_may_be_comes_in_pieces(
    cluster: MemoryCluster,
) -> None:
    writer, reader = await connect(cluster, "bob"), await connect(cluster)
    end = (await writer.offsets("t", 0)).latest
    large = message(b"x" * 100_000)
    await answered(writer.send_put("t", 0, [large]))
    await limit(cluster, "user:alice bytes-out=10000 requests=unlimited")
    got, pieces, item = b"", 0, add(0, end)
    while len(got) < len(large):
        (frame,) = await answered(reader.send_fetch(pieces, item))
        if frame.status:  # it has waited too long
            reader, pieces = await connect(cluster), 0
            item = add(0, end + len(got))
            await asyncio.sleep(5)
            continue
        ((result, body),) = fetched(frame).values()
        got, pieces, item = got + body, pieces + 1, again(0, result.next_offset)
    assert got.endswith(large[-1_000:])


async def test_an_answer_tells_how_long_the_next_request_waits(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice bytes-in=1000")
    client = await connect(cluster)
    begun = now()
    (frame,) = await answered(put(client))
    told = delay_of(frame)
    assert frame.flags & FLAG_DELAY
    assert now() - begun + told == pytest.approx(SIZE / 1_000 - BURST_S, abs=0.01)
    assert decode_reply(frame).epoch  # type: ignore[attr-defined]
    begun = now()
    await answered(put(client))
    assert now() - begun == pytest.approx(told, abs=0.01)


async def test_who_waits_as_it_is_told_waits_nowhere_else(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice bytes-in=1000")
    client = await connect(cluster)
    for _ in range(5):
        begun = now()
        (frame,) = await answered(put(client, size=2_000))
        assert now() - begun < 0.01
        await asyncio.sleep(delay_of(frame) + 0.001)


async def test_the_time_of_the_loop_is_limited(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request here takes 10 ms of the loop, by the clock of the node."""
    await limit(cluster, "user:alice time=10%")
    server, spent = node_of(cluster).parts.server, 0.0
    meters, door = server.meters, server._door
    assert door is not None
    assert meters is not None
    real = meters.now

    def slow(*request: Any) -> None:
        nonlocal spent
        spent += 0.01
        door(*request)

    monkeypatch.setattr(meters, "now", lambda: real() + spent)
    monkeypatch.setattr(server, "_door", slow)
    await sends_for(10.0, ping, await connect(cluster))
    assert spent / (10.0 + spent) == pytest.approx(0.1, rel=0.05)


# Who waits ------------------------------------------------------------------------------------
async def test_a_users_debt_delays_only_that_user(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:* requests=100")
    alice, bob = await connect(cluster), await connect(cluster, "bob")
    waiting = [ping(alice) for _ in range(100)]
    begun = now()
    for _ in range(10):
        await answered(ping(bob))
    assert now() - begun < 0.01
    await answered(*waiting)


async def test_defaults_hold_for_each_user_and_own_limits_instead_of_them(
    cluster: MemoryCluster,
) -> None:
    await limit(
        cluster, "user:* requests=10", "user:bob requests=50", "user:carol requests=unlimited"
    )
    for name, most in (("alice", 100), ("bob", 500)):
        done = await sends_for(10.0, ping, await connect(cluster, name))
        assert done == pytest.approx(most, rel=0.05)
    carol = await connect(cluster, "carol")
    begun = now()
    for _ in range(200):
        await answered(ping(carol))
    assert now() - begun < 0.01


async def test_all_who_have_proved_no_name_are_one_user(cluster: MemoryCluster) -> None:
    await limit(cluster, "anonymous requests=50")
    network, address = cluster.network, node_of(cluster).address
    clients = [await Client.connect(network.at(f"h{n}"), address, f"c{n}") for n in range(5)]
    assert 475 <= await sends_for(10.0, ping, *clients) <= 525


async def test_a_new_client_id_each_time_does_not_raise_the_limit_of_the_user(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "anonymous requests=50", "client:* requests=1000")
    network, address = cluster.network.at("client"), node_of(cluster).address
    ends, done = now() + 10.0, 0
    while now() < ends:
        client = await Client.connect(network, address, f"c{done}")
        await answered(ping(client))
        done += 1
        client.close()
    assert 475 <= done <= 525


async def test_many_client_ids_of_a_user_share_one_account_beyond_a_bound(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "CLIENTS_PER_USER_MAX", 3)
    await limit(cluster, "client:* requests=10")
    network, address = cluster.network.at("client"), node_of(cluster).address
    clients = [await Client.connect(network, address, f"c{n}") for n in range(9)]
    assert await sends_for(10.0, ping, *clients) == pytest.approx(400, rel=0.05)


async def test_a_new_connection_does_not_shed_what_is_owed(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice requests=10")
    ends, done = now() + 10.0, 0
    while now() < ends:
        client = await connect(cluster)
        await answered(ping(client))
        done += 1
        client.close()
        await client.closed.wait()
    assert 95 <= done <= 105


async def test_requests_that_come_with_hello_count(cluster: MemoryCluster) -> None:
    """Who sends HELLO and requests in one piece has no request for nothing."""
    await limit(cluster, "user:alice requests=10")
    network, address = cluster.network.at("client"), node_of(cluster).address
    begun = now()
    for _ in range(3):
        _, client = await network.connect(address, Client)
        hello = client.connection.hello(client_id="user.alice")
        state = Client().connection
        state.hello(client_id="user.alice")
        monkey: Any = state
        monkey._state = type(state.state).OPEN
        monkey._requests_max = 100
        pings = [
            b"".join(monkey.request(Command.PING, b"", b"", context=None)[1]) for _ in range(10)
        ]
        client.transport.write(b"".join([*map(bytes, hello), *pings]))
        await client.opened.wait()
        client.close()
    await answered(ping(await connect(cluster)))
    assert now() - begun > 0.1


async def test_a_request_that_would_wait_too_long_is_refused_and_nothing_is_done(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice bytes-in=100")
    client = await connect(cluster)
    await answered(put(client))
    begun = now()
    (frame,) = await answered(put(client))
    error = decode_error(frame.status, frame.header, 0)
    assert isinstance(error, Throttled)
    assert error.retriable
    assert error.details["user"] == "alice"
    assert error.details["limit"] == "bytes-in"
    assert error.details["delay_ms"] == pytest.approx(1_000 * (SIZE / 100 - BURST_S), rel=0.05)
    assert "quota bytes-in = 100 of user alice" in error.message
    assert now() - begun < limits.THROTTLE_S_MAX
    end = (await (await connect(cluster, "bob")).offsets("t", 0)).latest
    await asyncio.sleep(10)
    (frame,) = await answered(put(client))
    assert decode_reply(frame).offset >= end  # type: ignore[attr-defined]


async def test_a_request_behind_many_others_waits_no_longer_than_the_bound(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice requests=1")
    clients = [await connect(cluster) for _ in range(20)]
    begun = now()
    frames = await answered(*map(ping, clients))
    assert now() - begun <= limits.THROTTLE_S_MAX + 0.01
    refused = [each for each in frames if each.status == Throttled.status]
    assert len(frames) - len(refused) in range(4, 7)


async def test_who_is_refused_and_goes_on_at_once_is_not_read_for_a_while(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice bytes-in=10")
    client = await connect(cluster)
    await answered(put(client))
    begun = now()
    for _ in range(10):
        await answered(put(client))
    assert now() - begun > 4.0


@pytest.mark.parametrize("connections", [1, 10])
async def test_bytes_of_refused_requests_are_read_at_the_rate_of_the_quota(
    cluster: MemoryCluster, connections: int
) -> None:
    """Of many connections more: each is read again after ``REFUSED_S_MAX``."""
    await limit(cluster, "user:alice bytes-in=10K")
    clients = [await connect(cluster) for _ in range(connections)]
    size, refused, ends = 60_000, 0, now() + 300

    async def flood(client: Client) -> None:
        nonlocal refused
        while now() < ends:
            (frame,) = await answered(put(client, size=size))
            refused += frame.status == Throttled.status

    async with asyncio.timeout(600):
        await asyncio.gather(*map(flood, clients))
    at_the_rate = 300 * 10 * limits.KIB / size
    assert 0 < refused <= max(at_the_rate, connections * 300 / REFUSED_S_MAX) + 2 * connections


async def test_who_is_refused_and_waits_as_told_gets_through(cluster: MemoryCluster) -> None:
    """Refused bytes are not owed: else clients that come again would keep each other out."""
    await limit(cluster, "user:alice bytes-in=1M")
    clients = [await connect(cluster) for _ in range(10)]
    ends, stored = now() + 60, 0

    async def send(client: Client) -> None:
        nonlocal stored
        while now() < ends:
            (frame,) = await answered(put(client, size=900_000))
            stored += not frame.status
            if frame.status:
                await asyncio.sleep(limits.THROTTLE_S_MAX)

    async with asyncio.timeout(600):
        await asyncio.gather(*map(send, clients))
    assert stored * 900_000 >= 0.9 * 60 * limits.MIB


async def test_the_rate_of_connections_is_limited(cluster: MemoryCluster) -> None:
    """Open ones are not slowed down."""
    await limit(cluster, "user:alice connections=10")
    early = await connect(cluster)
    ends, done = now() + 10.0, 0
    while now() < ends:
        client = await connect(cluster)
        (frame,) = await answered(ping(client))
        done += not frame.status
        begun = now()
        await answered(ping(early))
        assert now() - begun < 0.01
    assert 95 <= done <= 105


async def test_connections_far_beyond_their_rate_are_refused(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice connections=1")
    clients = [await connect(cluster) for _ in range(20)]
    frames = await answered(*map(ping, clients))
    assert sum(not each.status for each in frames) in range(4, 7)
    assert {each.status for each in frames} == {0, Throttled.status}
    error = decode_error(frames[-1].status, frames[-1].header, 0)
    assert error.details["limit"] == "connections"


# Changes while somebody waits -----------------------------------------------------------------
async def test_a_larger_quota_holds_for_who_waits_already(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice bytes-in=300")
    client = await connect(cluster)
    await answered(put(client))
    waiting = put(client)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    begun = now()
    await limit(cluster, "user:alice bytes-in=1M")
    await answered(waiting)
    assert now() - begun < 0.1


async def test_a_smaller_quota_does_not_forgive_what_is_owed(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice bytes-in=1000")
    client = await connect(cluster)
    await answered(put(client))
    waiting = put(client)
    begun = now()
    await limit(cluster, "user:alice bytes-in=300")
    await answered(waiting)
    assert now() - begun == pytest.approx((SIZE - BURST_S * 1_000) / 300, rel=0.05)


@pytest.mark.parametrize("quotas", [(), ("user:bob requests=1",)])
async def test_who_waits_goes_on_when_its_quota_is_removed(
    cluster: MemoryCluster, quotas: tuple[str, ...]
) -> None:
    await limit(cluster, "user:alice bytes-in=300")
    client = await connect(cluster)
    waiting = [put(client, partition) for partition in range(4)]
    await asyncio.sleep(0.1)
    begun = now()
    await limit(cluster, *quotas)
    await answered(*waiting)
    assert now() - begun < 0.1
    frames = await answered(*(put(client) for _ in range(20)))
    assert not any(each.flags for each in frames)


async def test_a_quota_that_is_set_later_holds_for_open_connections(
    cluster: MemoryCluster,
) -> None:
    client = await connect(cluster)
    await answered(put(client))
    await limit(cluster, "user:alice requests=10")
    assert 95 <= await sends_for(10.0, ping, client) <= 105


async def test_without_a_quota_connections_are_as_they_were(cluster: MemoryCluster) -> None:
    server = node_of(cluster).parts.server
    door = server.door
    client = await connect(cluster)
    await limit(cluster, "user:bob requests=1", "user:bob time=1%")
    await answered(ping(client))
    assert any(isinstance(each.connection, MeteredConnection) for each in server.sessions)
    assert server.door != door
    await limit(cluster)
    assert not any(isinstance(each.connection, MeteredConnection) for each in server.sessions)
    assert server.door == door
    assert not (await answered(ping(client)))[0].status


async def test_quotas_hold_on_while_they_cannot_be_read(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice requests=10")
    async with cluster.admin() as coordinator:
        version = (await coordinator.get("security/quotas")).stat.version
        await coordinator.set("security/quotas", b'{"v": 9}', version=version)
    await asyncio.sleep(40)
    assert 95 <= await sends_for(10.0, ping, await connect(cluster)) <= 105


async def test_a_step_of_the_wall_clock_changes_nothing(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice requests=10")
    client = await connect(cluster)
    clock: Any = cluster.ensemble.clock
    done = 0
    for step_ms in (-3_600_000, 3_600_000):
        if hasattr(clock, "step_wall_ms"):
            clock.step_wall_ms(step_ms)
        done += await sends_for(5.0, ping, client)
    assert 95 <= done <= 105


# Reads that wait ------------------------------------------------------------------------------
async def test_a_long_poll_is_charged_when_it_is_answered(cluster: MemoryCluster) -> None:
    await limit(cluster, "user:alice bytes-out=10000")
    reader, writer = await connect(cluster), await connect(cluster, "bob")
    end = (await writer.offsets("t", 0)).latest
    waiting = reader.send_fetch(0, add(0, end))
    await asyncio.sleep(5.0)
    assert not waiting.done()
    await answered(writer.send_put("t", 0, [message(b"x" * 20_000)]))
    (frame,) = await answered(waiting)
    ((result, body),) = fetched(frame).values()
    assert delay_of(frame) == pytest.approx(len(body) / 10_000 - BURST_S, abs=0.01)
    begun = now()
    await answered(writer.send_put("t", 0, [message(b"y")]))
    await answered(reader.send_fetch(1, again(0, result.next_offset)))
    assert now() - begun == pytest.approx(delay_of(frame), abs=0.05)


async def test_a_poll_that_waits_for_messages_holds_up_nobody_and_owes_nothing(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice requests=10")
    reader, other = await connect(cluster), await connect(cluster)
    reader.send_fetch(0, add(0), max_wait_ms=20_000)
    assert 95 <= await sends_for(10.0, ping, other) <= 105


# Who is not limited ---------------------------------------------------------------------------
async def test_members_of_the_cluster_are_not_limited(cluster: MemoryCluster) -> None:
    await limit(cluster, "anonymous requests=1 connections=1 bytes-in=1", "client:* requests=1")
    for _ in range(3):
        nobody = await connect(cluster, "")
        await answered(ping(nobody))
        begun = now()
        member = await cluster.prove(await connect(cluster, ""), "b1", "n1")
        for _ in range(20):
            await answered(ping(member))
        assert now() - begun < 0.01


async def test_replication_goes_on_under_a_quota_of_one_byte(
    cluster: MemoryCluster,
) -> None:
    await cluster.start("b1", "n2")
    await cluster.until_in_sync("n1", "n2")
    await limit(cluster, "user:* bytes-in=1 bytes-out=1 requests=1", "client:* bytes-out=1",
                "user:bob bytes-in=unlimited requests=unlimited")  # fmt: skip
    await cluster.create_topic("r", partitions=1, replication="sync", min_insync=2)
    network, address = cluster.network.at("client"), node_of(cluster).address
    writer = await Client.connect(network, address, "user.bob")
    begun = now()
    for _ in range(50):
        frame = await asyncio.wait_for(writer.send_put("r", 0, [message(b"x" * 10_000)]), 20)
        decode_reply(frame)
    assert now() - begun < 1.0


async def test_a_transaction_is_decided_while_its_producer_has_to_wait(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice requests=1")
    busy, decider = await connect(cluster), await connect(cluster)
    waiting = [ping(busy) for _ in range(3)]
    begun = now()
    decision = wire.TransactRequest(topic="t", transaction=7, state=4)
    await answered(decider.send(Command.TRANSACT, decision))
    assert now() - begun < 0.01
    await answered(*waiting)
    many = await answered(*(decider.send(Command.TRANSACT, decision) for _ in range(20)))
    assert Throttled.status in {each.status for each in many}


# What is told ---------------------------------------------------------------------------------
async def test_connections_that_end_while_they_wait_leave_nothing_behind(
    cluster: MemoryCluster,
) -> None:
    await limit(cluster, "user:alice requests=1")
    server = node_of(cluster).parts.server
    clients = [await connect(cluster) for _ in range(5)]
    for each in clients:
        for _ in range(3):
            ping(each)
    await asyncio.sleep(0.5)
    assert server.meters is not None
    assert server.meters.waiting == 5
    for each in clients:
        each.connection.abandon()
        each.close()
    await until(lambda: not server.sessions, timeout_s=60)
    assert (server.meters.waiting, server.gathered_bytes, server.requests_waiting) == (0, 0, 0)


async def test_metrics_name_some_users_and_count_the_others_together(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "USERS_TOLD_MAX", 2)
    await limit(cluster, "user:* requests=10")
    for name in ("alice", "bob", "carol", "dave"):
        await sends_for(1.0, ping, await connect(cluster, name))
    told: dict[str, float] = {}
    for facts in node_of(cluster).parts.accounts.facts():
        for labels, thing in facts.things().items():
            for fact in facts.facts:
                if labels and fact.metric == "vq_quota_throttled_seconds":
                    told[labels[0]] = fact.read(thing)  # type: ignore[assignment]
    assert told.keys() == {"alice", "bob", accounts.OTHERS}
    assert told["alice"] == pytest.approx(1.0, abs=0.2)
    assert told[accounts.OTHERS] == pytest.approx(2.0, abs=0.4)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({"state": 4}, 100_000),
        ({"state": 4, "client": "x" * 100_000}, 0),
        ({"state": 0}, 0),
        ({"state": 1}, 0),
    ],
)
async def test_what_decides_nothing_waits_as_other_requests_do(
    cluster: MemoryCluster, fields: dict[str, Any], size: int
) -> None:
    """A decision is exempt, and so it may carry nothing: else bytes would have no limit."""
    await limit(cluster, "user:alice bytes-in=1K")
    busy, other = await connect(cluster), await connect(cluster)
    await answered(put(busy, size=100_000))
    asked = wire.TransactRequest(topic="t", transaction=7, **fields)
    (frame,) = await answered(unheard(other.send(Command.TRANSACT, asked, b"x" * size)))
    assert frame.status == Throttled.status
