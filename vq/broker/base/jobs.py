"""The timed duties of a node: jobs with a name, a trigger, and the same rules for all.

    once      a run begins when the one before has ended, never beside it; ``soon`` during a run has
              the next one begin right behind it
    late      a run whose time passed while the loop or the machine stood still begins at once, and
              once, however many were missed
    paused    a job whose duty is not this node's has no next run, and one under way is cancelled
    failing   each new error is told once, and shown until a run succeeds; a run that was stopped
              has not succeeded. The next run comes after 30 s at most, and after a back-off where
              nobody expected the error
    trigger   if it raises (a time that no calendar has), the next run comes after 30 s
    clock     pauses are counted by a clock that nobody sets; times of day are looked at again every
              few minutes
    stop      runs are cancelled with all other tasks of the node

In here: when a job runs, and how it went. Not in here: what it does, and what rings (``alarm``).
"""

import asyncio
import contextlib
import enum
import random
from collections.abc import Callable, Coroutine, Iterator
from datetime import tzinfo
from typing import Any, Final, NamedTuple, Protocol

from vq.backoff import Backoff
from vq.broker.base.alarm import Alarm
from vq.broker.base.daily import DailyTime, next_due
from vq.broker.base.facts import Fact, Facts, counter, gauge
from vq.broker.base.tasks import Tasks
from vq.clock import Clock
from vq.errors import VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Pauses after runs that failed as nobody expected; the longest one after any that failed.
BACKOFF: Final = Backoff(first_s=0.5, most_s=30.0)
#: How often it is looked whether a time of day has come: the clock may be set.
AUDIT_S: Final = 300.0
#: A run that begins so much after its time is told as late.
LATE_S: Final = 1.0


class While(enum.Enum):
    """What a node must be to have a job; the values say what it is not."""

    STARTED = "the node has not started"
    REGISTERED = "the node is not registered yet"
    LEADING = "another node leads"
    HOLDING = "another node holds the lease"


class Trigger(Protocol):
    """Says when a job runs next."""

    def pause_s(self, clock: Clock, rng: random.Random) -> float:
        """Return how long the pause behind a run is."""
        ...

    def due_s(self, clock: Clock, left_s: float) -> float:
        """Return in how many seconds the job is due, when so much of a pause is left."""
        ...


class Every(NamedTuple):
    """From the end of a run to the next one, about so many seconds."""

    seconds: float
    spread: float = 0.0

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"

    def pause_s(self, _: Clock, rng: random.Random) -> float:
        """See ``Trigger.pause_s``."""
        spread = self.spread
        return self.seconds * (rng.uniform(1 - spread, 1 + spread) if spread else 1.0)

    def due_s(self, _: Clock, left_s: float) -> float:
        """See ``Trigger.due_s``."""
        return left_s


class Daily(NamedTuple):
    """Every day at a time, by the local clock; whether it was missed is for the job to know."""

    at: DailyTime
    zone: tzinfo | None = None

    def __str__(self) -> str:
        return f"daily at {self.at}"

    def pause_s(self, clock: Clock, _: random.Random) -> float:
        """See ``Trigger.pause_s``."""
        return min(AUDIT_S, self.due_s(clock, 0))

    def due_s(self, clock: Clock, _: float) -> float:
        """See ``Trigger.due_s``."""
        now_ms = clock.wall_ms()
        return (next_due(now_ms, self.at, self.zone) - now_ms) / 1_000


class JobState(enum.StrEnum):
    """What a job does at a moment."""

    OFF = "off"
    WAITS = "waits"
    RUNS = "runs"


class JobFacts(NamedTuple):
    """A job as it is at a moment.

    Attributes:
        name, trigger: As text.
        state: What it does.
        why_off: Why it has no next run; "": it has one.
        runs: How many have ended, by themselves.
        failures: How many of these failed.
        begun_ms, ended_ms: Of the last run, by the wall clock; 0: there was none, or it goes on.
        late_s: How much later than planned it began.
        error: Why it failed; "": it did not.
        next_ms: When the next one is due; 0: it is not known.
    """

    name: str
    trigger: str
    state: JobState
    why_off: str
    runs: int
    failures: int
    begun_ms: int
    ended_ms: int
    late_s: float
    error: str
    next_ms: int


class Job:
    """One job. Made by ``Jobs.add``."""

    def __init__(
        self,
        jobs: "Jobs",
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        trigger: Trigger,
        when: While,
        *,
        at_once: bool,
        why_off: str,
    ) -> None:
        self._jobs = jobs
        self._work = work
        self._trigger = trigger
        self._at_once = at_once
        self._why_never = why_off
        self._on = self._again = False
        self._run: asyncio.Task[Any] | None = None
        self._due_s = 0.0  # when the next run is planned, by the monotonic clock
        self._failed: BaseException | None = None  # of the last run
        self._in_row = 0  # failures
        self._runs = self._failures = self._begun_ms = self._ended_ms = 0
        self._late_s = 0.0
        self._error = ""
        self.name = name
        self.when = when

    def start(self) -> None:
        """Have it run from now on: this node has the duty."""
        if self._on or self._why_never:
            return
        self._on = True
        if self._run is None:
            self._plan(0.0 if self._at_once else self._pause())
        else:  # the end of the run that was cancelled plans the next one
            self._again = self._at_once

    def stop(self) -> None:
        """Have it run no more: this node has not the duty any more."""
        self._on = self._again = False
        self._jobs.alarm.cancel(self.name)
        if self._run is not None and self._run is not asyncio.current_task():
            self._run.cancel()

    def soon(self) -> None:
        """Have it run at once, or behind the run under way."""
        if self._on and self._run is None:
            self._plan(0.0)
        elif self._on:
            self._again = True

    def told(self) -> JobFacts:
        """Return what it is now."""
        clock, next_ms = self._jobs.clock, 0
        runs = self._run is not None
        if self._on and not runs:
            left_s = max(0.0, self._due_s - clock.monotonic())
            with contextlib.suppress(Exception):  # ``_pause`` tells what the trigger raises
                if left_s:
                    left_s = self._trigger.due_s(clock, left_s)
                next_ms = clock.wall_ms() + int(left_s * 1_000)
        return JobFacts(
            name=self.name,
            trigger=str(self._trigger),
            state=JobState.RUNS if runs else JobState.WAITS if self._on else JobState.OFF,
            why_off="" if self._on else self._why_never or self.when.value,
            runs=self._runs,
            failures=self._failures,
            begun_ms=self._begun_ms,
            ended_ms=self._ended_ms,
            late_s=self._late_s,
            error=self._error,
            next_ms=next_ms,
        )

    def _pause(self) -> float:
        """Return the pause until the next run; there is one, whatever the trigger does."""
        try:
            return self._trigger.pause_s(self._jobs.clock, self._jobs.rng)
        except Exception:
            pause_s = BACKOFF.most_s
            logger.exception("trigger of a job failed", job=self.name, retry_s=pause_s)
            return pause_s

    def _plan(self, pause_s: float) -> None:
        self._due_s = self._jobs.clock.monotonic() + pause_s
        self._jobs.alarm.set(self.name, pause_s, self._ring)

    def _ring(self) -> None:
        if not self._on or self._run is not None:
            return
        clock = self._jobs.clock
        late_s = clock.monotonic() - self._due_s
        self._late_s = round(late_s, 3) if late_s >= LATE_S else 0.0
        self._begun_ms, self._ended_ms, self._failed = clock.wall_ms(), 0, None
        self._run = self._jobs.tasks.start(self._run_once())
        if self._run is not None:
            self._run.add_done_callback(self._on_end)

    async def _run_once(self) -> None:
        try:
            await self._work()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._failed = error  # of something that the work has waited for
        except Exception as error:  # noqa: BLE001  told below; the next run may do it
            self._failed = error

    def _on_end(self, run: asyncio.Task[Any]) -> None:
        """Plan the next run; also behind one that was cancelled, perhaps before its first step."""
        self._run, self._ended_ms = None, self._jobs.clock.wall_ms()
        if run.cancelled():
            pause_s = self._pause()
        else:
            self._runs += 1
            pause_s = self._after(self._failed)
        again, self._again = self._again and self._failed is None, False
        if self._on:
            self._plan(0.0 if again else pause_s)

    def _after(self, failed: BaseException | None) -> float:
        """Return the pause behind a run, and tell a new error."""
        pause_s = self._pause()
        if failed is None:
            self._in_row, self._error = 0, ""
            return pause_s
        self._failures += 1
        self._in_row += 1
        pause_s = min(pause_s, BACKOFF.most_s)
        expected = isinstance(failed, OSError | VqError)
        if not expected:
            pause_s = max(pause_s, BACKOFF.pause_s(self._in_row))
        text = str(failed) if expected else f"{type(failed).__name__}: {failed}"
        if text != self._error:
            logger.warning(
                "job failed, trying again",
                job=self.name,
                retry_s=pause_s,
                error=failed,
                exc_info=None if expected else failed,
            )
        self._error = text
        return pause_s


class Jobs:
    """The jobs of one node; the last of a master's duties (``mastership.Duty``). Loop-bound.

    Args:
        alarm: Rings.
        clock: Tells the time.
        tasks: Have the runs.
        rng: Spreads the runs of the nodes of a cluster in time.
    """

    def __init__(self, alarm: Alarm, clock: Clock, tasks: Tasks, rng: random.Random) -> None:
        self.alarm = alarm
        self.clock = clock
        self.tasks = tasks
        self.rng = rng
        self._jobs: dict[str, Job] = {}

    def add(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        trigger: Trigger,
        when: While = While.STARTED,
        *,
        at_once: bool = False,
        why_off: str = "",
    ) -> Job:
        """Return a new job.

        Args:
            name: Unique; operators see it.
            work: One run.
            trigger: When it runs.
            when: What the node must be.
            at_once: The first run comes without a pause.
            why_off: Which setting says that there is no such job here; "": none does.
        """
        assert name not in self._jobs, name
        job = Job(self, name, work, trigger, when, at_once=at_once, why_off=why_off)
        self._jobs[name] = job
        return job

    def begin(self, when: While) -> None:
        """Start the jobs of a node that is so much from now on."""
        for each in self._of(when):
            each.start()

    def start(self, _epoch: int) -> None:
        """Start those of a master; see ``mastership.Duty``."""
        self.begin(While.LEADING)

    def stop(self) -> None:
        """End those of a master; see ``mastership.Duty``."""
        for each in self._of(While.LEADING):
            each.stop()

    def close(self) -> None:
        """End all; the runs under way end with their tasks."""
        for each in self._jobs.values():
            each.stop()
        self.alarm.close()

    def told(self) -> list[JobFacts]:
        """Return what they are now, by name."""
        return [each.told() for _, each in sorted(self._jobs.items())]

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what they tell."""
        yield Facts[JobFacts](
            labels=("name",),
            things=lambda: {(each.name,): each for each in self.told()},
            status="jobs",
            facts=(
                Fact(read=lambda job: job.trigger, status="trigger"),
                Fact(read=lambda job: job.state, status="state"),
                Fact(read=lambda job: job.why_off, status="why_off"),
                counter(
                    "vq_job_runs",
                    "Runs of a job, a timed duty of this node, that ended since the start.",
                    lambda job: job.runs,
                    status="runs",
                ),
                counter(
                    "vq_job_failed_runs",
                    "Of these, those that failed.",
                    lambda job: job.failures,
                    status="failures",
                ),
                gauge(
                    "vq_job_failing",
                    "1 if the last run of the job that ended failed, else 0.",
                    lambda job: bool(job.error),
                ),
                Fact(read=lambda job: job.error, status="error"),
                gauge(
                    "vq_job_begin_timestamp_seconds",
                    "When the last run of the job began; none before the first.",
                    lambda job: job.begun_ms or None,
                    status="begun_ms",
                    ms=True,
                ),
                gauge(
                    "vq_job_end_timestamp_seconds",
                    "When it ended; none while it goes on.",
                    lambda job: job.ended_ms or None,
                    status="ended_ms",
                    ms=True,
                ),
                Fact(read=lambda job: job.late_s * 1_000, status="late_ms"),
                gauge(
                    "vq_job_next_timestamp_seconds",
                    "When the next run is due; none while the job runs, or has none on this node.",
                    lambda job: job.next_ms or None,
                    status="next_ms",
                    ms=True,
                ),
            ),
        )

    def _of(self, when: While) -> list[Job]:
        return [each for each in self._jobs.values() if each.when is when]
