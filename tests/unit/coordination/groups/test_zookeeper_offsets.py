"""Commits: fenced by the generation of the claim, never back but by a reset."""

import contextlib
from typing import Any

import pytest
from support.coordination import FAULTS, at, client_of, disarm, expire, known, strike

from vq.coordination.groups import claims
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected, SessionExpired
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.consumers import Assignment, CommittedOffset
from vq.errors import InvalidArgument
from vq.model import TopicPartition

pytestmark = pytest.mark.virtual_time

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))


# Commits ----------------------------------------------------------------------------------------
async def test_commits_go_on_from_each_other(client) -> None:
    """The first creates, the next ones set; readers see the last."""
    mine = await claims.claim(client, "g", "m1", P0)
    for offset in (10, 20, 20, 30):
        result = await ZooKeeperOffsets(client).commit([(mine, at(offset))])
        assert result.stale == ()
        mine = result.done[P0]
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {P0: at(30)}


async def test_a_former_owner_cannot_commit(ensemble, client, other) -> None:
    """The zombie: its session ended, the partition went to another, nothing of it is written."""
    mine = await claims.claim(client, "g", "m1", P0)
    await expire(ensemble, client)
    theirs = await claims.claim(other, "g", "m2", P0)
    await ZooKeeperOffsets(other).commit([(theirs, at(50, "m2"))])
    result = await ZooKeeperOffsets(client).commit([(mine, at(99))])
    assert result.stale == (P0,)
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {P0: at(50, "m2")}


async def test_a_stale_partition_does_not_hold_up_the_others(ensemble, client, other) -> None:
    """One of three was lost; the other two are committed all the same."""
    mine = {p: await claims.claim(client, "g", "m1", p) for p in (P0, P1, P2)}
    await claims.release(client, mine[P1])
    await claims.claim(other, "g", "m2", P1)
    result = await ZooKeeperOffsets(client).commit([(mine[p], at(7)) for p in (P0, P1, P2)])
    assert result.stale == (P1,)
    assert sorted(result.done) == [P0, P2]
    assert sorted(await ZooKeeperOffsets(client).read("g", ["t"])) == [P0, P2]


async def test_offsets_never_go_back(client) -> None:
    """A smaller offset than the committed one is a mistake of the caller."""
    mine = await claims.claim(client, "g", "m1", P0)
    mine = (await ZooKeeperOffsets(client).commit([(mine, at(10))])).done[P0]
    with pytest.raises(InvalidArgument, match="reset_offset"):
        await ZooKeeperOffsets(client).commit([(mine, at(9))])


async def test_an_offset_goes_back_where_that_is_meant(client) -> None:
    """The application has sought back; also where an answer was lost meanwhile."""
    mine = await claims.claim(client, "g", "m1", P0)
    await ZooKeeperOffsets(client).commit([(mine, at(10))])
    result = await ZooKeeperOffsets(client).commit([(mine, at(4))], may_go_back={P0})
    assert result.done[P0].committed == at(4)
    with pytest.raises(InvalidArgument, match="reset_offset"):
        await ZooKeeperOffsets(client).commit([(mine, at(3))], may_go_back={P1})


async def test_a_commit_that_may_be_written_is_not_told_as_certainly_lost() -> None:
    """Its answer is lost, and no later call finds a connection to look again."""
    ensemble = MemoryEnsemble(reconnect_delay_s=3600.0)
    async with client_of(ensemble) as owner, client_of(ensemble) as reader:
        mine = await claims.claim(owner, "g", "m1", P0)
        ensemble.lose_next_reply(owner)
        with pytest.raises(ConnectionLost) as told:
            await ZooKeeperOffsets(owner).commit([(mine, at(5))])
        assert not isinstance(told.value, NotConnected)
        assert await ZooKeeperOffsets(reader).read("g", ["t"]) == {P0: at(5)}


async def test_a_commit_is_not_tried_again_in_the_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim has ended: what its generation fences is not known any more."""
    ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
    async with client_of(ensemble) as owner, client_of(ensemble) as reader:
        mine = await claims.claim(owner, "g", "m1", P0)
        multi = owner.multi

        async def lost(operations: Any) -> Any:
            monkeypatch.setattr(owner, "multi", multi)
            await expire(ensemble, owner)
            raise ConnectionLost("no answer")

        monkeypatch.setattr(owner, "multi", lost)
        with pytest.raises(ConnectionLost):
            await ZooKeeperOffsets(owner).commit([(mine, at(5))])
        assert await ZooKeeperOffsets(reader).read("g", ["t"]) == {}


async def test_many_partitions_are_committed_in_bounded_steps(client) -> None:
    """More than fit into one multi."""
    partitions = [TopicPartition("t", n) for n in range(230)]
    mine = [await claims.claim(client, "g", "m1", each) for each in partitions]
    result = await ZooKeeperOffsets(client).commit([(each, at(5)) for each in mine])
    assert sorted(result.done) == partitions
    assert len(await ZooKeeperOffsets(client).read("g", ["t"])) == 230


async def test_a_commit_of_a_deleted_topic_is_stale(client) -> None:
    """Nothing is made anew by a late commit."""
    mine = await claims.claim(client, "g", "m1", P0)
    await client.delete(Assignment.path("g", "t", 0))
    assert (await ZooKeeperOffsets(client).commit([(mine, at(1))])).stale == (P0,)
    assert await ZooKeeperOffsets(client).read("g", ["t"]) == {}


async def test_an_offset_node_that_an_operator_deleted_is_made_again(client) -> None:
    """The fence still holds, so the owner's progress counts."""
    mine = await claims.claim(client, "g", "m1", P0)
    mine = (await ZooKeeperOffsets(client).commit([(mine, at(10))])).done[P0]
    await client.delete(CommittedOffset.path("g", "t", 0))
    result = await ZooKeeperOffsets(client).commit([(mine, at(20))])
    assert result.done[P0].committed == at(20)


# Resets -------------------------------------------------------------------------------------------
async def test_a_reset_moves_back_and_fences_the_owner(client, other) -> None:
    """The owner can commit nothing any more, claims again and goes on from the new place."""
    mine = await claims.claim(client, "g", "m1", P0)
    mine = (await ZooKeeperOffsets(client).commit([(mine, at(100))])).done[P0]
    await ZooKeeperOffsets(other).reset("g", P0, at(5, ""))
    assert (await ZooKeeperOffsets(client).commit([(mine, at(110))])).stale == (P0,)
    assert not await claims.still_ours(client, mine)
    again = await known(client, await claims.claim(client, "g", "m1", P0))
    assert again.committed == at(5, "")
    assert again.generation == mine.generation + 2


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_reset_survives_a_fault_at_every_call(fault: str) -> None:
    """Told as done, the owner is fenced, also by a reset to the place where it is already."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as owner, client_of(ensemble) as operator:
            mine = await claims.claim(owner, "g", "m1", P0)
            mine = (await ZooKeeperOffsets(owner).commit([(mine, at(5))])).done[P0]
            strike(ensemble, operator, fault, skip)
            with contextlib.suppress(ConnectionLost, SessionExpired):
                await ZooKeeperOffsets(operator).reset("g", P0, at(5))
                assert (await ZooKeeperOffsets(owner).commit([(mine, at(9))])).stale == (P0,)
            was_struck = disarm(operator)
            assert await ZooKeeperOffsets(owner).read("g", ["t"]) == {P0: at(5)}
        if not was_struck:
            break
        skip += 1
    assert skip > 2


async def test_a_reset_works_before_anybody_consumed(client) -> None:
    """It makes what is missing."""
    await ZooKeeperOffsets(client).reset("g", P0, at(42))
    assert (await known(client, await claims.claim(client, "g", "m1", P0))).committed == at(42)
