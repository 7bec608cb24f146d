"""The form of a log line."""

import logging
from pathlib import Path

import pytest

from vq.errors import DiskFull
from vq.log_lines import VALUE_CHARS_MAX, Line, get_logger


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("orders-0", "orders-0"),
        (17, "17"),
        (None, "-"),
        (True, "true"),
        (False, "false"),
        ("", '""'),
        ("-", '"-"'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "so"', r'"say \"so\""'),
        ("C:\\", r'"C:\\"'),
        ("line\nline\t\x1b[0m", r'"line\nline\t\x1b[0m"'),
        ("\u202e\u2028\ud800", r'"\u202e\u2028\ud800"'),
        ("数据", "数据"),
        (Path("/var/lib/vq"), "/var/lib/vq"),
        (TimeoutError(), "TimeoutError"),
        (DiskFull("91 % in use"), '"DiskFull: 91 % in use"'),
        ("x" * (VALUE_CHARS_MAX + 1), "x" * VALUE_CHARS_MAX + "…"),
    ],
)
def test_a_value_is_quoted_where_it_would_not_end_at_the_next_space(
    value: object, shown: str
) -> None:
    """A line can be cut into its pairs again, and nothing in it acts on a terminal."""
    assert str(Line("it happened", {"key": value})) == f"it happened key={shown}"


def test_a_record_has_the_line_its_level_and_the_place_of_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fields come in the order of the call; options of ``logging`` are no fields."""
    logger = get_logger("vq.test")
    try:
        raise ValueError("bad")
    except ValueError as error:
        logger.exception("append failed", partition="t-0", error=error)
    logger.log(logging.WARNING, "disk is filling", used="81%", exc_info=None)
    failed, filling = caplog.records
    assert failed.getMessage() == 'append failed partition=t-0 error="ValueError: bad"'
    assert (failed.levelname, failed.name, failed.exc_info is not None) == (
        "ERROR",
        "vq.test",
        True,
    )
    assert failed.funcName == "test_a_record_has_the_line_its_level_and_the_place_of_the_call"
    assert (filling.levelname, filling.getMessage()) == ("WARNING", "disk is filling used=81%")


def test_a_line_below_the_level_makes_no_text() -> None:
    """Nothing asks a value for its text if nobody sees the line."""

    class Value:
        def __str__(self) -> str:
            raise AssertionError("nobody sees this")

    logger = get_logger("vq.test.quiet")
    logger.setLevel(logging.INFO)
    logger.debug("it happened", value=Value())
