"""The filter of a reader: its texts, what it takes, and which filters are the same."""

import pytest

from vq import limits
from vq.errors import InvalidArgument, InvalidRequest
from vq.message_filter import ALL, Filter

TAGS = ["a", "ü", "a b", "a,b", "a && b", "*", "a*", ">", '"a"', '"', '""', "a | b"]
#: Beside the sign between tags, they could be read otherwise.
WITH_BARS = ["|", "|a", "a|", "|a|", "| |"]


@pytest.mark.parametrize("tag", [*TAGS, *WITH_BARS])
def test_each_text_of_a_filter_says_the_same(tag: str) -> None:
    others = ("other", *WITH_BARS)
    pairs = [pair for other in others for pair in ((tag, other), (other, tag)) if tag != other]
    for tags in ((tag,), *pairs):
        wanted = Filter(tags)
        assert Filter.parse(wanted.text).tags == wanted.tags
        assert Filter.of_stored(wanted.stored).tags == wanted.tags


@pytest.mark.parametrize("text", ['" a "', '" "', "'a' || \"\tb\""])
def test_a_tag_that_no_message_can_have_is_refused(text: str) -> None:
    """A producer refuses it, too; and its group could be read as one with another filter."""
    with pytest.raises(InvalidArgument, match="begins or ends with white space"):
        Filter.parse(text)


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
