"""Claims of partitions: one owner each, a generation that only rises."""

import asyncio

import pytest
from support.coordination import at

from vq.coordination import claims, commits
from vq.coordination.claims import Claim, StillOwned
from vq.coordination.paths import Assignment, Owner, Partition
from vq.model import TopicPartition

P0 = TopicPartition("t", 0)


async def test_a_claim_owns_with_a_rising_generation(client, other) -> None:
    """Release and claim by another: the generation rises, progress goes along."""
    mine = await claims.claim(client, "g", "m1", P0)
    assert (mine.generation, mine.committed) == (1, None)
    assert await claims.read_partitions(client, Owner, "g", ["t"]) == {
        P0: Owner(member="m1", generation=1)
    }
    done = await commits.commit(client, [(mine, at(100))])
    await claims.release(client, done.done[P0])
    assert await claims.read_partitions(client, Owner, "g", ["t"]) == {}
    theirs = await claims.claim(other, "g", "m2", P0)
    assert theirs.generation == 2
    assert theirs.committed == at(100)
    assert await claims.read_partitions(client, Assignment, "g", ["t"]) == {
        P0: Assignment(member="m2", generation=2)
    }


async def test_an_owned_partition_cannot_be_claimed(client, other) -> None:
    """Not until its owner releases it; nothing is changed by trying."""
    mine = await claims.claim(client, "g", "m1", P0)
    with pytest.raises(StillOwned, match="'m1'"):
        await claims.claim(other, "g", "m2", P0)
    assert await claims.still_ours(client, mine)
    assert (await commits.commit(client, [(mine, at(5))])).stale == ()


async def test_a_member_of_the_same_name_in_another_session_is_another(client, other) -> None:
    """It neither takes over the living owner's node nor releases it."""
    mine = await claims.claim(client, "g", "m1", P0)
    with pytest.raises(StillOwned):
        await claims.claim(other, "g", "m1", P0)
    await claims.release(other, mine)
    assert await claims.still_ours(client, mine)
    assert not await claims.still_ours(other, mine)


async def test_two_members_on_one_session_are_two(client) -> None:
    """Consumers of one process share its session, but not their partitions."""
    mine = await claims.claim(client, "g", "m1", P0)
    with pytest.raises(StillOwned):
        await claims.claim(client, "g", "m2", P0)
    forged = Claim("g", "m2", P0, mine.generation)
    await claims.release(client, forged)
    assert not await claims.still_ours(client, forged)
    assert await claims.still_ours(client, mine)


async def test_a_dead_owner_makes_way(ensemble, client, other) -> None:
    """Its owner node ends with its session."""
    await claims.claim(client, "g", "m1", P0)
    ensemble.expire(client)
    theirs = await claims.claim(other, "g", "m2", P0)
    assert theirs.generation == 2


async def test_a_claim_goes_on_behind_the_last_commit_of_the_owner_before(
    client, other, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which comes while the claim is under way, just before the release."""
    claimed = await claims.claim(other, "g", "m2", P0)
    theirs = (await commits.commit(other, [(claimed, at(100))])).done[P0]
    exists = client.exists

    async def after_the_release(path: str, **options: object) -> object:
        monkeypatch.setattr(client, "exists", exists)
        last = (await commits.commit(other, [(theirs, at(200))])).done[P0]
        await claims.release(other, last)
        return await exists(path, **options)

    monkeypatch.setattr(client, "exists", after_the_release)
    mine = await claims.claim(client, "g", "m1", P0)
    assert mine.committed == at(200)
    assert (await commits.commit(client, [(mine, at(300))])).done[P0].committed == at(300)


async def test_members_that_race_get_one_owner(client, other) -> None:
    """Of many claims at once exactly one wins."""
    outcomes = await asyncio.gather(
        *(claims.claim(c, "g", m, P0) for c, m in [(client, "m1"), (other, "m2")]),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["Claim", "StillOwned"]


async def test_releasing_twice_or_late_harms_nobody(ensemble, client, other) -> None:
    """Only the own owner node is deleted."""
    mine = await claims.claim(client, "g", "m1", P0)
    await claims.release(client, mine)
    await claims.release(client, mine)
    theirs = await claims.claim(other, "g", "m2", P0)
    await claims.release(client, mine)
    assert await claims.still_ours(other, theirs)


async def test_a_partition_is_younger_than_a_group_that_began_before_it(client) -> None:
    """Whether members were there meanwhile or not; what is made again is younger, too."""
    path = Partition.path("t", 0)
    await client.create(path, parents=True)
    assert not await claims.is_younger(client, "g", P0), "it has claimed nothing yet"
    await claims.release(client, await claims.claim(client, "g", "m1", P0))
    await client.create(Partition.path("t", 1))
    assert not await claims.is_younger(client, "g", P0)
    assert await claims.is_younger(client, "g", TopicPartition("t", 1))
    assert not await claims.is_younger(client, "g", TopicPartition("t", 2)), "there is none"
    await claims.claim(client, "late", "m1", P0)
    assert not await claims.is_younger(client, "late", TopicPartition("t", 1))
    await client.delete(path)
    await client.create(path)
    assert await claims.is_younger(client, "g", P0)


async def test_an_owner_says_what_stops_it(client, other) -> None:
    """In its own node, within a bound; in nobody else's."""

    async def owner() -> Owner:
        path = Owner.path("g", "t", 0)
        return Owner.decode(path, (await client.get(path)).data)

    mine = await claims.claim(client, "g", "m1", P0)
    await claims.tell(client, mine, stopped="x" * 10_000, stopped_at=7, stopped_since_ms=8)
    said = await owner()
    assert (said.member, said.generation, said.stopped_at, said.stopped_since_ms) == ("m1", 1, 7, 8)
    assert said.stopped == "x" * claims.STOPPED_TEXT_MAX
    assert await claims.still_ours(client, mine)
    await claims.tell(client, mine)
    assert await owner() == Owner(member="m1", generation=1)
    await claims.tell(client, mine, stopped="again")
    await claims.release(client, mine)
    await claims.tell(client, mine, stopped="late")
    theirs = await claims.claim(other, "g", "m2", P0)
    await claims.tell(client, mine, stopped="late")
    assert await owner() == Owner(member="m2", generation=theirs.generation)
