"""When a master with damage hands over."""

import asyncio

import pytest

from vq.broker.partition.context import Role
from vq.broker.replication.soundness import (
    HAND_OVER_AFTER_S,
    LOOK_S,
    RETRY_S,
    Soundness,
    hands_over_at,
)
from vq.clock import ManualClock


@pytest.mark.parametrize(
    ("since", "tried", "expected"),
    [
        (100.0, None, 100.0 + HAND_OVER_AFTER_S),
        (100.0, 105.0, 105.0 + RETRY_S),
        (100.0, 40.0, 100.0 + HAND_OVER_AFTER_S),
    ],
)
def test_it_repairs_first_and_tries_again_seldom(
    since: float, tried: float | None, expected: float
) -> None:
    assert hands_over_at(since, tried) == expected


def test_a_full_disk_waits_for_nothing() -> None:
    assert hands_over_at(100.0, None, full=True) == 100.0
    assert hands_over_at(100.0, 100.0, full=True) == 100.0 + RETRY_S


class Damaged:
    """Repairs that never succeed."""

    found = True
    failed = False

    def damaged(self) -> bool:
        return True

    async def is_behind(self) -> bool:
        return False


@pytest.mark.virtual_time
@pytest.mark.parametrize("named", [1, 2])
async def test_it_hands_over_only_to_nodes_that_the_record_names(named: int) -> None:
    """One that is about to join counts already for acknowledgements, and may not lead."""
    role = Role(group="b1", holds=lambda: True, epoch=3, insync=frozenset({"n2"}), named=named)
    clock, asked = ManualClock(), list[float]()

    async def hand_over() -> str:
        asked.append(clock.monotonic())
        return "n2"

    soundness = Soundness(
        role,
        clock,
        Damaged(),
        tell=lambda: None,
        suspend=lambda _: None,
        is_needed=lambda: True,
        hand_over=hand_over,
    )
    running = asyncio.create_task(soundness.run())
    while clock.monotonic() < HAND_OVER_AFTER_S + 1:
        await asyncio.sleep(LOOK_S)
        clock.advance(LOOK_S)
    running.cancel()
    assert len(asked) == named - 1
