"""The one table: sorted, cut, found, told as CSV."""

import csv
import io

from vq.console.web.tables import Asked, Column, Kind, as_csv, as_json, table

ROWS = [("a", 3), ("b", None), ("c", 1), ("=1+1", 2)]
COLUMNS = [
    Column("name", "Name", lambda each: each[0]),
    Column("n", "N", lambda each: each[1], Kind.COUNT),
]


def shown(**query: str) -> list[str]:
    page = table(COLUMNS, ROWS, Asked.of(query), searched=lambda each: each[0])
    return [each[0] for each in page.rows]


def test_rows_are_sorted_and_the_unknown_comes_last() -> None:
    assert shown(sort="n") == ["c", "=1+1", "a", "b"]
    assert shown(sort="n", desc="1") == ["a", "=1+1", "c", "b"]
    assert shown(sort="nonsense") == ["a", "b", "c", "=1+1"]


def test_a_page_beyond_the_end_is_the_last_one() -> None:
    assert shown(size="3", page="2") == ["=1+1"]
    assert shown(size="3", page="99999999999") == ["a", "b", "c"]
    assert shown(size="3", page="99") == ["=1+1"]
    assert shown(size="-1", page="x") == ["a", "b", "c", "=1+1"]
    assert shown(q="B") == ["b"]


def test_a_spreadsheet_runs_no_cell() -> None:
    text = as_csv(table(COLUMNS, ROWS, Asked(export="csv")))
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["name", "n"]
    assert rows[-1] == ["'=1+1", "2"]
    assert rows[2] == ["b", ""]


def test_addresses_keep_what_else_is_asked() -> None:
    page = table(COLUMNS, ROWS, Asked.of({"x": "1", "p.sort": "n"}, "p."))
    assert page.sort_address(COLUMNS[1]) == "?x=1&p.sort=n&p.desc=1"
    assert page.address(page=2) == "?x=1&p.sort=n&p.page=2"


def test_what_there_is_none_of_is_no_number() -> None:
    """It comes last, with the unknown, and a program reads null."""
    page = table(COLUMNS, [("a", ""), ("b", 2), ("c", 1)], Asked.of({"sort": "n"}))
    assert [each[0] for each in page.rows] == ["c", "b", "a"]
    assert as_json(page)[2] == {"name": "a", "n": None}
