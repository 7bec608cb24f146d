"""Hand-overs: one task for each hold, tried again together, and all of them end."""

import asyncio
import random
from typing import Any

import pytest

from vq.client.consumer.group import hand_overs as module
from vq.client.consumer.group.hand_overs import HandOvers
from vq.client.consumer.group.hold_states import Event
from vq.client.consumer.group.holds import Hold
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.coordinator import ConnectionLost
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def a_hold(number: int) -> Hold:
    hold = Hold(Claim("g", "m", TopicPartition("t", number), generation=1), lambda _: None)
    for event in (Event.CLAIM, Event.CLAIMED, Event.GIVE_UP):
        hold.on(event)
    return hold


class Led:
    """Holds that are led: each fails as often as it is told, and then waits until it may end."""

    def __init__(self) -> None:
        self.calls: list[Hold] = []
        self.times: list[float] = []
        self.failures: dict[Hold, list[Exception]] = {}
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.wakes = 0
        self.hand_overs = HandOvers(
            self._lead, group="g", member="m", rng=random.Random(7), wake=self._wake
        )

    async def _lead(self, hold: Hold) -> None:
        self.calls.append(hold)
        self.times.append(asyncio.get_running_loop().time())
        await self.may_end.wait()
        if self.failures.get(hold):
            raise self.failures[hold].pop()

    def _wake(self) -> None:
        self.wakes += 1


async def test_a_hold_has_one_task_however_often_it_is_begun() -> None:
    led, hold = Led(), a_hold(0)
    led.may_end.clear()
    for _ in range(3):
        led.hand_overs.begin(hold)
        led.hand_overs.resume([hold])
    await asyncio.sleep(1.0)
    assert led.calls == [hold]
    led.may_end.set()
    await until(lambda: led.wakes == 1)
    led.hand_overs.begin(hold)
    await until(lambda: led.calls == [hold, hold])


@pytest.mark.parametrize("error", [ConnectionLost("away"), RuntimeError("a bug")])
async def test_what_failed_is_begun_again_together_after_a_pause(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Their calls go together; one that is new waits for none of them."""
    led, holds = Led(), [a_hold(number) for number in range(3)]
    led.failures = {hold: [error] for hold in holds[:2]}
    for hold in holds[:2]:
        led.hand_overs.begin(hold)
    await until(lambda: not any(led.failures.values()))
    led.hand_overs.resume(holds[:2])
    led.hand_overs.begin(holds[2])
    await until(lambda: led.wakes == 1)
    assert led.calls == holds, "the pause is not over"
    await until(lambda: led.wakes == 2)
    led.hand_overs.resume(holds[:2])
    await until(lambda: led.wakes == 4)
    assert led.calls == [*holds, *holds[:2]]
    assert led.times[3] == led.times[4]
    pause_s = led.times[3] - led.times[0]
    assert module.AGAIN.first_s / 2 <= pause_s < 1.0
    assert caplog.text.count("partitions=t-0,t-1") == 1
    assert caplog.text.count("a bug") == (3 if isinstance(error, RuntimeError) else 0)


async def test_a_pause_ends_also_when_what_failed_was_led_to_its_end_meanwhile() -> None:
    """As a hold that was given up, and then lost with its session; others wait for the pause."""
    led, holds = Led(), [a_hold(number) for number in range(2)]
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    led.failures = {holds[0]: [ConnectionLost("away")]}
    led.hand_overs.begin(holds[0])
    await until(lambda: not led.failures[holds[0]])
    led.hand_overs.begin(holds[0])
    await until(lambda: led.wakes == 1)
    led.hand_overs.resume([holds[1]])
    assert led.calls == [holds[0]] * 2, "the pause is not over"
    await until(lambda: led.wakes == 2)
    led.hand_overs.resume([holds[1]])
    await until(lambda: led.wakes == 3)
    assert not raised


async def test_pauses_grow_and_are_bounded() -> None:
    led, hold = Led(), a_hold(0)
    led.failures = {hold: [ConnectionLost("away") for _ in range(12)]}
    led.hand_overs.begin(hold)
    for wakes in range(1, 13):
        await until(lambda wakes=wakes: led.wakes == wakes, timeout_s=60.0)
        led.hand_overs.resume([hold])
    await until(lambda: led.wakes == 13)
    pauses = [after - before for before, after in zip(led.times, led.times[1:], strict=False)]
    assert len(pauses) == 12
    assert pauses[0] < 0.5 < 2.5 < pauses[-1] < 8.0


async def test_finish_begins_everything_and_tells_what_failed() -> None:
    """Not after a pause, and after all were tried."""
    led, holds = Led(), [a_hold(number) for number in range(3)]
    led.failures = {holds[0]: [ConnectionLost("again"), ConnectionLost("away")]}
    led.hand_overs.begin(holds[0])
    await until(lambda: led.calls == holds[:1])
    with pytest.raises(ConnectionLost, match="again"):
        await led.hand_overs.finish(holds)
    assert led.calls == [holds[0], *holds]
    await led.hand_overs.finish(holds)
    await led.hand_overs.cancel()


async def test_nothing_runs_after_it_was_cancelled() -> None:
    """Neither a task nor a timer, whether a task had begun to run or not."""
    led, holds = Led(), [a_hold(number) for number in range(3)]
    led.failures = {holds[0]: [ConnectionLost("away")]}
    led.hand_overs.begin(holds[0])
    await until(lambda: not led.failures[holds[0]])
    led.may_end.clear()
    led.hand_overs.begin(holds[1])
    await until(lambda: led.calls == holds[:2])
    led.hand_overs.begin(holds[2])
    before = asyncio.all_tasks()
    await led.hand_overs.cancel()
    assert len(before - asyncio.all_tasks()) == 2
    await asyncio.sleep(30.0)
    assert (led.calls, led.wakes) == (holds[:2], 0)
