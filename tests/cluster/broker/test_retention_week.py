"""A week of a broker group in seconds: a message every half an hour, kept for a day.

Meanwhile the clock is set back and put right, nodes are restarted, and the copy takes over.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.week import HOUR_S, Week, started_week

from vq.testing.waiting import until

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

KEPT_HOURS = 24


@pytest.fixture
async def week(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Week]:
    async with started_week(monkeypatch, retention_hours=KEPT_HOURS) as found:
        yield found


def check(week: Week, *, slack_hours: float) -> None:
    """Nothing young is gone, nothing is too old, and both nodes have equal bytes.

    On the node that led all the time a message stays for twice the age at most: once until its
    block ends, and once until that goes. On a copy, where blocks end elsewhere, thrice.
    """
    now = asyncio.get_running_loop().time()
    for name in week.nodes:
        log, begin = week.log(name), 0
        age_hours_max = (2 if name == "n1" else 3) * KEPT_HOURS + 1 + slack_hours
        for sent in week.sent:
            age_hours = (now - sent.time_s) / HOUR_S
            if sent.end <= log.start_offset:
                # What was sent while the clock was behind looks older when it is right again.
                least = KEPT_HOURS - (sent.back_hours if not week.clock.back_hours else 0)
                assert age_hours >= least, f"{name} has deleted it after {age_hours} h"
            elif begin >= log.start_offset:
                assert age_hours < age_hours_max, f"{name} has kept it for {age_hours} h"
            begin = sent.end
    week.check_bytes()


async def test_a_week(week: Week) -> None:
    slack_hours = 0.0
    for hour in range(7 * 24):
        await week.send_for_an_hour()
        if hour == 40:
            week.clock.back_hours = slack_hours = 5.0
        elif hour == 60:
            week.clock.back_hours = 0.0
        elif hour == 80:
            await week.in_sync()
            await week.stop("n2")
            await until(lambda: week.nodes["n1"].parts.context.role.named == 1, timeout_s=9_000)
        elif hour == 115:  # all that n2 has was deleted meanwhile, or is about to be
            await week.start("n2")
            await week.in_sync()
        elif hour == 150:
            await week.stop("n1")
            await until(lambda: week.nodes["n2"].epoch > 0, timeout_s=9_000)
            await week.start("n1")
            await week.in_sync()
            break
        await until(week.same, timeout_s=9_000)
        check(week, slack_hours=slack_hours)
    for _ in range(24):  # the copy leads, with what it has
        await week.send_for_an_hour()
    await until(week.same, timeout_s=9_000)
    check(week, slack_hours=slack_hours + KEPT_HOURS)
    assert min(week.log(name).start_offset for name in week.nodes) > 0
    deleted = sum(node.parts.context.counters.deleted_bytes for node in week.nodes.values())
    assert deleted > 0
