"""The contract of offset stores: what a member may rely on, whatever has its offsets.

``CLAIMS`` are tests that take a ``World``: a store, and members in an ensemble in memory.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.cases import case
from support.coordination import at, client_of, expire

from vq.client.consumer.group.outside_offsets import MemberOffsets, OutsideOffsets
from vq.clock import ManualClock
from vq.coordination.groups import claims, groups
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.zookeeper_offsets import (
    COMMITS_PER_MULTI,
    CommitResult,
    ZooKeeperOffsets,
)
from vq.coordination.tree.coordinator import Check
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.errors import InvalidArgument, OffsetStoreFailed
from vq.model import TopicPartition
from vq.offset_stores.table import OffsetTable

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
Test = Callable[["World"], Awaitable[None]]


@dataclass
class Owner:
    """A member: its session, and its offsets."""

    world: "World"
    name: str
    client: MemoryCoordinator
    offsets: MemberOffsets

    async def claim(self, *partitions: TopicPartition) -> Any:
        """Claim partitions, and learn what is committed: one claim, or a list."""
        made = [
            await claims.claim(self.client, self.world.group, self.name, each)
            for each in partitions
        ]
        found = await self.offsets.known(made)
        known = [found[each] for each in partitions]
        for each in known:
            if not isinstance(each, Claim):
                raise each
        return known[0] if len(known) == 1 else known

    async def release(self, *claimed: Claim) -> None:
        """Give up partitions."""
        for each in claimed:
            await claims.release(self.client, each)

    async def commit(self, claimed: Claim, offset: int, **options: Any) -> CommitResult:
        """Commit one offset."""
        return await self.offsets.commit([(claimed, at(offset, self.name))], **options)

    async def read(self, topic: str = "t") -> dict[TopicPartition, int]:
        """Return the offsets that the store has."""
        found = await self.offsets.read(self.world.group, [topic])
        return {partition: each.offset for partition, each in found.items()}


@dataclass
class World:
    """A store and an ensemble; ``group`` is new in each test."""

    ensemble: MemoryEnsemble
    store: OffsetTable | None
    group: str
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def member(self, name: str) -> Owner:
        """Return a new member."""
        client = await self.stack.enter_async_context(client_of(self.ensemble))
        if self.store is None:
            return Owner(self, name, client, ZooKeeperOffsets(client))
        offsets = OutsideOffsets(
            self.store, cluster="test", coordinator=client, clock=ManualClock(), in_order=True
        )
        self.stack.callback(offsets.close)
        await offsets.open()
        return Owner(self, name, client, offsets)


@asynccontextmanager
async def world(store: OffsetTable | None, group: str) -> AsyncIterator[World]:
    """Provide a world with a store; None: ZooKeeper."""
    async with AsyncExitStack() as stack:
        yield World(MemoryEnsemble(reconnect_delay_s=0.0), store, group, stack)


async def commits_go_on_from_each_other(w: World) -> None:
    m1 = await w.member("m1")
    mine = await m1.claim(P0)
    assert mine.committed is None
    assert mine.offset_version is None
    for offset in (10, 20, 20, 30):
        result = await m1.commit(mine, offset)
        assert result.stale == ()
        mine = result.done[P0]
    assert await m1.read() == {P0: 30}
    assert await (await w.member("m2")).read() == {P0: 30}


async def a_successor_goes_on_where_its_predecessor_was(w: World) -> None:
    m1, m2 = await w.member("m1"), await w.member("m2")
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    await m1.release(mine)
    theirs = await m2.claim(P0)
    assert theirs.committed == at(10, "m1")
    assert theirs.offset_version == mine.offset_version  # ``go_on_at`` knows its own commits by it


async def a_former_owner_cannot_commit(w: World) -> None:
    m1, m2 = await w.member("m1"), await w.member("m2")
    mine = await m1.claim(P0)
    await expire(w.ensemble, m1.client)
    theirs = await m2.claim(P0)
    await m2.commit(theirs, 50)
    assert (await m1.commit(mine, 99)).stale == (P0,)
    assert await m2.read() == {P0: 50}


async def an_earlier_claim_of_the_same_member_cannot_commit(w: World) -> None:
    m1 = await w.member("m1")
    before = await m1.claim(P0)
    now = await m1.claim(P0)
    assert (await m1.commit(before, 99)).stale == (P0,)
    assert (await m1.commit(now, 5)).stale == ()
    assert await m1.read() == {P0: 5}


async def a_stale_partition_does_not_hold_up_the_others(w: World) -> None:
    m1, m2 = await w.member("m1"), await w.member("m2")
    mine = await m1.claim(P0, P1, P2)
    await m1.release(mine[1])
    await m2.claim(P1)
    result = await m1.offsets.commit([(each, at(7)) for each in mine])
    assert result.stale == (P1,)
    assert sorted(result.done) == [P0, P2]
    assert await m1.read() == {P0: 7, P2: 7}


async def an_offset_goes_back_only_where_that_is_meant(w: World) -> None:
    m1 = await w.member("m1")
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    with contextlib.suppress(InvalidArgument):  # or it stays
        await m1.commit(mine, 9)
    assert await m1.read() == {P0: 10}
    mine = (await m1.commit(mine, 4, may_go_back={P0})).done[P0]
    assert mine.committed == at(4)
    assert await m1.read() == {P0: 4}


async def a_commit_may_be_repeated(w: World) -> None:
    """Its answer was lost: the same claim, and the same offset."""
    m1 = await w.member("m1")
    mine = await m1.claim(P0)
    await m1.commit(mine, 10)
    assert (await m1.commit(mine, 10)).done[P0].committed == at(10)
    assert await m1.read() == {P0: 10}


async def a_reset_is_where_the_next_owner_goes_on(w: World) -> None:
    """And only once: what was committed after it stays."""
    m1, m2 = await w.member("m1"), await w.member("m2")
    mine = (await m1.commit(await m1.claim(P0), 30)).done[P0]
    await ZooKeeperOffsets(m2.client).reset(w.group, P0, at(4, ""))
    if w.store is None:
        assert (await m1.commit(mine, 40)).stale == (P0,)
    await m1.release(mine)
    theirs = await m2.claim(P0)
    assert theirs.committed == at(4, "")
    assert (await m1.commit(mine, 40)).stale == (P0,)
    theirs = (await m2.commit(theirs, 6)).done[P0]
    await m2.release(theirs)
    assert (await m1.claim(P0)).committed == at(6, "m2")


async def a_deleted_group_begins_anew(w: World) -> None:
    m1 = await w.member("m1")
    await groups.ensure_group(m1.client, w.group, ConsumerGroup(topics={}))
    mine = (await m1.commit(await m1.claim(P0), 30)).done[P0]
    await m1.release(mine)
    await groups.delete_group(m1.client, w.group)
    again = await m1.claim(P0)
    assert again.generation <= mine.generation
    assert again.committed is None
    assert (await m1.commit(again, 3)).stale == ()
    assert await m1.read() == {P0: 3}


async def a_forgotten_topic_begins_anew(w: World) -> None:
    m1 = await w.member("m1")
    mine = (await m1.commit(await m1.claim(P0), 30)).done[P0]
    await m1.release(mine)
    await m1.client.create(TOPICS, parents=True)
    fence = Check(TOPICS, -1)
    await claims.fence_claims(m1.client, w.group, "t", fence)
    await ZooKeeperOffsets(m1.client).forget(w.group, "t", fence)
    if w.store is None:
        await claims.make_parents(m1.client, w.group, "t")
    assert (await m1.claim(P0)).committed is None


async def many_partitions_are_committed_together(w: World) -> None:
    m1 = await w.member("m1")
    partitions = [TopicPartition("t", n) for n in range(COMMITS_PER_MULTI)]
    mine = await m1.claim(*partitions)
    for step in (1, 2):
        offsets = [at(step * 100 + n) for n in range(len(mine))]
        result = await m1.offsets.commit(list(zip(mine, offsets, strict=True)))
        mine = [result.done[each] for each in partitions]
    assert list((await m1.read()).values()) == [200 + n for n in range(len(mine))]


async def names_that_differ_in_case_are_different(w: World) -> None:
    m1 = await w.member("m1")
    upper, lower = await m1.claim(TopicPartition("T", 0), P0)
    await m1.offsets.commit([(upper, at(1)), (lower, at(2))])
    assert await m1.read("T") == {TopicPartition("T", 0): 1}
    assert await m1.read() == {P0: 2}


async def all_of_a_commit_is_kept(w: World) -> None:
    """Large ids, a reason to stop, and what is not known."""
    m1 = await w.member("m1")
    whole = CommittedOffset(
        offset=2**60,
        message_id=2**63 - 1,
        time_ms=1_800_000_000_000,
        member="m1",
        topic_id="9f" * 8,
        stopped="on_failure = 'stop': the listener said “no” 没有",
        epoch=77,
        ahead=((2**60 + 9, 2**63 - 2), (2**60 + 99, 5)),
    )
    mine = await m1.claim(P0, P1)
    await m1.offsets.commit([(mine[0], whole), (mine[1], CommittedOffset(offset=0))])
    found = await m1.offsets.read(w.group, ["t"])
    assert found == {P0: whole, P1: CommittedOffset(offset=0)}


async def members_that_claim_and_commit_at_once_are_put_in_order(w: World) -> None:
    """Each takes the partition from the one before; whoever is late is refused."""
    members = [await w.member(f"m{n}") for n in range(4)]
    made = []
    for each in members:
        claim = await claims.claim(each.client, w.group, each.name, P0)
        await each.release(claim)
        made.append(claim)
    found = await asyncio.gather(
        *(each.offsets.known([claim]) for each, claim in zip(members, made, strict=True))
    )
    last = found[-1][P0]
    assert isinstance(last, Claim)
    known = [each[P0] for each in found]
    commits = [
        each.commit(claim, 10 + n)
        for n, (each, claim) in enumerate(zip(members, known, strict=True))
        if isinstance(claim, Claim)
    ]
    results = await asyncio.gather(*commits)
    assert [bool(each.done) for each in results] == [*[False] * (len(results) - 1), True]
    assert await members[0].read() == {P0: 13}


#: What every store promises.
CLAIMS: Sequence[Test] = (
    commits_go_on_from_each_other,
    a_successor_goes_on_where_its_predecessor_was,
    a_former_owner_cannot_commit,
    an_earlier_claim_of_the_same_member_cannot_commit,
    a_stale_partition_does_not_hold_up_the_others,
    an_offset_goes_back_only_where_that_is_meant,
    a_commit_may_be_repeated,
    a_reset_is_where_the_next_owner_goes_on,
    a_deleted_group_begins_anew,
    a_forgotten_topic_begins_anew,
    many_partitions_are_committed_together,
    names_that_differ_in_case_are_different,
    all_of_a_commit_is_kept,
    members_that_claim_and_commit_at_once_are_put_in_order,
)


# Of stores that are not ZooKeeper -----------------------------------------------------------------
async def _copy(w: World, client: MemoryCoordinator) -> CommittedOffset | None:
    return await ZooKeeperOffsets(client).at(w.group, P0)


async def copies_say_that_they_are_and_are_not_ahead(w: World) -> None:
    m1 = await w.member("m1")
    offsets = m1.offsets
    assert isinstance(offsets, OutsideOffsets)
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    assert await _copy(w, m1.client) is None
    await offsets.copy_when_due()
    found = await _copy(w, m1.client)
    assert found is not None
    assert (found.offset, found.copied) == (10, True)
    mine = (await m1.commit(mine, 20)).done[P0]
    await offsets.copy_when_due()  # not yet: the clock has not moved
    assert (await _copy(w, m1.client) or at(0)).offset == 10
    await offsets.copy_now(P0)
    assert (await _copy(w, m1.client) or at(0)).offset == 20


async def a_copy_is_no_reset(w: World) -> None:
    """It may be behind the store; the next owner goes on by the store."""
    m1 = await w.member("m1")
    offsets = m1.offsets
    assert isinstance(offsets, OutsideOffsets)
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    await offsets.copy_now(P0)
    mine = (await m1.commit(mine, 20)).done[P0]
    await m1.release(mine)
    assert (await m1.claim(P0)).committed == at(20)


async def rows_that_are_gone_are_not_taken_for_no_offset(w: World) -> None:
    assert w.store is not None
    m1 = await w.member("m1")
    offsets = m1.offsets
    assert isinstance(offsets, OutsideOffsets)
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    await offsets.copy_now(P0)
    await m1.release(mine)
    assert w.store.forget("test", w.group) == 1
    with pytest.raises(OffsetStoreFailed, match="--offset 10"):
        await m1.claim(P0)
    await ZooKeeperOffsets(m1.client).reset(w.group, P0, at(10, ""))
    assert (await m1.claim(P0)).committed == at(10, "")


async def rows_that_are_gone_refuse_a_commit(w: World) -> None:
    assert w.store is not None
    m1 = await w.member("m1")
    mine = (await m1.commit(await m1.claim(P0), 10)).done[P0]
    w.store.forget("test", w.group)
    with pytest.raises(OffsetStoreFailed):
        await m1.commit(mine, 20)


async def groups_and_clusters_are_apart(w: World) -> None:
    assert w.store is not None
    m1 = await w.member("m1")
    await m1.commit(await m1.claim(P0), 10)
    assert w.store.read("test", w.group + "2", ["t"]) == {}
    assert w.store.read("other", w.group, ["t"]) == {}
    assert w.store.forget("other", w.group) == 0


#: What every store promises that is not ZooKeeper.
CLAIMS_OUTSIDE: Sequence[Test] = (
    copies_say_that_they_are_and_are_not_ahead,
    a_copy_is_no_reset,
    rows_that_are_gone_are_not_taken_for_no_offset,
    rows_that_are_gone_refuse_a_commit,
    groups_and_clusters_are_apart,
)


async def check_contract(store: OffsetTable | None, group: str) -> None:
    """Run all claims on one store; each has a group of its own."""
    for test in (*CLAIMS, *(CLAIMS_OUTSIDE if store is not None else ())):
        with case(test.__name__):
            async with world(store, f"{group}-{test.__name__}") as w:
                await test(w)
