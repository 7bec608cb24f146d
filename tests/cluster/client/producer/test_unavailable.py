"""A broker of two is away and comes back: where the messages of a producer go meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.producers import core_of, ended, producer_of, published, queue_of, send, stored_in

from vq import aio
from vq.client.config import OnUnavailable
from vq.client.future import SendFuture
from vq.client.producer.core import ProducerCore
from vq.errors import BatchFailed, NotSent, PartitionUnavailable
from vq.model import Address, Message, SendResult, TopicPartition
from vq.testing.waiting import WAIT_S, until

PARTITIONS = 6


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Two brokers, and topic ``t`` with partitions on both."""
    async with memory_cluster() as made:
        await made.start("b1")
        await made.start("b2")
        await made.create_topic("t", partitions=PARTITIONS)
        yield made


def partitions_of(core: ProducerCore, group: str) -> list[int]:
    routes = core.cluster.routes
    return [
        number
        for number in range(PARTITIONS)
        if routes.placement(TopicPartition("t", number)).writer_group == group
    ]


def address_of(core: ProducerCore, group: str = "b2") -> Address:
    master = core.cluster.routes.master(group)
    assert master is not None
    return master[0]


async def kill(cluster: MemoryCluster, core: ProducerCore, group: str = "b2") -> None:
    """End a broker's network; ZooKeeper still names it as master. Return once that is known."""
    cluster.network.kill(group)
    address = address_of(core, group)
    await until(lambda: core.cluster.live_connection(address) is None)
    await until(lambda: address in core.cluster.unreachable)


async def come_back(cluster: MemoryCluster, core: ProducerCore, group: str = "b2") -> None:
    await cluster.nodes[group].stop()
    await cluster.start(group)
    address: list[Address] = []

    def is_back() -> bool:
        master = core.cluster.routes.master(group)
        address[:] = [] if master is None else [master[0]]
        return bool(address) and core.cluster.live_connection(address[0]) is not None

    await until(is_back)


async def settle() -> None:
    """Let everything run that can run now."""
    for _ in range(50):
        await asyncio.sleep(0)


async def results_of(core: ProducerCore, *keys: int | None) -> list[Any]:
    futures = [send(core, Message("t", b"x", key=key)) for key in keys]
    return [await ended(future) for future in futures]


ALL = range(PARTITIONS)


async def test_wait_keeps_the_messages_of_a_key_for_its_partition(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    assert [result.partition for result in await results_of(core, *ALL)] == list(ALL)
    away = partitions_of(core, "b2")
    assert 0 < len(away) < PARTITIONS
    await kill(cluster, core)
    futures = [send(core, Message("t", b"x", key=key)) for key in ALL]
    there = [futures[key] for key in partitions_of(core, "b1")]
    for future in there:
        await ended(future)
    await settle()
    assert [key for key in ALL if not futures[key].done()] == away
    await come_back(cluster, core)
    assert [(await ended(future)).partition for future in futures] == list(ALL)
    assert not any(future.outcome.diverted for future in futures)  # type: ignore[union-attr]


async def test_wait_ends_at_the_deadline(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    await kill(cluster, core)
    key = partitions_of(core, "b2")[0]
    outcome = await ended(send(core, Message("t", b"x", key=key), None, 0.2))
    assert type(outcome) is NotSent
    assert f"deadline of 0.2 s: its broker b2 at {address_of(core)} cannot be reached (" in str(
        outcome
    )


async def test_what_a_partition_waits_for_is_the_cause_at_the_deadline(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    key = partitions_of(core, "b2")[0]
    message = Message("t", b"x", key=key)
    core.cluster.ids_ready = False
    assert "message ids cannot be made" in str(await ended(send(core, message, None, 0.05)))
    core.cluster.ids_ready = True
    await cluster.nodes["b2"].stop()
    await until(lambda: core.cluster.routes.master("b2") is None)
    assert "b2 has no master" in str(await ended(send(core, message, None, 0.05)))
    assert core.sender.why_waiting(TopicPartition("t", 99)) == "t-99 does not exist"
    assert core.sender.why_waiting(TopicPartition("u", 0)) == "u-0 does not exist"


async def test_a_broker_that_does_not_say_hello_is_the_cause_at_the_deadline(
    factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await published(factory)
    monkeypatch.setattr(core.cluster, "live_connection", lambda _: None)
    outcome = await ended(send(core, Message("t", b"x", key=0), None, 0.05))
    assert "there is no connection to its broker" in str(outcome)


async def test_fail_refuses_at_once_and_says_which_partition(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, on_unavailable="fail")
    await results_of(core, *ALL)
    away = partitions_of(core, "b2")
    await kill(cluster, core)
    outcomes = await results_of(core, *ALL)
    for key in ALL:
        if key not in away:
            assert outcomes[key].partition == key
            continue
        assert type(outcomes[key]) is PartitionUnavailable
        assert outcomes[key].retriable
        assert f"t-{key}" in str(outcomes[key])
        assert str(address_of(core)) in str(outcomes[key])
    await come_back(cluster, core)
    assert [result.partition for result in await results_of(core, *ALL)] == list(ALL)
    counts = [len(await stored_in(factory, number)) for number in ALL]
    assert counts == [2 if number in away else 3 for number in ALL]


async def test_any_diverts_and_says_so(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    core = await published(factory, on_unavailable="any")
    assert not any(result.diverted for result in await results_of(core, *ALL))
    away = partitions_of(core, "b2")
    await kill(cluster, core)
    told: list[Any] = []
    futures = [
        send(core, Message("t", b"x", key=key), lambda *outcome: told.append(outcome))
        for key in ALL
    ]
    results = [await ended(future) for future in futures]
    assert [result.diverted for result in results] == [key in away for key in ALL]
    assert all(result.partition in partitions_of(core, "b1") for result in results)
    assert sorted(result.diverted for result, _ in told) == sorted(key in away for key in ALL)
    assert all(isinstance(each, SendResult) and len(each) == 3 for each in results)
    await come_back(cluster, core)
    again = await results_of(core, *ALL)
    assert [(result.partition, result.diverted) for result in again] == [(n, False) for n in ALL]
    assert sum([len(await stored_in(factory, number)) for number in ALL]) == 3 * PARTITIONS


async def test_messages_without_a_key_go_round_and_are_even_before_and_after(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory)
    rounds = [None] * (4 * PARTITIONS)

    async def counts() -> Counter[int]:
        return Counter(result.partition for result in await results_of(core, *rounds))

    assert await counts() == dict.fromkeys(ALL, 4)
    left = partitions_of(core, "b1")
    await kill(cluster, core)
    assert await counts() == dict.fromkeys(left, len(rounds) // len(left))
    await come_back(cluster, core)
    assert await counts() == dict.fromkeys(ALL, 4)


@pytest.mark.parametrize("policy", OnUnavailable)
async def test_queued_messages_follow_the_policy_in_their_order(
    cluster: MemoryCluster, factory: aio.MessageFactory, policy: OnUnavailable
) -> None:
    """They are in the queues of all partitions, and none was sent, when the broker goes."""
    core = await published(factory, on_unavailable=policy)
    cluster_of_core = core.cluster
    cluster_of_core.ids_ready = False
    keyed = [send(core, Message("t", b"k%d" % n, key=n % PARTITIONS)) for n in range(24)]
    spread = [send(core, Message("t", b"%03d" % n)) for n in range(60)]
    await until(lambda: all(queue_of(core, number).pending for number in ALL))
    queued = [[item.content for item in queue_of(core, number).pending] for number in ALL]
    await kill(cluster, core)
    cluster_of_core.ids_ready = True
    core.sender.send_waiting()
    away, left = partitions_of(core, "b2"), partitions_of(core, "b1")
    at_away = {text for number in away for text in queued[number]}
    staying = [future for future in spread if future.content in at_away]
    assert staying
    if policy is OnUnavailable.ANY:
        staying = []
    assert all([(await ended(each)).partition in left for each in spread if each not in staying])
    for number in left:
        found = await stored_in(factory, number)
        for source in ALL:
            from_source = [text for text in found if text in queued[source]]
            assert from_source == [text for text in queued[source] if text in found]
    lost = [future for n, future in enumerate(keyed) if n % PARTITIONS in away] + staying
    if policy is OnUnavailable.WAIT:
        await settle()
        assert not any(future.done() for future in lost)
        await come_back(cluster, core)
    outcomes = [await ended(future) for future in lost]
    if policy is OnUnavailable.FAIL:
        assert {type(outcome) for outcome in outcomes} == {PartitionUnavailable}
    else:
        assert {outcome.diverted for outcome in outcomes} == {policy is OnUnavailable.ANY}
    await core.flush()
    diverted = len(lost) if policy is OnUnavailable.ANY else 0
    assert core.metrics().topics["t"].messages_diverted == diverted


@pytest.mark.parametrize("policy", OnUnavailable)
async def test_what_was_sent_stays_with_its_partition(
    cluster: MemoryCluster, factory: aio.MessageFactory, policy: OnUnavailable
) -> None:
    """It may be stored: neither refused nor sent elsewhere; the broker answers when it is back."""
    core = await published(factory, on_unavailable=policy)
    await results_of(core, *ALL)
    number = partitions_of(core, "b2")[0]
    cluster.flushers["b2"].held = True
    future = send(core, Message("t", b"sent", key=number))
    await until(lambda: queue_of(core, number).in_flight)
    await settle()
    await kill(cluster, core)
    await settle()
    assert not future.done()
    cluster.flushers["b2"].release()
    await come_back(cluster, core)
    result = await ended(future)
    assert (result.partition, result.diverted) == (number, False)
    assert (await stored_in(factory, number)).count(b"sent") == 1


@pytest.mark.parametrize("policy", OnUnavailable)
async def test_blocking_sends_follow_the_policy(
    cluster: MemoryCluster, factory: aio.MessageFactory, policy: OnUnavailable
) -> None:
    core = await published(factory, on_unavailable=policy)
    number = partitions_of(core, "b2")[0]
    await kill(cluster, core)
    for _ in ALL:
        future = await asyncio.to_thread(core.send_blocking, Message("t", b"x"), WAIT_S)
        assert future.outcome.partition in partitions_of(core, "b1")
        assert not future.outcome.diverted
    timeout = 0.2 if policy is OnUnavailable.WAIT else WAIT_S
    outcome: Any = (
        await asyncio.to_thread(core.send_blocking, Message("t", b"x", key=number), timeout)
    ).outcome
    if policy is OnUnavailable.ANY:
        assert outcome.diverted
        assert outcome.partition in partitions_of(core, "b1")
    else:
        expected = NotSent if policy is OnUnavailable.WAIT else PartitionUnavailable
        assert type(outcome) is expected


async def test_a_blocking_send_that_waits_is_dealt_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its thread sleeps at the first queue and gets the outcome of the second one."""
    core = await published(factory)
    core.cluster.ids_ready = False
    sends = [
        asyncio.create_task(asyncio.to_thread(core.send_blocking, Message("t", b"%d" % n), 20.0))
        for n in range(PARTITIONS)
    ]
    await until(lambda: all(queue_of(core, number).pending for number in ALL))
    await kill(cluster, core)
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    for each in sends:
        outcome: Any = (await each).outcome
        assert outcome.partition in partitions_of(core, "b1")
    assert all(queue_of(core, number).owner is None for number in ALL)


async def test_with_no_broker_at_all_everything_waits(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, on_unavailable="any")
    await kill(cluster, core, "b1")
    await kill(cluster, core, "b2")
    futures = [send(core, Message("t", b"x", key=key)) for key in [*ALL, *[None] * PARTITIONS]]
    await settle()
    assert not any(future.done() for future in futures)
    await come_back(cluster, core, "b2")
    results = [await ended(future) for future in futures]
    assert {result.partition for result in results} == set(partitions_of(core, "b2"))


async def test_a_batch_without_keys_goes_round(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """All its messages go to one partition, and to another one if that becomes unavailable."""
    core = await published(factory, on_unavailable="fail", partitioner="round-robin")
    core.cluster.ids_ready = False
    producer = aio.MessageProducer(core, core.cluster)
    batches = [
        asyncio.create_task(producer.send_batch([Message("t", b"1"), Message("t", b"2")]))
        for _ in ALL
    ]
    await until(lambda: all(queue_of(core, number).pending for number in ALL))
    await kill(cluster, core)
    core.cluster.ids_ready = True
    core.sender.send_waiting()
    for each in batches:
        results = await each
        assert {result.partition for result in results} <= set(partitions_of(core, "b1"))
        assert not any(result.diverted for result in results)


# Ordered ----------------------------------------------------------------------------------------
async def test_ordered_messages_without_a_key_stay_in_one_partition(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    core = await published(factory, ordered=True, window=5, batch_records=2)
    futures = [send(core, Message("t", b"%03d" % n)) for n in range(20)]
    futures.append(await asyncio.to_thread(core.send_blocking, Message("t", b"020"), WAIT_S))
    [number] = {(await ended(future)).partition for future in futures}
    group = "b2" if number in partitions_of(core, "b2") else "b1"
    await kill(cluster, core, group)
    futures = [send(core, Message("t", b"%03d" % n)) for n in range(21, 40)]
    await settle()
    assert not any(future.done() for future in futures)
    await come_back(cluster, core, group)
    assert {(await ended(future)).partition for future in futures} == {number}
    assert await stored_in(factory, number) == [b"%03d" % n for n in range(40)]


async def test_ordered_producers_choose_partitions_at_random(factory: aio.MessageFactory) -> None:
    chosen = set()
    for _ in range(30):
        core = await published(factory, ordered=True)
        [result] = await results_of(core, None)
        chosen.add(result.partition)
    assert len(chosen) > 2


async def test_ordered_messages_behind_a_late_one_fail_too(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Those that were sent may be stored; all others are certainly not, and can be sent again."""
    core = await published(factory, ordered=True, window=2, batch_records=2)
    group = "b1"
    number = partitions_of(core, group)[0]
    cluster.flushers[group].held = True
    sent = [send(core, Message("t", b"%d" % n, key=number)) for n in range(2)]
    await until(lambda: queue_of(core, number).in_flight)
    core.cluster.ids_ready = False
    late = send(core, Message("t", b"late", key=number), None, 0.05)
    behind = [send(core, Message("t", b"behind", key=number)) for _ in range(3)]
    assert type(await ended(late)) is NotSent
    for future in behind:
        assert "an earlier message" in str(await ended(future))
        assert type(future.outcome) is NotSent
    assert not any(future.done() for future in sent), "what was accepted before goes on"
    core.cluster.ids_ready = True
    cluster.flushers[group].release()
    again = [send(core, Message("t", b"%d" % n, key=number)) for n in range(2, 6)]
    for future in [*sent, *again]:
        await ended(future)
    assert await stored_in(factory, number) == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("policy", ["wait", "fail"])
async def test_ordered_messages_accepted_while_one_fails_fail_too(
    cluster: MemoryCluster, factory: aio.MessageFactory, policy: str
) -> None:
    """Threads append between the sender's look at what is behind and the outcome."""
    core = await published(factory, ordered=True, on_unavailable=policy)
    number = partitions_of(core, "b2")[0]
    await kill(cluster, core)
    accepted: list[SendFuture] = []
    first = send(core, Message("t", b"first", key=number), None, 0.05)

    def drain() -> None:
        look()
        if queue_of(core, number).pending and not first.done():
            accepted.append(send(core, Message("t", b"second", key=number)))

    look, core.accumulator.drain = core.accumulator.drain, drain  # type: ignore[method-assign]
    assert isinstance(await ended(first), NotSent | PartitionUnavailable)
    del core.accumulator.drain
    assert accepted
    await come_back(cluster, core)
    for future in accepted:
        assert isinstance(await ended(future), NotSent | PartitionUnavailable)
    assert await stored_in(factory, number) == []
    assert core.metrics().messages_waiting == 0


async def test_ordered_a_batch_send_does_not_go_on_behind_its_failed_messages(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its first chunk is refused; the broker is back before the second one is appended."""
    producer = await producer_of(factory, ordered=True, on_unavailable="fail", batch_records=2)
    await producer.publish("t")
    core = core_of(producer)
    here, away = (partitions_of(core, group)[0] for group in ("b1", "b2"))
    await kill(cluster, core)
    messages = [Message("t", b"%d" % n, key=away if n % 2 else here) for n in range(8)]
    batch = core.batch_send(messages, WAIT_S)
    assert not batch.append("t", block=False)
    for future in batch.accepted():
        await ended(future)
    await come_back(cluster, core)
    while not batch.append("t", block=False):
        pass
    await core.ended(batch.accepted())
    with pytest.raises(BatchFailed) as caught:
        batch.results()
    kinds = [type(outcome) for outcome in caught.value.outcomes]
    assert kinds == [SendResult, PartitionUnavailable, *[SendResult, NotSent] * 3]
    assert await stored_in(factory, away) == []
    assert await stored_in(factory, here) == [b"0", b"2", b"4", b"6"]
    assert core.metrics().messages_waiting == 0
