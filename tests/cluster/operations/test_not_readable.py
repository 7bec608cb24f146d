"""A topic that is closed for reading is told as such: its brokers are well."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.consumers import send

from vq import aio
from vq.errors import PermissionRefused
from vq.model import Message, TopicPartition
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.groups.lag_rules import LagThresholds
from vq.operations.groups.resets import Goal, Target
from vq.operations.messages import streams
from vq.operations.messages.streams import Begin

pytestmark = pytest.mark.virtual_time


async def test_a_topic_that_is_not_readable_is_no_silent_broker(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its lag is unknown for a cause of its own, and no question waits for a time-out."""
    await send(factory, Message("t", b"1"))
    admin, client = factory.admin, factory.admin.cluster
    ids = {"t": (await admin.get_topic("t")).id}
    await admin.commit_progress("g", {TopicPartition("t", 0): 0}, topic_ids=ids)
    await admin.alter_topic("t", readable=False)
    await asyncio.sleep(5)  # the broker has heard of it
    found = await admin.describe_group("g")
    verdicts = {found.verdict_on(each, LagThresholds(), now_s=2e9) for each in found.partitions}
    assert verdicts == {("unknown", "not_readable")}
    assert {(each.lag_bytes, each.end) for each in found.partitions} == {(None, None)}
    assert (await look_at_groups(client, count=True, partitions_max=9)).failed == 0
    described = await admin.describe_topic("t")
    told = {(each.state, each.ends, each.damaged, each.reasons) for each in described.partitions}
    assert told == {("rw", None, 0, ("the topic is not readable",))}

    begun = client.clock.monotonic()
    with pytest.raises(PermissionRefused, match="topic t is not readable"):
        await admin.bounds("t")
    with pytest.raises(PermissionRefused, match="topic t is not readable"):
        await admin.offsets_at_time("t", 0)
    with pytest.raises(PermissionRefused, match="topic t is not readable"):
        await admin.plan_reset("g", Target(goal=Goal.LATEST))
    with pytest.raises(PermissionRefused, match="topic t is not readable"):
        async for _ in streams.messages(client, "t", Begin()):
            pass
    assert client.clock.monotonic() - begun < 1

    await admin.alter_topic("t", readable=True)
    await asyncio.sleep(5)
    found = await admin.describe_group("g")
    assert found.lag_messages == 1
