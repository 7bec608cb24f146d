"""A member that outlives its session with ZooKeeper: what it was delivered is not delivered again.

handled 1 2 3, committed up to 1     session ends     handled 4 5 …
──────────────────────────────────────────┼───────────────────────
                                          claims anew, goes on behind 3
"""

import asyncio
import logging
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import HOST, factory_of
from support.consumers import client_of_factory, consumer_of, send, take, texts

from vq import aio
from vq.coordination.groups import groups
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected, SessionState
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.message_filter import ALL
from vq.model import TopicPartition
from vq.testing.waiting import until, until_true

WHERE = TopicPartition("t", 0)


def coordinator_of(factory: aio.MessageFactory) -> Any:
    return client_of_factory(factory).coordinator


async def lose_the_session(cluster: MemoryCluster, factory: aio.MessageFactory) -> None:
    """End the session; return in the next one."""
    coordinator = coordinator_of(factory)
    session = coordinator.session_id
    cluster.ensemble.expire(coordinator)
    await until(lambda: coordinator.session_id not in {0, session})


async def test_what_was_handled_before_the_session_ended_is_not_delivered_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1, 2, 3, 4, 5, 6))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 1) == [b"1"]
    await consumer.commit()
    assert await take(consumer, 2) == [b"2", b"3"]
    await lose_the_session(cluster, factory)
    assert await take(consumer, 2) == [b"4", b"5"]
    await lose_the_session(cluster, factory)
    assert await take(consumer, 1) == [b"6"]
    await consumer.close()
    second = await consumer_of(factory)
    await send(factory, *texts(7))
    assert await take(second, 1) == [b"7"], "the progress was committed under the new claim"


async def test_a_reset_meanwhile_has_the_last_word(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1, 2, 3))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 2) == [b"1", b"2"]
    async with cluster.admin() as coordinator:
        await ZooKeeperOffsets(coordinator).reset("g", WHERE, CommittedOffset(offset=0))
    await lose_the_session(cluster, factory)
    assert await take(consumer, 3) == [b"1", b"2", b"3"]


async def test_a_place_that_was_sought_outlasts_the_session(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Nobody else has claimed the partition: before the reading began there, and after."""
    sent = await send(factory, *texts(*range(1, 6)))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 4) == [b"1", b"2", b"3", b"4"]
    await consumer.commit()
    await consumer.seek(WHERE, sent[0].offset)  # the task is still at the fourth message
    await lose_the_session(cluster, factory)
    assert await take(consumer, 2) == [b"1", b"2"]
    await consumer.seek(WHERE, sent[0].offset)
    assert await take(consumer, 2) == [b"1", b"2"]
    await lose_the_session(cluster, factory)
    assert await take(consumer, 1) == [b"3"]
    await consumer.commit()
    assert (await consumer.get_offset("t"))[WHERE] < sent[2].offset, "under the new claim"


async def test_nothing_is_committed_under_a_claim_of_an_earlier_session(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """No round has noticed the new session yet, and the group was deleted and made anew: the
    generation of another member's claim may be the same."""
    await send(factory, *texts(1, 2, 3, 4))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 4) == [b"1", b"2", b"3", b"4"]
    coordinator = coordinator_of(factory)
    async with cluster.admin() as operator:
        cluster.ensemble.disconnect(coordinator)
        await until(lambda: not cluster.ensemble.is_live(coordinator.session_id))
        await groups.delete_group(operator, "g")
        async with factory_of(cluster, seed=12) as others:
            other = await consumer_of(others, commit_interval_s=600.0)
            assert await take(other, 1) == [b"1"]
            session = coordinator.session_id
            cluster.ensemble.reconnect(coordinator)
            while coordinator.session_id in {0, session}:
                await asyncio.sleep(0)
            await consumer.commit()
            found = await ZooKeeperOffsets(operator).read("g", ["t"])
            assert found[WHERE].offset == 0, "the other member has committed where it began"


@pytest.mark.virtual_time
async def test_a_commit_whose_answer_is_lost_is_known_after_later_ones_that_were_not_sent(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await send(factory, *texts(1, 2, 3, 4))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 2) == [b"1", b"2"]
    coordinator = coordinator_of(factory)
    cluster.ensemble.lose_next_reply(coordinator)
    coordinator.cut = True  # for the time after it
    committing = asyncio.create_task(consumer.commit())
    await until(lambda: coordinator.state is SessionState.SUSPENDED)
    assert await take(consumer, 1) == [b"3"]
    with pytest.raises(ConnectionLost):
        await committing
    for _ in range(2):
        with pytest.raises(NotConnected):
            await consumer.commit()
    session = coordinator.session_id
    cluster.ensemble.reconnect(coordinator)
    await until(lambda: coordinator.session_id not in {0, session})
    assert await take(consumer, 2) == [b"3", b"4"]


@pytest.mark.virtual_time
async def test_a_successor_that_committed_has_the_last_word(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """While the member cannot reach ZooKeeper, another one goes on, commits and ends."""
    await send(factory, *texts(1, 2, 3, 4))
    consumer = await consumer_of(factory, commit_interval_s=600.0)
    assert await take(consumer, 2) == [b"1", b"2"]
    coordinator = coordinator_of(factory)
    cluster.ensemble.disconnect(coordinator)
    async with factory_of(cluster, seed=12) as others:
        other = await consumer_of(others)
        assert await take(other, 3) == [b"1", b"2", b"3"]
        await other.close()
    cluster.ensemble.reconnect(coordinator)
    assert await take(consumer, 1) == [b"4"]


def warnings(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """The lines at WARNING that have one of these words, oldest first."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and any(word in record.getMessage() for word in words)
    ]


async def test_an_absence_of_zookeeper_is_told_once_and_its_end_once(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await consumer_of(factory)
    await consumer.start()
    await until(consumer.assignment)
    cluster.ensemble.stop()
    await until(lambda: warnings(caplog, "ZooKeeper cannot be reached"))
    cluster.ensemble.start()
    await until(lambda: warnings(caplog, "ZooKeeper is reached again"))
    assert len(warnings(caplog, "ZooKeeper ")) == 2


@pytest.mark.virtual_time
async def test_a_broker_that_is_away_is_told_once_and_its_return_once(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    await send(factory, *texts(1))
    consumer = await consumer_of(factory)
    assert await take(consumer, 1) == [b"1"]
    cluster.network.cut(HOST, "b1")
    cluster.network.reset_connections("b1")
    await until(lambda: warnings(caplog, "cannot connect to a broker"))
    await until(lambda: client_of_factory(factory).unreachable and _attempts(factory) > 1)
    cluster.network.heal()
    await until(lambda: warnings(caplog, "reconnected to a broker"))
    assert len(warnings(caplog, "cannot connect to a broker", "reconnected")) == 2


def _attempts(factory: aio.MessageFactory) -> int:
    return max(each.attempts for each in client_of_factory(factory).unreachable.values())


@pytest.mark.virtual_time
async def test_a_member_that_comes_back_to_a_deleted_group_makes_its_contract_anew(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Otherwise it consumes in a group that no command and no monitoring knows."""
    await send(factory, *texts(1))
    consumer = await consumer_of(factory, member_id="m")
    assert await take(consumer, 1) == [b"1"]
    coordinator = coordinator_of(factory)
    async with cluster.admin() as operator:
        cluster.ensemble.disconnect(coordinator)
        await until(lambda: not cluster.ensemble.is_live(coordinator.session_id))
        await groups.delete_group(operator, "g")
        assert await groups.list_groups(operator) == []
        session = coordinator.session_id
        cluster.ensemble.reconnect(coordinator)
        await until(lambda: coordinator.session_id not in {0, session})

        async def is_back() -> bool:
            return "m" in await groups.members(operator, "g")

        await until_true(is_back)
        contract = await groups.read_group(operator, "g")
    assert contract is not None
    assert contract.topics == {"t": ALL}
