"""Consumer groups in the tree: the contract, members, the end of a group."""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest
from support.coordination import FAULTS, at, client_of, disarm, known, strike

from vq.coordination.groups import claims, groups
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import (
    ConnectionLost,
    NodeExists,
    NoNode,
    SessionExpired,
    SessionState,
)
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import ConsumerGroup, Member, Owner
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument, InvalidState
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

P0 = TopicPartition("t", 0)


# The contract -----------------------------------------------------------------------------------
async def test_the_first_member_makes_the_contract(client, other) -> None:
    """Later ones get it, and may add topics."""
    first = ConsumerGroup(start="latest", topics={"t": ALL})
    assert await groups.ensure_group(client, "g", first) == first
    merged = await groups.ensure_group(other, "g", ConsumerGroup(topics={"u": Filter(("tag",))}))
    assert merged == ConsumerGroup(start="latest", topics={"t": ALL, "u": Filter(("tag",))})
    assert await groups.read_group(client, "g") == merged
    assert await groups.list_groups(client) == ["g"]


async def test_the_order_of_tags_is_no_disagreement(client) -> None:
    """What a stream of an earlier vq wrote, with spaces, is the same filter, too."""
    path = ConsumerGroup.path("g")
    stored = '{"v": 1, "model": "clustering", "start": "earliest", "topics": {"t": "red || blue"}}'
    await client.create(path, stored.encode(), parents=True)
    wanted = ConsumerGroup(topics={"t": Filter(("blue", "red"))})
    assert await groups.ensure_group(client, "g", wanted) == wanted
    assert (await client.get(path)).data.decode() == stored


async def test_members_that_disagree_are_refused(client) -> None:
    """Another model or another filter for the same topic would skip or repeat messages."""
    await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": Filter(("red",))}))
    with pytest.raises(InvalidArgument, match="broadcasting"):
        await groups.ensure_group(client, "g", ConsumerGroup(model="broadcasting"))
    with pytest.raises(InvalidArgument, match=r"'red'.*'blue'"):
        await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": Filter(("blue",))}))
    with pytest.raises(InvalidArgument, match=r"reads 'red' of topic 't', .* all messages"):
        await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": ALL}))
    with pytest.raises(InvalidArgument, match=r"mode = 'orderly', this member 'keyed'"):
        await groups.ensure_group(client, "g", ConsumerGroup(mode="keyed"))


async def test_the_failure_policy_of_a_group_changes_while_it_is_used(client, other) -> None:
    """By one write, and nothing else of the contract changes."""
    contract = ConsumerGroup(start="latest", mode="keyed", topics={"t": ALL})
    await groups.ensure_group(client, "g", contract)
    policy = FailurePolicy(on_failure="dead-letter", max_attempts=5)
    changed = await groups.change_contract(other, "g", lambda c: replace(c, failure=policy))
    assert changed == replace(contract, failure=policy)
    assert await groups.read_group(client, "g") == changed
    assert await groups.ensure_group(client, "g", contract) == changed
    with pytest.raises(UnknownGroup, match="'h'"):
        await groups.change_contract(other, "h", lambda c: replace(c, failure=policy))


async def test_what_a_broadcasting_group_cannot_have_is_refused(client) -> None:
    """Members of another model, copies of failed messages, and the progress of a stream."""
    await groups.ensure_group(client, "g", ConsumerGroup(model="broadcasting"))
    with pytest.raises(InvalidArgument, match="model = 'broadcasting', this member 'clustering'"):
        await groups.ensure_group(client, "g", ConsumerGroup())
    with pytest.raises(InvalidArgument, match="each member of the group keeps its own progress"):
        await groups.ensure_group(client, "g", ConsumerGroup(by_stream=True))
    policy = FailurePolicy(on_failure="dead-letter")
    with pytest.raises(InvalidArgument, match="would copy the message for the whole group"):
        await groups.change_contract(client, "g", lambda c: replace(c, failure=policy))


async def test_an_unknown_group_is_none(client) -> None:
    """Nothing is made by looking."""
    assert await groups.read_group(client, "g") is None
    assert await groups.list_groups(client) == []
    assert await groups.members(client, "g") == {}


async def test_a_group_whose_node_has_no_contract_gets_one(client) -> None:
    """A member that was away may make nodes below a group that was deleted meanwhile."""
    await client.create("consumers/g/members", parents=True)
    assert await groups.read_group(client, "g") is None
    wanted = ConsumerGroup(topics={"t": Filter(("red",))})
    assert await groups.ensure_group(client, "g", wanted) == wanted
    assert await groups.read_group(client, "g") == wanted


# Members ----------------------------------------------------------------------------------------
async def test_members_come_and_go_with_their_sessions(ensemble, client, other) -> None:
    """A member is listed while its session lives."""
    assert await groups.members(client, "g") == {}
    await groups.join_group(other, "g", "m2", Member(topics=("t",), nonce="n2"))
    await client.sync()
    listed = await groups.members(client, "g")
    assert listed["m2"].value.topics == ("t",)
    assert listed["m2"].session_id == other.session_id
    ensemble.expire(other)
    assert await groups.members(client, "g") == {}


async def test_joining_again_changes_the_value(client) -> None:
    """The same process may subscribe to more."""
    await groups.join_group(client, "g", "m1", Member(topics=("t",), nonce="n1"))
    await groups.join_group(client, "g", "m1", Member(topics=("t", "u"), nonce="n1"))
    assert (await groups.members(client, "g"))["m1"].value.topics == ("t", "u")
    await groups.leave_group(client, "g", "m1", "n1")
    assert await groups.members(client, "g") == {}


async def test_two_processes_with_one_name_are_told(client, other) -> None:
    """The second one is refused, and leaving does not take the first one's node."""
    await groups.join_group(client, "g", "m", Member(nonce="n1"))
    with pytest.raises(NodeExists, match="'m'"):
        await groups.join_group(other, "g", "m", Member(nonce="n2"))
    await groups.leave_group(other, "g", "m", "n2")
    assert list(await groups.members(client, "g")) == ["m"]


async def test_a_member_that_leaves_late_leaves_a_later_one_of_its_name(client) -> None:
    """Both are of one factory, so of one session."""
    await groups.join_group(client, "g", "m", Member(nonce="n1"))
    await groups.leave_group(client, "g", "m", "n1")
    await groups.join_group(client, "g", "m", Member(nonce="n2"))
    await groups.leave_group(client, "g", "m", "n1")
    assert list(await groups.members(client, "g")) == ["m"]
    await groups.leave_group(client, "g", "m", "n2")
    assert await groups.members(client, "g") == {}


# The end ------------------------------------------------------------------------------------------
async def test_a_group_is_deleted_only_without_members(client) -> None:
    """With all its progress."""
    await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": ALL}))
    await groups.join_group(client, "g", "m1", Member(nonce="n1"))
    mine = await claims.claim(client, "g", "m1", P0)
    await ZooKeeperOffsets(client).commit([(mine, at(1))])
    with pytest.raises(InvalidState, match="m1"):
        await groups.delete_group(client, "g")
    await groups.leave_group(client, "g", "m1", "n1")
    await groups.delete_group(client, "g")
    assert await groups.list_groups(client) == []


async def test_a_member_that_comes_while_its_group_is_deleted_stays_in_it(
    client: MemoryCoordinator, other: MemoryCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its node, and the group with its contract."""
    contract = ConsumerGroup(topics={"t": ALL})
    await groups.ensure_group(client, "g", contract)
    await ZooKeeperOffsets(client).reset("g", P0, at(7))
    delete = client.delete

    async def late(path: str, **options: Any) -> None:
        with contextlib.suppress(NoNode):
            await delete(path, **options)
        if path == Member.parent("g"):
            await groups.join_group(other, "g", "m1", Member(nonce="n1"))

    monkeypatch.setattr(client, "delete", late)
    with pytest.raises(InvalidState, match=r"joined group .* meanwhile"):
        await groups.delete_group(client, "g")
    assert list(await groups.members(client, "g")) == ["m1"]
    assert await groups.read_group(client, "g") == contract
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {}


# Faults at every call -----------------------------------------------------------------------------
async def member_story(client: MemoryCoordinator) -> None:
    """Join, claim, commit twice, release, leave; tries again what a fault interrupted.

    A claim that a lost session ended is claimed again, as a membership would.
    """
    done: set[str] = set()
    mine: Claim | None = None
    while "left" not in done:
        try:
            await groups.join_group(client, "g", "m1", Member(nonce="n1"))
            if mine is None or not await claims.still_ours(client, mine):
                mine = await known(client, await claims.claim(client, "g", "m1", P0))
            for offset in (10, 20):
                if mine.committed is None or mine.committed.offset < offset:
                    result = await ZooKeeperOffsets(client).commit([(mine, at(offset))])
                    assert result.stale == ()
                    mine = result.done[P0]
            await claims.release(client, mine)
            await groups.leave_group(client, "g", "m1", "n1")
            done.add("left")
        except (ConnectionLost, SessionExpired):
            await until(lambda: client.state is SessionState.CONNECTED)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_member_survives_a_fault_at_every_call(fault: str) -> None:
    """Whichever call is struck, the end is the same: 20 committed, nothing left behind."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as client:
            strike(ensemble, client, fault, skip)
            await member_story(client)
            was_struck = disarm(client)
            assert await ZooKeeperOffsets(client).read("g", ["t"]) == {P0: at(20)}
            assert await client.exists(Owner.path("g", "t", 0)) is None
            assert await groups.members(client, "g") == {}
        if not was_struck:
            break
        skip += 1
    assert skip > 10


async def test_a_name_comes_free_with_the_session_that_holds_it(ensemble, client, other) -> None:
    """Waited for within a bound; that of one's own session is not waited for."""
    assert await groups.name_came_free(client, "g", "m", 1.0)
    await groups.join_group(other, "g", "m", Member(nonce="n"))
    assert not await groups.name_came_free(client, "g", "m", 0.01)
    async with asyncio.timeout(WAIT_S):
        assert not await groups.name_came_free(other, "g", "m", 1_000.0)
        waiting = asyncio.create_task(groups.name_came_free(client, "g", "m", 1_000.0))
        await asyncio.sleep(0)
        ensemble.expire(other)
        assert await waiting
