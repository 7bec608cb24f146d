"""Moments on the command line: ISO 8601, or how long ago."""

import time

import click
import pytest

from vq.cli.base.moments import Delay, Moment, check_span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01T01:00:01+01:00", 1_000),
        ("2026-11-25T19:26:39.793Z", 1_795_634_799_793),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, expected: int) -> None:
    assert Moment().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "ago_ms"), [("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("7d", 604_800_000)]
)
def test_a_time_may_be_so_long_ago(monkeypatch: pytest.MonkeyPatch, text: str, ago_ms: int) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    assert Moment().convert(text, None, None) == 1_800_000_000_000 - ago_ms


@pytest.mark.parametrize("text", ["", "x", "5", "-5m", "1.5h", "٣m", "1960-01-01", "999999999d"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time like 2026"):
        Moment().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("90s", 90), ("250ms", 0.25), ("2h", 7_200)]
)
def test_a_delay_is_seconds_or_so_long(text: str, seconds: float) -> None:
    assert Delay(min=0, min_open=True, max=10_000).convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [("1w", "like 90s, 15m"), ("", "like 90s"), ("nan", "finite"), ("0", "range"), ("3h", "range")],
)
def test_what_is_no_delay_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        Delay(min=0, min_open=True, max=10_000).convert(text, None, None)


def test_a_span_without_a_time_in_it_is_refused_with_both_times() -> None:
    """`--since 1h --until 2h` means from one hour ago until two hours ago."""
    said = "--since, 1970-01-01T00:00:05.000Z, is not before --until, 1970-01-01T00:00:02.000Z"
    with pytest.raises(click.UsageError, match=said):
        check_span(5_000, 2_000)
    for since, until in ((2_000, 5_000), (None, 2_000), (5_000, None), (None, None)):
        check_span(since, until)
