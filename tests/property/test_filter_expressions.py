"""Expressions against an evaluator that shares nothing with theirs: trees, fractions, 0 ½ 1.

A tree is drawn, written as text in one of many ways, parsed, and compared with what the evaluator
says of the tree. Unknown is a half there: AND is the least, OR the greatest, NOT what is missing
to 1.
"""

import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.faults import times

from vq import limits
from vq.errors import InvalidArgument
from vq.message_filter import Filter, Subject
from vq.message_filter.syntax import parse
from vq.model import Key
from vq.store.records.compression import compress
from vq.store.records.format import CHECKSUM_CRC32C, CHECKSUM_MD5, COMPRESSION_ZLIB
from vq.store.records.record import Properties, encode_properties, encode_record
from vq.store.records.record_filter import filter_records

FALSE, UNKNOWN, TRUE = Fraction(0), Fraction(1, 2), Fraction(1)
NAMES = ["a", "b", "price", "TAGS", "KEYS", '"TAGS"', '"x y"', '"q""q"', "$_.1"]
VALUES = ["", "1", "2", "10", "1.0", "-1", "1e1", "x", "ä'b", "true", "False", "a", "price", 'q"q']

names = st.sampled_from(NAMES)
texts = st.one_of(st.sampled_from(VALUES), st.text(st.characters(codec="utf-8"), max_size=4))
numbers = st.one_of(
    st.sampled_from(["0", "1", "-1", "10", "1.0", ".5", "1e1", "-2.50", "+3"]),
    st.integers(-(10**9), 10**9).map(str),
)
properties = names.map(lambda name: ("property", name))
literals = st.one_of(
    texts.map(lambda text: ("text", text)),
    numbers.map(lambda text: ("number", text)),
    st.booleans().map(lambda truth: ("truth", truth)),
)
orders = st.sampled_from(["<", "<=", ">", ">="])
number_operands = st.one_of(numbers.map(lambda text: ("number", text)), properties)


def _between(drawn: tuple[Any, ...]) -> tuple[Any, ...]:
    """Bounds that are numbers are given with the lower one first."""
    word, value, low, high = drawn
    if low[0] == high[0] == "number" and Fraction(low[1]) > Fraction(high[1]):
        low, high = high, low
    return word, value, low, high


leaves = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), properties, st.one_of(literals, properties)),
    st.tuples(st.sampled_from(["=", "<>"]), literals, properties),
    st.tuples(orders, properties, number_operands),
    st.tuples(orders, number_operands, properties),
    st.tuples(
        st.sampled_from(["BETWEEN", "NOT BETWEEN"]), properties, number_operands, number_operands
    ).map(_between),
    st.tuples(
        st.sampled_from(["IN", "NOT IN"]),
        properties,
        st.lists(literals.filter(lambda each: each[0] != "truth"), min_size=1, max_size=6),
    ),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), properties),
    st.tuples(
        st.sampled_from(["CONTAINS", "NOT CONTAINS", "STARTSWITH", "ENDSWITH"]), properties, texts
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("NOT"), inner),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)
headers = st.dictionaries(
    st.sampled_from(["a", "b", "price", "TAGS", "x y", 'q"q', "$_.1"]), texts, max_size=5
)
keys = st.one_of(
    st.none(), st.sampled_from(["a", "1", b"a", b"\xff", b"", 0, 1, -1, 2**63 - 1]), texts
)
tags = st.one_of(st.none(), st.sampled_from(["a", "x", "price", "1", "true"]))


# Writing trees ----------------------------------------------------------------------------------
def written(tree: tuple[Any, ...], draw: Any, power: int = 0) -> str:
    """Return a tree as text; spaces, capitals and parentheses that say nothing are drawn."""

    def word(text: str) -> str:
        return draw(st.sampled_from([text, text.lower(), text.title()])).replace(" ", space())

    def space() -> str:
        return draw(st.sampled_from([" ", "  ", "\t", "\n "]))

    kind = tree[0]
    if kind in {"AND", "OR"}:
        mine = 1 if kind == "OR" else 2
        between = space() + word(kind) + space()
        text = between.join(written(each, draw, mine) for each in tree[1])
        return f"({text})" if mine <= power or draw(st.booleans()) else text
    if kind == "NOT":
        return f"{word(kind)}{space()}{written(tree[1], draw, 3)}"
    text = _leaf(tree, word, space)
    return f"({text})" if draw(st.integers(0, 5)) == 0 else text


def _leaf(tree: tuple[Any, ...], word: Any, space: Any) -> str:
    kind, left = tree[0], _operand(tree[1], word)
    if kind in {"IS NULL", "IS NOT NULL"}:
        return f"{left}{space()}{word(kind)}"
    if kind.endswith("BETWEEN"):
        low, high = (_operand(each, word) for each in tree[2:])
        return f"{left}{space()}{word(kind)}{space()}{low}{space()}{word('AND')}{space()}{high}"
    if kind.endswith("IN"):
        values = ",".join(space() + _operand(each, word) for each in tree[2])
        return f"{left}{space()}{word(kind)}({values})"
    right = ("text", tree[2]) if isinstance(tree[2], str) else tree[2]
    return f"{left}{space()}{word(kind)}{space()}{_operand(right, word)}"


def _operand(operand: tuple[str, Any], word: Any) -> str:
    kind, value = operand
    if kind == "text":
        return "'" + value.replace("'", "''") + "'"
    return word("TRUE" if value else "FALSE") if kind == "truth" else str(value)


# The evaluator ----------------------------------------------------------------------------------
class Naive:
    """Says what a tree means for one message."""

    def __init__(self, tag: str | None, key: Key | None, headers: dict[str, str]) -> None:
        self._known: dict[str, str | None] = {
            '"{}"'.format(name.replace('"', '""')): text for name, text in headers.items()
        }
        self._known |= headers
        self._known["TAGS"] = tag
        self._known["KEYS"] = None if key is None else str(key)
        if isinstance(key, bytes):
            is_text = key.isascii() or key.decode(errors="replace").encode() == key
            self._known["KEYS"] = key.decode() if is_text else None

    def says(self, tree: tuple[Any, ...]) -> Fraction:
        kind, *rest = tree
        if kind in {"AND", "OR"}:
            found = [self.says(each) for each in rest[0]]
            return min(found) if kind == "AND" else max(found)
        if kind.startswith("NOT"):
            return 1 - self.says(rest[0] if kind == "NOT" else (kind.removeprefix("NOT "), *rest))
        if kind.startswith("IS"):
            missing = self._known.get(rest[0][1]) is None
            return TRUE if missing is (kind == "IS NULL") else FALSE
        if kind == "BETWEEN":
            value, low, high = rest
            return min(self._compare(">=", value, low), self._compare("<=", value, high))
        if kind == "IN":
            return max(self._compare("=", rest[0], each) for each in rest[1])
        if kind in {"CONTAINS", "STARTSWITH", "ENDSWITH"}:
            text, part = self._known.get(rest[0][1]), re.escape(rest[1])
            form = {"CONTAINS": f".*{part}.*", "STARTSWITH": f"{part}.*", "ENDSWITH": f".*{part}"}
            if text is None:
                return UNKNOWN
            return Fraction(int(bool(re.fullmatch(form[kind], text, re.DOTALL))))
        return self._compare(kind, *rest)

    def _compare(self, sign: str, left: tuple[str, Any], right: tuple[str, Any]) -> Fraction:
        if sign == "<>":
            return 1 - self._compare("=", left, right)
        kinds = {left[0], right[0]}
        if "truth" in kinds:
            read = self._truth
        elif "number" in kinds or sign != "=":
            read = self._number
        else:
            read = self._text
        one, other = read(left), read(right)
        if one is None or other is None:
            return UNKNOWN
        order = (one > other) - (one < other)
        holds = {"=": (0,), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[sign]
        return Fraction(int(order in holds))

    def _text(self, operand: tuple[str, Any]) -> Any:
        kind, value = operand
        return self._known.get(value) if kind == "property" else value

    def _number(self, operand: tuple[str, Any]) -> Any:
        text = self._text(operand)
        form = r"[+-]?([0-9]+[.]?|[0-9]*[.][0-9]+)([eE][+-]?[0-9]+)?"
        return Fraction(text) if text is not None and re.fullmatch(form, text) else None

    def _truth(self, operand: tuple[str, Any]) -> Any:
        value = self._text(operand)
        if isinstance(value, bool) or value is None:
            return value
        return {"true": True, "false": False}.get(value.lower())


def names_of(subject: tuple[str | None, Key | None, dict[str, str]]) -> Naive:
    return Naive(*subject)


subjects = st.tuples(tags, keys, headers)


@settings(max_examples=times(150, 5_000), deadline=None)
@given(trees, st.lists(subjects, min_size=1, max_size=4), st.data())
def test_an_expression_says_what_its_tree_means(
    tree: tuple[Any, ...], drawn: list[tuple[str | None, Key | None, dict[str, str]]], data: Any
) -> None:
    text = written(tree, data.draw)
    expression = parse(text, "expression")
    assert parse(expression.text, "expression") == expression
    for tag, key, known in drawn:
        expected = {FALSE: False, UNKNOWN: None, TRUE: True}[names_of((tag, key, known)).says(tree)]
        assert expression.test(Subject(tag, key, known)) is expected, text


@settings(max_examples=times(80, 5_000), deadline=None)
@given(trees, st.lists(subjects, min_size=1, max_size=6), st.data())
def test_a_broker_keeps_the_records_of_which_it_is_true(
    tree: tuple[Any, ...], drawn: list[tuple[str | None, Key | None, dict[str, str]]], data: Any
) -> None:
    """Also compressed ones, and whatever bytes it looks for first."""
    records, expected, kept, at = [], [], [], 0
    for number, (tag, key, known) in enumerate(drawn, 1):
        compression = data.draw(st.sampled_from([0, COMPRESSION_ZLIB]))
        payload = data.draw(st.sampled_from([b"", b"a", b"price", b"x" * 300]))
        record = encode_record(
            number,
            compress(payload, compression) if compression else payload,
            None if tag is None else tag.encode(),
            encode_properties(Properties(key=key, headers=known)),
            compression,
            data.draw(st.sampled_from([CHECKSUM_MD5, CHECKSUM_CRC32C])),
        )
        if names_of((tag, None if key == "" else key, known)).says(tree) == TRUE:
            expected.append(at)
            kept.append(record)
        records.append(record)
        at += len(record)
    wanted = Filter.of_request([], written(tree, data.draw))
    slices, offsets, end = filter_records(memoryview(b"".join(records)), 0, wanted)
    assert (offsets, end) == (expected, at)
    assert b"".join(slices) == b"".join(kept)


fragments = st.sampled_from(
    [
        *("(", ")", ",", "=", "<>", "<", ">=", "'", "''", '"', "a", "1", "-1", "1e999", ".5", "é"),
        *("\x00", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN", "CONTAINS"),
    ]
)


@settings(max_examples=times(200, 5_000), deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(fragments, max_size=40).map(" ".join)))
@example("a = 1 AND")
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        found = parse(text, "expression")
    except InvalidArgument as refused:
        found, said = None, str(refused)
    if found is None:
        assert re.search(r"is wrong at character \d+: |is not text", said)
    else:
        assert parse(found.text, "expression") == found
        assert found.terms <= limits.FILTER_TERMS_MAX


def test_a_group_stores_what_it_reads() -> None:
    """What was parsed is parsed again by the next member, word for word."""
    wanted = Filter.of_request([], "a in ('x')")
    assert Filter.of_stored(wanted.stored) == wanted
    with pytest.raises(InvalidArgument):
        parse(wanted.stored, "expression")
