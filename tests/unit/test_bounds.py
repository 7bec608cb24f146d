"""Numbers that applications give: their kind, and their range."""

import math
from typing import Any

import pytest

from vq.bounds import check_between, check_positive, check_within
from vq.errors import InvalidArgument


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, r"^n = 0 is outside \[1, 5\] bytes$"),
        (6, r"^n = 6 is outside \[1, 5\] bytes$"),
        (True, "^n = True is bool; give a whole number$"),
        (2.0, r"^n = 2\.0 is float; give a whole number$"),
        ("2", "^n = '2' is str; give a whole number$"),
    ],
)
def test_what_is_no_whole_number_in_its_range_is_refused(number: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        check_between("n", number, 1, 5, "bytes")


@pytest.mark.parametrize("number", [1, 3, 5])
def test_both_ends_are_in_the_range(number: int) -> None:
    check_between("n", number, 1, 5)
    check_within("n", number, 1, 5)


@pytest.mark.parametrize("number", [0, -1, 2_592_000.5, math.nan, math.inf])
def test_a_time_is_above_0_and_finite(number: float) -> None:
    with pytest.raises(InvalidArgument, match=rf"^n = {number} is outside \(0, 2592000\] seconds$"):
        check_within("n", number, 0, 2_592_000.0, above=True)
    with pytest.raises(InvalidArgument, match=r"is outside \(0, "):
        check_positive("n", 0 if number == 2_592_000.5 else number)


def test_a_number_too_large_to_be_written_is_refused_as_any_other() -> None:
    with pytest.raises(InvalidArgument, match=r"^n = an int of 16610 bits is outside \[1, 5\] B$"):
        check_between("n", 10**5_000, 1, 5, "B")
    with pytest.raises(InvalidArgument, match=r"^n = an int of 16610 bits is outside \[1, 5\] s$"):
        check_within("n", -(10**5_000), 1, 5, "s")
