"""The form of a log line, and that every logging call of vq has it."""

import ast
import contextvars
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.forks import UNWARNED
from support.raising_logs import raising_logs
from support.threads import spawn

import vq
from vq.errors import DiskFull
from vq.log_lines import LINES_MAX, VALUE_CHARS_MAX, Line, drain, get_logger, never_wait
from vq.testing.waiting import WAIT_S, block_until

PACKAGE = Path(vq.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: They set up how lines are shown, or quieten another library.
OWN_LOGGERS = {
    "log_lines.py",
    "cli/brokers/broker.py",
    "console/server.py",
    "gateway/server.py",
    "cli/messages/consume.py",
    "cli/base/logs.py",
    "cli/base/text.py",
}


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


def without_waiting(work: Callable[[], object]) -> None:
    """Do work on a thread that never waits for handlers; return once it is done."""

    def run() -> None:
        never_wait()
        work()

    spawn(run).result(WAIT_S)


VALUE = contextvars.ContextVar("VALUE", default="none")


def test_a_line_of_a_thread_that_never_waits_is_the_same_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another thread writes it: place, thread, context and traceback are those of the call."""
    logger, changing, contexts = get_logger("vq.test"), ["as it was"], []

    def work() -> None:
        VALUE.set("of the call")
        try:
            raise ValueError("bad")
        except ValueError:
            logger.exception("append failed", partition="t-0", values=changing, place=Path("x"))
        changing.append("changed")
        logger.log(logging.WARNING, "disk is filling", used="81%", exc_info=KeyError("k"))
        logger.error("of %s", "kazoo")  # which has values in its messages

    caplog.handler.addFilter(lambda _: contexts.append(VALUE.get()) or True)
    without_waiting(work)
    drain()
    failed, filling, kazoos = caplog.records
    assert failed.getMessage() == "append failed partition=t-0 values=\"['as it was']\" place=x"
    assert (failed.levelname, failed.name, failed.funcName) == ("ERROR", "vq.test", "work")
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], ValueError)
    assert failed.thread != threading.get_ident()
    assert failed.threadName != "vq-log-lines"
    assert (filling.levelname, filling.getMessage()) == ("WARNING", "disk is filling used=81%")
    assert filling.exc_info is not None
    assert filling.exc_info[0] is KeyError
    assert kazoos.getMessage() == "of kazoo"
    assert contexts == ["of the call"] * 3


def test_a_line_that_nobody_sees_is_not_made_on_a_thread_that_never_waits() -> None:
    """By its level, as long as the level is disabled, or because a configuration left it out."""

    class Value:
        def __str__(self) -> str:
            raise AssertionError("nobody sees this")

    def log() -> None:
        logger.info("it happened", value=Value())

    logger = get_logger("vq.test.quiet")
    with raising_logs(logger.name, level=logging.WARNING):
        without_waiting(log)
    with raising_logs(logger.name) as handler:
        logging.disable(logging.INFO)
        try:
            without_waiting(log)
        finally:
            logging.disable(logging.NOTSET)
        logger.logger.disabled = True
        try:
            without_waiting(log)
        finally:
            logger.logger.disabled = False
    drain()
    assert handler.lines == []


def test_a_handler_that_raises_does_not_end_the_writing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not even with what would end the program: it is no thread of the program."""
    logger = get_logger("vq.test.raising")
    with raising_logs(logger.name, SystemExit) as handler:
        without_waiting(lambda: [logger.info("it happened") for _ in range(2)])
        drain()
    assert handler.lines == ["it happened"] * 2
    assert capsys.readouterr().err.count("SystemExit: a bug of the application") == 2


def test_locks_of_logging_and_of_handlers_stop_no_thread_that_never_waits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound it waits once, then loses lines; their number is logged."""
    monkeypatch.setattr("vq.log_lines.STALLED_S", 0.1)
    logger, more = get_logger("vq.test"), 7
    logger.setLevel(logging.INFO)  # no level is cached
    module_lock, handler = logging._lock, caplog.handler  # type: ignore[attr-defined]
    handler.acquire()
    try:
        with module_lock:
            # One line may be in the hands of the handler, so one more fits.
            without_waiting(
                lambda: [logger.warning("it happened", nth=nth) for nth in range(LINES_MAX + more)]
            )
    finally:
        handler.release()
    drain()
    block_until(lambda: len(caplog.records) == LINES_MAX + 1)
    [dropped] = [each for each in caplog.records if each.name == "vq.log_lines"]
    assert dropped.getMessage().endswith(f"dropped={more} stalled_s=0.1")
    assert [record.getMessage() for record in caplog.records if record is not dropped] == [
        f"it happened nth={nth}" for nth in range(LINES_MAX)
    ]


@pytest.mark.slow
def test_a_thread_that_never_waits_keeps_step_with_a_slow_handler() -> None:
    """As long as lines are written none is lost, however many there are."""
    logger, count = get_logger("vq.test.raising"), 3 * LINES_MAX
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.logger.addHandler(handler)
    try:
        without_waiting(lambda: [logger.error("it happened", nth=nth) for nth in range(count)])
        drain()
    finally:
        logger.logger.removeHandler(handler)
    assert seen == [f"it happened nth={nth}" for nth in range(count)]


@pytest.mark.slow
def test_the_thread_that_writes_ends_when_there_is_nothing_to_write() -> None:
    without_waiting(lambda: get_logger("vq.test").error("it happened"))
    block_until(lambda: all(each.name != "vq-log-lines" for each in threading.enumerate()))


ENDS = """
import logging, os, sys, threading
from vq.log_lines import get_logger, never_wait
logging.basicConfig(format="%(message)s", stream=sys.stdout)
logger, held = get_logger("vq.test"), logging.getLogger().handlers[0]
def work():
    never_wait()
    for nth in range(3):
        logger.warning("it happened", nth=nth)
def log():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
LINES = "".join(f"it happened nth={nth}\n" for nth in range(3))
FORKS = """
held.acquire()
log()
if child := os.fork():
    os.waitpid(child, 0)
    held.release()
else:
    log()
"""
#: The end of a process may start no thread, from Python 3.12 on.
LATE = """
import atexit
from unittest import mock
def late():
    with mock.patch("threading.Thread.start", side_effect=RuntimeError):
        work()
atexit.register(late)
"""


@pytest.mark.parametrize(
    ("end", "shown"),
    [("log()", LINES), (FORKS, LINES * 2), (LATE, LINES)],
    ids=["end", "fork", "late"],
)
def test_a_process_ends_when_its_lines_are_written(end: str, shown: str) -> None:
    ended = subprocess.run(
        [sys.executable, *UNWARNED, "-c", ENDS + end],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == (shown, "", 0)


def logging_calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of vq that write a line, or fix its message, each with its file and line."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "logger" not in text and "Problems" not in text:
            continue  # to parse and walk all sources takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and (
                fixes_message(node)
                or (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and ast.unparse(node.func.value).endswith("logger")
                    and path.name != "problems.py"
                )  # it has the message from `Problems(...)`
            ):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def fixes_message(call: ast.Call) -> bool:
    """Whether a call makes ``Problems``, which log with one message."""
    return isinstance(call.func, ast.Name) and call.func.id == "Problems"


def test_each_logging_call_has_a_constant_message_and_names_its_values() -> None:
    """Two lines of one event differ in their values only, so a line can be searched for."""
    calls = list(logging_calls())
    assert len(calls) > 100, "the search finds the calls"
    for place, call in calls:
        is_second = fixes_message(call) or ast.unparse(call.func).endswith(".log")
        messages = call.args[1:] if is_second else call.args
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
