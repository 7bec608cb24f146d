"""Consumers that a gateway hosts: receiving, commits, leases, streams."""

import asyncio
from typing import Any

import httpx
import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import consumer_of as plain_consumer
from support.consumers import send, take
from support.consumers import texts as messages_of
from support.gateway import StreamPeer, commit, consumer_of, gateway_of, http_client, texts

from vq import aio
from vq.gateway.app import Gateway
from vq.model import Message, TopicPartition
from vq.testing.waiting import until

WAIT = {"wait": 20}


async def received(client: httpx.AsyncClient, consumer: str, count: int, **more: Any) -> Any:
    """Ask until so many messages are given and not committed; return the last answer."""
    async with asyncio.timeout(20):
        while True:
            answer = await client.get(f"{consumer}/messages", params={**WAIT, **more})
            assert answer.status_code == 200, answer.text
            if len(answer.json()["messages"]) >= count:
                return answer.json()


async def offsets(factory: aio.MessageFactory) -> dict[TopicPartition, int]:
    consumer = await plain_consumer(factory)
    return await consumer.get_offset("t")


async def test_what_is_not_committed_is_given_again(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """So an answer that gets lost loses no message."""
    await send(factory, *messages_of(1, 2, 3))
    consumer = await consumer_of(client)
    first = await received(client, consumer, 3)
    again = await received(client, consumer, 3)
    assert again == first
    part = (await client.get(f"{consumer}/messages", params={"max": 2})).json()
    assert part["messages"] == first["messages"][:2]
    done = await commit(client, consumer, *part["commit"])
    assert (done.status_code, done.json()["committed"]) == (200, part["commit"])
    rest = await client.get(f"{consumer}/messages")
    assert rest.json()["messages"] == first["messages"][2:]


async def test_a_commit_is_in_the_group_when_it_is_answered(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(1, 2, 3))
    consumer = await consumer_of(client)
    given = await received(client, consumer, 3)
    assert await offsets(factory) == {TopicPartition("t", 0): 0, TopicPartition("t", 1): 0}
    await commit(client, consumer, *given["commit"])
    expected = {
        TopicPartition("t", each["partition"]): each["next_offset"] for each in given["commit"]
    }
    stored = await offsets(factory)
    assert {each: stored[each] for each in expected} == expected
    repeated = await commit(client, consumer, *given["commit"])
    assert repeated.status_code == 200  # its answer may have got lost


async def test_fresh_messages_come_beside_those_that_are_not_committed(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(1, 2))
    consumer = await consumer_of(client)
    assert len((await received(client, consumer, 2))["messages"]) == 2
    await send(factory, *messages_of(3))
    fresh = await client.get(f"{consumer}/messages", params={**WAIT, "fresh": True})
    assert texts(fresh) == ["3"]
    assert len((await client.get(f"{consumer}/messages")).json()["messages"]) == 3


async def test_a_window_bounds_what_is_given_without_a_commit(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *(Message("t", b"%d" % n, key="k") for n in range(9)))
    consumer = await consumer_of(client, window=4)
    first = await received(client, consumer, 4)
    assert len(first["messages"]) == 4
    waits = asyncio.ensure_future(
        client.get(f"{consumer}/messages", params={**WAIT, "fresh": True})
    )
    await until(lambda: not waits.done())
    await commit(client, consumer, *first["commit"])
    assert texts(await waits) == ["4", "5", "6", "7"]


async def test_a_later_request_takes_over_from_one_that_waits(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    """The connection of the earlier one may be dead, and nobody has noticed."""
    consumer = await consumer_of(client)
    first = asyncio.ensure_future(client.get(f"{consumer}/messages", params=WAIT))
    await until(lambda: gateway.members.waiting == 1)
    second = asyncio.ensure_future(client.get(f"{consumer}/messages", params={"wait": 0.2}))
    assert ((await first).status_code, (await first).json()["code"]) == (409, "ReceiveTakenOver")
    assert texts(await second) == []


async def test_positions_that_were_not_given_are_refused_one_by_one(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, Message("t", b"x", key=0), Message("t", b"y", key=1))
    consumer = await consumer_of(client)
    good, bad = (await received(client, consumer, 2))["commit"]
    ahead = {**bad, "next_offset": bad["next_offset"] + 1}
    strange = {"topic": "other", "partition": 0, "next_offset": 5}
    answer = await commit(client, consumer, good, ahead, strange)
    assert (answer.status_code, answer.json()["committed"]) == (409, [good])
    refused = {each["topic"]: each["problem"]["code"] for each in answer.json()["not_committed"]}
    assert refused == {"t": "InvalidState", "other": "GenerationStale"}
    assert await offsets(factory) == {
        TopicPartition("t", good["partition"]): good["next_offset"],
        TopicPartition("t", bad["partition"]): 0,
    }


async def test_a_consumer_shares_its_group_with_clients_of_vq(
    cluster: MemoryCluster, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """It is a member as any other: a client that joins gets a partition of it."""
    consumer = await consumer_of(client)
    await until_assigned(client, consumer, 2)
    async with factory_of(cluster, host="other", seed=5) as other:
        native = await plain_consumer(other)
        await native.start()
        await until(lambda: len(native.assignment()) == 1)
        await until_assigned(client, consumer, 1)
        await send(factory, Message("t", b"0", key=0), Message("t", b"1", key=1))
        theirs = await take(native, 1)
        ours = await received(client, consumer, 1)
        assert {theirs[0].decode(), ours["messages"][0]["text"]} == {"0", "1"}


async def until_assigned(client: httpx.AsyncClient, consumer: str, count: int) -> None:
    async with asyncio.timeout(20):
        while len((await client.get(consumer)).json()["assignment"]) != count:
            await asyncio.sleep(0.01)


@pytest.mark.virtual_time
async def test_messages_of_a_partition_that_moves_wait_for_their_commit_not_for_ever(
    cluster: MemoryCluster, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """Another member gets what was not committed; a late commit of it is refused."""
    await send(factory, Message("t", b"0", key=0), Message("t", b"1", key=1))
    consumer = await consumer_of(client, lease_s=600)
    given = await received(client, consumer, 2)
    async with factory_of(cluster, host="other", seed=5) as other:
        native = await plain_consumer(other)
        moved = await take(native, 1)
        late = await commit(client, consumer, *given["commit"])
        assert late.status_code == 409
        [refused] = late.json()["not_committed"]
        [kept] = late.json()["committed"]
        texts_by = {each["partition"]: each["text"] for each in given["messages"]}
        assert moved == [texts_by[refused["partition"]].encode()]
        assert kept["partition"] != refused["partition"]


@pytest.mark.virtual_time
async def test_a_consumer_whose_lease_ends_leaves_and_loses_nothing(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(1, 2, 3))
    consumer = await consumer_of(client, lease_s=10)
    given = await received(client, consumer, 3)
    await commit(client, consumer, *given["commit"][:1])
    uncommitted = [
        each["text"]
        for each in given["messages"]
        if each["partition"] != given["commit"][0]["partition"]
    ]
    for _ in range(5):
        await asyncio.sleep(6)
        assert (await client.post(f"{consumer}/heartbeat")).status_code == 204
    await asyncio.sleep(11)
    for path in ("", "/messages", "/stream"):
        gone = await client.get(f"{consumer}{path}")
        assert (gone.status_code, gone.json()["code"]) == (410, "ConsumerGone")
        assert "POST /v1/consumers" in gone.json()["hint"]
    assert (len(gateway.members), gateway.counts.lapsed) == (0, 1)
    again = await consumer_of(client)
    if uncommitted:
        assert [
            each["text"] for each in (await received(client, again, len(uncommitted)))["messages"]
        ] == uncommitted


@pytest.mark.virtual_time
async def test_a_request_that_waits_keeps_the_lease(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    consumer = await consumer_of(client, lease_s=5)
    answer = await client.get(f"{consumer}/messages", params={"wait": 60})
    assert texts(answer) == []
    assert len(gateway.members) == 1


async def test_a_deleted_consumer_gives_its_partitions_back_at_once(
    client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(1))
    consumer = await consumer_of(client)
    await received(client, consumer, 1)
    assert (await client.delete(consumer)).status_code == 204
    assert (await client.get(f"{consumer}/messages")).status_code == 410
    again = await consumer_of(client)
    assert len((await received(client, again, 1))["messages"]) == 1


async def test_members_are_bounded_in_all_and_by_token(
    factory: aio.MessageFactory,
) -> None:
    async with gateway_of(factory, consumers_max=2) as gateway, http_client(gateway) as client:
        await consumer_of(client)
        await consumer_of(client)
        form = {"group": "g", "subscriptions": [{"topic": "t"}]}
        answer = await client.post("/v1/consumers", json=form)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


async def test_requests_that_wait_are_bounded(factory: aio.MessageFactory) -> None:
    async with gateway_of(factory, waiting_max=1) as gateway, http_client(gateway) as client:
        one, two = await consumer_of(client), await consumer_of(client)
        waits = asyncio.ensure_future(client.get(f"{one}/messages", params={"wait": 0.2}))
        await until(lambda: gateway.members.waiting == 1)
        for path in (f"{two}/messages?wait=1", f"{two}/stream"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (429, "AtLimit")
        assert (await client.get(f"{two}/messages")).status_code == 200
        assert (await waits).status_code == 200


async def test_a_consumer_that_vq_has_ended_is_told_so_and_is_gone(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """As when its group was given other terms: asking again would wait for ever."""
    consumer = await consumer_of(client)
    waits = asyncio.ensure_future(client.get(f"{consumer}/messages", params=WAIT))
    await until(lambda: gateway.members.waiting == 1)
    await factory.admin.roll_group("g", for_s=600, strategy="circle")
    await factory.admin.end_roll("g")
    answer = await waits
    assert (answer.status_code, answer.json()["code"]) == (410, "ConsumerGone")
    assert len(gateway.members) == 0


async def test_troubles_of_a_consumer_are_told(
    client: httpx.AsyncClient, cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(client)
    assert (await client.get(consumer)).json()["troubles"] == []


async def test_clients_that_do_not_take_their_answers_hold_back_further_ones(
    factory: aio.MessageFactory,
) -> None:
    class Transport(asyncio.Transport):
        def get_write_buffer_size(self) -> int:
            return 100

    async with (
        gateway_of(factory, unread_bytes_max=100) as gateway,
        http_client(gateway) as client,
    ):
        consumer = await consumer_of(client)
        gateway.unread.transports.add(Transport())
        for path in (f"{consumer}/messages", "/v1/topics/t/partitions/0/messages?offset=0"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        gateway.unread.transports.clear()
        assert (await client.get(f"{consumer}/messages")).status_code == 200


# Streams -----------------------------------------------------------------------------------------
async def test_a_stream_has_each_message_once_and_goes_on_behind_the_last_event(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *messages_of(1, 2, 3))
    consumer = await consumer_of(client)
    stream = StreamPeer(gateway, f"{consumer}/stream")
    events = await stream.until_events(3)
    assert stream.status == 200
    first = events[0]
    assert first["event"] == f"t/{first['partition']}/{first['offset']}"
    await stream.leave()
    again = StreamPeer(gateway, f"{consumer}/stream", last=events[1]["event"])
    assert await again.until_events(1) == events[2:]
    await send(factory, *messages_of(4))
    assert [each["text"] for each in await again.until_events(2)][1:] == ["4"]
    await again.leave()


async def test_a_stream_stops_at_the_window_until_a_commit(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    await send(factory, *(Message("t", b"%d" % n, key="k") for n in range(9)))
    consumer = await consumer_of(client, window=3)
    stream = StreamPeer(gateway, f"{consumer}/stream")
    events = await stream.until_events(3)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(stream.events()) == 3
    last = events[-1]
    position = {key: last[key] for key in ("topic", "partition", "next_offset")}
    assert (await commit(client, consumer, position)).status_code == 200
    assert len(await stream.until_events(6)) == 6
    await stream.leave()


@pytest.mark.virtual_time
async def test_a_peer_that_reads_nothing_of_its_stream_loses_its_lease(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    """What was written to it and not committed is delivered again."""
    await send(factory, *messages_of(1, 2))
    consumer = await consumer_of(client, lease_s=10)
    stream = StreamPeer(gateway, f"{consumer}/stream")
    stream.stop_reading()
    await asyncio.sleep(30)
    assert len(gateway.members) == 0
    again = await consumer_of(client)
    assert len((await received(client, again, 2))["messages"]) == 2
    await stream.leave()


@pytest.mark.virtual_time
async def test_a_stream_without_messages_keeps_its_lease_and_ends_with_its_consumer(
    gateway: Gateway, client: httpx.AsyncClient
) -> None:
    consumer = await consumer_of(client, lease_s=10)
    stream = StreamPeer(gateway, f"{consumer}/stream")
    await asyncio.sleep(100)
    assert stream.body.count(b": keep-alive\n\n") >= 5
    assert len(gateway.members) == 1
    await client.delete(consumer)
    await stream.task
    [end] = stream.events("end")
    assert (stream.ended, end["code"], end["status"]) == (True, "ConsumerGone", 410)


# The end -----------------------------------------------------------------------------------------
async def test_a_stop_answers_what_waits_and_members_leave(
    gateway: Gateway, client: httpx.AsyncClient, factory: aio.MessageFactory
) -> None:
    consumer = await consumer_of(client)
    waits = asyncio.ensure_future(client.get(f"{consumer}/messages", params=WAIT))
    stream = StreamPeer(gateway, f"{await consumer_of(client)}/stream")
    await until(lambda: gateway.members.waiting == 2 and stream.status)
    await gateway.stop()
    answer = await waits
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    await stream.task
    assert stream.events("end")[0]["code"] == "GatewayStopping"
    assert (await client.get("/v1/topics")).status_code == 503
    assert (await factory.admin.describe_group("g")).members == ()
    assert gateway.not_ready()
