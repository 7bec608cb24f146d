"""What others wrote fits into cells of Spark, or is null with a word."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from pyspark_vq import cells

NAMES = ("name", "size", "disks", "open", "error")


@pytest.mark.parametrize(
    ("value", "fits"), [(2**63 - 1, True), (2**63, False), (-(2**63), True), (-(2**63) - 1, False)]
)
def test_a_number_fits_as_far_as_a_bigint_goes(value: int, fits: bool) -> None:
    assert cells.number(value) == (value if fits else None)
    if fits:
        assert pa.array([value], pa.int64()).to_pylist() == [value]


def test_a_row_that_fits_stays_as_it_is() -> None:
    row = ("é", 2**63 - 1, [("d", True, 1.5)], {"b1": 2, "": 0}, None)
    assert cells.fitting(row, NAMES) == row


def test_what_does_not_fit_is_null_and_named() -> None:
    row = ("\ud800", 2**64, [("d", 2**63), ("e", 1)], {"b1": -(2**70)}, "why")
    name, size, disks, opened, error = cells.fitting(row, NAMES)
    assert (name, size, disks, opened) == ("\\ud800", None, [("d", None), ("e", 1)], {"b1": None})
    assert error.startswith("why; size = 18446744073709551616 is outside [-2**63, 2**63); disks = ")
    assert "open = -1180591620717411303424" in error
    assert cells.fitting(("n", 10**300, [], {}, None), NAMES)[-1].endswith("[-2**63, 2**63)")


def test_the_error_need_not_be_the_last_cell() -> None:
    assert cells.fitting((2**63, None, "*"), ("size", "error", "filter")) == (
        None,
        "size = 9223372036854775808 is outside [-2**63, 2**63)",
        "*",
    )


def test_a_time_that_is_no_date_is_not_known() -> None:
    assert cells.moment(0) is None
    assert cells.moment(1_795_700_000_500) == datetime(
        2026, 11, 26, 13, 33, 20, 500_000, tzinfo=UTC
    )
    for time_ms in (10**18, 10**40, 10**400, -(10**18)):
        assert cells.moment(time_ms) is None
