"""The alarm of a real broker rings on the loop at the local time, and agrees with ``daily``."""

import asyncio
import threading
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from support.waiting import until

from vq.broker.base.daily import DailyTime, next_due
from vq.broker.history import alarm

BERLIN = ZoneInfo("Europe/Berlin")


async def test_it_rings_on_the_loop_until_it_is_silenced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a line for each ring."""
    caplog.set_level("INFO")
    asked: dict[str, int] = {}

    def often(**fields: int) -> IntervalTrigger:
        asked.update(fields)
        return IntervalTrigger(seconds=0.01)

    monkeypatch.setattr(alarm, "CronTrigger", often)
    rings: list[threading.Thread] = []
    silence = alarm.ring_daily(DailyTime(2, 30), lambda: rings.append(threading.current_thread()))
    await until(lambda: len(rings) > 2)
    assert asked == {"hour": 2, "minute": 30}
    assert set(rings) == {threading.current_thread()}
    silence()
    await asyncio.sleep(0)  # the loop carries out what was under way
    count = len(rings)
    others: list[None] = []
    silence_other = alarm.ring_daily(DailyTime(2, 30), lambda: others.append(None))
    await until(lambda: len(others) > 5)  # so the first one would have rung meanwhile
    assert len(rings) == count
    silence_other()
    await asyncio.sleep(0)
    assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []
    assert [each for each in caplog.records if each.name.startswith("apscheduler")] == []


@pytest.mark.parametrize("day", ["2026-07-10", "2026-01-10", "2026-10-24", "2026-03-27"])
def test_it_rings_when_a_run_is_due(day: str) -> None:
    """On the days of a clock change, too; where they differ, the slow timer is what counts."""
    noon = datetime.fromisoformat(f"{day} 12:00").replace(tzinfo=UTC)
    trigger = CronTrigger(hour=2, minute=0, timezone=BERLIN)
    rings = trigger.get_next_fire_time(None, noon)
    due_ms = next_due(int(noon.timestamp() * 1_000), DailyTime(2, 0), BERLIN)
    assert int(rings.timestamp() * 1_000) == due_ms
