"""What a plan of a balance says, and whether it is what members then do."""

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.consumers import consumer_of

from vq import aio
from vq.coordination.groups import groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.errors import InvalidArgument
from vq.message_filter import ALL
from vq.operations.groups.balance import MEMBERS_MAX, BalancePlan
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


def told(planned: BalancePlan) -> list[tuple[str, int, int]]:
    return [(each.member, each.now, each.then) for each in planned.members]


async def test_a_plan_is_what_another_member_would_bring(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """And what one fewer would; nothing is changed by asking."""
    await cluster.create_topic("wide", partitions=6)
    admin = factory.admin
    async with await consumer_of(factory, topic="wide", member_id="a") as first:
        await first.start()
        await until(lambda: len(first.assignment()) == 6)
        planned = await admin.plan_balance("g", members=2)
        assert (planned.strategy, planned.partitions) == ("sticky", 6)
        assert told(planned) == [("a", 6, 3), ("new-1", 0, 3)]
        assert [(each.partition, each.before, each.after) for each in planned.moves] == [
            (number, "a", "new-1") for number in (3, 4, 5)
        ]
        assert [each.is_there for each in planned.members] == [True, False]
        assert (await admin.plan_balance("g")).moves == ()
        assert len(first.assignment()) == 6
        async with await consumer_of(factory, topic="wide", member_id="new-1") as second:
            await second.start()
            await until(lambda: len(second.assignment()) == 3)
            assert (await admin.plan_balance("g")).moves == (), "it is what they did"
            other = await admin.plan_balance("g", strategy="circle")
            assert len(other.moves) == 2
            fewer = await admin.plan_balance("g", members=1)
            assert told(fewer) == [("a", 3, 6), ("new-1", 3, 0)]
            assert [each.stays for each in fewer.members] == [True, False]


async def test_a_plan_that_cannot_be_made_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """No such group, nobody to share among, too many, a strategy that only members know."""
    admin = factory.admin
    with pytest.raises(UnknownGroup):
        await admin.plan_balance("g")
    async with started(cluster) as client:
        contract = ConsumerGroup(topics={"t": ALL}, strategy="mine")
        await groups.ensure_group(client.coordinator, "g", contract)
    with pytest.raises(InvalidArgument, match="'mine' of its application"):
        await admin.plan_balance("g", members=1)
    with pytest.raises(InvalidArgument, match=r"no members now.*`vq group plan --members N`"):
        await admin.plan_balance("g", strategy="sticky")
    with pytest.raises(InvalidArgument, match=f"outside .1, {MEMBERS_MAX}."):
        await admin.plan_balance("g", strategy="sticky", members=MEMBERS_MAX + 1)
    planned = await admin.plan_balance("g", strategy="sticky", members=2)
    assert told(planned) == [("new-1", 0, 1), ("new-2", 0, 1)]


async def test_a_history_of_what_is_not_there_is_refused(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """With what there is."""
    admin = factory.admin
    with pytest.raises(UnknownGroup):
        await admin.group_history("g")
    async with started(cluster) as client:
        await groups.ensure_group(client.coordinator, "g", ConsumerGroup(topics={"t": ALL}))
    with pytest.raises(InvalidArgument, match="does not read topic 'u'; it reads t"):
        await admin.group_history("g", topic="u")
    with pytest.raises(InvalidArgument, match="needs a topic"):
        await admin.group_history("g", partition=0)
    assert await admin.group_history("g") == []
