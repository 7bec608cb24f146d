"""The filter of a reader: its texts, and which filters are the same."""

import pytest

from vq import limits
from vq.errors import FilterFailed, InvalidArgument, InvalidRequest
from vq.message_filter import ALL, Filter, MessageFilter, Where
from vq.model import Message

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


def test_a_request_has_a_bound() -> None:
    most = [str(number) for number in range(limits.FILTER_TAGS_MAX)]
    assert Filter.of_request(most).tags == tuple(most)
    with pytest.raises(InvalidRequest, match="65 tags in one filter; at most 64 are taken"):
        Filter.of_request([*most, "x"])


def test_what_is_no_text_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidArgument, match="message_filter = 7 is int; give text"):
        Filter.parse(7)  # type: ignore[arg-type]


# Expressions ------------------------------------------------------------------------------------
def test_an_expression_is_handed_on_as_a_text_that_no_list_of_tags_is() -> None:
    """Spaces and the case of words do not matter, so members may write them as they like."""
    wanted = Filter.of(Where("price>10 and  region in( 'h z' ,'( sh' )"))
    assert wanted.where == "price > 10 AND region IN ('h z', '( sh')"
    assert wanted.text == f"WHERE {wanted.where}"
    assert wanted.stored == f"||{wanted.where}"
    stored = Filter.of_stored(wanted.stored)
    assert stored == wanted == Filter.of_request((), wanted.where)
    assert stored.text == wanted.text
    assert (bool(wanted), bool(stored)) == (True, True)
    assert wanted != Filter.of(Where("price > 10"))
    assert hash(wanted) == hash(stored)


@pytest.mark.parametrize("text", ["TAGS = 'a||b'", "a = '||' OR b = '@'", '"||" = 1'])
def test_separators_in_an_expression_separate_nothing(text: str) -> None:
    wanted = Filter.of(Where(text))
    assert Filter.of_stored(wanted.stored) == wanted
    assert not Filter.of_stored(wanted.stored).tags


def test_an_earlier_version_takes_a_stored_expression_for_another_filter() -> None:
    """It joins texts between separators: no tag that it can name is equal to what it reads."""
    wanted = Filter.of(Where("price > 10"))
    read_by_it = [part.strip() for part in wanted.stored.split("||") if part.strip()]
    assert read_by_it == ["price > 10"]
    with pytest.raises(InvalidArgument, match="has '>', which no filter understands"):
        Filter.parse(read_by_it[0])


def test_what_a_later_version_stored_is_shown_as_it_is() -> None:
    assert Filter.of_stored("||price LIKE 'a%'").text == "WHERE price LIKE 'a%'"


def test_an_expression_checks_messages() -> None:
    check = Filter.of(Where("price > 10 AND TAGS = 'a' AND KEYS = '7'")).check
    assert check is not None
    assert check(Message("t", b"", "a", 7, {"price": "11"}))
    assert not check(Message("t", b"", "a", 7, {"price": "9"}))
    assert not check(Message("t", b"", "a", 7))
    assert Filter.parse("a").check is None is ALL.check


def test_a_request_has_tags_or_an_expression() -> None:
    with pytest.raises(InvalidRequest, match="tags or an expression, not both"):
        Filter.of_request(["a"], "price > 1")
    with pytest.raises(InvalidRequest, match="is wrong at character 9: expected a value, found"):
        Filter.of_request([], "price > ")


def test_what_an_expression_counts_for_rises_with_its_operands() -> None:
    one, many = Filter.of(Where("a = 1")), Filter.of(Where("a IN (1, 2, 3, 4, 5, 6, 7)"))
    assert (one.state_bytes, many.state_bytes) == (1_024, 4_096)
    assert (ALL.cost, one.cost, many.cost) == (1, 1, 3)


def test_an_expression_is_text() -> None:
    with pytest.raises(InvalidArgument, match="the expression 7 is int; give text"):
        Where(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="is not text"):
        Where("a = '\ud800'")


# Filters of the application ---------------------------------------------------------------------
class Even(MessageFilter):
    def matches(self, message: Message) -> bool:
        return int(message.content) % 2 == 0


class Above(MessageFilter):
    def __init__(self, least: int) -> None:
        self._least = least

    @property
    def name(self) -> str:
        return f"above {self._least}"

    def matches(self, message: Message) -> bool:
        return int(message.content) > self._least


class Waiting(MessageFilter):
    async def matches(self, message: Message) -> bool:  # type: ignore[override]
        return True


def test_a_class_is_known_by_its_name() -> None:
    even, other = Filter.of(Even()), Filter.of(Above(5))
    assert even.code == f"{__name__}.Even"
    assert (other.text, other.stored) == ("MessageFilter above 5", "||@above 5")
    assert Filter.of_stored(other.stored) == other == Filter.of(Above(5))
    assert Filter.of(Above(6)) != other
    assert not other.tags
    assert not other.where
    assert even.check is not None
    assert [even.check(Message("t", each)) for each in (b"2", b"3")] == [True, False]


def test_what_a_class_raises_names_the_message() -> None:
    check = Filter.of(Even()).check
    assert check is not None
    said = r"filter .*Even failed for the message at offset 88 of t-3"
    with pytest.raises(FilterFailed, match=said) as caught:
        check(Message("t", b"x", partition=3, offset=88))
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.details == {"offset": 88}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Even, "is the class Even; give an instance of it"),
        (Waiting(), "Waiting is a coroutine function; give a plain one"),
        (Above(10**200), "give text of 1 to 200 characters"),
        (object(), "is object; give text"),
    ],
)
def test_what_is_no_filter_is_refused(given: object, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Filter.of(given)  # type: ignore[arg-type]
