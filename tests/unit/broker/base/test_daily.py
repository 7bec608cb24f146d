"""When the daily run is due, on days with a clock change, too, and when one was missed."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from vq.broker.base.daily import DailyTime, due_now, last_due, next_due
from vq.clock import DAY_MS
from vq.errors import InvalidArgument

BERLIN = ZoneInfo("Europe/Berlin")
AT = DailyTime(2, 0)


def ms(text: str) -> int:
    """Milliseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000)


def utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%m-%d %H:%M")


@pytest.mark.parametrize(("text", "time"), [("02:00", (2, 0)), ("23:59", (23, 59))])
def test_a_time_of_day_is_hours_and_minutes(text: str, time: tuple[int, int]) -> None:
    assert DailyTime.parse(text) == time
    assert str(DailyTime.parse(text)) == text


@pytest.mark.parametrize("text", ["", "2:00", "02:0", "24:00", "02:60", "02.00", "٠٢:٠٠", "a:b", 2])
def test_another_text_is_no_time_of_day(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a time of day; give HH:MM"):
        DailyTime.parse(text)


@pytest.mark.parametrize(
    ("now", "last", "following"),
    [
        ("2026-07-10 12:00", "07-10 00:00", "07-11 00:00"),  # 02:00 in Berlin is 00:00 UTC
        ("2026-07-10 00:00", "07-10 00:00", "07-11 00:00"),
        ("2026-07-09 23:59", "07-09 00:00", "07-10 00:00"),
        ("2026-01-10 00:30", "01-09 01:00", "01-10 01:00"),
        # The clock goes from 02:00 to 03:00 on 2026-03-29.
        ("2026-03-29 00:59", "03-28 01:00", "03-29 01:00"),
        ("2026-03-29 01:00", "03-29 01:00", "03-30 00:00"),
        # It goes from 03:00 back to 02:00 on 2026-10-25: the first 02:00 counts.
        ("2026-10-24 23:59", "10-24 00:00", "10-25 00:00"),
        ("2026-10-25 00:00", "10-25 00:00", "10-26 01:00"),
        ("2026-10-25 01:00", "10-25 00:00", "10-26 01:00"),
    ],
)
def test_the_run_is_due_once_on_each_date(now: str, last: str, following: str) -> None:
    assert utc(last_due(ms(now), AT, BERLIN)) == last
    assert utc(next_due(ms(now), AT, BERLIN)) == following


@pytest.mark.parametrize("zone", ["Pacific/Apia", "Asia/Kathmandu", "America/St_Johns", "UTC"])
def test_far_zones_have_a_run_every_day(zone: str) -> None:
    now = ms("2026-07-10 12:34")
    before, after = last_due(now, AT, ZoneInfo(zone)), next_due(now, AT, ZoneInfo(zone))
    assert before <= now < after
    assert after - before == DAY_MS


def test_without_a_zone_the_systems_counts() -> None:
    now = ms("2026-07-10 12:34")
    local = datetime.fromtimestamp(last_due(now, AT) / 1_000).astimezone()
    assert (local.hour, local.minute) == AT


def due(now: str, *done: str, since: str = "2026-07-01 00:00") -> str | None:
    found = due_now(ms(now), AT, done=[ms(each) for each in done], since_ms=ms(since), zone=BERLIN)
    return None if found is None else utc(found)


def test_a_run_is_due_when_its_time_has_passed_and_not_again() -> None:
    assert due("2026-07-10 00:00", "2026-07-09 00:00") == "07-10 00:00"
    assert due("2026-07-10 00:00", "2026-07-09 00:00", "2026-07-10 00:00") is None
    assert due("2026-07-09 23:59", "2026-07-09 00:00") is None


def test_missed_runs_are_made_up_for_once() -> None:
    assert due("2026-07-16 09:00", "2026-07-13 00:00") == "07-16 00:00"
    assert due("2026-07-16 09:00", "2026-07-13 00:00", "2026-07-16 00:00") is None


def test_a_new_cluster_has_missed_nothing() -> None:
    assert due("2026-07-10 12:00", since="2026-07-10 11:00") is None
    assert due("2026-07-11 00:01", since="2026-07-10 11:00") == "07-11 00:00"


def test_a_clock_that_is_set_back_makes_no_run_again() -> None:
    assert due("2026-07-09 20:00", "2026-07-09 00:00", "2026-07-10 00:00") is None
    assert due("2026-07-10 00:01", "2026-07-10 00:00") is None
    assert due("2026-07-11 00:01", "2026-07-10 00:00") == "07-11 00:00"


def test_what_a_clock_far_ahead_has_noted_does_not_stop_the_runs() -> None:
    done = ("2026-07-09 00:00", "2031-01-01 00:00")
    assert due("2026-07-10 00:01", *done) == "07-10 00:00"
    assert due("2026-07-10 00:01", *done, "2026-07-10 00:00") is None
    assert due("2026-07-10 00:01", since="2031-01-01 00:00") == "07-10 00:00"
