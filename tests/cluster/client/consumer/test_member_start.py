"""A member starts under a name that is free, and a start that fails leaves no member behind."""

import asyncio

import pytest
from support.coordination import expire
from support.membership import (
    ALL,
    Consumer,
    Group,
    audit,
    gives,
)

from vq.client.consumer.group import membership as memberships
from vq.client.departures import Departure
from vq.coordination.groups import claims
from vq.coordination.tree.coordinator import SessionState
from vq.errors import InvalidArgument, InvalidState
from vq.message_filter import Filter
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time


async def test_a_consumer_of_the_same_name_follows_one_that_was_closed_without_zookeeper(
    group: Group,
) -> None:
    """In the same factory, at once: it is not refused, and not thrown out afterwards."""
    client = await group.client(session_timeout_s=60.0)
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    group.cluster.ensemble.disconnect(first.coordinator)
    await first.member.close(1.0)
    second = await group.member("a", client)
    starting = asyncio.create_task(second.member.start())
    await asyncio.sleep(0.01)
    group.cluster.ensemble.reconnect(first.coordinator)
    await starting
    await until(lambda: second.held == ALL)
    audit(second)
    await asyncio.sleep(1.0)
    assert second.events == []
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_consumer_of_the_same_name_does_not_start_before_the_first_one_has_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one leaves undone would later delete the owner nodes of the second one."""
    client = await group.client()
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    may_leave, delete = asyncio.Event(), client.departures._delete

    async def late(departure: Departure) -> None:
        await may_leave.wait()
        await delete(departure)

    monkeypatch.setattr(client.departures, "_delete", late)
    interrupted = tuple(claims.Claim("g", "a", each, generation=0) for each in sorted(ALL))
    client.departures.begin(Departure("g", "a", "n1", client.coordinator.session_id, interrupted))
    await first.member.close(1.0)
    await expire(group.cluster.ensemble, first.coordinator)
    second = await group.member("a", client)
    with pytest.raises(InvalidState, match="has not left"):
        await second.member.start()
    may_leave.set()
    await second.member.start()
    await until(lambda: second.held == ALL)
    await asyncio.sleep(1.0)
    assert await group.owners() == dict.fromkeys(ALL, "a")
    await second.member.close(1.0)


@pytest.mark.parametrize("fault", ["lose_next_request", "lose_next_reply"])
@pytest.mark.parametrize("skip", range(10))
async def test_a_start_that_failed_without_zookeeper_leaves_no_member(
    group: Group, fault: str, skip: int
) -> None:
    """Whichever of its calls met the end of the connection."""
    client = await group.client()
    consumer = await group.member("a", client)
    getattr(group.cluster.ensemble, fault)(consumer.coordinator, skip=skip)
    coordinator = consumer.coordinator
    coordinator.add_listener(
        lambda state: setattr(coordinator, "cut", state is SessionState.SUSPENDED)
    )
    starting = asyncio.create_task(consumer.member.start())
    await asyncio.wait([starting], timeout=1.0)
    if not starting.done() or starting.exception() is None:
        starting.cancel()
        await asyncio.wait([starting])
    coordinator.faults.clear()
    await consumer.member.close(1.0)
    group.cluster.ensemble.reconnect(coordinator)
    await until(lambda: coordinator.state is SessionState.CONNECTED)
    await until_true(lambda: gives(group.members(), []))
    await until_true(lambda: gives(group.owners(), {}))


async def test_a_name_that_is_taken_is_refused_and_the_other_one_stays(group: Group) -> None:
    """Also within one session, where the node of the other one would count as our own."""
    client = await group.client()
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    second = await group.member("a", client)
    with pytest.raises(InvalidState, match="that goes on"):
        await second.member.start()
    await second.member.close(1.0)
    assert await group.members() == ["a"]
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_start_waits_for_the_session_of_a_killed_member_of_its_name(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    group.cluster.ensemble.crash(first.coordinator)
    second = await group.member("a")
    second.member.nonce = "of another process"
    async with asyncio.timeout(WAIT_S):
        await second.member.start()
    assert caplog.text.count("member name is in use") == 1
    await until(lambda: second.held == ALL)
    assert await group.members() == ["a"]


async def test_a_start_does_not_wait_for_ever_for_a_name(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live member of that name keeps it."""
    monkeypatch.setattr(memberships, "NAME_S", 0.05)
    monkeypatch.setattr(memberships, "NAME_SESSIONS", 0.1)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.member("a")
    second.member.nonce = "of another process"
    begin = asyncio.get_running_loop().time()
    with pytest.raises(InvalidState, match="give each member a member_id of its own"):
        await second.member.start()
    assert 0.05 < asyncio.get_running_loop().time() - begin < 5
    await second.member.close(1.0)
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_start_that_is_given_up_leaves_no_member_behind(group: Group) -> None:
    """The others would wait for its share."""
    group.cluster.ensemble.delay = lambda: 0.002
    for after in range(0, 60, 4):
        consumer = await group.member("a")
        starting = asyncio.create_task(consumer.member.start())
        await asyncio.sleep(after / 1_000)
        starting.cancel()
        ended = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(ended[0], asyncio.CancelledError):
            assert await group.members() == []
        await consumer.member.close(1.0)


async def test_another_contract_is_refused(group: Group) -> None:
    consumer = await group.join("a")
    other = Consumer(await group.client(), "b", wanted=Filter(("red",)))
    with pytest.raises(InvalidArgument, match="the group reads all messages of topic"):
        await other.member.start()
    await until(lambda: consumer.held == ALL)
