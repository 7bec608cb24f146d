"""A topic that a group reads no more: labelled until the group forgets it."""

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of, send, take

from vq import aio
from vq.client.config import ConsumerConfig
from vq.errors import InvalidArgument, InvalidState
from vq.model import Message
from vq.operations.cluster.bulk import read_contracts
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.groups.groups import GroupDescription
from vq.operations.groups.lag_metrics import lag_families
from vq.operations.groups.lag_rules import LagThresholds
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    return two_groups


async def reads_both(factory: aio.MessageFactory) -> None:
    """Have group ``g`` handle a message of ``t`` and one of ``u``; more come later."""
    await send(factory, Message("t", b"1"), Message("u", b"1"))
    consumer = await consumer_of(factory)
    consumer.subscribe("u")
    async with consumer:
        assert await take(consumer, 2) == [b"1", b"1"]
    await send(factory, Message("u", b"2"))


def verdicts(found: GroupDescription, topic: str) -> set[tuple[str, str | None]]:
    return {
        tuple(found.verdict_on(each, LagThresholds(), now_s=2e9))
        for each in found.partitions
        if each.topic == topic
    }


async def test_a_topic_that_no_member_subscribes_to_is_labelled_and_forgotten(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("u", partitions=1)
    await reads_both(factory)
    admin, client = factory.admin, factory.admin.cluster
    (summary,) = await admin.list_groups()
    assert (summary.topics, summary.unsubscribed) == (("t", "u"), ()), "it has no members"
    async with await consumer_of(factory) as consumer:
        await consumer.start()
        await until(lambda: bool(consumer.assignment()))
        (summary,) = await admin.list_groups()
        assert summary.unsubscribed == ("u",)
        found = await admin.describe_group("g")
        assert found.unsubscribed == ("u",)
        assert verdicts(found, "u") == {("unknown", "not_subscribed")}
        assert ("unknown", "not_subscribed") not in verdicts(found, "t")
        (contract,) = await read_contracts(client)
        assert contract.unsubscribed == ("u",)
        lags = await look_at_groups(client, count=True, partitions_max=100)
        (family,) = [each for each in lag_families(lags) if each.name == "vq_group_subscribed"]
        told = {each.labels["topic"]: each.value for each in family.samples}
        assert told == {"t": 1, "u": 0}

        with pytest.raises(InvalidArgument, match="does not read topic 'x'"):
            await admin.plan_forget_topic("g", "x")
        with pytest.raises(InvalidState, match="subscribe to topic 't'"):
            await admin.forget_topic("g", "t")
        planned = await admin.plan_forget_topic("g", "u")
        assert (planned.partitions, planned.members) == (1, ())
        await admin.forget_topic("g", "u")
        found = await admin.describe_group("g")
        assert (set(found.topics), found.unsubscribed) == ({"t"}, ())
        assert consumer.assignment(), "its member goes on"
    again = await factory.create_consumer(ConsumerConfig(group="g", max_wait_s=0.5))
    async with again.subscribe("u"):
        assert await take(again, 2) == [b"1", b"2"], "it begins anew there"


async def test_a_deleted_topic_can_be_forgotten(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    await cluster.create_topic("u", partitions=1)
    await reads_both(factory)
    await factory.admin.delete_topic("u", now=True)
    assert (await factory.admin.describe_group("g")).deleted_topics == ("u",)
    await factory.admin.forget_topic("g", "u")
    assert (await factory.admin.describe_group("g")).deleted_topics == ()
