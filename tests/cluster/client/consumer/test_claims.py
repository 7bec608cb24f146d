"""A claim that fails, or outlives its session, leaves no partition owned and idle."""

import contextlib
from typing import Any

import pytest
from support.membership import (
    ALL,
    P0,
    P1,
    P2,
    P3,
    SOON,
    Group,
    gives,
    share,
)

from vq.client.consumer.group import membership as memberships
from vq.coordination.groups import claims
from vq.coordination.tree.coordinator import ConnectionLost, SessionExpired, SessionState
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import CoordinationError, NotMaster
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


async def test_a_partition_that_cannot_begin_does_not_keep_the_others_waiting(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker is down, say. It is tried again; what was claimed meanwhile was released."""
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    broken = True

    async def begin(claim: claims.Claim) -> None:
        if broken and claim.partition == P0:
            raise NotMaster("its broker is down")

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await until(lambda: consumer.held == {P1, P2, P3})
    broken = False
    await until(lambda: consumer.held == ALL)


async def test_a_bug_in_the_consumer_leaves_no_partition_owned_and_idle(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    tries = 0

    async def begin(claim: claims.Claim) -> None:
        nonlocal tries
        if claim.partition == P2 and (tries := tries + 1) < 3:
            raise RuntimeError("a bug")

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await until(lambda: consumer.held == ALL)
    assert "a bug" in caplog.text


@pytest.mark.parametrize("skip", range(24))
async def test_a_call_applied_in_the_next_session_leaves_no_owner_behind(
    group: Group, skip: int
) -> None:
    """An owner node of the new session, made by a claim of the old one, is found and released."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.member("b")
    group.cluster.ensemble.outlive_next(second.coordinator, skip=skip)
    with contextlib.suppress(CoordinationError):
        await second.member.start()
    if second.member._task is None:
        await second.member.start()
    await share(first, second)
    held = dict.fromkeys(first.held, "a") | dict.fromkeys(second.held, "b")
    await until_true(lambda: gives(group.owners(), held))
    second.coordinator.faults.clear()


@pytest.mark.parametrize("skip", range(24))
async def test_a_member_that_ends_takes_back_a_claim_of_either_session(
    group: Group, skip: int
) -> None:
    """Its process goes on with the session, so nothing else would delete the owner node."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    client = await group.client()
    second = await group.member("b", client)
    group.cluster.ensemble.outlive_next(second.coordinator, skip=skip)
    states: list[SessionState] = []
    client.coordinator.add_listener(states.append)
    with contextlib.suppress(CoordinationError):
        await second.member.start()
    await until(lambda: SessionState.LOST in states or len(second.held) == 2)
    second.coordinator.faults.clear()
    await second.member.close(1.0)
    await until(lambda: first.held == ALL)
    await until_true(lambda: gives(group.owners(), dict.fromkeys(ALL, "a")))


async def test_a_claim_whose_session_ends_is_not_had(group: Group) -> None:
    """It says so, whatever came of it in the tree."""
    client = await group.client()
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    outcomes = set()
    for skip in range(16):
        coordinator.faults.outlive_request = skip + 1
        session = coordinator.session_id
        try:
            claim = await claims.claim(coordinator, "g", "a", P0)
        except (SessionExpired, ConnectionLost) as error:
            outcomes.add(type(error))
        else:
            outcomes.add(type(claim))
            assert coordinator.session_id == session
            coordinator.faults.clear()
            assert await claims.still_ours(coordinator, claim)
        coordinator.faults.clear()
    assert {SessionExpired, claims.Claim} <= outcomes


async def test_a_claim_that_failed_is_tried_again_at_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member owns the partition, so there is nobody to wait for."""
    monkeypatch.setattr(memberships, "AGAIN", SOON)
    claim, failures = claims.claim_together, 1

    async def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionLost("the connection ended before the answer")
        return await claim(*arguments, **options)

    monkeypatch.setattr(claims, "claim_together", fail)
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert failures == 0
