"""A member with a fixed name that is back soon has what it had, and nothing moved meanwhile."""

import asyncio

import pytest
from support.membership import ALL, Consumer, Group, share

from vq.client.config import ConsumerConfig
from vq.coordination.groups import groups
from vq.errors import InvalidArgument, InvalidState
from vq.operations.groups.balance import group_history
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def two(group: Group, **settings: float) -> tuple[Consumer, Consumer]:
    first = await group.join("a", **settings)
    second = await group.join("b")
    await share(first, second)
    first.events.clear()
    second.events.clear()
    return first, second


async def claims_of(group: Group, member: str) -> int:
    """How often a member has claimed a partition, as the group remembers it."""
    client = await group.client()
    return sum(each.member == member for each in await group_history(client, "g"))


async def again(group: Group, name: str, **settings: float) -> Consumer:
    """Another process of that name starts."""
    consumer = await group.member(name, **settings)
    consumer.member.nonce = "of another process"
    async with asyncio.timeout(WAIT_S):
        await consumer.member.start()
    return consumer


async def test_a_killed_member_that_starts_within_its_session_moves_nothing(
    group: Group,
) -> None:
    """The others wait for it while it waits for its old session to end."""
    first, second = await two(group)
    had, kept = set(first.held), set(second.held)
    before = await claims_of(group, "b")
    group.cluster.ensemble.crash(first.coordinator)
    back = await again(group, "a")
    await until(lambda: back.held == had)
    assert second.held == kept
    assert second.events == []
    assert await claims_of(group, "b") == before
    assert await group.members() == ["a", "b"]
    async with group.cluster.admin() as coordinator:
        names = await coordinator.children("consumers/g/members")
    assert sorted(names) == ["a", "b"], "nothing is left of its place"


async def test_a_killed_member_that_does_not_start_again_is_replaced(group: Group) -> None:
    """At the end of its session, as ever."""
    first, second = await two(group)
    group.cluster.ensemble.crash(first.coordinator)
    await until(lambda: second.held == ALL)


async def test_one_that_gives_up_waiting_for_its_name_keeps_no_place(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the name is taken for good, or its start is cancelled."""
    first, second = await two(group)
    late = await group.member("a")
    late.member.nonce = "of another process"
    with pytest.raises(InvalidState, match="give each member a member_id of its own"):
        await late.member.start()
    starting = await group.member("a")
    starting.member.nonce = "of a third process"
    task = asyncio.create_task(starting.member.start())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    await first.member.close(1.0)
    await until(lambda: second.held == ALL)
    assert await group.members() == ["b"]


async def test_a_member_that_was_closed_has_its_place_for_a_while(group: Group) -> None:
    """What it had waits for it, unread."""
    first, second = await two(group, restart_s=20.0)
    had, kept = set(first.held), set(second.held)
    before = await claims_of(group, "b")
    await first.member.close(1.0)
    assert await group.members() == ["b"], "it is no member meanwhile"
    await asyncio.sleep(15.0)
    assert second.held == kept
    back = await again(group, "a", restart_s=20.0)
    await until(lambda: back.held == had)
    await asyncio.sleep(60.0)
    assert (second.held, second.events) == (kept, [])
    assert await claims_of(group, "b") == before


async def test_a_closed_member_that_does_not_come_again_is_replaced(group: Group) -> None:
    """Once its time is over, without an audit."""
    first, second = await two(group, restart_s=20.0)
    await first.member.close(1.0)
    await asyncio.sleep(19.0)
    assert second.held != ALL
    await asyncio.sleep(2.0)
    assert second.held == ALL


async def test_a_member_that_joins_meanwhile_counts_it_in_too(group: Group) -> None:
    """All compute the same from the tree."""
    first, second = await two(group, restart_s=20.0)
    await first.member.close(1.0)
    third = await group.join("c")
    await asyncio.sleep(5.0)
    assert len(second.held) + len(third.held) < len(ALL)
    back = await again(group, "a", restart_s=20.0)
    await share(back, second, third)


async def test_a_group_whose_members_have_all_left_can_be_deleted(group: Group) -> None:
    """The places go with it; while a member waits for its name, the group stays."""
    first, second = await two(group, restart_s=20.0)
    await first.member.close(1.0)
    await second.member.close(1.0)
    async with group.cluster.admin() as coordinator:
        value = first.member._value()
        await groups.keep_place(coordinator, "g", "c", value)
        with pytest.raises(InvalidState, match="c~"):
            await groups.delete_group(coordinator, "g")
        await groups.drop_place(coordinator, "g", "c", value.nonce, coordinator.session_id)
        await groups.delete_group(coordinator, "g")
        assert await groups.list_groups(coordinator) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"restart_s": 5}, "needs member_id"),
        ({"restart_s": -1, "member_id": "a"}, "outside"),
        ({"restart_s": 3601, "member_id": "a"}, "outside"),
    ],
)
def test_a_place_needs_a_name_and_has_a_bound(settings: dict, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        ConsumerConfig(group="g", **settings)
