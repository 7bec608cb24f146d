"""The programs with types: their marks, and how a difference is told."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import typed_programs  # noqa: E402


def test_marks_are_found_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1\nb = c  # refused\n")
    (tmp_path / "two.py").write_text("refused = 1\n")
    assert typed_programs.expected(tmp_path) == {("one.py", 2)}


def test_each_difference_is_a_line() -> None:
    found = {("a.py", 1): "wrong", ("a.py", 2): "also"}
    lines = typed_programs.differences("mypy", found, {("a.py", 2), ("b.py", 3)})
    assert lines == ["mypy: a.py:1: wrong", "mypy: b.py:3: takes what it must refuse"]


def test_names_that_do_not_exist_are_among_the_marked_lines() -> None:
    text = (typed_programs.PROGRAMS / "refused.py").read_text()
    assert "vq.NoSuchName  # refused" in text


def test_a_check_leaves_nothing_beside_the_programs(tmp_path: Path) -> None:
    """`make clean` knows the cache of the checkout, and no other."""
    pytest.importorskip("mypy", reason="`make test` installs no checkers")
    (tmp_path / "one.py").write_text("a: int = 'text'\n")
    assert list(typed_programs.found_by_mypy(tmp_path)) == [("one.py", 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["one.py"]
