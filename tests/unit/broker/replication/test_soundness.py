"""When a master with damage hands over."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from support.roles import leading

from vq.broker.base.alarm import LoopAlarm
from vq.broker.base.jobs import Jobs, While
from vq.broker.base.tasks import Tasks
from vq.broker.replication.soundness import (
    HAND_OVER_AFTER_S,
    LOOK_S,
    RETRY_S,
    Soundness,
    hands_over_at,
)
from vq.clock import ManualClock

pytestmark = pytest.mark.virtual_time


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
    """Damage that is never repaired."""

    def any_damage(self) -> bool:
        return True


class HandOver:
    """Notes when it is asked to hand over."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.asked: list[float] = []

    async def run(self) -> str:
        self.asked.append(self.clock.monotonic())
        return "n2"


@pytest.mark.parametrize("named", [1, 2])
async def test_it_hands_over_only_to_nodes_that_the_record_names(named: int) -> None:
    """One that is about to join counts already for acknowledgements, and may not lead."""
    role = leading(3, {"n2"})
    role.named = named
    clock = ManualClock()
    hand_over: Any = HandOver(clock)
    disks: Any = SimpleNamespace(full=False, any_gone=False)
    tasks = Tasks()
    jobs = Jobs(LoopAlarm(), clock, tasks, random.Random(1))
    soundness = Soundness(
        role, clock, damage=Damaged(), disks=disks, channels={}, hand_over=hand_over, jobs=jobs
    )
    soundness.found = True
    jobs.begin(While.REGISTERED)
    while clock.monotonic() < HAND_OVER_AFTER_S + 1:
        await asyncio.sleep(LOOK_S)
        clock.advance(LOOK_S)
    jobs.close()
    await tasks.close()
    assert len(hand_over.asked) == named - 1
