"""A group forgets a topic: only what no member reads, and no late commit brings it back."""

from typing import Any

import pytest
from support.coordination import at

from vq.coordination.groups import claims, forgetting, groups
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics import needs
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.consumers import ConsumerGroup, Member
from vq.errors import InvalidState
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition

BOTH = ConsumerGroup(topics={"t": ALL, "u": Filter(("red",))})
ONLY_T = ConsumerGroup(topics={"t": ALL})
T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


async def read_both(client: MemoryCoordinator) -> claims.Claim:
    """Have a member handle something of both topics, and leave; return its claim of ``u-0``."""
    await groups.ensure_group(client, "g", BOTH)
    await groups.join_group(client, "g", "m1", Member(nonce="n1", topics=("t", "u")))
    first = await claims.claim(client, "g", "m1", T0)
    second = await claims.claim(client, "g", "m1", U0)
    await ZooKeeperOffsets(client).commit([(first, at(1)), (second, at(2))])
    await groups.leave_group(client, "g", "m1", "n1")
    return second


async def test_a_group_forgets_a_topic_with_its_progress(client: MemoryCoordinator) -> None:
    """The other topics stay; it may be repeated; retention counts the group there no more."""
    await read_both(client)
    await groups.join_group(client, "g", "m2", Member(nonce="n2", topics=("t",)))
    assert (await needs.read_needs(client, "u", "")).of(0) == {"group g": 2}
    for _ in range(2):
        await forgetting.forget_topic(client, "g", "u")
    assert await groups.read_group(client, "g") == ONLY_T
    assert set(await ZooKeeperOffsets(client).read("g", ["t", "u"])) == {T0}
    assert (await needs.read_needs(client, "u", "")).of(0) == {needs.NO_GROUP: 0}


async def test_a_topic_that_a_member_reads_is_not_forgotten(client: MemoryCoordinator) -> None:
    await read_both(client)
    await groups.join_group(client, "g", "m2", Member(nonce="n2", topics=("u",)))
    with pytest.raises(InvalidState, match="m2"):
        await forgetting.forget_topic(client, "g", "u")
    assert await groups.read_group(client, "g") == BOTH
    assert set(await ZooKeeperOffsets(client).read("g", ["t", "u"])) == {T0, U0}


async def test_a_late_commit_brings_nothing_back(client: MemoryCoordinator) -> None:
    """Of a process that stood still: it has the claim of before."""
    late = await read_both(client)
    await forgetting.forget_topic(client, "g", "u")
    result = await ZooKeeperOffsets(client).commit([(late, at(9))])
    assert result.stale == (U0,)
    assert set(await ZooKeeperOffsets(client).read("g", ["u"])) == set()


@pytest.mark.parametrize("contract_first", [False, True])
async def test_a_member_that_comes_meanwhile_keeps_the_topic(
    client: MemoryCoordinator,
    other: MemoryCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    contract_first: bool,
) -> None:
    """Whether it has read the contract before that is changed, or writes the topic back later."""
    await read_both(client)
    name = "set" if contract_first else "multi"
    write = getattr(client, name)
    joined = []

    async def and_join(*args: Any, **options: Any) -> Any:
        if not joined and not contract_first:
            joined.append(await groups.ensure_group(other, "g", BOTH))
            await groups.join_group(other, "g", "m2", Member(nonce="n2", topics=("u",)))
        result = await write(*args, **options)
        if not joined:
            joined.append(BOTH)
            await groups.join_group(other, "g", "m2", Member(nonce="n2", topics=("u",)))
        return result

    monkeypatch.setattr(client, name, and_join)
    with pytest.raises(InvalidState):
        await forgetting.forget_topic(client, "g", "u")
    assert await groups.read_group(client, "g") == BOTH
    assert U0 in await ZooKeeperOffsets(client).read("g", ["u"])
