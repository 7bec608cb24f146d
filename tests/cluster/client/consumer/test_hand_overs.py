"""A partition changes hands once its listener returned; no other partition waits for that."""

import asyncio
from typing import Any

import pytest
from support.membership import (
    ALL,
    P0,
    P1,
    P2,
    P3,
    SOON,
    Consumer,
    Group,
    audit,
    share,
)

from vq.client.consumer.group import membership as memberships
from vq.client.consumer.group import share as shares
from vq.coordination.groups import claims
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.values.consumers import Owner
from vq.errors import CoordinationError, GenerationStale
from vq.model import TopicPartition
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def test_a_partition_is_waited_for_until_its_owner_has_drained_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_owned = 0
    claim = claims.claim_together

    async def count(*arguments: Any, **options: Any) -> Any:
        nonlocal still_owned
        found = await claim(*arguments, **options)
        still_owned += sum(isinstance(each, claims.StillOwned) for each in found.values())
        return found

    monkeypatch.setattr(shares.claims, "claim_together", count)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    drained = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await drained.wait()

    first.on_drain = drain
    second = await group.join("b")
    await until(lambda: still_owned == 2)
    audit(second)
    await until(lambda: still_owned == 4)
    assert second.held == set()
    drained.set()
    await share(first, second)


async def test_a_listener_that_does_not_return_holds_up_its_own_partition_alone(
    group: Group,
) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    stuck = asyncio.Event()

    async def drain(where: TopicPartition) -> None:
        if where == min(moving or [where]):
            moving.append(where)
            await stuck.wait()

    moving: list[TopicPartition] = []
    first.on_drain = drain
    second = await group.join("b")
    await until(lambda: len(second.held) == 1)
    stuck.set()
    await share(first, second)


async def stuck_member(group: Group) -> tuple[Consumer, asyncio.Event]:
    """Return a member that holds everything, and what its listener of ``P0`` waits for."""
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    returns = asyncio.Event()

    async def drain(partition: TopicPartition) -> None:
        if partition == P0:
            draining.append(partition)
            await returns.wait()

    draining: list[TopicPartition] = []
    consumer.on_drain = drain
    async with group.cluster.admin() as coordinator:
        await coordinator.delete(Owner.path("g", *P0))
    audit(consumer)
    await until(lambda: draining)
    return consumer, returns


async def test_a_listener_that_does_not_return_delays_no_other_hand_over(group: Group) -> None:
    """Also not one that the member comes to know of later."""
    first, returns = await stuck_member(group)
    second = await group.join("b")
    await until(lambda: len(second.held) == 2)
    third = await group.join("c")
    await until(lambda: third.held)
    returns.set()

    def is_shared() -> bool:
        return len(first.held) + len(second.held) + len(third.held) == 4

    await until(is_shared)
    assert first.held | second.held | third.held == ALL


async def test_a_listener_that_does_not_return_delays_no_claim(group: Group) -> None:
    first, returns = await stuck_member(group)
    async with group.cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 2)
    await until(lambda: {TopicPartition("t", 4), TopicPartition("t", 5)} <= first.held)
    returns.set()
    await until(lambda: P0 in first.held)


async def test_a_listener_that_does_not_return_delays_no_new_session(group: Group) -> None:
    """The member joins again and claims the others; this partition waits for its listener."""
    first, returns = await stuck_member(group)
    session = first.coordinator.session_id
    group.cluster.ensemble.expire(first.coordinator)
    await until(lambda: first.coordinator.session_id not in {0, session})
    await until(lambda: sum(event.startswith("drop") for event in first.events) == 3)
    await until(lambda: first.held >= {P1, P2, P3})
    assert await group.members() == ["a"]
    assert await group.owners() == dict.fromkeys({P1, P2, P3}, "a")
    returns.set()
    await until(lambda: first.events[-1] == f"drop {P0}" and first.held == ALL)


async def test_a_partition_that_is_lost_during_its_last_commit_is_claimed_again(
    group: Group,
) -> None:
    """The commit is refused then; the release follows, and no later claim is in its way."""
    first = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: first.held == ALL)
    committing, go_on = asyncio.Event(), asyncio.Event()

    async def commit(_: TopicPartition) -> None:
        committing.set()
        await go_on.wait()
        raise CoordinationError("the session ended")

    first.on_commit = commit
    second = await group.join("b")
    await committing.wait()
    session = first.coordinator.session_id
    group.cluster.ensemble.expire(first.coordinator)
    await until(lambda: first.coordinator.session_id not in {0, session})
    go_on.set()
    await share(first, second)


async def test_an_owner_released_just_before_it_was_watched_is_seen(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the partition would lie idle until the next audit, half a minute later."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    claim = claims.claim_together
    asked = asyncio.Event()

    async def claim_late(*arguments: Any, **options: Any) -> Any:
        found = await claim(*arguments, **options)
        if any(isinstance(each, claims.StillOwned) for each in found.values()):
            asked.set()
            await first_gone.wait()
        return found

    first_gone = asyncio.Event()
    drained = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await drained.wait()

    first.on_drain = drain
    second = await group.member("b")
    monkeypatch.setattr(shares.claims, "claim_together", claim_late)
    await second.member.start()
    await asked.wait()  # it found them owned; now they are released, and only then it hears that
    drained.set()
    await until(lambda: len(first.held) == 2)

    async def released() -> bool:
        return len(await group.owners()) <= 2

    await until_true(released)
    first_gone.set()
    await share(first, second)


async def test_a_partition_that_is_wanted_again_while_it_is_handed_over_comes_back(
    group: Group,
) -> None:
    """Its delivery was stopped for another member, which has left: it is claimed anew."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    tried: set[TopicPartition] = set()

    async def fail(partition: TopicPartition) -> None:
        tried.add(partition)
        raise CoordinationError("not now")

    first.on_commit = fail
    second = await group.join("b")
    await until(lambda: len(tried) == 2)
    await second.member.close(1.0)
    await until(lambda: first.member.target_count == len(ALL))
    first.on_commit = None
    await until(lambda: len(first.events) == 2 and first.held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "a")


@pytest.mark.parametrize("fault", ["request", "reply"])
@pytest.mark.parametrize("skip", range(0, 24, 3))
async def test_a_lost_answer_anywhere_while_giving_up_leaves_nothing_behind(
    group: Group, fault: str, skip: int
) -> None:
    """Nobody waits for a partition whose owner does not know that it has it."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    ensemble = group.cluster.ensemble
    lose = ensemble.lose_next_request if fault == "request" else ensemble.lose_next_reply
    lose(first.coordinator, skip=skip)
    second = await group.join("b")
    await share(first, second)
    first.coordinator.faults.clear()


async def test_a_release_that_did_not_get_through_is_made_up_for(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    release = claims.release_together
    failures = 3

    async def fail(coordinator: Any, released: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise GenerationStale("any error of ZooKeeper")
        return await release(coordinator, released)

    monkeypatch.setattr(shares.claims, "release_together", fail)
    second = await group.join("b")
    await share(first, second)
    assert failures == 0


async def test_a_partition_whose_last_commit_fails_is_kept_as_long_as_the_session(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next owner would begin before what was handled; with the session the fence is over."""
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    session, tries = first.coordinator.session_id, 0

    async def fail(_: TopicPartition) -> None:
        nonlocal tries
        if first.coordinator.session_id == session:
            tries += 1
            raise ConnectionLost("the last commit did not get through")

    first.on_commit = fail
    second = await group.join("b")
    await until(lambda: tries >= 6)
    assert await group.owners() == dict.fromkeys(ALL, "a")
    assert second.held == set()
    assert "partitions cannot be handed over, trying again" in caplog.text
    group.cluster.ensemble.expire(first.coordinator)
    await share(first, second)
