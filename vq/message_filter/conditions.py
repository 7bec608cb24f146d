"""What the parts of an expression mean: verdicts with three values about one message.

A verdict is True, False, or None, which is SQL's *unknown*: a property is missing, or its text is
not of the kind it is compared with. A message passes if the verdict on it is True.

Headers are text. So the other side of a comparison decides how the text is read:

    | compared with | the text counts as                                                       |
    | text          | it is                                                                    |
    | a number      | a number, if all of it is one (``number_of``), else unknown              |
    | TRUE, FALSE   | a truth value, if it is one of these words in any case, else unknown     |
    | a property    | it is, for = and <>; a number on both sides for <, <=, >, >=             |

Each condition also knows *needles*, by which most messages are passed over without reading their
headers: a record of which the condition is true has the bytes of one of them somewhere.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from vq.model import Key

#: Names of what is no header, as in RocketMQ.
TAG_NAME: Final = "TAGS"
KEY_NAME: Final = "KEYS"
#: A longer text is no number: exact integers of any length would take any time.
NUMBER_CHARS_MAX: Final = 64
#: More needles than these would take longer to look for than headers take to be read.
NEEDLES_MAX: Final = 4

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTHS: Final = {"true": True, "false": False}
_ORDERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMERIC: Final[Mapping[str, Callable[[float, float], bool]]] = {
    **_ORDERS,
    "=": operator.eq,
    "<>": operator.ne,
}
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_RELATIONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}

Verdict: TypeAlias = bool | None


class Subject(NamedTuple):
    """What a message has beside its content."""

    tag: str | None
    key: Key | None
    headers: Mapping[str, str]


class Needles(NamedTuple):
    """What a record has one of in which a condition is true.

    Attributes:
        rank: 2: values, 1: names of headers, which other records have, too; 0: nothing is known.
        any_of: UTF-8; empty with rank 0.
    """

    rank: int
    any_of: frozenset[bytes]


NO_NEEDLES: Final = Needles(0, frozenset())
Test: TypeAlias = Callable[[Subject], Verdict]


class Predicate(NamedTuple):
    """A part of an expression that has a verdict."""

    test: Test
    needles: Needles = NO_NEEDLES


class Property(NamedTuple):
    """A name in an expression.

    Attributes:
        name: Of a header, or ``TAG_NAME`` or ``KEY_NAME``.
        text: Returns what a message has there; None: nothing.
        needles: What each record has that has it.
    """

    name: str
    text: Callable[[Subject], str | None]
    needles: Needles

    @classmethod
    def named(cls, name: str) -> "Property":
        """Return the property of a name without quotes."""
        if name == TAG_NAME:
            return cls(name, lambda subject: subject.tag, NO_NEEDLES)
        if name == KEY_NAME:
            return cls(name, lambda subject: _key_text(subject.key), NO_NEEDLES)
        return cls.header(name)

    @classmethod
    def header(cls, name: str) -> "Property":
        """Return the property that is the header of a name."""
        return cls(name, lambda subject: subject.headers.get(name), _needles(1, [name]))

    def holds(self, value: str) -> Needles:
        """Return what a record has in which this has a text, or begins or ends with it."""
        # An integer key is no text in a record.
        return self.needles if self.name == KEY_NAME or not value else _needles(2, [value])


#: Bool before int: TRUE is no number.
Operand: TypeAlias = Property | bool | int | float | str


def _key_text(key: Key | None) -> str | None:
    """Return a key as text: an integer in digits, bytes if they are UTF-8."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, int):
        return str(key)
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def number_of(text: str) -> float | None:
    """Return the number that a text is; None: it is none.

    All of it is an integer or a decimal fraction in digits, with an exponent or without. Integers
    are exact, fractions have the precision of a double. What is beyond a double's range is none.
    """
    if len(text) > NUMBER_CHARS_MAX:
        return None
    if text.isdigit() and text.isascii():
        return int(text)
    if _NUMBER.fullmatch(text) is None:
        return None
    try:
        return int(text)
    except ValueError:  # a fraction
        found = float(text)
        return None if math.isinf(found) else found


# Comparisons ------------------------------------------------------------------------------------
def compared(sign: str, left: Operand, right: Operand) -> Predicate | str:
    """Return the condition that two operands compare; or what is wrong with them."""
    if not isinstance(left, Property):
        if not isinstance(right, Property):
            return "expected a property on one side of the comparison"
        return compared(_FLIPPED.get(sign, sign), right, left)
    if isinstance(right, Property):
        return _compared_properties(sign, left, right)
    if isinstance(right, bool | str):
        if sign in _ORDERS:
            return f"expected a number beside {sign}: texts and truth values have no order"
        found = _equals(left, right)
        return found if sign == "=" else negated(found, left.needles)
    return _compared_number(_NUMERIC[sign], left, right)


def _equals(left: Property, right: bool | str) -> Predicate:
    text_of = left.text
    if isinstance(right, str):

        def is_text(subject: Subject) -> Verdict:
            text = text_of(subject)
            return None if text is None else text == right

        return Predicate(is_text, left.holds(right))

    def is_truth(subject: Subject) -> Verdict:
        text = text_of(subject)
        truth = None if text is None else _TRUTHS.get(text.lower())
        return None if truth is None else truth is right

    return Predicate(is_truth, left.needles)


def _compared_number(
    holds: Callable[[float, float], bool], left: Property, right: float
) -> Predicate:
    text_of = left.text

    def test(subject: Subject) -> Verdict:
        text = text_of(subject)
        number = None if text is None else number_of(text)
        return None if number is None else holds(number, right)

    return Predicate(test, left.needles)


def _compared_properties(sign: str, left: Property, right: Property) -> Predicate:
    left_of, right_of = left.text, right.text
    order = _ORDERS.get(sign)

    def test(subject: Subject) -> Verdict:
        one, other = left_of(subject), right_of(subject)
        if one is None or other is None:
            return None
        if order is None:
            return (one == other) is (sign == "=")
        low, high = number_of(one), number_of(other)
        return None if low is None or high is None else order(low, high)

    return Predicate(test, _both(left.needles, right.needles))


def one_of(left: Property, values: Sequence[str | float]) -> Predicate:
    """Return the condition that a property is one of some texts or numbers."""
    text_of = left.text
    texts = frozenset(each for each in values if isinstance(each, str))
    numbers = frozenset(each for each in values if not isinstance(each, str))

    def test(subject: Subject) -> Verdict:
        text = text_of(subject)
        if text is None or text in texts:
            return None if text is None else True
        if not numbers:
            return False
        number = number_of(text)
        return None if number is None else number in numbers

    found = NO_NEEDLES if numbers else _either([left.holds(each) for each in texts])
    return Predicate(test, found if found.rank > 1 else left.needles)


def text_related(word: str, left: Property, value: str) -> Predicate:
    """Return the condition that a property contains a text, or begins or ends with it."""
    text_of, holds = left.text, _TEXT_RELATIONS[word]

    def test(subject: Subject) -> Verdict:
        text = text_of(subject)
        return None if text is None else holds(text, value)

    return Predicate(test, left.holds(value))


def is_missing(left: Property, *, expected: bool) -> Predicate:
    """Return the condition that a property is missing, or that it is not; never unknown."""
    text_of = left.text
    needles = NO_NEEDLES if expected else left.needles
    return Predicate(lambda subject: (text_of(subject) is None) is expected, needles)


# Logic ------------------------------------------------------------------------------------------
def negated(condition: Predicate, needles: Needles = NO_NEEDLES) -> Predicate:
    """Return NOT: of unknown it is unknown. ``needles``: what is known of it all the same."""
    test_one = condition.test

    def test(subject: Subject) -> Verdict:
        found = test_one(subject)
        return None if found is None else not found

    return Predicate(test, needles)


def all_of(conditions: Sequence[Predicate]) -> Predicate:
    """Return AND: False if one is False, else unknown if one is."""
    return Predicate(
        _until(False, [each.test for each in conditions]),
        max((each.needles for each in conditions), key=_worth),
    )


def any_of(conditions: Sequence[Predicate]) -> Predicate:
    """Return OR: True if one is True, else unknown if one is."""
    return Predicate(
        _until(True, [each.test for each in conditions]),
        _either([each.needles for each in conditions]),
    )


def _until(end: bool, tests: Sequence[Test]) -> Test:
    """Return what looks for a verdict that decides; the rest is not asked then."""

    def test(subject: Subject) -> Verdict:
        verdict: Verdict = not end
        for each in tests:
            found = each(subject)
            if found is end:
                return end
            if found is None:
                verdict = None
        return verdict

    return test


# Needles ----------------------------------------------------------------------------------------
def _needles(rank: int, texts: Iterable[str]) -> Needles:
    return Needles(rank, frozenset(each.encode() for each in texts))


def _worth(needles: Needles) -> tuple[int, int]:
    """Of several that all hold, the one is looked for that fewest records have by chance."""
    return needles.rank, min(map(len, needles.any_of), default=0)


def _both(one: Needles, other: Needles) -> Needles:
    return max(one, other, key=_worth)


def _either(several: Sequence[Needles]) -> Needles:
    rank = min(each.rank for each in several)
    found = frozenset[bytes]().union(*(each.any_of for each in several))
    return Needles(rank, found) if rank and len(found) <= NEEDLES_MAX else NO_NEEDLES
