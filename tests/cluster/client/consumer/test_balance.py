"""How members share out: the group's strategy, one of the application, two versions of terms."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.broker import memory_cluster
from support.membership import ALL, P0, P1, P2, P3, Consumer, Group, audit, share

from vq.client.cluster import ClusterClient
from vq.coordination.groups.contract import MemberDiffers
from vq.coordination.groups.rebalance import GroupBalance, Shares
from vq.coordination.tree.values.consumers import Assignment
from vq.errors import InvalidArgument, InvalidState
from vq.operations.groups.balance import group_history
from vq.operations.groups.terms import alter_group, end_roll, roll_group
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


# Strategies ---------------------------------------------------------------------------------------
async def test_members_share_out_by_the_strategy_of_the_group(group: Group) -> None:
    """In runs, or in turns; a member with another one is refused with both sides."""
    first = await group.join("a", strategy="circle")
    second = await group.join("b", strategy="circle")
    await until(lambda: first.held == {P0, P2} and second.held == {P1, P3})
    third = await group.member("c", strategy="average")
    with pytest.raises(InvalidArgument, match="strategy = 'circle', this member 'average'"):
        await third.member.start()
    assert await group.members() == ["a", "b"]


async def test_a_member_is_near_the_master_of_its_partitions() -> None:
    """The broker says where it runs, and so do members; shares stay even."""
    async with memory_cluster() as cluster, AsyncExitStack() as stack:
        await cluster.start(rack="x")
        await cluster.create_topic("t", partitions=4)
        group = Group(cluster, stack)
        far = await group.join("a", strategy="rack", rack="y")
        near = await group.join("b", strategy="rack", rack="x")
        await until(lambda: near.held == {P0, P1} and far.held == {P2, P3})


class Own:
    """A strategy of an application, which may fail."""

    name = "first-takes-all"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.without: set[Any] = set()

    def assign(self, balance: GroupBalance) -> Shares:
        if self.error is not None:
            raise self.error
        first = min(balance.members)
        return {each: first for each in balance.partitions if each not in self.without}


async def test_a_strategy_of_the_application_that_fails_keeps_the_last_good_assignment(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it raises or forgets a partition; that is told once, and when it is over."""
    own = Own()
    first = await group.join("b", strategy=own)
    await until(lambda: first.held == ALL)
    own.error = RuntimeError("no idea")
    second = await group.join("a", strategy=own)
    for _ in range(3):
        audit(first)
        audit(second)
        await asyncio.sleep(1.0)
    assert await group.owners() == dict.fromkeys(ALL, "b")
    assert first.held == ALL
    assert second.held == set()
    own.error, own.without = None, {P3}
    audit(first)
    await until(lambda: "t-3 is missing" in caplog.text)
    assert first.held == ALL
    told = [each for each in caplog.messages if each.startswith("strategy failed")]
    assert len([each for each in told if "no idea" in each]) == 2, "once by each member"
    own.without = set()
    audit(first)
    audit(second)
    await until(lambda: second.held == ALL)
    assert "strategy works again" in caplog.text


# Terms --------------------------------------------------------------------------------------------
async def operator(group: Group) -> ClusterClient:
    return await group.client(session_timeout_s=30.0)


async def test_members_follow_the_failure_policy_of_their_group(group: Group) -> None:
    """Without an audit: a watch tells them."""
    first, second = await group.join("a"), await group.join("b")
    await share(first, second)
    client = await operator(group)
    await alter_group(client, "g", on_failure="dead-letter", max_attempts=5)
    for each in (first, second):
        await until(lambda each=each: each.member.contract.failure.max_attempts == 5)
        assert each.member.contract.failure.on_failure == "dead-letter"
    late = await group.join("c")
    assert late.member.contract.failure.max_attempts == 5, "not its own"
    with pytest.raises(InvalidArgument, match="breaks the order that mode = 'orderly' promises"):
        await alter_group(client, "g", on_failure="retry-topic")


async def test_other_terms_change_only_without_members(group: Group) -> None:
    """Those that come then must have the new ones."""
    first = await group.join("a")
    client = await operator(group)
    with pytest.raises(InvalidState, match=r"has members, 1 in all: a; .*vq group roll"):
        await alter_group(client, "g", strategy="circle")
    await first.member.close(1.0)
    changed = await alter_group(client, "g", strategy="circle", filters={"t": "red"})
    assert changed.strategy == "circle"
    again = await group.member("a")
    with pytest.raises(MemberDiffers, match="'red' of topic 't', this member all messages"):
        await again.member.start()


async def rolled(group: Group, client: ClusterClient) -> tuple[Consumer, Consumer]:
    """Return a member of the old version and one of the new one, which share the partitions."""
    old = await group.join("a")
    await until(lambda: old.held == ALL)
    await roll_group(client, "g", for_s=600, strategy="circle")
    new = await group.join("b", strategy="circle")
    await share(old, new)
    assert old.member.contract.strategy == new.member.contract.strategy == "sticky"
    return old, new


async def is_gone(old: Consumer, new: Consumer) -> None:
    """One member gave up what it had in order and ended with an error; the other has all."""
    await until(lambda: new.held == ALL and not old.held)
    ends = [each for each in old.events if each.startswith("ended")]
    assert len(ends) == 1
    assert "the group has strategy" in ends[0]
    assert {each for each in old.events if each.startswith("drop")} == set(), "nothing was lost"


async def test_two_versions_run_beside_one_another_until_the_roll_ends(group: Group) -> None:
    """Then members of the old one give up what they have, and those of the new one take it."""
    client = await operator(group)
    old, new = await rolled(group, client)
    stranger = await group.member("c", strategy="hash")
    with pytest.raises(MemberDiffers):
        await stranger.member.start()
    with pytest.raises(InvalidState, match="two versions until"):
        await roll_group(client, "g", for_s=1, strategy="hash")
    assert (await end_roll(client, "g")).strategy == "circle"
    await is_gone(old, new)
    assert new.member.contract.strategy == "circle"
    assert await group.members() == ["b"]
    late = await group.member("a")
    with pytest.raises(MemberDiffers):
        await late.member.start()


async def test_a_roll_ends_by_itself_when_its_time_is_over(group: Group) -> None:
    """Members look at the time in their rounds."""
    client = await operator(group)
    old, new = await rolled(group, client)
    await asyncio.sleep(580.0)
    assert old.held
    await asyncio.sleep(60.0)
    await is_gone(old, new)


async def test_a_roll_that_is_cancelled_leaves_the_old_version(group: Group) -> None:
    """Members of the new one leave."""
    client = await operator(group)
    old, new = await rolled(group, client)
    assert (await end_roll(client, "g", cancel=True)).strategy == "sticky"
    await is_gone(new, old)


# History ------------------------------------------------------------------------------------------
async def test_the_history_says_who_had_what_and_why(group: Group) -> None:
    """First, a balance, an end."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.join("b")
    await share(first, second)
    moved = min(second.held)
    await second.member.close(1.0)
    await until(lambda: first.held == ALL)
    client = await operator(group)
    found = await group_history(client, "g", topic="t", partition=moved.partition)
    assert [(each.before, each.member, each.reason) for each in found] == [
        (None, "a", "first"),
        ("a", "b", "balance"),
        ("b", "a", "left"),
    ]
    assert [each.generation for each in found] == [1, 2, 3]
    whole = await group_history(client, "g")
    assert len(whole) == 8
    assert [each.time_ms for each in whole] == sorted(each.time_ms for each in whole)
    async with group.cluster.admin() as coordinator:
        node = await coordinator.get(Assignment.path("g", *moved))
    assert node.stat.version == 3, "each claim was one write"
