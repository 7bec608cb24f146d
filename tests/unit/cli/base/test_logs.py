"""Log lines of a command: levels, texts for people, JSON for programs."""

import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from vq.cli import main
from vq.cli.base.logs import LogOptions
from vq.cli.base.settings import Sources, choice, strangers
from vq.errors import InvalidArgument
from vq.log_lines import get_logger


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Leave logging as it was."""
    logger = logging.getLogger()
    before = logger.level, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Message and fields apart; numbers stay numbers, and an exception has its traceback."""
    LogOptions(form="json").start(broker="b1/n1")
    try:
        raise ValueError("why\n\x1b")
    except ValueError as error:
        get_logger("vq.x").warning(
            "it failed", offset=7, error=error, who={"a": None}, exc_info=True
        )
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["broker"]) == ("warning", "vq.x", "b1/n1")
    assert told["message"] == "it failed"
    assert told["fields"] == {"offset": 7, "error": "ValueError: why\n\x1b", "who": {"a": None}}
    assert "Traceback" in told["exception"]
    assert told["time"].endswith("+00:00")


def test_a_text_names_the_broker(capsys: pytest.CaptureFixture[str]) -> None:
    LogOptions().start("info", broker="b1/n1")
    get_logger("vq.x").info("it runs", at=5)
    assert capsys.readouterr().err.endswith("INFO broker=b1/n1 vq.x: it runs at=5\n")


@pytest.mark.parametrize(("given", "seen"), [("", False), ("info", True), ("error", False)])
def test_the_level_that_is_given_counts(
    capsys: pytest.CaptureFixture[str], given: str, seen: bool
) -> None:
    LogOptions(given).start("warning")
    get_logger("vq.x").info("detail")
    assert ("detail" in capsys.readouterr().err) is seen


def test_level_and_format_come_from_the_same_places_as_settings() -> None:
    levels = ("info", "error")
    environ, file = {"VQ_LOG_LEVEL": "error"}, {"log_level": "info"}
    assert choice("log_level", levels, Sources()) is None
    assert choice("log_level", levels, Sources(file=file)) == "info"
    assert choice("log_level", levels, Sources(file=file, environ=environ)) == "error"
    flags = {"log_level": "info"}
    assert choice("log_level", levels, Sources(flags=flags, environ=environ)) == "info"
    with pytest.raises(InvalidArgument, match="VQ_LOG_LEVEL = 'loud' is not one of info, error"):
        choice("log_level", levels, Sources(environ={"VQ_LOG_LEVEL": "loud"}))


def test_a_variable_that_is_no_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be of somebody else, so the command goes on; one of a section is refused."""
    known = ("VQ_CONFIG", "VQ_ZOOKEEPER", "VQ_LOG_FORMAT", "VQ_BROKER_PORT", "VQ_ZOOKEEPER_JARS")
    assert strangers(dict.fromkeys([*known, "VQ_FOO", "PATH"], "1")) == ["VQ_FOO"]
    monkeypatch.setenv("VQ_FOO", "1")
    monkeypatch.setenv("VQ_ZOOKEEPER", "nowhere")
    assert main.run(["topic", "list", "--json"]) == 2
    remark, error = map(json.loads, capsys.readouterr().err.splitlines())
    assert remark == {"remark": "the variable VQ_FOO is not a setting of vq; it is ignored"}
    assert "zookeeper = 'nowhere'" in error["message"]


@pytest.fixture
def _handlers() -> Iterator[None]:
    """The loop of a broker takes the signals of the process, which ends with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--node", "n1"], 2, "data is not set"),
        (["--data", "{file}/below", "--group", "g", "--node", "n1"], 2, "is a file"),
        (["--data", "{file}", "--group", "g", "--node", "n1"], 2, "is a file"),
        (["--data", "/proc/nope", "--group", "g", "--node", "n1"], 1, "cannot be used"),
    ],
)
def test_the_last_line_of_a_broker_that_logs_json_is_json(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    code: int,
    why: str,
) -> None:
    """It says why the broker ended, which is what a reader of logs looks for."""
    file = tmp_path / "file"
    file.touch()
    arguments = [each.format(file=file) for each in arguments]
    assert main.run(["broker", "--log-format", "json", *arguments]) == code
    said = capsys.readouterr().err.splitlines()
    last = [json.loads(line) for line in said][-1]
    assert (last["level"], last["message"]) == ("error", "broker ended")
    assert why in last["fields"]["error"]
