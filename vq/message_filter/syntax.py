"""From the text of an expression to its condition: a Pratt parser, in one pass and bounded.

The grammar is RocketMQ's subset of SQL92; weaker binding first::

    condition:  condition OR condition | condition AND condition | NOT condition | ( condition )
                | operand (= <> < <= > >=) operand
                | operand [NOT] BETWEEN operand AND operand
                | property [NOT] IN ( value, … )
                | property [NOT] (CONTAINS STARTSWITH ENDSWITH) text
                | property IS [NOT] NULL
    operand:    property | value
    value:      a number | 'a text', with '' for ' | TRUE | FALSE (not in IN)
    property:   a name | "any name"

Words are in any case, names are as written. NOT negates the comparison behind it, as in SQL.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn

from vq import limits
from vq.errors import InvalidArgument
from vq.message_filter.conditions import (
    KEY_NAME,
    Operand,
    Predicate,
    Property,
    Subject,
    all_of,
    any_of,
    compared,
    is_missing,
    negated,
    number_of,
    one_of,
    text_related,
)
from vq.shown import shown

# Quantifiers are possessive, so that no token is tried twice.
_TOKEN: Final = re.compile(
    r"""[ \t\r\n\f]*+(?:
      (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?)
    | (?P<text>'(?:[^']|'')*+')
    | (?P<quoted>"(?:[^"]|"")*+")
    | (?P<word>[A-Za-z_$][A-Za-z0-9_$.]*+)
    | (?P<sign><=|>=|<>|[=<>(),+-])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_SIGNS: Final = frozenset({"=", "<>", "<", "<=", ">", ">="})
_RELATIONS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_WORDS: Final = _RELATIONS | {"AND", "BETWEEN", "FALSE", "IN", "IS", "NOT", "NULL", "OR", "TRUE"}
_NO_SPACE_BEFORE, _NO_SPACE_BEHIND = frozenset({")", ","}), frozenset({"(", "-", "+"})
_END: Final = "the end"
_OPERAND: Final = "a property, a number, a text in single quotes, TRUE, FALSE, NOT or ("
_COMPARISON: Final = "=, <>, <, <=, >, >=, BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH or IS"
_OR_POWER, _AND_POWER, _NOT_POWER = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition that was parsed; two are equal if they are written with the same words.

    Attributes:
        text: With single spaces and words in capitals.
        terms: How many operands it has; what a verdict costs rises with it.
        test: Returns its verdict: True, False, or None for unknown.
        needles: A record of which it is true has the bytes of one of these; empty: not known.
        reads_key: It looks at the key.
    """

    text: str
    terms: int = field(compare=False)
    test: Callable[[Subject], bool | None] = field(compare=False, repr=False)
    needles: frozenset[bytes] = field(compare=False, repr=False)
    reads_key: bool = field(compare=False, repr=False)


class _Token(NamedTuple):
    kind: str  # a word, a sign, "name", "number", "text" or the end
    text: str
    at: int


def parse(text: str, what: str) -> Expression:
    """Return the expression that a text is; ``what`` names it in errors.

    Raises:
        InvalidArgument: It is none, or longer, deeper or of more operands than is taken.
    """
    _check_size(text, what)
    found = _Parser(text, what).expression()
    _check_size(found.text, f"{what}, with spaces between its words,")  # so it goes to brokers
    return found


def _check_size(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} {shown(text)} is not text: {error}") from error
    if size > limits.FILTER_EXPRESSION_BYTES_MAX:
        raise InvalidArgument(
            f"{what} has {size} bytes; at most {limits.FILTER_EXPRESSION_BYTES_MAX} are taken"
        )


class _Parser:
    """Reads one text from left to right; ``_now`` is the token that was not used yet."""

    def __init__(self, text: str, what: str) -> None:
        self._text = text
        self._what = what
        self._written: list[str] = []
        self._terms = 0
        self._depth = 0
        self._reads_key = False
        self._next_at = 0
        self._now = self._read()

    def expression(self) -> Expression:
        condition = self._condition(0)
        if self._now.kind != _END:
            self._wrong("expected AND, OR or the end")
        needles = condition.needles.any_of
        text = "".join(self._written)
        return Expression(text, self._terms, condition.test, needles, self._reads_key)

    # Tokens -----------------------------------------------------------------------------------
    def _read(self) -> _Token:
        found = _TOKEN.match(self._text, self._next_at)
        if found is None:
            at = self._next_at
            while self._text[at] in " \t\r\n\f":
                at += 1
            sign = self._text[at]
            problem = {"'": "a text without its end", '"': "a name without its end"}.get(
                sign, f"{sign!r} means nothing here"
            )
            self._wrong(problem, at)
        self._next_at = found.end()
        kind = str(found.lastgroup)
        text, at = found[kind], found.start(kind)
        if kind == "word":
            upper = text.upper()
            return _Token(upper, upper, at) if upper in _WORDS else _Token("name", text, at)
        if kind == "end":
            return _Token(_END, "", at)
        return _Token(text if kind == "sign" else kind, text, at)

    def _take(self) -> _Token:
        token = self._now
        if self._written and token.kind not in _NO_SPACE_BEFORE:
            self._written.append(" " * (self._written[-1] not in _NO_SPACE_BEHIND))
        self._written.append(token.text)
        self._now = self._read()
        return token

    def _took(self, *kinds: str) -> bool:
        if self._now.kind not in kinds:
            return False
        self._take()
        return True

    def _expect(self, kind: str, wanted: str = "") -> _Token:
        if self._now.kind != kind:
            self._wrong(f"expected {wanted or kind}")
        return self._take()

    def _wrong(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise an error that shows the place, which is the present token if none is given."""
        found = ""
        if at is None:
            at = self._now.at
            shown_text = self._text[at : self._next_at]
            found = f", found {shown(shown_text) if shown_text else _END}"
        raise InvalidArgument(
            f"{self._what} {shown(self._text)} is wrong at character {at + 1}: {problem}{found}"
        )

    # Conditions -------------------------------------------------------------------------------
    def _condition(self, power: int) -> Predicate:
        """Return the condition up to a word that binds no stronger than ``power``."""
        found = self._first()
        for word, binds, combine in (("AND", _AND_POWER, all_of), ("OR", _OR_POWER, any_of)):
            if power < binds and self._now.kind == word:
                several = [found]
                while self._took(word):
                    several.append(self._condition(binds))
                found = combine(several)
        return found

    def _first(self) -> Predicate:
        if self._now.kind not in {"NOT", "("}:
            return self._comparison()
        self._depth += 1
        if self._depth > limits.FILTER_DEPTH_MAX:
            self._wrong(f"more than {limits.FILTER_DEPTH_MAX} NOT and ( inside one another")
        if self._take().kind == "NOT":
            found = negated(self._condition(_NOT_POWER))
        else:
            found = self._condition(0)
            self._expect(")", "AND, OR or )")
        self._depth -= 1
        return found

    def _comparison(self) -> Predicate:
        at = self._now.at
        left = self._operand(_OPERAND)
        if self._now.kind in _SIGNS:
            return self._compared(self._take().kind, left, self._operand("a value"), at)
        is_not = self._took("NOT")
        if not is_not and self._took("IS"):
            is_null = not self._took("NOT")
            self._expect("NULL", "NULL" if not is_null else "NULL or NOT NULL")
            return is_missing(self._property(left, at), expected=is_null)
        if self._took("BETWEEN"):
            found = self._between(left, at)
        elif self._took("IN"):
            found = self._in(self._property(left, at))
        elif self._now.kind in _RELATIONS:
            word = self._take().kind
            value = _unquoted(self._expect("text", "a text in single quotes").text)
            self._count()
            found = text_related(word, self._property(left, at), value)
        elif is_not:
            self._wrong("expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
        else:
            self._wrong(f"expected a comparison: {_COMPARISON}")
        return negated(found) if is_not else found

    def _compared(self, sign: str, left: Operand, right: Operand, at: int) -> Predicate:
        found = compared(sign, left, right)
        if isinstance(found, str):
            self._wrong(found, at)
        return found

    def _between(self, value: Operand, at: int) -> Predicate:
        low_at = self._now.at
        low = self._operand("a number")
        self._expect("AND", "AND and the upper bound")
        high = self._operand("a number")
        if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
            self._wrong(f"nothing is between {low} and {high}: give the lower bound first", low_at)
        return all_of([self._compared(">=", value, low, at), self._compared("<=", value, high, at)])

    def _in(self, left: Property) -> Predicate:
        self._expect("(", "( and values")
        values: list[str | float] = []
        while not values or self._took(","):
            at = self._now.at
            value = self._operand("a number or a text in single quotes")
            if isinstance(value, Property | bool):
                self._wrong("expected a number or a text in single quotes", at)
            values.append(value)
        self._expect(")", ", or )")
        return one_of(left, values)

    # Operands ---------------------------------------------------------------------------------
    def _operand(self, wanted: str) -> Operand:
        self._count()
        is_minus = self._now.kind == "-"
        if self._took("-", "+"):
            number = self._number(self._expect("number", "a number"))
            return -number if is_minus else number
        match self._now.kind:
            case "number":
                return self._number(self._take())
            case "text":
                return _unquoted(self._take().text)
            case "TRUE" | "FALSE":
                return self._take().kind == "TRUE"
            case "name":
                self._reads_key |= self._now.text == KEY_NAME
                return Property.named(self._take().text)
            case "quoted":
                if self._now.text == '""':
                    self._wrong("a name is empty", self._now.at)
                return Property.header(_unquoted(self._take().text))
            case "NULL":
                self._wrong("NULL is compared by IS NULL and IS NOT NULL", self._now.at)
        self._wrong(f"expected {wanted}")

    def _property(self, operand: Operand, at: int) -> Property:
        if not isinstance(operand, Property):
            self._wrong("expected a property here", at)
        return operand

    def _number(self, token: _Token) -> float:
        number = number_of(token.text)
        if number is None:
            self._wrong("a number is too long, or beyond the range of numbers", token.at)
        return number

    def _count(self) -> None:
        self._terms += 1
        if self._terms > limits.FILTER_TERMS_MAX:
            self._wrong(f"more than {limits.FILTER_TERMS_MAX} properties and values")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(2 * quote, quote)
