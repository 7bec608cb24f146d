"""Patterns of topic names: what they take, and which two may take one topic."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.errors import InvalidArgument
from vq.topic_pattern import check_pattern, is_pattern, matches, matching, overlap

NAMES = st.text("ab.-", min_size=1, max_size=6)
PATTERNS = st.text("ab.*?", min_size=1, max_size=7)


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        (
            "orders.*",
            ["orders.", "orders.eu", "orders.eu.de"],
            ["orders", "ordersXeu"],
        ),
        ("*.eu", [".eu", "a.b.eu"], ["eu", "a.eu2"]),
        ("log-?", ["log-1"], ["log-", "log-12"]),
        ("*", ["a", "a.b", "x_vq."], ["_vq.delayed", "_vq.transactions", "_vq.dlq.g"]),
        ("?vq.*", ["avq.x"], ["_vq.retry.g"]),
    ],
)
def test_a_pattern_takes_whole_names_and_none_of_vqs_own(
    pattern: str, taken: list[str], left: list[str]
) -> None:
    """Dots are plain characters."""
    assert is_pattern(check_pattern(pattern))
    assert [each for each in [*taken, *left] if matches(pattern, each)] == taken


@pytest.mark.parametrize("wrong", ["a|b*", "orders.[ab]*", "^o*$", "a b*", "*" * 300, "ö*"])
def test_what_no_name_can_have_is_refused(wrong: str) -> None:
    """Also what looks like a regular expression: it would match nothing in silence."""
    with pytest.raises(InvalidArgument, match="is no regular expression"):
        check_pattern(wrong)


def test_a_pattern_for_reserved_names_alone_is_refused() -> None:
    """It would match nothing."""
    with pytest.raises(InvalidArgument, match="that are vq's own"):
        check_pattern("_vq.dlq.*")


@given(PATTERNS, PATTERNS, NAMES)
def test_two_that_take_one_name_overlap(first: str, second: str, name: str) -> None:
    """Whatever name it is; and what overlaps is symmetric."""
    if fnmatch.fnmatchcase(name, first) and fnmatch.fnmatchcase(name, second):
        assert overlap(first, second)
    assert overlap(first, second) == overlap(second, first)


@pytest.mark.parametrize(
    ("first", "second"), [("a*", "b*"), ("*a", "*b"), ("x?", "x"), ("a*b", "a*c"), ("a", "b")]
)
def test_some_can_have_no_name_in_common(first: str, second: str) -> None:
    """They may be subscribed side by side."""
    assert not overlap(first, second)


def test_the_pattern_of_a_topic_is_told() -> None:
    """None takes another topic."""
    assert matching(["a.*", "b.*"], "b.x") == "b.*"
    assert matching(["a.*"], "b.x") is None
