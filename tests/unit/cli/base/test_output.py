"""Output: the same result for a person, for a pipe and as JSON."""

import io
import json

import click
import pytest
from support.cases import case

from vq.cli.base.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS = [
    {"topic": "orders", "partitions": 5, "lag": None, "extra": "only in JSON"},
    {"topic": "a\tb\nc", "partitions": 12345, "lag": 0, "extra": ""},
]
COLUMNS = "topic partitions lag"


def test_a_pipe_gets_tab_separated_lines_with_a_header() -> None:
    stdout = io.StringIO()
    Output(stdout=stdout).table(ROWS, columns=COLUMNS)
    assert stdout.getvalue() == (
        "topic\tpartitions\tlag\norders\t5\tunknown\na\\tb\\nc\t12345\t0\n"
    )


#: An escape sequence, a bell, C1's CSI, DEL, and the override that shows text backwards.
HOSTILE = "\x1b]0;owned\x07 \x9b2J \x7f \u202e txt.exe"
SHOWN = "\\x1b]0;owned\\x07 \\x9b2J \\x7f \\u202e txt.exe"


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_nothing_that_acts_on_a_terminal_is_printed(stdout: type[io.StringIO]) -> None:
    """Names, keys, errors of brokers: whoever chose them does not choose what a terminal does."""
    out, err = stdout(), stdout()
    output = Output(stdout=out, stderr=err)
    output.table([{"name": HOSTILE}], columns="name")
    output.record({"key": HOSTILE, "headers": {HOSTILE: [HOSTILE]}})
    output.line(HOSTILE)
    output.title(HOSTILE)
    output.remark(HOSTILE)
    said = out.getvalue() + err.getvalue()
    assert not any(each in said for each in "\x07\x9b\x7f\u202e")
    assert "\x1b]" not in said  # rich writes escape sequences of its own
    assert out.getvalue().count(SHOWN) >= 5
    assert err.getvalue() == SHOWN + "\n"


def test_json_escapes_the_same_and_says_the_same() -> None:
    out = io.StringIO()
    Output(as_json=True, stdout=out).document({"key": HOSTILE, "zwölf": "\ud800"})
    assert not any(each in out.getvalue() for each in "\x1b\x07\x9b\x7f\u202e\ud800")
    assert "zwölf" in out.getvalue()
    assert json.loads(out.getvalue()) == {"key": HOSTILE, "zwölf": "\ud800"}


def test_json_for_a_stream_in_ascii_is_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    Output(as_json=True, stdout=stream).document({"name": "zwölf 十二 😀"})
    assert json.loads(raw.getvalue().decode("ascii")) == {"name": "zwölf 十二 😀"}


def test_json_has_every_key_and_null_for_what_is_unknown() -> None:
    stdout = io.StringIO()
    Output(as_json=True, stdout=stdout).table(ROWS, columns=COLUMNS)
    assert json.loads(stdout.getvalue()) == ROWS


def test_a_terminal_gets_an_aligned_table_that_shows_unknown_values() -> None:
    stdout = Terminal()
    Output(stdout=stdout).table(ROWS, columns=COLUMNS)
    shown = stdout.getvalue()
    assert "unknown" in shown
    assert "12345" in shown
    assert "only in JSON" not in shown
    assert "\t" not in shown


def test_a_record_is_one_field_a_line() -> None:
    stdout = io.StringIO()
    Output(stdout=stdout).record({"id": 7, "tag": None, "headers": {"a": "b", "c": "d"}, "x": []})
    assert stdout.getvalue() == "id\t7\ntag\tunknown\nheaders\ta: b, c: d\nx\t-\n"


def test_a_narrow_terminal_breaks_the_last_column_and_shortens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address with an ellipsis is of no use."""
    monkeypatch.setenv("COLUMNS", "60")
    stdout = Terminal()
    row = {"address": "broker-17.example.com:8123", "answers": "Unreachable: " + "why " * 30}
    Output(stdout=stdout).table([row], columns="address answers")
    shown = stdout.getvalue()
    assert "broker-17.example.com:8123" in shown
    assert shown.count("why") == 30


@pytest.mark.parametrize("width", [30, 60, 75, 80, 200])
def test_a_terminal_too_narrow_for_the_columns_loses_none_of_them(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The last column of `vq cluster status` says what is wrong with a broker."""
    monkeypatch.setenv("COLUMNS", str(width))
    stdout = Terminal()
    row = {
        "group": "b9",
        "node": None,
        "address": "broker-17.example.com:8123",
        "role": None,
        "epoch": 1234,
        "disk_free": None,
        "answers": "Unreachable: no broker is registered",
    }
    Output(stdout=stdout).table([row, row], columns=" ".join(row))
    shown = " ".join(stdout.getvalue().split())
    for text in ("b9", "broker-17.example.com:8123", "1234", "disk_free", "answers"):
        assert text in shown
    for word in ("Unreachable:", "broker", "registered"):
        assert shown.count(word) >= 2
    lines = click.unstyle(stdout.getvalue()).splitlines()
    assert max(map(len, lines)) <= max(width, 47)  # a value is never cut


def test_a_number_is_never_cut_and_a_word_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end offset without its last digit lies before the committed one."""
    row = {
        "topic": "orders",
        "partition": 0,
        "owner": "vm-18839-6aee00db",
        "committed": 1116212,
        "end": 1116213,
        "lag_bytes": 1,
        "lag_messages": 1,
        "state": "yes",
    }
    for width in range(60, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        stdout = Terminal()
        with case(width):
            Output(stdout=stdout).table([row, row], columns=" ".join(row))
            words = click.unstyle(stdout.getvalue()).split()
            for whole in ("vm-18839-6aee00db", "1116212", "1116213", "yes"):
                assert words.count(whole) == 2
            assert "lag_messages" in words  # as in JSON


def test_remarks_beside_json_are_json() -> None:
    stderr = io.StringIO()
    Output(as_json=True, stderr=stderr).remark(HOSTILE)
    assert json.loads(stderr.getvalue()) == {"remark": HOSTILE}


def test_titles_and_progress_stay_out_of_json_and_pipes() -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    output = Output(as_json=True, stdout=stdout, stderr=stderr)
    output.title("Topics")
    with output.progress("sending", lambda: 3, total=3):
        pass
    assert stdout.getvalue() == stderr.getvalue() == ""


def test_progress_shows_on_a_terminal_and_never_on_standard_output() -> None:
    stdout, stderr = io.StringIO(), Terminal()
    asked: list[int] = []

    def done() -> int:
        asked.append(2)
        return 2

    with Output(stdout=stdout, stderr=stderr).progress("sending", done, total=3):
        pass
    assert "sending" in stderr.getvalue()
    assert "2/3" in click.unstyle(stderr.getvalue())
    assert len(asked) < 10, "asked for a picture, not for a step of the work"
    assert stdout.getvalue() == ""


def test_progress_leaves_out_a_part_of_a_long_text_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stderr = Terminal()
    output = Output(stdout=io.StringIO(), stderr=stderr)
    with output.progress("sending to " + "n" * 72, lambda: 1_234_567, portion=lambda: 0.5):
        pass
    shown = click.unstyle(stderr.getvalue())
    assert "sending to nn" in shown
    assert "1234567  50%" in shown
    assert max(len(line.strip()) for line in shown.replace("\r", "\n").splitlines()) <= 76
