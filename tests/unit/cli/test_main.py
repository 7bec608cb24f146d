"""The command table: help without imports, the same texts as the commands themselves."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.cases import case

from vq.cli import main
from vq.cli.main import COMMANDS, cli
from vq.version import __version__

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("asyncio", "kazoo", "google.protobuf", "uvloop", "rich.table", "vq.blocking")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and sub-command with its full name."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            for sub_name, sub in command.commands.items():
                yield f"{name} {sub_name}", sub


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name].help


def test_every_command_prints_json_and_says_where_the_cluster_is() -> None:
    """A queue of one process is in none."""
    own = {"--json", "--config", "--log-level", "--log-format"}
    reaching = {"--zookeeper", "--cluster", "--user", "--tls-ca"}
    for name, command in commands():
        if isinstance(command, click.Group):
            continue
        with case(name):
            options = {option for parameter in command.params for option in parameter.opts}
            assert own <= options
            assert reaching & options == (set() if name.startswith("local") else reaching)
            assert command.help


def test_choices_are_written_as_everywhere_else() -> None:
    """As in configurations and JSON: of an enumeration, the values and not the names."""
    for name, command in commands():
        for parameter in command.params:
            if isinstance(parameter.type, click.Choice):
                with case(f"{name} {parameter.name}"):
                    assert {type(each) for each in parameter.type.choices} == {str}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_cuts_no_sentence_off(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert "..." not in said.replace("[,...]", "").replace("[ARGS]...", "")


@pytest.mark.parametrize(
    "name",
    [
        "topic move",
        "topic heal-clock",
        "topic delete",
        "topic begin",
        "group reset",
        "group delete",
        "write end",
        "broker remove",
        "broker drain",
        "cluster unclean",
        "cluster raise-epoch",
        "cluster replace-secret",
    ],
)
def test_what_takes_something_away_needs_yes(name: str) -> None:
    command = dict(commands())[name]
    assert "--yes" in {option for parameter in command.params for option in parameter.opts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("topics", "topic"),
        ("produse", "produce"),
        ("group-list", "group"),
        ("lag_exporter", "lag-exporter"),
    ],
)
def test_a_misspelt_command_is_told_the_nearest_one(
    wrong: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([wrong, "list"]) == 2
    assert f"No such command '{wrong}'. Did you mean '{nearest}'?" in capsys.readouterr().err
    assert main.run([wrong, "list", "--json"]) == 2
    assert f"Did you mean '{nearest}'?" in json.loads(capsys.readouterr().err)["message"]


def test_a_command_that_resembles_none_is_told_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["xyz"]) == 2
    said = capsys.readouterr().err
    assert "No such command 'xyz'." in said
    assert "Did you mean" not in said


def texts() -> Iterator[tuple[str, str]]:
    """Every text in the code, and every line that users read, with its place; values are X."""
    for file in sorted((ROOT / "vq").rglob("*.py")):
        place = file.relative_to(ROOT)
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.JoinedStr(values=parts):
                    said = [p.value if isinstance(p, ast.Constant) else "X" for p in parts]
                    yield f"{place}:{node.lineno}", "".join(map(str, said))
                case ast.Constant(value=str(said)):
                    yield f"{place}:{node.lineno}", said
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for file in (each for each in pages if each.name != "CHANGELOG.md"):
        place = file.relative_to(ROOT)
        if place.parts[:2] not in (("docs", "decisions"), ("docs", "protocol.md")):  # past; bytes
            for number, line in enumerate(file.read_text().splitlines(), 1):
                yield f"{place}:{number}", line


def unknown_parts(line: str) -> list[str]:
    """Return the names of commands and long options in a command line that there are not."""
    command: click.Command = cli
    for word in line.split():
        if not isinstance(command, click.Group) or not re.fullmatch("[a-z-]{2,}", word):
            break
        if word.startswith("-"):
            break
        found = command.get_command(click.Context(command), word)
        if found is None:
            return [] if command.invoke_without_command else [word]
        command = found
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    named = re.findall(r"(?<!\S)--[a-z][a-z-]*", line)
    return [] if command is cli else [each for each in named if each not in {*known, "--help"}]


def test_the_commands_that_texts_name_exist() -> None:
    """An error that advises a command which is not there helps nobody."""
    wrong, seen = [], 0
    for place, said in texts():
        for quoted in re.findall(r"`vq ([^`]+)`", said):
            for line in re.split(r" \| vq ", quoted):
                seen += 1
                wrong += [f"{place}: vq {line}: {each}" for each in unknown_parts(line)]
    assert not wrong
    assert seen > 1_000


def test_help_imports_nothing_heavy() -> None:
    """``vq --help`` must answer at once, so it imports no event loop, protobuf or ZooKeeper."""
    program = (
        "import sys; from vq.cli import main; code = main.run(['--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr);"
        "sys.exit(code)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0
    assert ended.stderr.strip() == "[]"
    assert all(name in ended.stdout for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["topics"], ["topic", "create"], ["topic", "create", "t", "--partitons", "3"], ["topic"]],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert capsys.readouterr().out == ""


def test_an_unusable_value_ends_with_2_before_anything_is_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["topic", "create", "t", "--partitions", "0"]) == 2
    assert "partitions = 0 is outside [1, 4096]" in capsys.readouterr().err


def test_wrong_usage_with_json_is_one_object_that_names_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["message", "get", "t", "z", "0", "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert "'PARTITION': 'z' is not a valid whole number" in told["message"]
    assert told["hint"] == "see `vq message get --help`"


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t", "--group", "g", "--timeout", "nan"],
        ["consume", "t", "--group", "g", "--timeout", "inf"],
        ["produce", "t", "--timeout", "nan"],
        ["bench", "--seconds", "nan"],
    ],
)
def test_a_time_that_never_ends_is_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing ever is later than `nan`: `vq consume --timeout nan` ran for ever."""
    assert main.run(arguments) == 2
    said = capsys.readouterr().err
    assert repr(arguments[-1]) in said
    assert "is not a finite number" in said


def test_content_alone_and_json_exclude_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that asked for JSON got bytes."""
    assert main.run(["message", "get", "t", "0", "0", "--raw", "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert told["message"] == "--raw and --json exclude one another"


def test_an_empty_key_separator_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["produce", "t", "--key-separator", ""]) == 2
    assert "--key-separator is empty" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_an_empty_one(closed: str) -> None:
    command = f'"{sys.executable}" -m vq.cli.main produce t --zookeeper nowhere {closed}'
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ("zookeeper = 'nowhere'" in ended.stderr) == ("2>" not in closed)
    assert "Traceback" not in ended.stderr


def test_an_interrupted_command_with_json_says_nothing_but_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(as_json: bool) -> None:
        raise KeyboardInterrupt

    option = click.Option(["--json", "as_json"], is_flag=True)
    command = click.Command("topic", callback=interrupted, params=[option])
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: command)
    assert main.run(["topic", "--json"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["error"] == "Interrupted"


def test_completion_of_sub_commands_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def imported(*_: object) -> None:
        raise AssertionError("a sub-command was imported")

    monkeypatch.setattr(main.LazyGroup, "get_command", imported)
    found = cli.shell_complete(click.Context(cli), "to")
    assert [(each.value, each.help) for each in found] == [("topic", COMMANDS["topic"].help)]
