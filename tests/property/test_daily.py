"""The daily time in any zone, at any moment, with a clock that steps."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from vq.broker.base.daily import DailyTime, due_now, last_due, next_due
from vq.clock import DAY_MS

ZONES = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "Europe/London",
        "America/New_York",
        "America/Sao_Paulo",
        "Asia/Shanghai",
        "Australia/Lord_Howe",  # half an hour of summer time
        "Africa/Casablanca",
        "Pacific/Chatham",
    ]
).map(ZoneInfo)
TIMES = st.builds(DailyTime, st.integers(0, 23), st.integers(0, 59))
MOMENTS = st.integers(1_600_000_000_000, 2_000_000_000_000)
HOUR_MS = 3_600_000


def date_of(time_ms: int, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).astimezone(zone).date().isoformat()


@given(now_ms=MOMENTS, at=TIMES, zone=ZONES)
def test_a_moment_lies_between_two_runs_about_a_day_apart(
    now_ms: int, at: DailyTime, zone: ZoneInfo
) -> None:
    before, after = last_due(now_ms, at, zone), next_due(now_ms, at, zone)
    assert before <= now_ms < after
    assert DAY_MS - 2 * HOUR_MS <= after - before <= DAY_MS + 2 * HOUR_MS
    assert last_due(after, at, zone) == after
    assert next_due(before, at, zone) == after
    assert last_due(after - 1, at, zone) == before


@given(now_ms=MOMENTS, at=TIMES, zone=ZONES)
def test_a_year_has_a_run_on_each_date(now_ms: int, at: DailyTime, zone: ZoneInfo) -> None:
    moments = []
    for _ in range(366):
        now_ms = next_due(now_ms, at, zone)
        moments.append(now_ms)
    assert len({date_of(each, zone) for each in moments}) == 366


@given(
    start_ms=MOMENTS,
    at=TIMES,
    zone=ZONES,
    steps=st.lists(
        st.one_of(st.integers(1, 40 * HOUR_MS), st.integers(-20 * HOUR_MS, -1)), max_size=80
    ),
)
def test_no_time_is_done_twice_while_a_clock_is_set_back_by_less_than_a_day(
    start_ms: int, at: DailyTime, zone: ZoneInfo, steps: list[int]
) -> None:
    """And once the clock is right nothing is due that was not done."""
    done: list[int] = []
    now_ms = right_ms = start_ms
    for step in steps:
        right_ms += max(0, step)
        now_ms = right_ms + min(0, step)
        due_ms = due_now(now_ms, at, done=done[-30:], since_ms=start_ms, zone=zone)
        if due_ms is not None:
            assert due_ms not in done
            assert start_ms < due_ms <= now_ms
            done.append(due_ms)
    due_ms = due_now(right_ms, at, done=done, since_ms=start_ms, zone=zone)
    latest = last_due(right_ms, at, zone)
    assert due_ms == (latest if latest > max([start_ms, *done]) else None)


@given(now_ms=MOMENTS, at=TIMES, zone=ZONES, done=st.lists(MOMENTS, max_size=5))
def test_whatever_was_noted_a_day_later_a_run_is_due(
    now_ms: int, at: DailyTime, zone: ZoneInfo, done: list[int]
) -> None:
    """Times of a clock that was wrong hold nothing up for longer than two days."""
    later_ms = now_ms + 3 * DAY_MS
    noted = [each for each in done if each <= now_ms or each > later_ms + DAY_MS]
    assert due_now(later_ms, at, done=noted, since_ms=now_ms, zone=zone) is not None
