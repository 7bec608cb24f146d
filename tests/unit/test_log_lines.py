"""The form of a log line, and that every logging call of vq has it."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.raising_logs import raising_logs

import vq
from vq.errors import DiskFull
from vq.log_lines import VALUE_CHARS_MAX, Line, get_logger

PACKAGE = Path(vq.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: They set up how lines are shown, or quieten another library.
OWN_LOGGERS = {"log_lines.py", "cli/broker.py", "cli/consume.py", "cli/logs.py", "cli/text.py"}


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
        (DiskFull("91 % in use"), '"DiskFull: 91 % in use (status 26)"'),
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


@pytest.mark.parametrize("method", sorted(LEVELS - {"log"}))
def test_a_handler_that_raises_is_shown_and_ends_nothing(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that logs goes on."""
    logger = get_logger("vq.test.raising")
    with raising_logs(logger.name) as handler:
        getattr(logger, method)("it happened", partition="t-0")
        logger.log(logging.INFO, "it happened")
    assert handler.lines == ["it happened partition=t-0", "it happened"]
    assert capsys.readouterr().err.count("RuntimeError: a bug of the application") == 2


def test_a_handler_may_end_the_program() -> None:
    """``KeyboardInterrupt`` and ``SystemExit`` are no errors of a handler."""
    logger = get_logger("vq.test.raising")
    with raising_logs(logger.name, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        logger.error("it happened")


def logging_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the logging calls of vq, each with its file and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and ast.unparse(node.func.value).endswith("logger")
            ):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_each_logging_call_has_a_constant_message_and_names_its_values() -> None:
    """Two lines of one event differ in their values only, so a line can be searched for."""
    calls = list(logging_calls())
    assert len(calls) > 100, "the search finds the calls"
    for place, call in calls:
        assert isinstance(call.func, ast.Attribute)
        messages = call.args[1:] if call.func.attr == "log" else call.args
        assert len(messages) == 1, f"{place}: one message, values as keywords"
        message = messages[0]
        assert isinstance(message, ast.Constant), f"{place}: the message is a constant"
        assert isinstance(message.value, str), f"{place}: the message is a text"
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9 ,;:'()/-]*[A-Za-z0-9)]", message.value), (
            f"{place}: plain words without values: {message.value!r}"
        )
        assert all(keyword.arg for keyword in call.keywords), f"{place}: each value has its name"


def test_modules_take_their_logger_from_one_place() -> None:
    """A logger of ``logging`` itself would take lines of any form."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        loggers = re.findall(r"logging\.getLogger\(([^)]*)\)", path.read_text())
        if name not in OWN_LOGGERS:
            others = [each for each in loggers if not re.search("kazoo|apscheduler", each)]
            assert not others, f"{name}: use log_lines.get_logger"
