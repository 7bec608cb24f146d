"""One node makes the daily run of the archive: once a day, whatever nodes and clocks do."""

import asyncio
import itertools
import random
from contextlib import AsyncExitStack
from datetime import UTC
from types import SimpleNamespace
from typing import Any

import pytest
from support.coordination import client_of, expire

from vq.broker.base.alarm import LoopAlarm
from vq.broker.base.daily import DailyTime, last_due, next_due
from vq.broker.base.jobs import AUDIT_S, Jobs, JobState
from vq.broker.base.tasks import Tasks
from vq.broker.history.daily_runs import DailyRuns
from vq.clock import DAY_MS, Clock
from vq.coordination.leases import leases
from vq.coordination.leases.runs import begin_runs, forget_runs, make_run, read_runs, write_result
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.runs import RUNS_KEPT, RunOrder, RunResult, RunState
from vq.model import TopicSettings
from vq.testing.loop import clock_of_loop
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

AT = DailyTime(2, 0)
HOUR_S = 3_600
ARCHIVES = TopicSettings(retention_policy="archive")


class StepClock:
    """The clock of the loop, and some hours more."""

    def __init__(self) -> None:
        self._clock: Clock = clock_of_loop()
        self.hours = 0.0

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + int(self.hours * HOUR_S * 1_000)

    def monotonic(self) -> float:
        return self._clock.monotonic()


class Makers:
    """Nodes that make daily runs."""

    def __init__(self, ensemble: MemoryEnsemble, stack: AsyncExitStack) -> None:
        self.ensemble = ensemble
        self.clock = StepClock()
        self._stack = stack
        self._tasks = Tasks()
        self.jobs: dict[str, Jobs] = {}
        self.made: dict[str, DailyRuns] = {}
        self.coordinators: dict[str, MemoryCoordinator] = {}
        self.settings = [TopicSettings(), ARCHIVES]

    @property
    def topics(self) -> dict[int, Any]:
        """As ``TopicsView`` has them."""
        return {n: SimpleNamespace(settings=each) for n, each in enumerate(self.settings)}

    async def start(self, name: str) -> DailyRuns:
        client = await self._stack.enter_async_context(
            client_of(self.ensemble, session_timeout_s=900)
        )
        jobs = Jobs(LoopAlarm(), self.clock, self._tasks, random.Random(name))
        made = DailyRuns(
            jobs,
            client,
            self.clock,
            at=AT,
            by=name,
            view=self,
            rng=random.Random(name),
            zone=UTC,
        )
        self.coordinators[name], self.made[name] = client, made
        self.jobs[name] = jobs
        made.start()
        self._stack.push_async_callback(made.stop)
        return made

    async def stop(self, name: str) -> None:
        await self.made.pop(name).stop()

    def holder(self) -> str | None:
        return next((name for name, each in self.made.items() if each.lease.fence), None)

    async def runs(self) -> list[RunOrder]:
        async with client_of(self.ensemble) as client:
            return list((await read_runs(client)).known.values())

    async def sleep_until_due(self, *, minutes: float = 10) -> int:
        """Sleep until some minutes behind the next time at which a run is due; return that."""
        due_ms = next_due(self.clock.wall_ms(), AT, UTC)
        await asyncio.sleep((due_ms - self.clock.wall_ms()) / 1_000 + minutes * 60)
        return due_ms


@pytest.fixture
async def makers(monkeypatch):
    """Days pass: what a node looks at each minute, though watches tell of it, it looks at less."""
    monkeypatch.setattr(leases, "AUDIT_S", 10 * leases.AUDIT_S)
    async with AsyncExitStack() as stack:
        ensemble = MemoryEnsemble(clock=clock_of_loop())
        yield Makers(ensemble, stack)


async def test_a_week_has_a_run_each_day_of_one_of_three_nodes(makers: Makers) -> None:
    for name in ("b1/n1", "b1/n2", "b2/n1"):
        await makers.start(name)
    await until(makers.holder)
    assert await makers.runs() == [], "nothing was missed"
    due = [await makers.sleep_until_due() for _ in range(7)]
    found = await makers.runs()
    assert [each.due_ms for each in found] == due
    assert {each.by for each in found} == {makers.holder()}
    assert all(0 <= each.as_of_ms - each.due_ms <= AUDIT_S * 1_000 for each in found)
    assert {each.fence for each in found} == {1}


async def test_the_run_is_made_at_its_time(makers: Makers) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    due_ms = await makers.sleep_until_due(minutes=0)
    await asyncio.sleep(1)
    found = await makers.runs()
    assert found[-1].due_ms == due_ms
    assert found[-1].as_of_ms - due_ms < 1_000


async def test_only_the_holder_of_the_lease_has_the_job(makers: Makers) -> None:
    """The others tell why not; one that takes the lease has it then."""
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.start("b1/n2")
    await asyncio.sleep(1)
    [mine], [other] = (makers.jobs[name].told() for name in ("b1/n1", "b1/n2"))
    assert (mine.state, mine.trigger, mine.why_off) == (JobState.WAITS, "daily at 02:00", "")
    assert mine.next_ms == next_due(makers.clock.wall_ms(), AT, UTC)
    assert (other.state, other.next_ms) == (JobState.OFF, 0)
    assert other.why_off == "another node holds the lease"
    await makers.stop("b1/n1")
    await until(makers.holder)
    [mine], [other] = (makers.jobs[name].told() for name in ("b1/n1", "b1/n2"))
    assert (mine.state, other.state) == (JobState.OFF, JobState.WAITS)


async def test_the_next_holder_makes_the_run_that_was_missed_once(makers: Makers) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    first = await makers.sleep_until_due()
    await makers.stop("b1/n1")
    for _ in range(3):
        missed = await makers.sleep_until_due()
    await asyncio.sleep(5 * HOUR_S)
    await makers.start("b1/n2")
    await asyncio.sleep(60)
    found = await makers.runs()
    assert [each.due_ms for each in found] == [first, missed]
    assert found[-1].as_of_ms >= missed + 5 * HOUR_S * 1_000, "as of now, not of when it was due"
    assert found[-1].by == "b1/n2"
    assert found[-1].fence == 2


async def test_a_lost_session_gives_the_job_to_another_node(makers: Makers) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.start("b1/n2")
    await makers.sleep_until_due()
    await expire(makers.ensemble, makers.coordinators["b1/n1"])
    await makers.sleep_until_due()
    await makers.sleep_until_due()
    found = await makers.runs()
    assert len(found) == len({each.due_ms for each in found}) == 3
    assert [each.fence for each in found] == sorted(each.fence or 0 for each in found)


async def test_a_holder_that_does_not_know_that_its_session_ended_makes_no_run(
    makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop stood still; the other one has taken the lease and made the run."""
    first = await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    stale = first.lease.check()
    async with client_of(makers.ensemble) as other:
        await makers.stop("b1/n1")
        second = await makers.start("b1/n2")
        await until(lambda: second.lease.fence == 2)
        late = RunOrder(as_of_ms=1, started_ms=1, by="b1/n1", nonce="x", due_ms=5, fence=1)
        with pytest.raises(Exception, match="another node took the lease"):
            await make_run(other, late, lease=lambda: stale)


@pytest.mark.parametrize("hours", [-3.0, -20.0, 3.0])
async def test_a_clock_that_steps_makes_no_run_twice(makers: Makers, hours: float) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    for _ in range(2):
        await makers.sleep_until_due(minutes=60)
    makers.clock.hours = hours
    await asyncio.sleep(30 * HOUR_S)
    makers.clock.hours = 0.0
    for _ in range(3):
        await makers.sleep_until_due()
    due = [each.due_ms for each in await makers.runs()]
    assert len(due) == len(set(due))
    assert due[-1] == last_due(makers.clock.wall_ms(), AT, UTC)
    assert max(b - a for a, b in itertools.pairwise(due)) <= 2 * DAY_MS


async def test_a_clock_that_was_a_year_ahead_stops_no_run(makers: Makers) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    makers.clock.hours = 24 * 365
    await asyncio.sleep(HOUR_S)
    makers.clock.hours = 0.0
    due = [await makers.sleep_until_due() for _ in range(2)]
    found = [each.due_ms for each in await makers.runs()]
    assert found[-2:] == due


async def test_without_a_topic_that_archives_no_run_is_made(makers: Makers) -> None:
    makers.settings = [TopicSettings()]
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    assert await makers.runs() == []
    makers.settings = [ARCHIVES]
    await asyncio.sleep(AUDIT_S + 1)
    assert len(await makers.runs()) == 1


async def test_the_newest_runs_are_kept(makers: Makers) -> None:
    async with client_of(makers.ensemble) as client:
        await begin_runs(client, 1)
        for n in range(RUNS_KEPT + 5):
            await make_run(client, RunOrder(as_of_ms=1, started_ms=1, nonce=str(n)))
    await makers.start("b1/n1")
    await until(makers.holder)
    await asyncio.sleep(60)
    found = await makers.runs()
    assert len(found) == RUNS_KEPT
    assert found[-1].by == "b1/n1"


async def test_a_daily_run_that_was_forgotten_is_not_due_again(makers: Makers) -> None:
    """Operators made many runs behind it."""
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    await asyncio.sleep(AUDIT_S + 1)
    [daily] = [each for each in await makers.runs() if each.due_ms is not None]
    async with client_of(makers.ensemble) as client:
        for n in range(RUNS_KEPT + 1):
            dry = RunOrder(as_of_ms=1, started_ms=1, nonce=str(n), dry_run=True)
            number = await make_run(client, dry)
            await write_result(client, number, "b1", "n1", RunResult(state=RunState.DONE))
        [oldest] = [n for n, each in (await read_runs(client)).known.items() if each == daily]
        await write_result(client, oldest, "b1", "n1", RunResult(state=RunState.DONE))
        await forget_runs(client)
    assert daily not in await makers.runs()
    await asyncio.sleep(2 * AUDIT_S)
    assert not [each for each in await makers.runs() if each.due_ms is not None]


async def test_zookeeper_that_is_away_delays_the_run(makers: Makers) -> None:
    await makers.start("b1/n1")
    await until(makers.holder)
    await makers.sleep_until_due()
    makers.ensemble.disconnect(makers.coordinators["b1/n1"])
    due_ms = await makers.sleep_until_due()
    assert due_ms not in [each.due_ms for each in await makers.runs()]
    makers.ensemble.reconnect(makers.coordinators["b1/n1"])
    await asyncio.sleep(HOUR_S)
    assert due_ms in [each.due_ms for each in await makers.runs()]
