"""Which metrics and labels an expression of PromQL names. A lexer: strings are no names."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    | (?P<number>\d[\d.]*(?:[a-zA-Z]+\d*)*|\$\w+)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){}\[\],=<>@:])
    """,
    re.VERBOSE,
)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset", "start", "end", "inf", "nan"}


@dataclass
class Named:
    """What an expression names.

    Attributes:
        selectors: Each metric with the labels that its matchers name.
        groupings: Labels of ``by``, ``on``, ``group_left`` and the like.
    """

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    groupings: set[str] = field(default_factory=set)


def named_in(expression: str) -> Named:
    """Return what an expression names; variables of Grafana may stand where texts and times do."""
    tokens = list(_tokens(expression))
    found = Named()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name" or text in _WORDS:
            continue
        if text in _GROUPING:
            if following == "(":
                at, labels = _list(tokens, at + 1, ")")
                found.groupings |= labels
        elif following == "{":
            at, labels = _list(tokens, at + 1, "}")
            found.selectors.append((text, labels))
        elif following != "(" and not (following in _GROUPING and text in _AGGREGATIONS):
            found.selectors.append((text, set()))
    return found


_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "quantile", "stddev"}


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        assert found is not None, f"no PromQL at {expression[at:]!r}"
        at = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found.group()


def _list(tokens: list[tuple[str, str]], at: int, close: str) -> tuple[int, set[str]]:
    """Return where a list ends, and the names in it."""
    labels = set()
    while tokens[at][1] != close:
        if tokens[at][0] == "name":
            labels.add(tokens[at][1])
        at += 1
    return at + 1, labels
