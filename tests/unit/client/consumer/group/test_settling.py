"""When a member looks at its group: soon for one change, later for many, never put off for ever."""

import random

import pytest

from vq.client.consumer.group.settling import (
    CALM_S,
    CHECK,
    PAUSE_MAX_S,
    PAUSE_S,
    Settling,
)


@pytest.fixture
def settling() -> Settling:
    """One whose first look is over."""
    found = Settling(random.Random(7))
    found.begin(0.0)
    found.saw(0, 0.0)
    return found


def test_the_first_look_is_due_at_once() -> None:
    assert Settling(random.Random(7)).due_at < 0.0


def test_one_change_is_looked_at_after_the_shortest_pause(settling: Settling) -> None:
    settling.changed(100.0)
    assert settling.due_at == 100.0 + PAUSE_S
    assert settling.is_settling
    settling.begin(settling.due_at)
    assert not settling.is_settling
    assert settling.due_at > 1e9


def test_further_changes_do_not_put_a_look_off(settling: Settling) -> None:
    settling.changed(100.0)
    settling.changed(100.0 + PAUSE_S / 2)
    assert settling.due_at == 100.0 + PAUSE_S


def test_the_pause_grows_with_the_members_that_came_or_went_up_to_its_bound(
    settling: Settling,
) -> None:
    now, pauses = 100.0, []
    for came in (1, 4, 20, 200):
        settling.changed(now)
        pauses.append(settling.due_at - now)
        now = settling.due_at
        settling.begin(now)
        settling.saw(came, now)
    assert pauses == pytest.approx([PAUSE_S, PAUSE_S, 5 * PAUSE_S, 25 * PAUSE_S])
    settling.changed(now)
    assert settling.due_at - now == pytest.approx(PAUSE_MAX_S)


def test_a_calm_group_looks_soon_again(settling: Settling) -> None:
    settling.saw(200, 100.0)
    settling.changed(100.0 + CALM_S)
    assert settling.due_at == 100.0 + CALM_S + PAUSE_MAX_S
    settling.begin(settling.due_at)
    settling.changed(100.1 + CALM_S)
    assert settling.due_at == pytest.approx(100.1 + CALM_S + PAUSE_S)


def test_partitions_that_moved_are_checked_a_while_later_once(settling: Settling) -> None:
    settling.moved(100.0)
    due = settling.due_at
    assert 100.0 + CHECK.first_s / 2 <= due <= 100.0 + CHECK.first_s * 1.5
    assert not settling.is_settling  # by the plan that there is, members claim meanwhile
    settling.moved(due)
    assert settling.due_at == due


def test_a_change_comes_before_a_check(settling: Settling) -> None:
    settling.moved(100.0)
    settling.changed(100.0)
    assert settling.due_at == 100.0 + PAUSE_S
    settling.begin(settling.due_at)
    assert settling.due_at > 1e9


def test_checks_become_rarer_while_partitions_go_on_to_move(settling: Settling) -> None:
    """Up to a bound, and until members come or go, or nothing moves for a while."""

    def wait_s(now: float) -> float:
        settling.moved(now)
        due = settling.due_at
        settling.begin(due)
        return due - now

    now, first_s = 100.0, CHECK.first_s
    for wanted in (first_s, 2 * first_s, 4 * first_s, CHECK.most_s, CHECK.most_s):
        waited = wait_s(now)
        assert wanted / 2 <= waited <= wanted * 1.5
        now += waited
    settling.saw(1, now)
    assert wait_s(now) <= first_s * 1.5
    for _ in range(2_000):
        assert wait_s(now) <= CHECK.most_s * 1.5
    assert wait_s(now + 100.0) <= first_s * 1.5
