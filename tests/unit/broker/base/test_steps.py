"""Steps on a lane: the pace, the end, and places that do not answer."""

import asyncio

import pytest

from vq.broker.base import steps as module
from vq.broker.base.runner import InlineRunner, Lane
from vq.broker.base.steps import NO_PAUSES, StepPace, take_steps
from vq.clock import ManualClock

pytestmark = pytest.mark.virtual_time


class Counted:
    """Ten steps of 100 bytes and 3 batches each."""

    def __init__(self, place: str = "") -> None:
        self.read_bytes = 0
        self.batches = 0
        self.closed = 0
        self.waits_for = place

    @property
    def done(self) -> bool:
        return self.read_bytes >= 1_000

    def step(self) -> None:
        self.read_bytes += 100
        self.batches += 3

    def close(self) -> None:
        self.closed += 1


class Lanes(InlineRunner):
    """Notes where calls run; those of a place that is silent do not end."""

    def __init__(self, *, silent: bool = False) -> None:
        self.lanes: list[tuple[Lane, str]] = []
        self._silent = silent

    async def run(self, call, lane=Lane.LOGS, place=""):
        self.lanes.append((lane, place))
        if place and self._silent:
            await asyncio.Event().wait()
        return await super().run(call, lane, place)


async def take(steps: Counted, pace: StepPace = NO_PAUSES, *, runner=None, still=lambda: True):
    """Take the steps; return how long that took, and what was read by each."""
    loop, read = asyncio.get_running_loop(), []
    begun = loop.time()
    await take_steps(
        steps,
        runner or Lanes(),
        Lane.KEYS,
        ManualClock(),
        pace,
        still=still,
        on_read=read.append,
    )
    return loop.time() - begun, read


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [
        (NO_PAUSES, 0.0),
        (StepPace(bytes_per_s=50), 20.0),
        (StepPace(batches_per_s=1), 30.0),
        (StepPace(bytes_per_s=50, batches_per_s=10), 20.0),
    ],
)
async def test_steps_are_taken_at_a_pace(pace: StepPace, seconds: float) -> None:
    """The slower of its bounds counts; what was read is told step by step."""
    steps = Counted()
    took, read = await take(steps, pace)
    assert took == pytest.approx(seconds)
    assert read == [100] * 10
    assert steps.closed == 1


def test_others_get_a_share_of_the_time() -> None:
    assert StepPace(share=4.0).pause_s(0.5, 1, 1) == 2.0
    assert StepPace(bytes_per_s=1, share=4.0).pause_s(0.5, 3, 1) == 3.0


async def test_steps_end_when_they_are_not_wanted_any_more() -> None:
    steps = Counted()
    await take(steps, still=lambda: steps.read_bytes < 300)
    assert (steps.read_bytes, steps.closed) == (300, 1)


async def test_what_lies_elsewhere_is_read_on_a_lane_of_its_own() -> None:
    steps, runner = Counted("s3://bucket"), Lanes()
    await take(steps, runner=runner)
    assert set(runner.lanes) == {(Lane.ELSEWHERE, "s3://bucket")}


async def test_a_place_that_does_not_answer_is_not_waited_for() -> None:
    """Nor is the end of its step."""
    steps = Counted("s3://bucket")
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await take(steps, runner=Lanes(silent=True))
    assert asyncio.get_running_loop().time() - begun == module.ELSEWHERE_TIMEOUT_S
