"""Both alarms ring alike: the timers of a loop, and APScheduler, whatever the time of day is."""

import asyncio
from collections.abc import Callable

import pytest

from vq.broker.base.alarm import Alarm, LoopAlarm
from vq.broker.base.scheduler import ScheduledAlarm
from vq.testing.loop import SimulatedClock, clock_of_loop

pytestmark = pytest.mark.virtual_time

MAKERS: dict[str, Callable[[], Alarm]] = {
    "loop": LoopAlarm,
    "apscheduler": lambda: ScheduledAlarm(clock_of_loop()),
}


@pytest.fixture(params=MAKERS)
async def alarm(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    made = MAKERS[request.param]()
    yield made
    made.close()
    await asyncio.sleep(0.001)
    assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []
    assert [each for each in caplog.records if each.name.startswith("apscheduler")] == []


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_it_rings_once_after_the_time(alarm: Alarm) -> None:
    rings: list[tuple[str, float]] = []
    begun = now()
    for name, delay_s in (("a", 7.5), ("b", 0.25)):
        alarm.set(name, delay_s, lambda name=name: rings.append((name, now() - begun)))
    await asyncio.sleep(100)
    assert [name for name, _ in rings] == ["b", "a"]
    assert [at for _, at in rings] == pytest.approx([0.25, 7.5], abs=0.01)


async def test_a_name_has_one_ring(alarm: Alarm) -> None:
    rings: list[str] = []
    alarm.set("a", 5, lambda: rings.append("first"))
    alarm.set("a", 9, lambda: rings.append("second"))
    await asyncio.sleep(8)
    assert rings == []
    await asyncio.sleep(2)
    assert rings == ["second"]


async def test_it_may_be_set_again_as_it_rings(alarm: Alarm) -> None:
    """At once, too: no ring gets lost."""
    rings: list[int] = []

    def ring() -> None:
        rings.append(len(rings))
        if len(rings) < 50:
            alarm.set("a", 0, ring)

    alarm.set("a", 0, ring)
    await asyncio.sleep(1)
    assert len(rings) == 50


async def test_what_is_cancelled_does_not_ring(alarm: Alarm) -> None:
    rings: list[str] = []
    alarm.set("a", 5, lambda: rings.append("a"))
    alarm.set("b", 5, lambda: rings.append("b"))
    alarm.cancel("a")
    alarm.cancel("never set")
    await asyncio.sleep(10)
    alarm.cancel("b")  # it has rung
    assert rings == ["b"]


async def test_it_does_not_ring_when_it_is_closed(alarm: Alarm) -> None:
    rings: list[str] = []
    alarm.set("a", 5, lambda: rings.append("a"))
    alarm.close()
    alarm.set("b", 5, lambda: rings.append("b"))
    alarm.close()
    await asyncio.sleep(10)
    assert rings == []


async def test_a_loop_that_stood_still_rings_at_once_and_once(alarm: Alarm) -> None:
    rings: list[float] = []
    begun = now()
    alarm.set("a", 5, lambda: rings.append(now() - begun))
    await asyncio.sleep(0)
    asyncio.get_running_loop().stand_still(3_600)  # type: ignore[attr-defined]
    await asyncio.sleep(10)
    assert rings == pytest.approx([3_600], abs=0.1)


@pytest.mark.parametrize("hours", [-5, 5])
@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
async def test_a_time_of_day_that_is_set_changes_nothing(
    maker: Callable[[], Alarm], hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of_loop()
    assert isinstance(clock, SimulatedClock)
    monkeypatch.setattr(f"{__name__}.clock_of_loop", lambda: clock)
    alarm, rings = maker(), list[float]()
    begun = now()
    alarm.set("a", 30, lambda: rings.append(now() - begun))
    await asyncio.sleep(10)
    clock.wall_offset_ms += hours * 3_600_000
    await asyncio.sleep(60)
    assert rings == pytest.approx([30], abs=0.01)
    alarm.close()
