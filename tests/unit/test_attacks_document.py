"""The table of attacks names tests that there are, and all that are about attacks alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
PAGE: Final = (TESTS.parent / "docs/reference/attacks.md").read_text()
_NAMED: Final = re.compile(r"`([\w/]+/test_\w+\.py|test_\w+\.py)::(test_\w+)`")
#: Every test of these is an attack, so each has a row.
ALL_OF: Final = ("test_hostile*.py", "test_strangers.py", "test_attack*.py", "test_aborted_*.py")
#: They are about what looks for attacks.
_ABOUT_THE_TABLE: Final = {Path(__file__).name}


def rows() -> list[list[str]]:
    """Return the cells of all rows, without heads and rules."""
    lines = [each for each in PAGE.splitlines() if each.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", each)[1:-1]] for each in lines]
    return [each for each in cells if each[0] != "attack" and not each[0].startswith("---")]


def named() -> set[tuple[str, str]]:
    return set(_NAMED.findall(PAGE))


def claims_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and node.name.startswith("test_"):
            yield node.name


def test_each_test_of_the_table_is_there() -> None:
    found = {name: set(claims_of(TESTS / name)) for name in {file for file, _ in named()}}
    assert [each for each in sorted(named()) if each[1] not in found[each[0]]] == []


def test_each_row_has_an_attack_an_outcome_and_a_test() -> None:
    assert len(rows()) > 60
    assert [each for each in rows() if len(each) == 3 and not _NAMED.findall(each[2])] == []
    assert [each for each in rows() if not all(each)] == []


def test_each_test_that_is_an_attack_is_in_the_table() -> None:
    missing = [
        (path.relative_to(TESTS).as_posix(), name)
        for pattern in ALL_OF
        for path in sorted(TESTS.rglob(pattern))
        if path.name not in _ABOUT_THE_TABLE
        for name in claims_of(path)
        if (path.relative_to(TESTS).as_posix(), name) not in named()
    ]
    assert missing == []
