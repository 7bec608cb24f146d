"""Plans of allocation that the console keeps: what came of each, and how many are kept."""

import json
from collections.abc import AsyncIterator

import pytest
import sqlalchemy
from support.broker import MemoryCluster, memory_cluster
from support.console import RunningConsole

from vq.console.acts import kept_plans
from vq.console.acts.kept_plans import PLAN_DAYS, keep_plan, note_outcome
from vq.console.database.database import Database
from vq.console.database.schema import plans
from vq.operations.allocation.applying import resume_allocation
from vq.testing.waiting import until, until_true

DAY_MS = 86_400_000


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """Two brokers, and topic ``t`` on both."""
    async with memory_cluster() as made:
        await made.start("b1", seal_timeout_s=0.2)
        await made.start("b2", seal_timeout_s=0.2)
        await made.create_topic("t", partitions=4)
        yield made


async def _states(console: RunningConsole) -> list[str]:
    query = sqlalchemy.select(plans.c.state).order_by(plans.c.id)
    return await console.database.run(lambda each: list(each.execute(query).scalars()))


async def _plan(console: RunningConsole) -> tuple[str, str]:
    """Have a plan made that moves two partitions; return its address and its id."""
    browser = console.browser()
    await browser.get("/c/test/allocation")
    await until(lambda: console.site.allocation is not None)
    facts = console.site.allocation[1]
    held = [key.partition for key, each in facts.partitions.items() if each.group == "b1"]
    moves = "\n".join(f"t/{number} b2" for number in held)
    await browser.get("/c/test/topics/t")
    made = await browser.post("/c/test/allocation/plan", {"how": "hand", "moves": moves})
    address = made.headers["location"]
    plan = (await browser.get(f"{address}/file")).json()
    assert len(plan["moves"]) == 2
    return address, plan["id"]


async def test_a_plan_that_is_gone_on_with_has_the_outcome_of_that(console: RunningConsole) -> None:
    """Cancelled after its first move, it says so; then it is done, and says nothing else."""
    address, plan = await _plan(console)
    browser = console.browser()
    await browser.get(address)
    begun = await browser.post(
        f"{address}/apply", {"confirm": plan, "at_a_time": "1", "pause_s": "60"}
    )
    assert begun.status_code == 303, begun.text
    jobs = console.app.console.door.jobs
    await until(lambda: getattr(jobs[1].progress, "done", 0) == 1)
    assert '<span class="total">running</span>' in (await browser.get(address)).text
    job = (await browser.get("/c/test/jobs/1")).text
    assert "1 / 2" in job
    assert '<a href="/c/test/allocation">To what it acts on' in job
    await browser.get("/c/test/topics/t")
    await browser.post("/c/test/allocation/run", {"act": "cancel", "plan": plan})
    await until(lambda: jobs[1].ended_ms)
    await until_states(console, ["cancelled"])
    await browser.post("/c/test/allocation/run", {"act": "resume", "plan": plan})
    await until(lambda: jobs[2].ended_ms)
    assert jobs[2].error == ""
    await until_states(console, ["done"])
    assert jobs[2].progress.cancelled_by == ""
    assert '<span class="total">done</span>' in (await browser.get(address)).text


async def until_states(console: RunningConsole, states: list[str]) -> None:
    """Wait until the plans that are kept have these states."""

    async def there() -> bool:
        return await _states(console) == states

    await until_true(there)


async def test_a_plan_that_was_carried_out_elsewhere_is_shown_so(console: RunningConsole) -> None:
    """By ``vq balance``, or by a console that was killed before it could note it."""
    address, plan = await _plan(console)
    browser = console.browser()
    await browser.get(address)
    await browser.post(f"{address}/apply", {"confirm": plan, "at_a_time": "1", "pause_s": "60"})
    jobs = console.app.console.door.jobs
    await until(lambda: getattr(jobs[1].progress, "done", 0) == 1)
    jobs[1].task.cancel()
    await until(lambda: jobs[1].ended_ms)
    await resume_allocation(console.site.cluster, plan)
    assert '<span class="total">done</span>' in (await browser.get(address)).text
    board = (await browser.get("/c/test/allocation")).text
    assert '<span class="chip">done</span>' in board
    assert "failed" not in board


def test_plans_are_bound_by_number_and_age(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each cluster the newest ones stay."""
    monkeypatch.setattr(kept_plans, "PLANS_MAX", 3)
    monkeypatch.setattr(kept_plans, "now_ms", lambda: 1_000 * DAY_MS)
    run = database.run_here

    def keep(cluster: str, plan: str, day: int) -> None:
        text = json.dumps({"id": plan})
        run(lambda each: keep_plan(each, cluster, plan, "anna", day * DAY_MS, text))

    def kept(cluster: str) -> list[str]:
        query = sqlalchemy.select(plans.c.plan_id).where(plans.c.cluster == cluster)
        return run(lambda each: list(each.execute(query.order_by(plans.c.id)).scalars()))

    for number in range(5):
        keep("a", f"a{number}", 1_000)
    assert kept("a") == ["a2", "a3", "a4"]
    keep("b", "old", 1_000 - PLAN_DAYS - 1)
    keep("b", "new", 1_000)
    assert kept("b") == ["new"]
    assert kept("a") == ["a2", "a3", "a4"]
    run(lambda each: note_outcome(each, "a", "a3", "done", ""))
    states = sqlalchemy.select(plans.c.plan_id).where(plans.c.state == "done")
    assert run(lambda each: list(each.execute(states).scalars())) == ["a3"]
