"""Amounts of bytes, written for people."""

import pytest

from vq.admin.sizes import bytes_text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_shown_in_binary_units(count: int | None, text: str | None) -> None:
    assert bytes_text(count) == text
