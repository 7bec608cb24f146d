"""Closing a topic for writes: what a send meets, and when nothing is appended any more."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of, started
from support.node_pair import NodePair

from vq.client.cluster import ClusterClient
from vq.coordination.topics import topics as tree
from vq.coordination.tree.coordinator import ConnectionLost
from vq.errors import InvalidState, OutcomeUnknown, TopicClosed, UnknownTopic
from vq.model import Message, StatusResult
from vq.operations.cluster.cluster import cluster_status
from vq.operations.topics import closing, topics
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


async def test_every_send_during_a_close_is_stored_or_refused(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """What was acknowledged lies before the ends that the close returns, nothing behind them."""
    async with factory_of(cluster) as factory, await factory.create_producer() as producer:
        await producer.publish("t")
        sends = [asyncio.create_task(_send(producer, number)) for number in range(200)]
        await until(lambda: sum(each.done() for each in sends) > 5)
        closed = await closing.close_topic(client, "t")
        outcomes = await asyncio.gather(*sends)
        assert closed.closed_ms is not None
        assert closed.unconfirmed == ()
        with pytest.raises(TopicClosed, match="t is closed for writes") as refused:
            await producer.send(Message("t", b"late"))
        assert "`vq topic open NAME` opens it again" in refused.value.hint
    stored = [each for each in outcomes if not isinstance(each, Exception)]
    assert stored
    assert all(isinstance(each, TopicClosed) for each in outcomes if isinstance(each, Exception))
    for number, end in closed.ends.items():
        log = cluster.nodes[f"b{number + 1}"].parts.partitions.channels["t", number].log
        assert end == (log.end_offset if log is not None else 0)
    found = await topics.describe_topic(client, "t")
    assert [each.state for each in found.partitions] == ["closed", "closed"]
    assert (await cluster_status(client)).closed_topics == ["t"]


async def _send(producer, number: int):  # type: ignore[no-untyped-def]
    try:
        return await producer.send(Message("t", b"%d" % number))
    except TopicClosed as error:
        return error


async def test_closing_and_opening_again_change_nothing(client: ClusterClient) -> None:
    assert (await closing.close_topic(client, "t")).changed
    again = await closing.close_topic(client, "t")
    assert (again.changed, again.unconfirmed) == (False, ())
    assert (await closing.open_topic(client, "t")).changed
    assert not (await closing.open_topic(client, "t")).changed


async def test_an_opened_topic_takes_messages_of_the_same_producer(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    async with factory_of(cluster) as factory, await factory.create_producer() as producer:
        await producer.send(Message("t", b"1"))
        await closing.close_topic(client, "t")
        with pytest.raises(TopicClosed):
            await producer.send(Message("t", b"2"))
        await closing.open_topic(client, "t")
        channels = [cluster.nodes[f"b{n + 1}"].parts.partitions.channels["t", n] for n in range(2)]
        await until(lambda: all(each.takes_puts for each in channels))
        await producer.send(Message("t", b"3"))


async def test_a_broker_that_does_not_run_is_named(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """It may run all the same, cut off from ZooKeeper, while its lease lasts."""
    await cluster.nodes["b2"].stop()
    closed = await closing.close_topic(client, "t", timeout=0.1)
    assert closed.closed_ms is None
    assert closed.unconfirmed == ("b2/n1 is not registered",)
    assert (closed.ends[0], closed.ends[1]) == (0, None)


async def test_ends_are_final_only_while_a_node_leads(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a switch each node may answer as a copy, and nobody tells an end."""
    ask, looks = closing.broker_status, 0

    async def as_a_copy(*given: Any) -> StatusResult:
        nonlocal looks
        status, looks = await ask(*given), looks + 1
        if looks <= 4:
            status.raw["master"] = False
        return status

    assert (await closing.close_topic(client, "t")).unconfirmed == ()
    monkeypatch.setattr(closing, "broker_status", as_a_copy)
    closed = await closing.close_topic(client, "t", timeout=0)
    assert closed.unconfirmed == (
        "no node leads group b1 at this moment",
        "no node leads group b2 at this moment",
    )
    closed = await closing.close_topic(client, "t")
    assert looks >= 6
    assert (closed.unconfirmed, closed.ends) == ((), {0: 0, 1: 0})


async def test_a_partition_that_is_being_moved_is_waited_for(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    """Its node may not know of the close yet; if the move is given up, it takes messages again."""
    channels = cluster.nodes["b1"].parts.partitions.channels
    await until(lambda: ("t", 0) in channels)
    channels["t", 0].begin_move()
    closed = await closing.close_topic(client, "t", timeout=1)
    assert closed.unconfirmed == (
        "b1/n1: t-0 is sealed at this moment, so it may not be known there yet",
    )
    channels["t", 0].end_move()
    assert (await closing.close_topic(client, "t")).unconfirmed == ()


async def test_a_close_waits_until_the_nodes_in_sync_have_everything() -> None:
    async with memory_cluster() as memory:
        pair = NodePair(memory)
        await pair.start("n1")
        await memory.create_topic("t")
        await pair.put()
        await pair.start("n2")
        await pair.in_sync()
        memory.flushers["b1-n2"].held = True
        async with started(memory, host="operator") as client:
            sent = asyncio.create_task(pair.put())
            await until(lambda: pair.log("n1").end_offset > pair.channel("n1").high_watermark)
            closed = await closing.close_topic(client, "t", timeout=0.5)
            (why,) = closed.unconfirmed
            assert "is stored by all nodes in sync" in why
            memory.flushers["b1-n2"].release()
            await sent
            closed = await closing.close_topic(client, "t")
            assert closed.ends == {0: pair.log("n1").end_offset}


async def test_a_topic_that_is_opened_during_a_close_is_told(client: ClusterClient) -> None:
    async def open_it(look: tree.TopicView) -> closing.Found:
        await closing.open_topic(client, "t")
        return closing.Found(missing=["a broker"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "_look", lambda _, view: open_it(view))
        with pytest.raises(InvalidState, match="was opened again meanwhile"):
            await closing.close_topic(client, "t")


async def test_a_close_whose_answer_was_lost_is_unknown_or_settled(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(*_: object, **__: object) -> None:
        raise ConnectionLost("no reply")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "alter_settings", cut)
        with pytest.raises(OutcomeUnknown, match="changing t may or may not"):
            await closing.close_topic(client, "t")
    with pytest.raises(UnknownTopic):
        await closing.close_topic(client, "u")
