"""The demo's accounts: what is missing, double, altered or unknown is said and ends with 1."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from support.tool import load_tool

import vq
from vq.errors import TimedOut

LINES = [b"one", b"two", b"one"]


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    return load_tool("demo")


def message(number: int, content: bytes) -> vq.Message:
    return vq.Message("lines", content, partition=0, offset=number, next_offset=number + 1)


def carried(demo: ModuleType) -> Any:
    """Return the ledger of a run in which everything went well."""
    ledger = demo.Ledger()
    for number, line in enumerate(LINES):
        ledger.sent.append((vq.SendResult(0, number, number + 1), line))
        ledger.received.setdefault("consumer-1", []).append(message(number, line))
    return ledger


def lose(ledger: Any) -> None:
    ledger.received["consumer-1"].pop()


def repeat(ledger: Any) -> None:
    ledger.received["consumer-2"] = [message(0, LINES[0])]


def make_up(ledger: Any) -> None:
    """A line is stored that no producer knows of: sent twice after a lost reply, say."""
    ledger.received["consumer-1"].append(message(77, LINES[0]))


def alter(ledger: Any) -> None:
    ledger.received["consumer-1"][1] = message(1, b"other")


def leave_unknown(ledger: Any) -> None:
    """A line has no known outcome: it was neither acknowledged nor delivered."""
    ledger.sent.pop()
    ledger.received["consumer-1"].pop()
    ledger.failed.append(TimedOut("no answer"))


@pytest.mark.parametrize(
    ("happens", "missing", "duplicated", "altered"),
    [(lose, 1, 0, 0), (repeat, 0, 1, 0), (make_up, 0, 1, 0), (alter, 0, 0, 1)],
)
def test_every_line_is_held_against_what_arrived(
    demo: ModuleType,
    happens: Callable[[Any], None],
    missing: int,
    duplicated: int,
    altered: int,
) -> None:
    ledger = carried(demo)
    assert ledger.account() == demo.Account(0, 0, 0)
    happens(ledger)
    assert ledger.account() == demo.Account(missing, duplicated, altered)


def row(demo: ModuleType, end: int, committed: int | None) -> Any:
    return demo.PartitionRow(0, "b1", end, committed)


@pytest.mark.parametrize(
    ("end", "committed", "whole"),
    [(900, 900, True), (0, 0, True), (0, None, True), (900, 899, False), (900, None, False)],
)
def test_progress_must_stand_at_the_end(
    demo: ModuleType, end: int, committed: int | None, whole: bool
) -> None:
    ledger = carried(demo)
    rows = [row(demo, 10, 10), row(demo, end, committed)]
    assert demo.is_whole(ledger, ledger.account(), rows, len(LINES)) is whole


def test_the_report_shows_every_number_and_what_is_unknown(demo: ModuleType) -> None:
    ledger = carried(demo)
    repeat(ledger)
    lose(ledger)
    shown = io.StringIO()
    rows = [row(demo, 12_345, None), row(demo, 7, 5)]
    text = demo.Text(2, LINES)
    demo.report(Console(file=shown, width=100), ledger, ledger.account(), rows, text, 0.5)
    cells = [line.strip("│ \n").split("│") for line in shown.getvalue().splitlines()]
    found = [[cell.strip() for cell in line] for line in cells]
    assert ["0", "b1", "12,345", "unknown", "unknown"] in found
    assert ["0", "b1", "7", "5", "2"] in found
    assert ["lines in the file", "2"] in found
    assert ["messages (a long line is several)", "3"] in found
    assert ["missing", "1"] in found
    assert ["duplicated", "1"] in found
    assert ["by consumer", "consumer-1 2, consumer-2 1"] in found


@pytest.mark.parametrize(
    ("happens", "committed", "code"),
    [
        (None, 3, 0),
        (lose, 3, 1),
        (repeat, 3, 1),
        (make_up, 3, 1),
        (alter, 3, 1),
        (leave_unknown, 3, 1),
        (None, 2, 1),
        (None, None, 1),
    ],
)
def test_the_exit_code_is_0_only_if_everything_is_right(
    demo: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    happens: Callable[[Any], None] | None,
    committed: int | None,
    code: int,
) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"\n".join(LINES))

    @contextlib.contextmanager
    def running_cluster(*_: object) -> Iterator[Any]:
        yield demo.DemoCluster("nowhere")

    async def make_topic(_hosts: str) -> None:
        pass

    def carry(_cluster: object, lines: list[bytes], ledger: Any, _steps: Any) -> float:
        assert lines == LINES
        done = carried(demo)
        if happens is not None:
            happens(done)
        ledger.sent, ledger.failed, ledger.received = done.sent, done.failed, done.received
        return 1.0

    async def partition_rows(_hosts: str) -> list[Any]:
        return [row(demo, 3, committed)]

    for stub in (running_cluster, make_topic, carry, partition_rows):
        monkeypatch.setattr(demo, stub.__name__, stub)
    monkeypatch.setattr("sys.argv", ["demo.py", str(file)])
    assert demo.main() == code
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("NOT") is (code == 1)


def test_a_long_line_is_one_line_and_several_messages(demo: ModuleType, tmp_path: Path) -> None:
    bound = vq.TopicSettings().max_message_bytes
    file = tmp_path / "long.txt"
    file.write_bytes(b"x" * (3 * bound) + b"\n\nshort\r\n" + b"y" * (bound + 1))
    text = demo.read_text(file)
    assert text.lines == 4
    assert [len(each) for each in text.messages] == [bound, bound, bound, 0, 5, bound, 1]


def test_a_file_that_cannot_be_carried_is_a_usage_error(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path in (empty, tmp_path / "none"):
        monkeypatch.setattr("sys.argv", ["demo.py", str(path)])
        assert demo.main() == 2
