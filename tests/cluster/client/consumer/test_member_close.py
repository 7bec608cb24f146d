"""A member that closes ends in bounded time and leaves nothing owned."""

import asyncio

import pytest
from support.membership import (
    ALL,
    P1,
    P2,
    Group,
    share,
)

from vq.coordination.groups import claims
from vq.coordination.tree.coordinator import SessionState
from vq.errors import CoordinationError
from vq.model import TopicPartition
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03])
async def test_closing_in_the_middle_of_a_round_leaves_nothing_owned(
    group: Group, after: float
) -> None:
    """Also when the answer to a claim was still on its way: the session lives on."""
    group.cluster.ensemble.delay = lambda: 0.001
    client = await group.client()
    consumer = await group.join("a", client)
    await asyncio.sleep(after)
    await consumer.member.close(1.0)
    assert await group.owners() == {}
    assert await group.members() == []
    assert client.coordinator.state is SessionState.CONNECTED


async def test_closing_between_the_claim_and_its_consumer_gives_it_up(group: Group) -> None:
    begun = asyncio.Event()

    async def begin(_: claims.Claim) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await begun.wait()
    await consumer.member.close(1.0)
    assert await group.owners() == {}


async def test_closing_does_not_wait_for_ever_for_a_listener(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """What it had is given to others; the message in hand comes once more."""
    first, second = await group.join("a"), await group.join("b")
    await share(first, second)
    stuck = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await stuck.wait()

    first.on_drain = drain
    async with asyncio.timeout(WAIT_S):
        await first.member.close(0.05)
    await until(lambda: second.held == ALL)
    assert await group.members() == ["b"]
    assert "listeners did not return in time" in caplog.text
    assert "offsets are not committed" not in caplog.text
    stuck.set()


async def test_closing_says_whose_progress_is_not_committed_and_why(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The listeners have returned: they are not to blame."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)

    async def refuse(partition: TopicPartition) -> None:
        if partition == P1:
            raise CoordinationError("no commit now")
        if partition == P2:
            await asyncio.Event().wait()

    consumer.on_commit = refuse
    await consumer.member.close(1.0)
    (line,) = [each for each in caplog.messages if "offsets are not committed" in each]
    assert "partitions=t-1,t-2" in line
    assert "no commit now" in line or "no answer from ZooKeeper within 1 s" in line
    assert "listeners did not return" not in caplog.text


async def test_a_member_that_left_keeps_no_timer(group: Group) -> None:
    """A permit that is extended for ever lapses one day, and then a member would pause."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    await consumer.member.close(1.0)
    permit = consumer.member.permit
    assert permit._timer is not None
    assert permit._timer.cancelled()
    assert consumer.member._suspend_timer is None


async def test_closing_without_zookeeper_ends(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    group.cluster.ensemble.disconnect(consumer.coordinator)
    async with asyncio.timeout(WAIT_S):
        await consumer.member.close(1.0)
    assert consumer.held == set()
    group.cluster.ensemble.reconnect(consumer.coordinator)


@pytest.mark.parametrize("seconds", [0.0, 3.0, 30.0])
async def test_what_a_member_owned_that_was_closed_without_zookeeper_is_freed(
    group: Group, seconds: float
) -> None:
    """Its session is its factory's, and lives on with the connection that comes back."""
    client = await group.client()
    closed = await group.join("a", client)
    other = await group.join("b")
    await share(closed, other)
    session = client.coordinator.session_id
    group.cluster.ensemble.stop()
    await closed.member.close(1.0)
    await asyncio.sleep(seconds)
    group.cluster.ensemble.start()
    await until(lambda: other.held == ALL)
    assert await group.members() == ["b"]
    assert client.coordinator.session_id == session


async def test_closing_twice_and_before_the_start_is_fine(group: Group) -> None:
    consumer = await group.member("a")
    await consumer.member.close(1.0)
    await consumer.member.start()
    await consumer.member.close(1.0)
    await consumer.member.close(1.0)
    assert await group.members() == []


async def test_a_member_that_leaves_during_a_hiccup_leaves_nothing_behind(group: Group) -> None:
    """Its session lives on with others that use it, and its nodes would be waited for."""
    client = await group.client(session_timeout_s=10.0)
    first, second = await group.join("a", client), await group.join("b", client)
    await share(first, second)
    group.cluster.ensemble.disconnect(first.coordinator)
    await until(lambda: first.coordinator.state is SessionState.SUSPENDED)
    closing = asyncio.create_task(first.member.close(5.0))
    await asyncio.sleep(0)
    group.cluster.ensemble.reconnect(first.coordinator)
    await closing
    await until(lambda: second.held == ALL)
