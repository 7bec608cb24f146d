"""Amounts of bytes and of time, written for people."""

import pytest

from vq.operations.base.sizes import bytes_text, duration_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_shown_in_binary_units(count: int | None, text: str | None) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (99.9, "99.9 s"), (100, "2 min"), (7_200, "2 h"), (864_000, "10 d")],
)
def test_durations_are_shown_in_one_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
