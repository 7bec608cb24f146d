"""What texts count as beside numbers, truth values and properties; and what needles promise."""

import pytest

from vq.message_filter import Subject
from vq.message_filter.conditions import number_of
from vq.message_filter.syntax import parse
from vq.model import Key


def verdict(text: str, **headers: str) -> bool | None:
    return parse(text, "expression").test(Subject(None, None, headers))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-0", 0), ("+7", 7), ("007", 7), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0),
        ("1e3", 1000.0), ("-1E-3", -0.001), ("9007199254740993", 9007199254740993),
        ("1" * 64, int("1" * 64)),
    ],
)  # fmt: skip
def test_what_is_a_number(text: str, number: float) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "", " 1", "1 ", "1_000", "0x10", "1e", "e1", ".", "+", "--1", "inf", "nan", "1e999",
        "-1e999", "١", "1,5", "1" * 65, "1\x00", "TRUE", "1.2.3", "1\n",
    ],
)  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    assert number_of(text) is None


def test_large_integers_are_compared_exactly() -> None:
    """Doubles would take them for equal."""
    assert verdict("a = 9007199254740993", a="9007199254740992") is False
    assert verdict("a > 9007199254740992", a="9007199254740993") is True
    assert verdict("a > 9007199254740992.0", a="9007199254740993") is True


def test_what_cannot_be_compared_is_unknown() -> None:
    for text in ("a > 1", "a = 1", "a <> 1", "a BETWEEN 1 AND 2", "a IN (1)", "a = TRUE"):
        assert verdict(text, a="ten") is None
        assert verdict(text) is None
        assert verdict(f"NOT ({text})", a="ten") is None


def test_truth_values_are_words_in_any_case() -> None:
    found = [verdict("a = TRUE", a=each) for each in ("true", "TRUE", "False")]
    assert found == [True, True, False]
    found = [verdict("a <> FALSE", a=each) for each in ("tRue", "false", "1")]
    assert found == [True, False, None]


def test_texts_are_compared_as_they_are() -> None:
    assert verdict("a = '10'", a="10.0") is False
    assert verdict("a = 10", a="10.0") is True
    assert verdict("a = 'X'", a="x") is False


def test_properties_are_compared_with_one_another() -> None:
    assert verdict("a = b", a="1", b="1.0") is False
    assert verdict("a <> b", a="1", b="1.0") is True
    assert verdict("a <= b", a="1", b="1.0") is True
    assert verdict("a < b", a="1", b="x") is None
    assert verdict("a = b", a="1") is None
    assert verdict("a BETWEEN low AND high", a="5", low="1", high="9") is True


def test_and_or_and_not_have_three_values() -> None:
    """One decides where the other is unknown; else unknown stays."""
    names = {"TRUE": "t = 1", "FALSE": "t = 2", "NULL": "x = 1"}
    table = [
        ("TRUE AND NULL", None), ("NULL AND TRUE", None), ("FALSE AND NULL", False),
        ("NULL AND FALSE", False), ("NULL AND NULL", None), ("TRUE OR NULL", True),
        ("NULL OR TRUE", True), ("FALSE OR NULL", None), ("NULL OR FALSE", None),
        ("NULL OR NULL", None), ("NOT NULL", None), ("NULL OR NULL OR TRUE", True),
        ("NULL AND NULL AND FALSE", False),
    ]  # fmt: skip
    for text, expected in table:
        words = [names.get(word, word) for word in text.split()]
        assert verdict(" ".join(words), t="1") is expected, text


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (7, "KEYS = '7'", True),
        (7, "KEYS > 6", True),
        ("7", "KEYS = 7", True),
        (b"7", "KEYS = '7'", True),
        (b"\xff", "KEYS IS NULL", True),
        (b"", "KEYS = ''", True),
        (None, "KEYS IS NULL", True),
    ],
)
def test_keys_count_as_texts(key: Key | None, text: str, expected: bool) -> None:
    assert parse(text, "expression").test(Subject(None, key, {})) is expected


@pytest.mark.parametrize(
    ("text", "needles"),
    [
        ("region = 'hz'", ["hz"]),
        ("'hz' = region", ["hz"]),
        ("region IN ('hz', 'sh')", ["hz", "sh"]),
        ("region IN ('1', '2', '3', '4', '5')", ["region"]),
        ("region IN ('hz', '')", ["region"]),
        ("region = ''", ["region"]),
        ("price > 10", ["price"]),
        ("price > 10 AND region = 'hz'", ["hz"]),
        ("region = 'h' AND city = 'hangzhou'", ["hangzhou"]),
        ("region = 'hz' OR city = 'x'", ["hz", "x"]),
        ("region = 'hz' OR price > 1", ["hz", "price"]),
        ("region = 'hz' OR price IS NULL", []),
        ("NOT (region = 'hz')", []),
        ("region <> 'hz'", ["region"]),
        ("region NOT IN ('hz')", []),
        ("region IS NOT NULL", ["region"]),
        ("region IS NULL", []),
        ("TAGS = 'paid'", ["paid"]),
        ("TAGS IS NOT NULL", []),
        ("KEYS = '7'", []),  # an integer key is no text in a record
        ("region CONTAINS 'z'", ["z"]),
        ("a = b", ["a"]),
        ('"é" = 1', ["é"]),
    ],
)
def test_what_a_record_has_of_which_an_expression_is_true(text: str, needles: list[str]) -> None:
    assert parse(text, "expression").needles == {each.encode() for each in needles}
