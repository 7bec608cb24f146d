"""A member delivers only while its session proves that it owns what it holds."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from support.membership import (
    ALL,
    SOON,
    Group,
    lose_and_claim_again,
    share,
)

from vq.client.consumer.group import membership as memberships
from vq.client.consumer.group import share as shares
from vq.coordination.groups import claims
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.tree.values.consumers import Member, Owner
from vq.errors import CoordinationError
from vq.model import TopicPartition
from vq.testing.loop import SimulatedClock, VirtualLoop
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def test_a_lost_session_drops_everything_and_begins_anew(group: Group) -> None:
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    session = consumer.coordinator.session_id
    group.cluster.ensemble.expire(consumer.coordinator)
    await until(lambda: consumer.coordinator.session_id not in {0, session})
    await until(lambda: consumer.events and consumer.held == ALL)
    assert sorted(consumer.events) == [f"drop {where}" for where in sorted(ALL)]
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_lost_session_lets_the_others_take_over(group: Group) -> None:
    first, second = await group.join("a"), await group.join("b")
    await share(first, second)
    group.cluster.ensemble.crash(first.coordinator)
    await until(lambda: second.held == ALL)


async def test_a_short_absence_changes_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    rounds = 0
    one_round = consumer.member._round

    async def count() -> float:
        nonlocal rounds
        pause_s = await one_round()
        rounds += 1
        return pause_s

    monkeypatch.setattr(consumer.member, "_round", count)
    states: list[SessionState] = []
    consumer.coordinator.add_listener(states.append)
    for times in range(1, 4):
        group.cluster.ensemble.blink(consumer.coordinator)
        await until(lambda times=times: len(states) == 2 * times)
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED] * 3
    before = rounds
    consumer.member.wake()
    await until(lambda: rounds > before)
    assert consumer.events == []


async def test_delivery_pauses_when_ownership_can_no_longer_be_proved(group: Group) -> None:
    """The ensemble is away for longer than the session lives; then the session is back."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    coordinator, silent_s = consumer.coordinator, 0.0

    def note() -> None:
        nonlocal silent_s
        silent_s = consumer.cluster.clock.monotonic() - coordinator.last_reply_monotonic

    consumer.on_suspend = note
    group.cluster.ensemble.stop()
    await until(lambda: consumer.events == ["suspend"])
    late_s = silent_s - coordinator.session_timeout_s
    assert -1e-9 < late_s < 0.5, "as long as the session surely lives, and not much longer"
    group.cluster.ensemble.start()
    await until(lambda: consumer.events == ["suspend", "resume"])
    assert consumer.held == ALL
    assert await group.owners() == dict.fromkeys(ALL, "a")


class JumpingClock(SimulatedClock):
    """A clock that was moved forward: what a process sees that stood still."""

    jumped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.jumped_s


def jumping_clock() -> JumpingClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return JumpingClock(loop)


async def test_a_process_that_stood_still_asks_before_it_delivers(group: Group) -> None:
    """What is still its own goes on, and what another has by now is dropped."""
    clock = jumping_clock()
    consumer = await group.join("a", await group.client(session_timeout_s=60.0, clock=clock))
    await until(lambda: consumer.held == ALL)
    consumer.coordinator._clock = clock
    assert consumer.permit.holds
    asked = consumer.coordinator.last_reply_monotonic
    clock.jumped_s = 29.0
    assert consumer.permit.holds
    consumer.member.permit._extend(clock.monotonic())
    clock.jumped_s += 31.0
    assert not consumer.permit.holds, "at once, for whichever thread looks first"
    async with group.cluster.admin() as coordinator:
        where = TopicPartition("t", 2)
        await coordinator.delete(Owner.path("g", "t", 2))
        await claims.claim(coordinator, "g", "b", where)
        consumer.member.permit.start()  # its timer is due
        await until(lambda: "resume" in consumer.events)
        assert consumer.events[0] == "suspend"
        assert consumer.events.index(f"drop {where}") < consumer.events.index("resume")
        assert consumer.permit.holds
        assert consumer.coordinator.last_reply_monotonic > asked
        assert consumer.held == ALL - {where}


async def test_a_proof_holds_from_when_it_was_asked_for(group: Group) -> None:
    """The process stands still once more before the answers are looked at."""
    clock = jumping_clock()
    consumer = await group.join("a", await group.client(session_timeout_s=60.0, clock=clock))
    await until(lambda: consumer.held == ALL)
    coordinator = consumer.coordinator
    coordinator._clock = clock
    sync = coordinator.sync

    async def late() -> None:
        await sync()
        clock.jumped_s += 31.0

    coordinator.sync = late  # type: ignore[method-assign]
    clock.jumped_s = 61.0
    consumer.member.permit.start()  # its timer is due
    await until(lambda: "resume" in consumer.events)
    assert not consumer.permit.holds
    coordinator.sync = sync  # type: ignore[method-assign]
    consumer.member.permit.start()
    await until(lambda: consumer.permit.holds)
    assert consumer.events == ["suspend", "resume"] * 2


async def test_joining_again_proves_nothing_about_what_is_held(group: Group) -> None:
    """A member node may be missing because the session ended a moment ago, owners with it."""
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    where = TopicPartition("t", 1)
    async with group.cluster.admin() as coordinator:
        await coordinator.delete(Owner.path("g", "t", 1))
        await claims.claim(coordinator, "g", "b", where)
        await coordinator.delete(Member.path("g", "a"))
        await until(lambda: "resume" in consumer.events)
        dropped = consumer.events.index(f"drop {where}")
        assert consumer.events.index("suspend") < dropped < consumer.events.index("resume")
        assert consumer.permit.holds
        assert await group.members() == ["a"]


async def test_a_pause_begins_with_the_last_answer_and_not_much_later(group: Group) -> None:
    """However late the silence is noticed: here just before the session may have ended."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    coordinator, clock = consumer.coordinator, consumer.cluster.clock
    paused_at = math.inf

    def note() -> None:
        nonlocal paused_at
        paused_at = clock.monotonic()

    consumer.on_suspend = note
    heartbeat, coordinator._heartbeat = coordinator._heartbeat, None
    assert heartbeat is not None
    heartbeat.cancel()  # answers cease, and nothing says that they do
    await asyncio.sleep(0)
    last_answer = coordinator.last_reply_monotonic
    due = last_answer + coordinator.session_timeout_s
    await until(lambda: clock.monotonic() > due - 0.05)
    if coordinator.last_reply_monotonic == last_answer:
        assert consumer.events == []
        assert consumer.permit.holds
    group.cluster.ensemble.stop()
    await until(lambda: consumer.events == ["suspend"])
    late = paused_at - (coordinator.last_reply_monotonic + coordinator.session_timeout_s)
    assert -1e-9 < late < 0.5
    assert not consumer.permit.holds


async def test_delivery_pauses_also_while_a_round_waits_for_zookeeper(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task itself may be in the middle of a call that lasts until the connection is back."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    inside = asyncio.Event()
    read = consumer.member._mirror.members

    async def members() -> Any:
        inside.set()
        await until(lambda: consumer.coordinator.state is SessionState.CONNECTED)
        return await read()

    monkeypatch.setattr(consumer.member._mirror, "members", members)
    group.cluster.ensemble.stop()
    consumer.member.wake()
    await until(lambda: consumer.events == ["suspend"])
    group.cluster.ensemble.start()
    await until(lambda: consumer.events == ["suspend", "resume"])
    assert inside.is_set()


async def test_a_session_that_ended_during_the_pause_drops_everything(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    session = consumer.coordinator.session_id
    group.cluster.ensemble.disconnect(consumer.coordinator)
    await until(lambda: consumer.events == ["suspend"])
    await until(lambda: not group.cluster.ensemble.is_live(session))
    group.cluster.ensemble.reconnect(consumer.coordinator)
    await until(lambda: len(consumer.events) == 5 and consumer.held == ALL)
    assert "resume" not in consumer.events


async def test_a_session_that_ended_for_good_is_told(group: Group) -> None:
    """Everything is drained without a commit, and close has nothing to wait for."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    begin = asyncio.get_running_loop().time()
    consumer.coordinator.give_up("its clients died")
    assert len(consumer.events) == 1
    assert consumer.events[0].startswith("ended: ")
    assert "its clients died" in consumer.events[0]
    assert not consumer.permit.holds
    await until(lambda: consumer.held == set())
    await consumer.member.close(1.0)
    assert asyncio.get_running_loop().time() - begin < 1.0
    assert sorted(consumer.events[1:]) == [f"drop {partition}" for partition in sorted(ALL)]


async def test_a_member_node_that_was_deleted_is_made_again(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await coordinator.delete("consumers/g/members/a")

    async def is_back() -> bool:
        return await group.members() == ["a"]

    await until_true(is_back)
    assert consumer.held == ALL


async def test_an_owner_node_taken_away_is_noticed(group: Group) -> None:
    """By force, say: what is no longer ours is dropped without a commit, and claimed anew."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    await lose_and_claim_again(group, consumer)


async def test_a_look_at_what_is_owned_that_failed_is_repeated(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next try, long before the next audit."""
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    those_still_ours = claims.those_still_ours
    failures = 1

    async def fail(coordinator: Any, claimed: Sequence[claims.Claim]) -> set[TopicPartition]:
        nonlocal failures
        if failures:
            failures -= 1
            raise CoordinationError("no answer")
        return await those_still_ours(coordinator, claimed)

    monkeypatch.setattr(shares.claims, "those_still_ours", fail)
    await lose_and_claim_again(group, consumer)
    assert failures == 0
