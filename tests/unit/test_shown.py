"""What an error shows of the application's objects, whose code may do anything."""

import re
from pathlib import Path

import pytest

import vq
from vq.shown import shown, shown_error, shown_raised


class Silent(Exception):
    def __repr__(self) -> str:
        raise KeyError("no text")

    __str__ = __repr__


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (2**128 - 1, "340282366920938463463374607431768211455"),
        (10**5000, "an int of 16610 bits"),
        ([10**5000], "a list"),
        (Silent(), "a Silent"),
        (nested(100_000), "a list"),
        ("x" * 10**6, "'" + "x" * 59 + "…"),
    ],
    ids=lambda each: f"{each!s:.9}" if isinstance(each, str) else "",
)
def test_a_value_is_shown_shortly(value: object, text: str) -> None:
    assert shown(value) == text


def test_the_length_may_be_given() -> None:
    assert shown("x" * 100, 5) == "'xxxx…"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (Silent(), "Silent (its text raises, too)"),
        (ValueError("x" * 1_000), "ValueError: " + "x" * 488 + "…"),
    ],
    ids=["plain", "silent", "long"],
)
def test_an_error_is_shown_with_its_type(error: Exception, text: str) -> None:
    assert shown_error(error) == text


def test_what_was_raised_is_shown_whatever_its_repr_raises() -> None:
    class Ends(Exception):
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    assert shown_raised(Ends()) == "Ends (its repr raises, too)"
    assert shown_raised(ValueError("x")) == "ValueError('x')"
    assert shown_raised(ValueError("x" * 10**6)) == "ValueError('" + "x" * 488 + "…"


def test_no_error_cuts_a_value_itself() -> None:
    """``shown`` marks the cut; a slice looks like the whole value."""
    for path in Path(vq.__file__).parent.rglob("*.py"):
        assert not re.search(r"\[:\d\d+\]!r", path.read_text("utf-8")), path
