"""The one table of the console: its rows cut, found, sorted, told as a page, as CSV or as JSON.

A page first sorts and cuts, and only then asks for the details of the rows that it shows.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

R = TypeVar("R")
PAGE_ROWS: Final = 50
PAGE_ROWS_MAX: Final = 500
EXPORT_ROWS_MAX: Final = 100_000
_SEARCH_CHARS_MAX: Final = 200


class Kind(StrEnum):
    """How a cell is shown; numbers are at the right."""

    TEXT = "text"
    CODE = "code"
    COUNT = "count"
    BYTES = "bytes"
    RATE = "rate"
    PER_S = "per_s"
    PERCENT = "percent"
    DURATION = "duration"
    MOMENT = "moment"
    STATE = "state"
    LIST = "list"


NUMBERS: Final = frozenset(
    {Kind.COUNT, Kind.BYTES, Kind.RATE, Kind.PER_S, Kind.PERCENT, Kind.DURATION}
)
#: Kinds whose values are numbers: "" stands beside them for what there is none of.
_MEASURED: Final = NUMBERS | {Kind.MOMENT}


@dataclass(frozen=True, slots=True)
class StateWord:
    """A word for how something is; ``tone``: ok, warn, bad, quiet. The word says it, too."""

    word: str
    tone: str = "quiet"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """A column.

    Attributes:
        key: Names it in addresses and exports.
        title: In English; the page translates it.
        value: Of a row: plain, None for what is not known, "" for what there is none of.
        kind: How it is shown.
        link: Where a click on a cell leads; None: nowhere.
        sorts: Rows can be sorted by it.
    """

    key: str
    title: str
    value: Callable[[R], Any]
    kind: Kind = Kind.TEXT
    link: Callable[[R], str | None] | None = None
    sorts: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address of a page asks of its table."""

    search: str = ""
    sort: str = ""
    descending: bool = False
    page: int = 1
    size: int = PAGE_ROWS
    export: str = ""
    others: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str], prefix: str = "") -> "Asked":
        """Return what a query asks; what makes no sense counts as not asked.

        ``prefix`` is before the names, where a page has several tables.
        """
        own = {f"{prefix}{name}" for name in ("q", "sort", "desc", "page", "size", "export")}

        def whole(name: str, default: int, most: int) -> int:
            text = query.get(f"{prefix}{name}", "")
            found = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else default
            return min(max(1, found), most)

        return cls(
            query.get(f"{prefix}q", "")[:_SEARCH_CHARS_MAX].strip(),
            query.get(f"{prefix}sort", ""),
            query.get(f"{prefix}desc") == "1",
            whole("page", 1, 10_000_000),
            whole("size", PAGE_ROWS, PAGE_ROWS_MAX),
            query.get(f"{prefix}export", ""),
            {name: value for name, value in query.items() if name not in own},
            prefix,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell as a template shows it."""

    value: Any
    kind: Kind
    link: str | None = None


@dataclass(frozen=True, slots=True)
class TablePage(Generic[R]):
    """A table as a template shows it.

    Attributes:
        columns: Of the table.
        rows: Those of this page.
        total: How many rows there are in all, after the search.
        asked: What was asked for.
        empty: What to do if there is no row at all, in English.
    """

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    total: int
    asked: Asked
    empty: str = ""
    searchable: bool = True

    def cells(self, row: R) -> list[Cell]:
        """Return the cells of a row."""
        return [
            Cell(each.value(row), each.kind, each.link(row) if each.link is not None else None)
            for each in self.columns
        ]

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.total // self.asked.size))

    def address(self, **changes: Any) -> str:
        """Return the query of this table with changes."""
        asked = self.asked
        values = {
            "q": asked.search,
            "sort": asked.sort,
            "desc": "1" if asked.descending else "",
            "page": asked.page if asked.page > 1 else "",
            "size": asked.size if asked.size != PAGE_ROWS else "",
        }
        values |= changes
        named = {f"{asked.prefix}{name}": str(value) for name, value in values.items() if value}
        return "?" + urlencode({**asked.others, **named})

    def sort_address(self, column: Column[R]) -> str:
        """Return the query that sorts by a column, the other way round if it does already."""
        turned = self.asked.sort == column.key and not self.asked.descending
        first_down = column.kind in NUMBERS and self.asked.sort != column.key
        return self.address(sort=column.key, desc="1" if turned or first_down else "", page="")


def table(
    columns: Sequence[Column[R]],
    rows: Sequence[R],
    asked: Asked,
    *,
    empty: str = "",
    searched: Callable[[R], str] | None = None,
) -> TablePage[R]:
    """Return the page of a table that is asked for.

    Args:
        columns: Of the table; the first one sorts if nothing else is asked.
        rows: All of them; what a column costs is paid for all only if it sorts.
        asked: What is asked.
        empty: What to do if there are none.
        searched: The text of a row in which the search looks; None: there is no search.
    """
    found = rows
    if asked.search and searched is not None:
        wanted = asked.search.casefold()
        found = [each for each in rows if wanted in searched(each).casefold()]
    column = next((each for each in columns if each.key == asked.sort and each.sorts), None)
    if column is not None:
        found = _sorted(found, column, descending=asked.descending)
    size = EXPORT_ROWS_MAX if asked.export else asked.size
    begin = 0 if asked.export else (asked.page - 1) * size
    if begin >= len(found):
        begin = (len(found) - 1) // size * size if found else 0
    return TablePage(
        columns,
        found[begin : begin + size],
        len(found),
        asked,
        empty,
        searched is not None,
    )


def _sorted(rows: Sequence[R], column: Column[R], *, descending: bool) -> list[R]:
    """Return rows by a column; those without a value, or with one that is not known, come last."""
    values = [(_plain(column.value(each), column.kind), each) for each in rows]
    known = [each for each in values if each[0] is not None]
    unknown = [row for value, row in values if value is None]
    known.sort(key=lambda each: each[0], reverse=descending)
    return [row for _, row in known] + unknown


def _plain(value: Any, kind: Kind) -> Any:
    if value == "" and kind in _MEASURED:
        return None
    if isinstance(value, StateWord):
        return value.word
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value


def as_csv(page: TablePage[Any]) -> str:
    """Return rows as CSV; a cell that a spreadsheet would run as a formula is made text."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([each.key for each in page.columns])
    for row in page.rows:
        writer.writerow([safe_cell(_plain(each.value(row), each.kind)) for each in page.columns])
    return out.getvalue()


def as_json(page: TablePage[Any]) -> list[dict[str, Any]]:
    """Return rows as plain values by the keys of their columns."""
    return [
        {each.key: _plain(each.value(row), each.kind) for each in page.columns} for row in page.rows
    ]


def safe_cell(value: Any) -> Any:
    """Return a value for a spreadsheet: text that begins like a formula gets a quote in front."""
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n"):
        return f"'{value}"
    return value
