"""Values as people read them."""

import math

import pytest

from vq.console.web.shown import Shown

SHOWN = Shown(lambda text: text)


def test_numbers_have_units_and_the_unknown_is_unknown() -> None:
    assert SHOWN.bytes(0) == "0 B"
    assert SHOWN.bytes(1536) == "1.50 KiB"
    assert SHOWN.bytes(5 * 1024**5) == "5.00 PiB"
    assert SHOWN.rate(None) == SHOWN.bytes(None) == SHOWN.count(None) == "unknown"
    assert SHOWN.count(1234567) == "1,234,567"
    assert SHOWN.percent(0.257) == "26 %"


def test_times_are_in_their_largest_units() -> None:
    texts = [SHOWN.duration(each) for each in (0, 0.02, 5, 90, 3_700, 200_000, None)]
    assert texts == ["0 s", "20 ms", "5.0 s", "1 min 30 s", "1 h 1 min", "2 d 7 h", "unknown"]
    assert SHOWN.moment(1_795_946_623_593) == "2026-11-29 10:03:43"
    assert SHOWN.moment(0) == "unknown"
    assert SHOWN.moment(10**18) == str(10**18)


def test_settings_have_the_unit_that_their_name_says() -> None:
    told = {"max_message_bytes": 1 << 20, "retention_hours": 72, "flush_interval_ms": 10_000}
    told |= {"flush_interval_messages": 1_000, "readable": True, "flush": "sync"}
    texts = [SHOWN.setting(name, value) for name, value in told.items()]
    assert texts == ["1.00 MiB", "72 h", "10 s", "1,000", "yes", "sync"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None])
def test_what_is_no_number_is_unknown(value) -> None:
    """A page is shown although a broker has published such a load."""
    shown = Shown(str)
    for kind in (*("bytes", "rate", "count", "per_s", "percent"), "duration"):
        assert getattr(shown, kind)(value) == "unknown"
