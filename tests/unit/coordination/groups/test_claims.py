"""Claims of partitions: one owner each, a generation that only rises."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from support.coordination import FAULTS, at, client_of, disarm, expire, known, strike

from vq.coordination.groups import claims
from vq.coordination.groups.claims import Assigned, Claim, Occasion, StillOwned
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.tree.coordinator import (
    ConnectionLost,
    Coordinator,
    SessionExpired,
    SessionState,
    WatchEvent,
)
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import HISTORY_MAX, Assignment, Owner
from vq.coordination.tree.values.partitions import Partition
from vq.errors import CoordinationError
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

P0 = TopicPartition("t", 0)


async def test_a_claim_owns_with_a_rising_generation(client, other) -> None:
    """Release and claim by another: the generation rises, progress goes along."""
    mine = await claims.claim(client, "g", "m1", P0)
    assert (mine.generation, mine.committed) == (1, None)
    assert await claims.read_partitions(client, Owner, "g", ["t"]) == {
        P0: Owner(member="m1", generation=1)
    }
    done = await ZooKeeperOffsets(client).commit([(mine, at(100))])
    await claims.release(client, done.done[P0])
    assert await claims.read_partitions(client, Owner, "g", ["t"]) == {}
    theirs = await known(other, await claims.claim(other, "g", "m2", P0))
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
    assert (await ZooKeeperOffsets(client).commit([(mine, at(5))])).stale == ()


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
    theirs = (await ZooKeeperOffsets(other).commit([(claimed, at(100))])).done[P0]
    get_many = client.get_many

    async def after_the_release(paths: Sequence[str]) -> object:
        monkeypatch.setattr(client, "get_many", get_many)
        last = (await ZooKeeperOffsets(other).commit([(theirs, at(200))])).done[P0]
        await claims.release(other, last)
        return await get_many(paths)

    monkeypatch.setattr(client, "get_many", after_the_release)
    mine = await known(client, await claims.claim(client, "g", "m1", P0))
    assert mine.committed == at(200)
    assert (await ZooKeeperOffsets(client).commit([(mine, at(300))])).done[P0].committed == at(300)


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


async def test_an_owner_says_what_stops_it(ensemble, client, other) -> None:
    """In its own node, within a bound; in nobody else's."""

    async def owner() -> Owner:
        path = Owner.path("g", "t", 0)
        return Owner.decode(path, (await client.get(path)).data)

    mine = await claims.claim(client, "g", "m1", P0)
    told = {"stopped": "x" * 10_000, "stopped_at": 7, "stopped_since_ms": 8}
    held = {"held": 2, "message_id": 9, "attempts": 3, "next_try_ms": 10}
    await claims.report_stopped(client, [(mine, {**told, **held})])
    said = await owner()
    assert said == Owner(
        member="m1",
        generation=1,
        stopped="x" * claims.STOPPED_TEXT_MAX,
        stopped_at=7,
        stopped_since_ms=8,
        held=2,
        message_id=9,
        attempts=3,
        next_try_ms=10,
    )
    assert await claims.still_ours(client, mine)
    await claims.report_stopped(client, [(mine, {})])
    assert await owner() == Owner(member="m1", generation=1)
    second = await claims.claim(client, "g", "m1", TopicPartition("t", 1))
    again = {"stopped": "again"}
    before = ensemble.tree.zxid
    await claims.report_stopped(client, [(mine, again), (second, again)])
    assert ensemble.tree.zxid == before + 1, "one write"
    await claims.release(client, mine)
    theirs = await claims.claim(other, "g", "m2", P0)
    await claims.report_stopped(client, [(mine, {"stopped": "late"}), (second, {})])
    assert await owner() == Owner(member="m2", generation=theirs.generation)
    assert Owner.decode("", (await client.get(Owner.path("g", "t", 1))).data).stopped == ""


# Many at once ---------------------------------------------------------------------------------
def of(count: int, topic: str = "t") -> list[TopicPartition]:
    """The first partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(count)]


#: All of twelve but the one that another member owns.
WANTED = [each for each in of(12) if each.partition != 5]


async def together(
    coordinator: Coordinator,
    member: str,
    partitions: Sequence[TopicPartition],
    versions: Mapping[TopicPartition, int] | None = None,
    **options: Any,
) -> dict[TopicPartition, Claim | CoordinationError]:
    known = {each: Assigned("", version) for each, version in (versions or {}).items()}
    found = await claims.claim_together(
        coordinator, "g", member, partitions, known=known, **options
    )
    return found | await ZooKeeperOffsets(coordinator).known(had(found))


def had(found: Mapping[TopicPartition, Claim | CoordinationError]) -> list[Claim]:
    """The claims among the outcomes."""
    return [each for each in found.values() if isinstance(each, Claim)]


async def owners(coordinator: Coordinator) -> dict[TopicPartition, str]:
    found = await claims.read_partitions(coordinator, Owner, "g", ["t"])
    return {partition: owner.member for partition, owner in found.items()}


@pytest.mark.parametrize("count", [1, 10, 100])
async def test_many_are_claimed_and_released_with_the_calls_of_one(
    ensemble, client, other, count: int
) -> None:
    """Counted at the twin: a group that is new, one that goes on, and a release."""
    before = ensemble.served
    mine = had(await together(client, "m1", of(count)))
    # The nodes above, made with theirs; the owners; the claims; the progress.
    assert ensemble.served - before <= 18 + 1 + 1 + 1
    assert [each.generation for each in mine] == [1] * count
    done = await ZooKeeperOffsets(client).commit([(each, at(7)) for each in mine])
    before = ensemble.served
    assert await claims.release_together(client, list(done.done.values())) == [None] * count
    assert ensemble.served - before == 1
    versions = {each.partition: each.generation for each in mine}
    before = ensemble.served
    theirs = had(await together(other, "m2", of(count), versions))
    assert ensemble.served - before <= 3 + count  # each committed offset is read
    assert [(each.generation, each.committed) for each in theirs] == [(2, at(7))] * count
    assert await owners(client) == dict.fromkeys(of(count), "m2")


async def test_what_others_own_is_watched_and_the_rest_is_had(client, other) -> None:
    mine = had(await together(client, "m1", of(20)[::2]))
    events: list[WatchEvent] = []
    found = await together(other, "m2", of(20), watch=events.append)
    assert [each.partition for each in had(found)] == of(20)[1::2]
    assert {partition for partition, each in found.items() if isinstance(each, StillOwned)} == set(
        of(20)[::2]
    )
    assert await claims.release_together(client, mine[:1]) == [None]
    await until(lambda: events)
    assert [each.path for each in events] == [Owner.path("g", "t", 0)]


async def test_what_was_known_may_be_old(client, other) -> None:
    """Claimed and released by another meanwhile: wrong versions, or a node that is there."""
    for _ in range(2):
        taken = had(await together(other, "m2", of(3)))
        await claims.release_together(other, taken)
    mine = had(await together(client, "m1", of(12), {P0: 1}))
    assert [each.generation for each in mine] == [3, 3, 3] + [1] * 9
    assert all([await claims.still_ours(client, each) for each in mine])


async def test_two_members_that_claim_the_same_at_once_share_it(ensemble) -> None:
    """Each partition has one owner, whichever claim came first, and each claim is the tree's."""
    async with client_of(ensemble) as one, client_of(ensemble) as two, client_of(ensemble) as three:
        clients = {"m1": one, "m2": two, "m3": three}
        wanted = {"m1": of(30), "m2": of(50)[10:], "m3": of(40)[20:]}
        found = await asyncio.gather(
            *(together(clients[name], name, wanted[name]) for name in clients)
        )
        claimed = [each for outcome in found for each in had(outcome)]
        assert sorted(each.partition for each in claimed) == of(50)
        assert await owners(one) == {each.partition: each.member for each in claimed}
        for each in claimed:
            assert await claims.still_ours(clients[each.member], each)


async def test_one_that_cannot_be_read_does_not_stop_the_others(client) -> None:
    """Each goes alone then."""
    await claims.make_parents(client, "g", "t")
    await client.create(Owner.path("g", "t", 3), b"not json")
    found = await together(client, "m1", of(10))
    assert [each.partition for each in had(found)] == [each for each in of(10) if each[1] != 3]
    assert isinstance(found[of(10)[3]], CoordinationError)
    assert not isinstance(found[of(10)[3]], StillOwned)


async def test_a_release_leaves_later_claims_alone(client, other) -> None:
    """One was reset, one's owner died and it was claimed again, one is owned by another."""
    mine = had(await together(client, "m1", of(4)))
    await ZooKeeperOffsets(other).reset("g", of(4)[0], at(5))
    await client.delete(Owner.path("g", "t", 1))
    theirs = await claims.claim(other, "g", "m2", of(4)[1])
    assert await claims.release_together(client, mine) == [None] * 4
    assert await owners(client) == {of(4)[1]: "m2"}
    assert await claims.still_ours(other, theirs)
    assert await claims.release_together(client, mine) == [None] * 4
    assert await claims.still_ours(other, theirs)


async def test_a_session_that_is_gone_releases_nothing_of_the_next(ensemble, client) -> None:
    mine = had(await together(client, "m1", of(9)))
    await expire(ensemble, client)
    again = had(await together(client, "m1", of(9), {each.partition: 1 for each in mine}))
    assert [each.generation for each in again] == [2] * 9


class Survivor:
    """A member that wants all partitions but the sixth, and tries again what failed."""

    def __init__(self, coordinator: MemoryCoordinator) -> None:
        self.coordinator = coordinator
        self.held: dict[TopicPartition, Claim] = {}
        self.session = coordinator.session_id

    async def take(self) -> None:
        wanted = [each for each in WANTED if each not in self.held]
        if wanted:
            found = await together(self.coordinator, "m1", wanted)
            self.held.update({each.partition: each for each in had(found)})
        offsets = [(each, at(each.generation)) for each in self.held.values()]
        done = await ZooKeeperOffsets(self.coordinator).commit(offsets)
        self.held.update(done.done)

    async def release(self) -> None:
        if self.held:
            released = await claims.release_together(self.coordinator, list(self.held.values()))
            assert set(released) == {None}

    async def survive(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do ``work`` until it was done in one session; after another one, what is owed first."""
        for _ in range(4):
            await until(lambda: self.coordinator.state is SessionState.CONNECTED)
            if self.coordinator.session_id != self.session:
                self.session = self.coordinator.session_id
                self.held.clear()
                owed = [Claim("g", "m1", each, generation=0) for each in WANTED]
                await claims.release_together(self.coordinator, owed)
            with contextlib.suppress(ConnectionLost, SessionExpired):
                await work()
                if self.coordinator.session_id == self.session:
                    return
        raise AssertionError("it did not come to an end")


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_every_call_leaves_one_owner_and_no_orphan(fault: str) -> None:
    """Claims, commits and releases of eleven at once; the twelfth is owned by another member."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as mine, client_of(ensemble) as other:
            await claims.claim(other, "g", "m2", of(12)[5])
            member = Survivor(mine)
            strike(ensemble, mine, fault, skip)
            await member.survive(member.take)
            found = await claims.read_partitions(other, Owner, "g", ["t"])
            assert found.pop(of(12)[5]).member == "m2"
            assert {partition: owner.generation for partition, owner in found.items()} == {
                partition: each.generation for partition, each in member.held.items()
            }
            assert list(found) == WANTED
            await member.survive(member.release)
            assert await owners(other) == {of(12)[5]: "m2"}
            was_struck = disarm(mine)
        if not was_struck:
            break
        skip += 1
    assert skip > 5


# What is remembered ---------------------------------------------------------------------------
async def reasons(coordinator: Coordinator, partition: TopicPartition) -> list[tuple[str, str]]:
    """Who claimed a partition, and why, the oldest first."""
    found = await claims.read_assigned(coordinator, Assignment.path("g", *partition))
    assert found is not None
    return [(each.member, each.reason) for each in found.history]


async def test_an_assignment_remembers_who_had_it_and_why(client, other) -> None:
    """In the write of the claim: no call is made for it."""
    both, alone = Occasion(5, ["a", "b"]), Occasion(6, ["b"])
    mine = await claims.claim(client, "g", "a", P0, occasion=both)
    mine = await claims.claim(client, "g", "a", P0, occasion=both)
    await claims.release(client, mine)
    theirs = await claims.claim(other, "g", "b", P0, occasion=both)
    await claims.release(other, theirs)
    mine = await claims.claim(client, "g", "a", P0, occasion=Occasion(7, ["a"]))
    await ZooKeeperOffsets(client).reset("g", P0, at(0))
    await claims.claim(client, "g", "a", P0, occasion=alone)
    assert await reasons(client, P0) == [
        ("a", "first"),
        ("a", "again"),
        ("b", "balance"),
        ("a", "left"),
        ("a", "reset"),
    ]


async def test_the_history_is_bounded_and_survives_what_does_not_write_it(client) -> None:
    """The oldest claims go; a claim without an occasion keeps what is there."""
    for number in range(HISTORY_MAX + 3):
        await claims.claim(client, "g", "a", P0, occasion=Occasion(number, ["a"]))
    await claims.claim(client, "g", "a", P0)
    found = await claims.read_assigned(client, Assignment.path("g", *P0))
    assert [each.time_ms for each in found.history] == list(range(3, HISTORY_MAX + 3))
    assert [each.generation for each in found.history] == list(range(4, HISTORY_MAX + 4))


async def test_a_claim_over_an_outdated_read_has_the_history_of_the_tree(client, other) -> None:
    """The conflict has it read again."""
    await claims.release(other, await claims.claim(other, "g", "b", P0, occasion=Occasion(1, [])))
    found = await claims.claim_together(
        client, "g", "a", [P0], known={}, occasion=Occasion(2, ["a", "b"])
    )
    assert isinstance(found[P0], Claim)
    assert await reasons(client, P0) == [("b", "first"), ("a", "balance")]
