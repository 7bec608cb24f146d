"""From the text of an expression to its verdicts; what is no expression is told with its place."""

import time

import pytest

from vq import limits
from vq.errors import InvalidArgument
from vq.message_filter import Subject
from vq.message_filter.syntax import Expression, parse

HEADERS = {
    "price": "12",
    "region": "hz",
    "vip": "true",
    "in": "x",
    "o'k": "y",
    "empty": "",
    "é": "ü",
}


def parsed(text: str) -> Expression:
    return parse(text, "expression")


def verdict(text: str) -> bool | None:
    return parsed(text).test(Subject("paid", "k-1", HEADERS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("price > 10 AND region IN ('hz','sh') AND NOT (vip = TRUE)", False),
        ("price > 10 and region in ('hz','sh') and not (vip = false)", True),
        ("price > 10 OR nothing = 1 AND region = 'x'", True),  # AND binds stronger
        ("(price > 10 OR nothing = 1) AND region = 'x'", False),
        ("NOT price > 10 OR region = 'hz'", True),  # NOT binds stronger than OR,
        ("NOT price > 20 AND region = 'hz'", True),  # and than AND, but not than the comparison
        ("NOT NOT price = 12", True),
        ("10 < price", True),
        ("10 >= price", False),
        ("price <> 12", False),
        ("price = 12.0", True),
        ("price = 1.2e1", True),
        ("price = +12", True),
        ("price > -12.5", True),
        ("price BETWEEN 12 AND 12", True),
        ("price NOT BETWEEN 1 AND 10 AND region = 'hz'", True),
        ("price BETWEEN 1 AND 10 AND region = 'hz'", False),
        ("region NOT IN ('hz')", False),
        ("price IN (1, 'twelve', 12)", True),
        ("region IS NULL", False),
        ("region IS NOT NULL", True),
        ("nothing IS NULL", True),
        ("nothing = 1", None),
        ("NOT (nothing = 1)", None),
        ("empty IS NULL OR empty <> ''", False),
        ("empty = ''", True),
        ("region CONTAINS 'z' AND region STARTSWITH 'h' AND region ENDSWITH 'hz'", True),
        ("region NOT CONTAINS 'x'", True),
        ("TAGS = 'paid' AND KEYS STARTSWITH 'k-'", True),
        ("TAGS IN ('new', 'paid')", True),
        ("tags = 'paid'", None),  # names are as they are written
        ("\"TAGS\" = 'paid'", None),  # between quotes a name is a header
        ("\"in\" = 'x'", True),
        ("\"o'k\" = 'y'", True),
        ("\"é\" = 'ü'", True),
        ("region = 'it''s'", False),
        ("\tprice\r\n=\f12 ", True),
    ],
)
def test_what_expressions_say(text: str, expected: bool | None) -> None:
    assert verdict(text) is expected


def test_the_text_is_written_in_one_way() -> None:
    found = parsed(" a>=- 1 and(b  not in('x ( y' , 'AND')or\"c  d\" is  not null)")
    assert found.text == "a >= -1 AND (b NOT IN ('x ( y', 'AND') OR \"c  d\" IS NOT NULL)"
    assert parsed(found.text) == found
    assert found.terms == 6


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 1, "expected a property, a number, .*, found the end"),
        ("   ", 4, "expected a property, .*, found the end"),
        ("price", 6, "expected a comparison: =, <>, .* or IS, found the end"),
        ("price >", 8, "expected a value, found the end"),
        ("price > 10 region = 'x'", 12, "expected AND, OR or the end, found 'region'"),
        ("price > 'a'", 1, "expected a number beside >: texts and truth values have no order"),
        ("price > TRUE", 1, "expected a number beside >"),
        ("price = NULL", 9, "NULL is compared by IS NULL and IS NOT NULL"),
        ("1 = 1", 1, "expected a property on one side"),
        ("vip AND price > 1", 5, "expected a comparison"),
        ("(price > 1", 11, r"expected AND, OR or \), found the end"),
        ("price > 1)", 10, r"expected AND, OR or the end, found '\)'"),
        ("price IN ()", 11, r"expected a number or a text in single quotes, found '\)'"),
        ("price IN (1,)", 13, "expected a number or a text"),
        ("price IN (1 2)", 13, r"expected , or \), found '2'"),
        ("price IN (a)", 11, "expected a number or a text in single quotes"),
        ("price IN (TRUE)", 11, "expected a number or a text in single quotes"),
        ("price IN 1", 10, r"expected \( and values, found '1'"),
        ("1 IN (1)", 1, "expected a property here"),
        ("1 IS NULL", 1, "expected a property here"),
        ("price IS 1", 10, "expected NULL or NOT NULL, found '1'"),
        ("price IS NOT 1", 14, "expected NULL, found '1'"),
        ("price BETWEEN 1", 16, "expected AND and the upper bound, found the end"),
        ("price BETWEEN 10 AND 1", 15, "nothing is between 10 and 1: give the lower bound first"),
        ("price BETWEEN 'a' AND 'b'", 1, "expected a number beside >="),
        ("price NOT 1", 11, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, found '1'"),
        ("price CONTAINS 1", 16, "expected a text in single quotes, found '1'"),
        ("price LIKE 'a%'", 7, "expected a comparison: .*, found 'LIKE'"),
        ("price = 'a", 9, "a text without its end"),
        ("price = 'a''", 9, "a text without its end"),
        ('"price = 1', 1, "a name without its end"),
        ('"" = 1', 1, "a name is empty"),
        ("price # 1", 7, "'#' means nothing here"),
        ("price\x00 = 1", 6, r"'\\x00' means nothing here"),
        ("prïce = 1", 3, "'ï' means nothing here"),
        ("price\xa0= 1", 6, r"'\\xa0' means nothing here"),
        ("price = ١", 9, "'١' means nothing here"),  # a digit, and none of ours
        ("price = 1e999", 9, "a number is too long, or beyond the range of numbers"),
        (f"price = {'9' * 65}", 9, "a number is too long"),
        ("price = -x", 10, "expected a number, found 'x'"),
        ("price == 1", 8, "expected a value, found '='"),
        ("price = 1; DROP", 10, "';' means nothing here"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, at: int, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"is wrong at character {at}: {said}"):
        parsed(text)


def test_length_depth_and_operands_have_bounds() -> None:
    depth = limits.FILTER_DEPTH_MAX
    assert parsed("(" * depth + "a = 1" + ")" * depth).terms == 2
    assert parsed("NOT " * depth + "a = 1").terms == 2
    for opening in ("(", "NOT ", "NOT ("):
        with pytest.raises(InvalidArgument, match=r"more than 32 NOT and \("):
            parsed(opening * (depth + 1) + "a = 1")
    values = ",".join(["1"] * (limits.FILTER_TERMS_MAX - 1))
    assert parsed(f"a IN ({values})").terms == limits.FILTER_TERMS_MAX
    with pytest.raises(InvalidArgument, match="more than 256 properties and values"):
        parsed(f"a IN ({values},1)")
    with pytest.raises(InvalidArgument, match="more than 256 properties and values"):
        parsed(" OR ".join(["a = 1"] * 200))
    most = limits.FILTER_EXPRESSION_BYTES_MAX
    assert parsed("a = '" + "x" * (most - 6) + "'").terms == 2
    with pytest.raises(InvalidArgument, match="expression has 4097 bytes; at most 4096 are taken"):
        parsed("a = '" + "ü" * (most // 2 - 3) + "x'")
    # Brokers get it with spaces, and would refuse it in each read.
    with pytest.raises(InvalidArgument, match="with spaces between its words, has 4097 bytes"):
        parsed("a='" + "x" * (most - 5) + "'")


@pytest.mark.parametrize(
    "text",
    [
        "'" * limits.FILTER_EXPRESSION_BYTES_MAX,
        "a = " + "'" * 4_001,
        '"' * 4_001,
        "(" * limits.FILTER_EXPRESSION_BYTES_MAX,
        "a = " + "1" * 4_000,
        "a = " + "1." * 2_000,
        "a" * limits.FILTER_EXPRESSION_BYTES_MAX,
        " " * limits.FILTER_EXPRESSION_BYTES_MAX,
        "a = 1 AND " * 400,
        "\x00" * 4_000,
    ],
)
def test_a_hostile_text_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidArgument) as caught:
        parsed(text)
    assert time.process_time() - began < 0.25
    assert len(str(caught.value)) < 500
