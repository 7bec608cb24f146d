"""Consumer groups in the tree: the contract, members, claims, fenced commits, resets."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.coordination import FAULTS, client_of, disarm, expire, strike, until

from vq.coordination import groups
from vq.coordination.coordinator import (
    ConnectionLost,
    NodeExists,
    SessionExpired,
    SessionState,
    WatchEvent,
)
from vq.coordination.groups import Claim, StillOwned
from vq.coordination.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.paths import Assignment, CommittedOffset, ConsumerGroup, Member, Owner
from vq.errors import GenerationStale, InvalidArgument, InvalidState
from vq.model import TopicPartition

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble(reconnect_delay_s=0.001)


@pytest.fixture
async def client(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with client_of(ensemble) as made:
        yield made


@pytest.fixture
async def other(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with client_of(ensemble) as made:
        yield made


def at(offset: int, member: str = "m1") -> CommittedOffset:
    return CommittedOffset(offset=offset, message_id=offset + 1, time_ms=7, member=member)


# The contract -----------------------------------------------------------------------------------
async def test_the_first_member_makes_the_contract(client, other) -> None:
    """Later ones get it, and may add topics."""
    first = ConsumerGroup(start="latest", topics={"t": ""})
    assert await groups.ensure_group(client, "g", first) == first
    merged = await groups.ensure_group(other, "g", ConsumerGroup(topics={"u": "tag"}))
    assert merged == ConsumerGroup(start="latest", topics={"t": "", "u": "tag"})
    assert await groups.read_group(client, "g") == merged
    assert await groups.list_groups(client) == ["g"]


async def test_members_that_disagree_are_refused(client) -> None:
    """Another model or another filter for the same topic would skip or repeat messages."""
    await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": "red"}))
    with pytest.raises(InvalidArgument, match="broadcasting"):
        await groups.ensure_group(client, "g", ConsumerGroup(model="broadcasting"))
    with pytest.raises(InvalidArgument, match=r"'red'.*'blue'"):
        await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": "blue"}))


async def test_an_unknown_group_is_none(client) -> None:
    """Nothing is made by looking."""
    assert await groups.read_group(client, "g") is None
    assert await groups.list_groups(client) == []
    assert await groups.members(client, "g") == {}
    assert await groups.group_topics(client, "g") == []


# Members ----------------------------------------------------------------------------------------
async def test_members_come_and_go_with_their_sessions(ensemble, client, other) -> None:
    """A member is listed while its session lives; watches hint at changes."""
    hints: list[WatchEvent] = []
    assert await groups.members(client, "g", watch=hints.append) == {}
    await groups.join_group(other, "g", "m2", Member(topics=("t",), nonce="n2"))
    await until(lambda: hints)
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
    await groups.leave_group(client, "g", "m1")
    assert await groups.members(client, "g") == {}


async def test_two_processes_with_one_name_are_told(client, other) -> None:
    """The second one is refused, and leaving does not take the first one's node."""
    await groups.join_group(client, "g", "m", Member(nonce="n1"))
    with pytest.raises(NodeExists, match="'m'"):
        await groups.join_group(other, "g", "m", Member(nonce="n2"))
    await groups.leave_group(other, "g", "m")
    assert list(await groups.members(client, "g")) == ["m"]


# Claims -----------------------------------------------------------------------------------------
async def test_a_claim_owns_with_a_rising_generation(client, other) -> None:
    """Release and claim by another: the generation rises, progress goes along."""
    mine = await groups.claim(client, "g", "m1", P0)
    assert (mine.generation, mine.committed) == (1, None)
    assert await groups.read_owners(client, "g", ["t"]) == {P0: "m1"}
    done = await groups.commit(client, [(mine, at(100))])
    await groups.release(client, done.done[P0])
    assert await groups.read_owners(client, "g", ["t"]) == {}
    theirs = await groups.claim(other, "g", "m2", P0)
    assert theirs.generation == 2
    assert theirs.committed == at(100)
    assert await groups.read_assignments(client, "g", ["t"]) == {
        P0: Assignment(member="m2", generation=2)
    }


async def test_an_owned_partition_cannot_be_claimed(client, other) -> None:
    """Not until its owner releases it; nothing is changed by trying."""
    mine = await groups.claim(client, "g", "m1", P0)
    with pytest.raises(StillOwned, match="'m1'"):
        await groups.claim(other, "g", "m2", P0)
    assert await groups.still_ours(client, mine)
    assert (await groups.commit(client, [(mine, at(5))])).stale == ()


async def test_two_members_on_one_session_are_two(client) -> None:
    """Consumers of one process share its session, but not their partitions."""
    mine = await groups.claim(client, "g", "m1", P0)
    with pytest.raises(StillOwned):
        await groups.claim(client, "g", "m2", P0)
    forged = Claim("g", "m2", P0, mine.generation)
    await groups.release(client, forged)
    assert not await groups.still_ours(client, forged)
    assert await groups.still_ours(client, mine)


async def test_a_dead_owner_makes_way(ensemble, client, other) -> None:
    """Its owner node ends with its session."""
    await groups.claim(client, "g", "m1", P0)
    ensemble.expire(client)
    theirs = await groups.claim(other, "g", "m2", P0)
    assert theirs.generation == 2


async def test_members_that_race_get_one_owner(client, other) -> None:
    """Of many claims at once exactly one wins."""
    claims = await asyncio.gather(
        *(groups.claim(c, "g", m, P0) for c, m in [(client, "m1"), (other, "m2")]),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in claims) == ["Claim", "StillOwned"]


async def test_releasing_twice_or_late_harms_nobody(ensemble, client, other) -> None:
    """Only the own owner node is deleted."""
    mine = await groups.claim(client, "g", "m1", P0)
    await groups.release(client, mine)
    await groups.release(client, mine)
    theirs = await groups.claim(other, "g", "m2", P0)
    await groups.release(client, mine)
    assert await groups.still_ours(other, theirs)


# Commits ----------------------------------------------------------------------------------------
async def test_commits_go_on_from_each_other(client) -> None:
    """The first creates, the next ones set; readers see the last."""
    mine = await groups.claim(client, "g", "m1", P0)
    for offset in (10, 20, 20, 30):
        result = await groups.commit(client, [(mine, at(offset))])
        result.raise_if_stale()
        mine = result.done[P0]
    assert await groups.read_offsets(client, "g", ["t"]) == {P0: at(30)}
    assert await groups.group_topics(client, "g") == ["t"]


async def test_a_former_owner_cannot_commit(ensemble, client, other) -> None:
    """The zombie: its session ended, the partition went to another, nothing of it is written."""
    mine = await groups.claim(client, "g", "m1", P0)
    await expire(ensemble, client)
    theirs = await groups.claim(other, "g", "m2", P0)
    await groups.commit(other, [(theirs, at(50, "m2"))])
    result = await groups.commit(client, [(mine, at(99))])
    assert result.stale == (P0,)
    with pytest.raises(GenerationStale, match="t-0"):
        result.raise_if_stale()
    assert await groups.read_offsets(client, "g", ["t"]) == {P0: at(50, "m2")}


async def test_a_stale_partition_does_not_hold_up_the_others(ensemble, client, other) -> None:
    """One of three was lost; the other two are committed all the same."""
    mine = {p: await groups.claim(client, "g", "m1", p) for p in (P0, P1, P2)}
    await groups.release(client, mine[P1])
    await groups.claim(other, "g", "m2", P1)
    result = await groups.commit(client, [(mine[p], at(7)) for p in (P0, P1, P2)])
    assert result.stale == (P1,)
    assert sorted(result.done) == [P0, P2]
    assert sorted(await groups.read_offsets(client, "g", ["t"])) == [P0, P2]


async def test_offsets_never_go_back(client) -> None:
    """A smaller offset than the committed one is a mistake of the caller."""
    mine = await groups.claim(client, "g", "m1", P0)
    mine = (await groups.commit(client, [(mine, at(10))])).done[P0]
    with pytest.raises(InvalidArgument, match="reset_offset"):
        await groups.commit(client, [(mine, at(9))])


async def test_many_partitions_are_committed_in_bounded_steps(client) -> None:
    """More than fit into one multi."""
    partitions = [TopicPartition("t", n) for n in range(230)]
    mine = [await groups.claim(client, "g", "m1", each) for each in partitions]
    result = await groups.commit(client, [(each, at(5)) for each in mine])
    assert sorted(result.done) == partitions
    assert len(await groups.read_offsets(client, "g", ["t"])) == 230


async def test_a_commit_of_a_deleted_topic_is_stale(client) -> None:
    """Nothing is made anew by a late commit."""
    mine = await groups.claim(client, "g", "m1", P0)
    await client.delete(Assignment.path("g", "t", 0))
    assert (await groups.commit(client, [(mine, at(1))])).stale == (P0,)
    assert await groups.read_offsets(client, "g", ["t"]) == {}


async def test_an_offset_node_that_an_operator_deleted_is_made_again(client) -> None:
    """The fence still holds, so the owner's progress counts."""
    mine = await groups.claim(client, "g", "m1", P0)
    mine = (await groups.commit(client, [(mine, at(10))])).done[P0]
    await client.delete(CommittedOffset.path("g", "t", 0))
    result = await groups.commit(client, [(mine, at(20))])
    assert result.done[P0].committed == at(20)


# Resets and deletion ------------------------------------------------------------------------------
async def test_a_reset_moves_back_and_fences_the_owner(client, other) -> None:
    """The owner can commit nothing any more, claims again and goes on from the new place."""
    mine = await groups.claim(client, "g", "m1", P0)
    mine = (await groups.commit(client, [(mine, at(100))])).done[P0]
    await groups.reset_offset(other, "g", P0, at(5, ""))
    assert (await groups.commit(client, [(mine, at(110))])).stale == (P0,)
    assert not await groups.still_ours(client, mine)
    again = await groups.claim(client, "g", "m1", P0)
    assert again.committed == at(5, "")
    assert again.generation == mine.generation + 2


async def test_a_reset_works_before_anybody_consumed(client) -> None:
    """It makes what is missing."""
    await groups.reset_offset(client, "g", P0, at(42))
    assert (await groups.claim(client, "g", "m1", P0)).committed == at(42)


async def test_a_group_is_deleted_only_without_members(client) -> None:
    """With all its progress."""
    await groups.ensure_group(client, "g", ConsumerGroup(topics={"t": ""}))
    await groups.join_group(client, "g", "m1", Member(nonce="n"))
    mine = await groups.claim(client, "g", "m1", P0)
    await groups.commit(client, [(mine, at(1))])
    with pytest.raises(InvalidState, match="m1"):
        await groups.delete_group(client, "g")
    await groups.leave_group(client, "g", "m1")
    await groups.delete_group(client, "g")
    assert await groups.list_groups(client) == []


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
            if mine is None or not await groups.still_ours(client, mine):
                mine = await groups.claim(client, "g", "m1", P0)
            for offset in (10, 20):
                if mine.committed is None or mine.committed.offset < offset:
                    result = await groups.commit(client, [(mine, at(offset))])
                    assert result.stale == ()
                    mine = result.done[P0]
            await groups.release(client, mine)
            await groups.leave_group(client, "g", "m1")
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
            assert await groups.read_offsets(client, "g", ["t"]) == {P0: at(20)}
            assert await client.exists(Owner.path("g", "t", 0)) is None
            assert await groups.members(client, "g") == {}
        if not was_struck:
            break
        skip += 1
    assert skip > 10
