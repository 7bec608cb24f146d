"""Measurements over time: minutes become wider intervals, and go when they are too old."""

import time

import pytest
from support.console import fresh_database

from vq.console.clusters import history
from vq.console.clusters.history import STEPS, MinuteMeter, read_series, store_minute


@pytest.fixture
def database(tmp_path):
    with fresh_database(tmp_path) as made:
        yield made


def test_a_minute_is_told_when_the_next_one_begins() -> None:
    meter = MinuteMeter()
    meter.add({"a": 1.0}, 60.0)
    assert meter.add({"a": 3.0}, 119.0)[1] == {}
    assert meter.add({"a": 9.0}, 120.0) == (60, {"a": [1.0, 3.0]})


def test_series_beyond_the_bound_are_left_out_and_counted() -> None:
    """The first ones in the order of the values are kept."""
    meter = MinuteMeter(2)
    meter.add({"a": 1, "b": 1, "c": 1}, 60.0)
    assert (meter.kept, meter.left_out) == (2, 1)
    assert set(meter.add({}, 120.0)[1]) == {"a", "b"}


def test_a_series_that_is_kept_stays_until_it_is_well_behind_the_bound() -> None:
    """Of a bound of four: place five stays, place six goes."""
    meter = MinuteMeter(4)
    meter.add(dict.fromkeys("abcdef", 1.0), 60.0)
    meter.add(dict.fromkeys("abcedf", 1.0), 120.0)
    assert set(meter.add(dict.fromkeys("abcefd", 1.0), 180.0)[1]) == set("abcd")
    assert set(meter.add({}, 240.0)[1]) == set("abce")


def test_a_minute_is_stored_again_and_long_names_that_begin_alike_are_one_series(database) -> None:
    """A console that was started again replaces its minute."""
    minute = int(time.time()) // 60 * 60 - 120
    long = "lag_bytes " + "g" * 240
    for value in (1.0, 7.0):
        database.run_here(
            lambda each, value=value: store_minute(
                each, "c", minute, {"a": [value], f"{long}1": [1.0], f"{long}2": [2.0]}
            )
        )
    _, found = database.run_here(lambda each: read_series(each, "c", ["a"], minute, minute + 60))
    assert found["a"][0] == 7.0
    assert len(database.run_here(lambda each: each.execute(history.samples.select()).all())) == 2


def test_old_minutes_are_kept_as_means_and_peaks_of_wider_intervals(database, monkeypatch) -> None:
    """Of two days, the last one is there by minutes and the one before by quarters of an hour.

    A console that stores each fifth minute until the last hours, to be quick.
    """
    now = int(time.time()) // 86_400 * 86_400 + 43_200
    clock = [now]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    begin = now - 2 * 86_400

    def fill(connection):
        for minute in (*range(begin, now - 10_800, 300), *range(now - 10_800, now, 60)):
            clock[0] = minute + 60
            store_minute(connection, "c", minute, {"a": [minute % 3_600 / 60, 59.0]})

    database.run_here(fill)
    times, found = database.run_here(
        lambda each: read_series(each, "c", ["a", "b"], now - 7_200, now - 60)
    )
    assert times[1] - times[0] == 60
    assert None not in found["a"]
    assert set(found["b"]) == {None}
    times, found = database.run_here(
        lambda each: read_series(each, "c", ["a"], begin + 900, now - 90_000)
    )
    assert times[1] - times[0] == 900
    known = [each for each in found["a"] if each is not None]
    assert len(known) >= len(times) - 1
    assert min(known) == pytest.approx((5 + 59) / 2)
    rows = database.run_here(lambda each: each.execute(history.samples.select()).all())
    assert {each.step_s for each in rows} <= set(STEPS)
    assert now - 86_400 - 3_600 <= min(each.time_s for each in rows if each.step_s == 60)
    assert begin == min(each.time_s for each in rows if each.step_s == 900)
    assert max(each.most for each in rows) == 59.0


def test_an_interval_is_kept_although_the_console_was_down_when_it_ended(database) -> None:
    """The next minute that is stored ends it."""
    quarter = int(time.time()) // 900 * 900 - 7_200

    def fill(connection):
        for minute in (quarter + 60, quarter + 120, quarter + 2_700):
            store_minute(connection, "c", minute, {"a": [4.0]})

    database.run_here(fill)
    rows = database.run_here(lambda each: each.execute(history.samples.select()).all())
    assert [(each.time_s, each.count) for each in rows if each.step_s == 900] == [(quarter, 2)]


def test_a_chart_of_days_has_the_minutes_of_a_console_that_was_just_started(database) -> None:
    """Until a quarter of an hour is over, there is nothing wider."""
    minute = int(time.time()) // 60 * 60 - 60
    database.run_here(lambda each: store_minute(each, "c", minute, {"a": [4.0]}))
    since, until = minute - 3 * 86_400, minute + 60
    times, found = database.run_here(lambda each: read_series(each, "c", ["a"], since, until))
    assert times[1] - times[0] == 60
    assert 4.0 in found["a"]
    assert len(times) == len(found["a"]) == 15, "no hours in which there was nothing"
    old = minute - 40 * 86_400
    _, found = database.run_here(lambda each: read_series(each, "c", ["a"], old, old + 3_600))
    assert set(found["a"]) == {None}


def test_a_chart_begins_with_the_first_value(database) -> None:
    """Of the last hours of a young cluster, one point before it; and of days its minutes."""
    now = int(time.time()) // 60 * 60

    def fill(connection):
        for minute in range(now - 2_400, now, 60):
            store_minute(connection, "c", minute, {"a": [4.0]})

    database.run_here(fill)
    for hours in (6, 72):
        times, found = database.run_here(
            lambda each, hours=hours: read_series(each, "c", ["a", "b"], now - hours * 3_600, now)
        )
        assert times == list(range(now - 2_460, now + 1, 60))
        assert found["a"][:2] == [None, 4.0]
        assert len(found["b"]) == len(times)
