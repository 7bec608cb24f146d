"""Lines counted by outcome, the error that the command ends with, and the files of failed lines."""

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from vq.cli.base import errors
from vq.cli.base.output import Output
from vq.cli.messages.lines import LongLine
from vq.cli.messages.outcomes import FailureFiles, Tally, failure_files
from vq.cli.messages.produce import list_failures
from vq.errors import DiskFull, InvalidArgument, TimedOut
from vq.model import DivertedResult, SendResult

STORED = SendResult(0, 88, 1)


def test_outcomes_are_counted_by_kind_and_the_first_errors_are_kept() -> None:
    tally = Tally()
    tally.ended(1, SendResult(0, 88, 1), None)
    tally.ended(2, None, TimedOut("3 s"))
    for line in range(3, 20):
        tally.ended(line, None, DiskFull("90 %"))
    tally.ended(20, DivertedResult(1, 88, 1), None)
    assert (tally.acknowledged, tally.unknown, tally.refused) == (2, 1, 17)
    assert tally.diverted == 1
    assert tally.failures == {"TimedOut": 1, "DiskFull": 17}
    assert [(each.line, each.error, each.message) for each in tally.first[:2]] == [
        (2, "TimedOut", "3 s"),
        (3, "DiskFull", "90 %"),
    ]
    assert len(tally.first) == 5
    assert tally.count == 20


def test_lines_whose_outcome_nobody_waits_for_are_unknown() -> None:
    """Ctrl-C twice: the summary must not leave out lines that were sent."""
    tally = Tally()
    tally.begun = 3
    tally.ended(1, SendResult(0, 88, 1), None)
    tally.give_up()
    tally.ended(2, SendResult(0, 99, 2), None)  # too late: the summary is made
    assert (tally.count, tally.acknowledged, tally.unknown) == (3, 1, 2)
    assert tally.failures == {"Interrupted": 2}


def test_lines_without_an_outcome_are_told_also_when_no_line_was_refused() -> None:
    """They have no error of their own, so none is listed before them."""
    tally, stderr = Tally(), io.StringIO()
    tally.begun = 2
    tally.give_up()
    list_failures(Output(stderr=stderr), tally, None, None)
    assert stderr.getvalue().startswith("2 line(s) without an outcome; with --unacknowledged FILE")


@pytest.mark.parametrize(
    ("failures", "outcome", "retriable"),
    [
        ([DiskFull("a"), DiskFull("b")], "refused", True),
        ([DiskFull("a"), InvalidArgument("b")], "refused", False),
        ([DiskFull("a"), TimedOut("b")], "unknown", False),
    ],
)
def test_the_error_of_the_command_says_what_holds_for_all_lines(
    failures: list[Any], outcome: str, retriable: bool
) -> None:
    tally = Tally()
    tally.ended(1, STORED, None)
    assert tally.error() is None
    for number, each in enumerate(failures, start=2):
        tally.ended(number, None, each)
    error = tally.error()
    assert error is not None
    told = json.loads(errors.describe(error, as_json=True))
    assert (told["outcome"], told["retriable"]) == (outcome, retriable)
    assert (told["details"]["sent"], told["details"]["acknowledged"]) == (3, 1)
    assert sum(told["details"]["failures"].values()) == 2


def test_the_files_have_every_line_without_an_acknowledgement() -> None:
    """As it was read, also one whose outcome nobody waits for; one file says which and why."""
    lines, rows = io.BytesIO(), io.BytesIO()
    tally = Tally(FailureFiles(lines, rows))
    for number, line in enumerate([b"good", b"k\t\xff", LongLine(9), b"sent"], start=1):
        tally.begin(number, line)
    tally.ended(1, STORED, None)
    tally.ended(2, None, InvalidArgument("a\tb"))
    tally.ended(3, None, InvalidArgument("long"))
    tally.give_up()
    tally.ended(4, None, DiskFull("too late"))
    assert lines.getvalue() == b"k\t\xff\nsent\n"
    assert tally.files.too_long == 1
    head, *told = rows.getvalue().decode().splitlines()
    assert head.split("\t") == ["line", "outcome", "error", "message"]
    assert [row.split("\t")[:3] for row in told] == [
        ["2", "refused", "InvalidArgument"],
        ["3", "refused", "InvalidArgument"],
        ["4", "unknown", "Interrupted"],
    ]
    assert told[0].endswith("a\\tb"), "a tab in a text makes no column"


def test_errors_in_the_file_are_json_on_demand() -> None:
    rows = io.BytesIO()
    tally = Tally(FailureFiles(None, rows, as_json=True))
    tally.begin(1, b"x")
    tally.ended(1, None, DiskFull("90 %"))
    assert json.loads(rows.getvalue()) == {
        "line": 1,
        "outcome": "refused",
        "error": "DiskFull",
        "message": "90 %",
        "retriable": True,
    }


def test_a_file_that_cannot_be_written_stops_no_line() -> None:
    with failure_files("/dev/full", None, as_json=False) as files:
        tally = Tally(files)
        tally.begin(1, b"x")
        tally.ended(1, None, DiskFull("90 %"))
        files.flush()
    assert tally.refused == 1
    assert isinstance(files.problem, OSError)


def test_a_file_with_content_is_not_overwritten(tmp_path: Path) -> None:
    """It may hold lines of an earlier run, or be the input itself."""
    kept, new = tmp_path / "kept", tmp_path / "new"
    kept.write_bytes(b"a\n")
    with (
        pytest.raises(click.UsageError, match="not overwritten"),
        failure_files(str(kept), None, as_json=False),
    ):
        pass
    assert kept.read_bytes() == b"a\n"
    with (
        pytest.raises(click.UsageError, match="a file each"),
        failure_files(str(new), str(new), as_json=False),
    ):
        pass
    with failure_files(str(new), None, as_json=False) as files:
        Tally(files).begin(1, b"x")
        files.give_up()
    assert new.read_bytes() == b"x\n"
