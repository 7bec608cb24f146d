"""Eight days of archives in seconds: a message each half hour, archived after a day, kept three.

Meanwhile the clock is set back and put right, and the node with the lease stops for days.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.archives import archiver_of
from support.week import HOUR_S, Week, started_week

from vq.coordination.leases.runs import read_results, read_runs
from vq.coordination.tree.values.runs import RunState
from vq.store.log.log import Log
from vq.testing.waiting import until

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

KEPT_HOURS = 72


@pytest.fixture
async def week(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Week]:
    async with started_week(
        monkeypatch, retention_hours=KEPT_HOURS, retention_policy="archive"
    ) as found:
        yield found


def archived_end(log: Log) -> int:
    """Up to which offset all that a node has is archived."""
    end = log.start_offset
    for block in log.closed_blocks:
        if not block.is_archived:
            break
        end = block.end_offset
    return end


def check(week: Week, *, slack_hours: float) -> None:
    """What is old is archived on both nodes, what is young is not; both have equal bytes."""
    now = asyncio.get_running_loop().time()
    for name in week.nodes:
        log, begin = week.log(name), 0
        archived = archived_end(log)
        for sent in week.sent:
            age_hours = (now - sent.time_s) / HOUR_S
            if sent.end <= log.start_offset:
                assert age_hours >= KEPT_HOURS - slack_hours, f"{name}: gone at {age_hours} h"
            elif sent.end <= archived:
                assert age_hours >= 22 - slack_hours, f"{name}: archived at {age_hours} h"
            elif begin >= archived:
                # An idle copy learns a little later that its last message is committed.
                assert age_hours < 48 + 3 + slack_hours, f"{name}: no archive at {age_hours} h"
            begin = sent.end
    week.check_bytes()


async def test_a_week(week: Week) -> None:
    slack_hours = 0.0
    for hour in range(8 * 24):
        await week.send_for_an_hour()
        if hour == 40:
            week.clock.back_hours = slack_hours = 5.0
        elif hour == 60:
            week.clock.back_hours = 0.0
        elif hour == 80:  # with the lease, and as master
            await week.in_sync()
            await week.stop("n1")
            await until(lambda: week.nodes["n2"].epoch > 0, timeout_s=9_000)
        elif hour == 120:
            # It was away for a daily run or two. What it copies now is in one block, which the next
            # run ends, and the one after that archives.
            slack_hours = 45.0
            await week.start("n1")
            await week.in_sync()
            await until(lambda: archiver_of(week.nodes["n1"]).last is not None, timeout_s=9_000)
        elif hour == 170:
            slack_hours = 5.0
        await until(week.same, timeout_s=9_000)
        check(week, slack_hours=slack_hours)
    async with week.cluster.admin() as coordinator:
        runs = (await read_runs(coordinator)).known
        results = [await read_results(coordinator, number) for number in runs]
    due = [each.due_ms for each in runs.values()]
    assert len(due) == len(set(due)) in {7, 8}, "one each day"
    assert len({each.by for each in runs.values()}) == 2, "the other node took the lease"
    states = {each.state for found in results for each in found.values()}
    assert states <= {RunState.DONE, RunState.COVERED}
    for name in week.nodes:
        log = week.log(name)
        assert archived_end(log) > log.start_offset > 0
