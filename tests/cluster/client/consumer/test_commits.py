"""A commit counts under the claim it was made for, and the next owner goes on there."""

import asyncio
from typing import Any

import pytest
from support.membership import (
    ALL,
    P0,
    P1,
    P2,
    Consumer,
    Group,
    lose_and_claim_again,
)

from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.group import share as shares
from vq.client.consumer.group.hold_states import Event
from vq.client.consumer.group.holds import Hold
from vq.coordination.groups import claims
from vq.coordination.groups.zookeeper_offsets import CommitResult, ZooKeeperOffsets
from vq.errors import GenerationStale, InvalidArgument
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_commits_are_written_and_fenced(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert await consumer.member.share.commit({P0: Progress(10, 7), P1: Progress(20)}) == {
        P0: None,
        P1: None,
    }
    async with group.cluster.admin() as coordinator:
        assignment = await coordinator.get("consumers/g/assignment/t/1")
        await coordinator.set("consumers/g/assignment/t/1", assignment.data)
    outcome = await consumer.member.share.commit({P0: Progress(11, 8), P1: Progress(21, 9)})
    assert outcome[P0] is None
    assert isinstance(outcome[P1], GenerationStale)
    async with group.cluster.admin() as coordinator:
        found = await ZooKeeperOffsets(coordinator).read("g", ["t"])
    assert {where: each.offset for where, each in found.items()} == {P0: 11, P1: 20}
    assert {where: each.message_id for where, each in found.items()} == {P0: 8, P1: None}


async def test_a_commit_that_returns_late_leaves_a_later_claim_alone(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was lost and claimed anew meanwhile: its commits have the later generation."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    commit = ZooKeeperOffsets.commit
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> CommitResult:
        result = await commit(*arguments, **options)
        written.set()
        await go_on.wait()
        return result

    monkeypatch.setattr(ZooKeeperOffsets, "commit", slow)
    committing = asyncio.create_task(consumer.member.share.commit({P1: Progress(20)}))
    await written.wait()
    await lose_and_claim_again(group, consumer)
    go_on.set()
    assert await committing == {P1: None}
    assert await consumer.member.share.commit({P1: Progress(30)}) == {P1: None}


async def commit_under_way(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """Begin a commit of ``P0`` at 10; it, and all later ones, go on when the event is set."""
    commit = ZooKeeperOffsets.commit
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> CommitResult:
        begun.set()
        await go_on.wait()
        return await commit(*arguments, **options)

    monkeypatch.setattr(ZooKeeperOffsets, "commit", slow)
    task = asyncio.create_task(consumer.member.share.commit({P0: Progress(10)}))
    await begun.wait()
    return task, go_on


async def test_progress_that_waits_is_not_committed_under_a_later_claim(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit is under way; meanwhile the partition is lost, and claimed anew."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    first, go_on = await commit_under_way(consumer, monkeypatch)
    waiting = asyncio.create_task(share.commit({P1: Progress(20), P2: Progress(30)}))
    await lose_and_claim_again(group, consumer)
    go_on.set()
    assert await first == {P0: None}
    outcome = await waiting
    assert isinstance(outcome[P1], GenerationStale)
    assert outcome[P2] is None
    async with group.cluster.admin() as coordinator:
        assert sorted(await ZooKeeperOffsets(coordinator).read("g", ["t"])) == [P0, P2]


async def test_of_commits_that_wait_together_the_last_one_of_a_partition_is_written(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular commit and one that the user asks for, while a third one is under way."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    first, go_on = await commit_under_way(consumer, monkeypatch)
    waiting = [asyncio.create_task(share.commit({P1: Progress(at)})) for at in (20, 30)]
    await asyncio.sleep(0)
    go_on.set()
    assert await first == {P0: None}
    assert await asyncio.gather(*waiting) == [{P1: None}, {P1: None}]
    async with group.cluster.admin() as coordinator:
        found = await ZooKeeperOffsets(coordinator).read("g", ["t"])
    assert {where: each.offset for where, each in found.items()} == {P0: 10, P1: 30}


def test_progress_belongs_to_the_claim_that_it_was_made_under() -> None:
    """A claim may give the same hold another generation."""
    hold = Hold(claims.Claim("g", "a", P0, generation=1), lambda _: None)
    for event in (Event.CLAIM, Event.CLAIMED):
        hold.on(event)
    wanted = shares._Commit(hold, 1, Progress(5))
    assert wanted.is_current
    hold.claim = claims.Claim("g", "a", P0, generation=2)
    assert not wanted.is_current


async def test_one_commit_that_is_refused_does_not_stop_the_others(group: Group) -> None:
    """An offset before the committed one; commits go together, and alone when that fails."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    assert await share.commit({P1: Progress(50)}) == {P1: None}
    outcome = await share.commit({P0: Progress(10), P1: Progress(20), P2: Progress(30)})
    assert isinstance(outcome[P1], InvalidArgument)
    assert (outcome[P0], outcome[P2]) == (None, None)


async def test_the_next_owner_goes_on_at_the_commit(group: Group) -> None:
    taken: dict[TopicPartition, claims.Claim] = {}

    async def begin(claim: claims.Claim) -> None:
        taken[claim.partition] = claim

    first = await group.join("a")
    await until(lambda: first.held == ALL)
    await first.member.share.commit({P2: Progress(77)})
    await first.member.close(1.0)
    second = await group.member("b")
    second.on_claimed = begin
    await second.member.start()
    await until(lambda: second.held == ALL)
    assert taken[P2].committed is not None
    assert taken[P2].committed.offset == 77
    assert taken[P0].committed is None
