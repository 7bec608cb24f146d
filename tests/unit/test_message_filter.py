"""The filter of a reader: its texts, what it takes, and which filters are the same."""

import pytest

from vq import limits
from vq.errors import InvalidArgument, InvalidRequest
from vq.message_filter import ALL, Filter

TAGS = ["a", "ü", "a b", "a,b", "a && b", "*", "a*", ">", '"a"', '"', '""', "a | b"]


@pytest.mark.parametrize("tag", TAGS)
def test_each_text_of_a_filter_says_the_same(tag: str) -> None:
    for wanted in (Filter((tag,)), Filter((tag, "other")), Filter(("other", tag))):
        assert Filter.parse(wanted.text).tags == wanted.tags
        assert Filter.of_stored(wanted.stored).tags == wanted.tags


def test_texts_are_as_people_and_the_tree_have_them() -> None:
    wanted = Filter.parse(" paid||sent || sent ||")
    assert wanted.tags == ("paid", "sent")
    assert (wanted.text, wanted.stored) == ("paid || sent", "paid||sent")
    assert Filter(("a*", "b")).text == '"a*" || b'
    assert (ALL.text, ALL.stored) == ("", "")
    assert Filter.parse("*") == Filter.parse(None) == Filter.of_stored("") == ALL


def test_filters_are_equal_if_the_same_messages_pass() -> None:
    assert Filter(("a", "b")) == Filter(("b", "a", "b"))
    assert hash(Filter(("a", "b"))) == hash(Filter(("b", "a")))
    assert Filter(("a",)) != Filter(("a", "b"))
    assert Filter(("a",)) != ALL


def test_what_a_filter_takes() -> None:
    wanted = Filter(("a", "ü"))
    assert [wanted.takes(tag) for tag in (b"a", "ü".encode(), b"b", None)] == [
        True,
        True,
        False,
        False,
    ]
    assert ALL.takes(None)
    assert ALL.takes(b"a")
    assert (bool(wanted), bool(ALL)) == (True, False)


def test_a_request_has_a_bound() -> None:
    most = [str(number) for number in range(limits.FILTER_TAGS_MAX)]
    assert Filter.of_request(most).tags == tuple(most)
    with pytest.raises(InvalidRequest, match="65 tags in one filter; at most 64 are taken"):
        Filter.of_request([*most, "x"])


def test_what_is_no_text_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidArgument, match="message_filter = 7 is int; give text"):
        Filter.parse(7)  # type: ignore[arg-type]
