"""The rules of all timed duties of a node: one run at a time, late, paused, failing, stopped."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC
from typing import Any

import pytest

from vq.broker.base.alarm import LoopAlarm
from vq.broker.base.daily import DailyTime
from vq.broker.base.jobs import AUDIT_S, BACKOFF, Daily, Every, Jobs, JobState, While
from vq.broker.base.tasks import Tasks
from vq.errors import Busy
from vq.testing.loop import SimulatedClock, clock_of_loop

pytestmark = pytest.mark.virtual_time


class Work:
    """Notes when it is done, takes a while, and fails as it is told."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.fails: Exception | None = None
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.cancelled = 0
        self._under_way = 0

    async def __call__(self) -> None:
        assert not self._under_way, "two runs at once"
        self._under_way += 1
        self.begun.append(now())
        try:
            await asyncio.sleep(self.takes_s)
            if self.fails is not None:
                raise self.fails
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._under_way -= 1
            self.ended.append(now())

    def at(self, begun: float) -> list[float]:
        """Return when the runs began, counted from a time."""
        return [round(each - begun, 3) for each in self.begun]


class Node:
    """Has jobs."""

    def __init__(self) -> None:
        clock = clock_of_loop()
        assert isinstance(clock, SimulatedClock)
        self.clock = clock
        self.tasks = Tasks()
        self.jobs = Jobs(LoopAlarm(), clock, self.tasks, random.Random(1))
        self.work = Work()
        self.begun = now()

    def told(self) -> Any:
        [found] = self.jobs.told()
        return found

    async def stop(self) -> None:
        self.jobs.close()
        await self.tasks.close()


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    yield made
    await made.stop()


async def test_a_run_follows_the_end_of_the_one_before(node: Node) -> None:
    node.work.takes_s = 25.0
    node.jobs.add("scrub", node.work, Every(10))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(100)
    assert node.work.at(node.begun) == [10, 45, 80]
    assert node.told().state is JobState.RUNS


async def test_the_first_run_may_come_at_once(node: Node) -> None:
    node.jobs.add("load", node.work, Every(10), at_once=True)
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(15)
    assert node.work.at(node.begun) == [0, 10]


async def test_runs_are_spread(node: Node) -> None:
    node.jobs.add("load", node.work, Every(10, spread=0.2))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(1_000)
    pauses = [b - a for a, b in zip(node.work.begun, node.work.begun[1:], strict=False)]
    assert 8 <= min(pauses) < 9 < 11 < max(pauses) <= 12


async def test_soon_means_at_once_or_behind_the_run_under_way(node: Node) -> None:
    job = node.jobs.add("retention", node.work, Every(60))
    job.soon()
    await asyncio.sleep(5)
    assert node.work.begun == [], "it was not started"
    node.jobs.begin(While.STARTED)
    node.work.takes_s = 3.0
    job.soon()
    await asyncio.sleep(1)
    for _ in range(3):
        job.soon()
    await asyncio.sleep(50)
    assert node.work.at(node.begun) == [5, 8]


async def test_runs_that_were_missed_come_as_one_and_at_once(node: Node) -> None:
    """The machine was paused for an hour."""
    node.jobs.add("retention", node.work, Every(60))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(1)
    asyncio.get_running_loop().stand_still(3_600)  # type: ignore[attr-defined]
    await asyncio.sleep(1)
    assert node.work.at(node.begun) == [3_601]
    assert node.told().late_s == 3_541
    await asyncio.sleep(61)
    assert node.work.at(node.begun) == [3_601, 3_661]
    assert node.told().late_s == 0


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_clock_that_is_set_moves_no_pause(node: Node, hours: int) -> None:
    node.jobs.add("scrub", node.work, Every(60))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(10)
    node.clock.wall_offset_ms += hours * 3_600_000
    assert node.told().next_ms == node.clock.wall_ms() + 50_000, "by the clock as it is now"
    await asyncio.sleep(60)
    assert node.work.at(node.begun) == [60]


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_time_of_day_is_that_of_the_clock_as_it_is_now(node: Node, hours: int) -> None:
    """A clock that is set is noticed within minutes; whether a time was missed is for the work."""
    at = DailyTime(2, 0)
    node.jobs.add("daily archive", node.work, Daily(at, UTC))
    node.jobs.begin(While.STARTED)
    assert node.told().trigger == "daily at 02:00"
    await asyncio.sleep(3_601)
    assert len(node.work.begun) == 3_600 // AUDIT_S
    node.clock.wall_offset_ms += hours * 3_600_000
    next_ms = node.told().next_ms
    assert next_ms % 86_400_000 == 2 * 3_600_000
    assert 0 < next_ms - node.clock.wall_ms() <= 86_400_000
    await asyncio.sleep((next_ms - node.clock.wall_ms()) / 1_000 + 0.01)
    assert now() - node.work.begun[-1] < 0.02


async def test_a_duty_that_is_not_this_nodes_has_no_run(node: Node) -> None:
    job = node.jobs.add("lags", node.work, Every(1), While.LEADING)
    for when in (While.STARTED, While.REGISTERED):
        node.jobs.begin(when)
    await asyncio.sleep(10)
    told = node.told()
    assert (told.state, told.why_off, told.next_ms) == (JobState.OFF, "another node leads", 0)
    node.jobs.start(3)
    node.jobs.start(4)  # it leads on, in a new epoch
    await asyncio.sleep(2.5)
    assert node.work.at(node.begun) == [11, 12]
    node.work.takes_s = 60.0
    await asyncio.sleep(1)
    node.jobs.stop()
    await asyncio.sleep(100)
    assert node.work.cancelled == 1
    assert len(node.work.begun) == 3
    assert node.told().state is JobState.OFF
    job.soon()
    await asyncio.sleep(10)
    assert len(node.work.begun) == 3


async def test_a_duty_that_comes_back_waits_for_the_run_that_was_cancelled(node: Node) -> None:
    """So no two runs are under way; ``Work`` sees to that."""

    async def slow_to_end() -> None:
        try:
            await node.work()
        except asyncio.CancelledError:
            await asyncio.sleep(5)
            raise

    node.work.takes_s = 60.0
    node.jobs.add("lags", slow_to_end, Every(10), While.LEADING, at_once=True)
    node.jobs.start(1)
    await asyncio.sleep(1)
    node.jobs.stop()
    node.jobs.start(2)
    await asyncio.sleep(10)
    assert node.work.at(node.begun) == [0, 6]


async def test_a_duty_that_goes_before_the_first_step_of_a_run_comes_back(node: Node) -> None:
    node.jobs.add("lags", node.work, Every(10), While.LEADING, at_once=True)
    node.jobs.start(1)
    while node.told().state is not JobState.RUNS:
        await asyncio.sleep(0)
        if node.work.begun:
            break
    node.jobs.stop()
    node.jobs.start(2)
    await asyncio.sleep(25)
    assert len(node.work.begun) >= 2


async def test_what_a_setting_switches_off_never_runs_and_says_so(node: Node) -> None:
    job = node.jobs.add("scrub", node.work, Every(1), why_off="scrub_bytes_per_s is 0")
    node.jobs.begin(While.STARTED)
    job.start()
    job.soon()
    await asyncio.sleep(10)
    assert node.work.begun == []
    assert (node.told().state, node.told().why_off) == (JobState.OFF, "scrub_bytes_per_s is 0")


async def test_a_new_error_is_told_once_and_shown_until_it_is_gone(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.jobs.add("load", node.work, Every(10))
    node.jobs.begin(While.STARTED)
    node.work.fails = Busy("ZooKeeper is away")
    await asyncio.sleep(45)
    assert len(node.work.begun) == 4, "as often as without an error"
    told = node.told()
    assert (told.runs, told.failures, told.error) == (4, 4, str(Busy("ZooKeeper is away")))
    [line] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "job failed" in line.getMessage()
    assert line.exc_info is None
    node.work.fails = Busy("the disk is full")
    await asyncio.sleep(10)
    assert "the disk is full" in caplog.text
    node.work.fails = None
    await asyncio.sleep(10)
    told = node.told()
    assert (told.failures, told.error) == (5, "")
    node.work.fails = Busy("the disk is full")
    await asyncio.sleep(10)
    assert caplog.text.count("the disk is full") == 2, "it was gone between"


async def test_a_run_that_was_cancelled_has_not_succeeded(node: Node) -> None:
    """An error is shown until a run succeeds: the duty went before one could."""
    node.jobs.add("lags", node.work, Every(10), While.LEADING)
    node.jobs.start(1)
    node.work.fails = Busy("x")
    await asyncio.sleep(11)
    node.work.fails, node.work.takes_s = None, 60.0
    await asyncio.sleep(11)
    node.jobs.stop()
    await asyncio.sleep(1)
    told = node.told()
    assert (told.state, told.runs, told.failures) == (JobState.OFF, 1, 1)
    assert told.error == str(Busy("x"))
    node.work.takes_s = 0.0
    node.jobs.start(2)
    await asyncio.sleep(11)
    assert (node.told().runs, node.told().error) == (2, "")


async def test_a_run_that_ends_by_a_cancellation_inside_of_it_has_failed(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has stopped the job, and its work is not done."""
    node.work.fails = asyncio.CancelledError()  # type: ignore[assignment]
    node.jobs.add("scrub", node.work, Every(10))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(11)
    assert node.told().failures == 1
    assert "CancelledError" in node.told().error
    assert "job failed" in caplog.text
    node.work.fails = None
    await asyncio.sleep(30)
    assert len(node.work.begun) > 1
    assert node.told().error == ""


async def test_an_error_that_nobody_expected_has_its_trace_and_a_back_off(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.jobs.add("repair", node.work, Every(0.1))
    node.jobs.begin(While.STARTED)
    node.work.fails = ZeroDivisionError("division by zero")
    await asyncio.sleep(300)
    assert node.told().error == "ZeroDivisionError: division by zero"
    assert "Traceback" in caplog.text
    assert caplog.text.count("job failed") == 1
    first = [b - a for a, b in zip(node.work.begun, node.work.begun[1:], strict=False)]
    assert first[:3] == pytest.approx([0.5, 1.0, 2.0])
    assert max(first) == pytest.approx(BACKOFF.most_s)


async def test_a_rare_job_that_failed_comes_again_soon(node: Node) -> None:
    node.jobs.add("topic removal", node.work, Every(3_600))
    node.jobs.begin(While.STARTED)
    node.work.fails = Busy("x")
    await asyncio.sleep(3_601)
    node.work.fails = None
    await asyncio.sleep(30)
    assert node.work.at(node.begun) == [3_600, 3_630]


async def test_a_trigger_that_raises_does_not_end_its_job(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """No calendar has the time that the clock shows for a while; the job is there all the time."""
    node.jobs.add("archive", node.work, Daily(DailyTime(2, 0), UTC), at_once=True)
    node.jobs.begin(While.STARTED)
    node.clock.wall_offset_ms = 10**15
    await asyncio.sleep(40)
    assert (node.told().state, node.told().next_ms) == (JobState.WAITS, 0)
    assert "trigger of a job failed" in caplog.text
    node.clock.wall_offset_ms = 0
    count = len(node.work.begun)
    await asyncio.sleep(AUDIT_S + 60)
    assert len(node.work.begun) > count >= 2


async def test_a_stop_ends_the_run_under_way(node: Node) -> None:
    node.work.takes_s = 3_600.0
    node.jobs.add("scrub", node.work, Every(1))
    node.jobs.begin(While.STARTED)
    await asyncio.sleep(2)
    await node.stop()
    assert (now() - node.begun, node.work.cancelled) == (2, 1)
    await asyncio.sleep(100)
    assert len(node.work.begun) == 1


async def test_what_is_told_of_runs(node: Node) -> None:
    node.work.takes_s = 4.0
    node.jobs.add("scrub", node.work, Every(10))
    node.jobs.begin(While.STARTED)
    wall_ms = node.clock.wall_ms()
    told = node.told()
    assert (told.runs, told.begun_ms, told.ended_ms) == (0, 0, 0)
    assert (told.name, told.trigger, told.next_ms) == ("scrub", "every 10 s", wall_ms + 10_000)
    await asyncio.sleep(12)
    told = node.told()
    assert (told.begun_ms, told.ended_ms, told.next_ms) == (wall_ms + 10_000, 0, 0)
    await asyncio.sleep(4)
    told = node.told()
    assert (told.runs, told.ended_ms) == (1, wall_ms + 14_000)
    assert told.next_ms == wall_ms + 24_000
