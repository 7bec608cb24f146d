"""Exit codes, and what a person reads when a command did not do what was asked."""

import io
import json
from functools import partial
from pathlib import Path

import click
import pytest

from vq.cli.base import errors
from vq.cli.base.errors import CommandFailed, check_known_ids
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected
from vq.errors import (
    CoordinationError,
    DiskFull,
    InvalidArgument,
    NotMaster,
    OffsetOutOfRange,
    TimedOut,
    UnknownTopic,
)


def ended_with(error: BaseException, *, as_json: bool = False) -> tuple[int, str]:
    def command() -> None:
        raise error

    stderr = io.StringIO()
    return errors.run(command, as_json=as_json, stderr=stderr), stderr.getvalue()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownTopic("no topic 'x'"), 1),
        (TimedOut("no answer"), 1),
        (OSError(28, "No space left on device"), 1),
        (InvalidArgument("partitions = 0"), 2),
        (click.UsageError("no such option"), 2),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_every_end_has_its_exit_code(error: BaseException, code: int) -> None:
    assert ended_with(error)[0] == code


@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_of_this_machine_is_not_taken_for_one_of_a_broker(as_json: bool) -> None:
    _, said = ended_with(OSError(28, "No space left on device"), as_json=as_json)
    assert "standard output, or a file of this process, cannot be written: No space" in said
    _, said = ended_with(OSError(28, "No space left on device", "x.jsonl"), as_json=as_json)
    assert "x.jsonl" in said


def test_an_error_of_the_system_names_the_file_and_the_missing_directory(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "x.tsv"
    with pytest.raises(FileNotFoundError) as there:
        missing.open("w")
    assert ended_with(there.value) == (
        1,
        f"error: '{missing}' cannot be opened: there is no directory '{missing.parent}'; "
        "make it, or name another file\n",
    )
    with pytest.raises(IsADirectoryError) as here:
        tmp_path.open("w")
    assert ended_with(here.value)[1] == f"error: '{tmp_path}': Is a directory\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_an_option_before_its_command_is_told_where_it_belongs(as_json: bool) -> None:
    """A group that is no command itself takes none; elsewhere the nearest option is told."""

    @click.group()
    def tool() -> None: ...

    @tool.command()
    @click.option("--cluster")
    def look(cluster: str) -> None: ...

    def told(*arguments: str) -> str:
        stderr = io.StringIO()
        call = partial(tool.main, [*arguments], prog_name="tool", standalone_mode=False)
        assert errors.run(call, as_json=as_json, stderr=stderr) == 2
        return stderr.getvalue()

    before = told("--cluster", "c", "look")
    assert "'--cluster' here: options stand behind the command, as in" in before
    said = json.loads(before)["message"] if as_json else before
    assert "`tool COMMAND --cluster …`" in said
    assert "Did you mean '--cluster'" in told("look", "--clutser", "c")


@pytest.mark.parametrize("as_json", [False, True])
def test_ids_that_nothing_has_fail_a_command(as_json: bool) -> None:
    """A repeated id is named once, and a known one never."""
    with pytest.raises(CommandFailed) as raised:
        check_known_ids([5, 7, 5, 9], {7}, "is in the list")
    code, said = ended_with(raised.value, as_json=as_json)
    assert code == 1
    if as_json:
        assert json.loads(said)["details"] == {"unknown_ids": ["5", "9"]}
    assert "no message with id 5, 9 is in the list" in said
    check_known_ids([7], {7}, "is in the list")
    check_known_ids([], set(), "is in the list")


def test_an_interruption_is_json_too() -> None:
    told = json.loads(ended_with(KeyboardInterrupt(), as_json=True)[1])
    assert (told["error"], told["outcome"], told["retriable"]) == ("Interrupted", "unknown", False)


def test_a_command_that_returns_is_ok_unless_click_says_a_code() -> None:
    assert errors.run(lambda: None) == 0
    assert errors.run(lambda: 2) == 2


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        (["orders", "bills"], "did you mean 'orders'? `vq topic list` shows all topics"),
        (["bills"], "finish it"),
        ([], "finish it"),
        (["oders", "orders"], "finish it"),
    ],
)
def test_a_misspelt_topic_is_told_the_nearest_one(known: list[str], hint: str) -> None:
    """One that exists is not ready; its hint stays."""
    error = UnknownTopic("there is no topic 'oders'", hint="finish it")
    errors.name_nearest_topic(error, "oders", known)
    assert error.hint == hint


@pytest.mark.parametrize(
    ("known", "may_be_new", "said", "hint"),
    [
        (["orders"], True, "there is no topic 'oders'", "did you mean 'orders'? `vq topic list`"),
        (["orders"], False, "there is no topic 'oders'", "did you mean 'orders'? `vq topic list`"),
        (["bills"], False, "there is no topic 'oders'", "`vq topic list` shows all topics"),
        (["bills"], True, "there is no topic 'oders'; create it: `vq", "create it: `vq"),
    ],
)
def test_nobody_is_told_to_create_a_topic_that_he_misspelt_or_wants_to_delete(
    known: list[str], may_be_new: bool, said: str, hint: str
) -> None:
    error = UnknownTopic("there is no topic 'oders'; create it: `vq topic create oders`")
    errors.name_nearest_topic(error, "oders", known, may_be_new=may_be_new)
    assert error.message.startswith(said)
    assert ("create it" in error.message) == ("create it" in said)
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        (["mail", "shop"], "did you mean 'shop'? `vq group list` shows all groups"),
        (["mail"], UnknownGroup.hint),
        ([], UnknownGroup.hint),
    ],
)
def test_a_misspelt_group_is_told_the_nearest_one(known: list[str], hint: str) -> None:
    error = UnknownGroup("there is no consumer group 'shpo'")
    errors.name_nearest_group(error, "shpo", known)
    assert error.hint == hint


def test_a_hint_that_names_a_list_of_its_own_stays() -> None:
    """Among all topics is not where a deleted one is to be looked for."""
    error = UnknownTopic("x", hint="`vq topic list --deleted` shows those that can")
    errors.name_nearest_topic(error, "oders", ["orders"])
    assert error.hint == "`vq topic list --deleted` shows those that can"


def test_a_refusal_shows_message_and_what_to_do() -> None:
    _, said = ended_with(UnknownTopic("there is no topic 'x'"))
    assert said == (
        "error: there is no topic 'x' (status 20)\n"
        "  what to do: create it: `vq topic create NAME --partitions N`\n"
    )


def test_what_the_message_says_already_is_not_said_again() -> None:
    _, said = ended_with(UnknownTopic("no topic 'x'; create it: `vq topic create x`"))
    assert said == "error: no topic 'x'; create it: `vq topic create x` (status 20)\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_errors_are_safe_to_show(as_json: bool) -> None:
    """A broker's words are in them, and a message's key."""
    for error in (UnknownTopic("no topic '\x1b[2J\x9b'"), OSError("\x1b[2J\x9b")):
        said = ended_with(error, as_json=as_json)[1]
        assert "\x1b" not in said
        assert "\x9b" not in said
        assert "[2J" in said


def test_only_a_zookeeper_that_cannot_be_reached_is_to_be_checked() -> None:
    """Whatever else the tree says is not mended by looking whether ZooKeeper runs."""
    assert "vq doctor" in ended_with(ConnectionLost("cut"))[1]
    assert "vq doctor" not in ended_with(TopicExists("topic 'x' exists already"))[1]
    assert "vq doctor" not in ended_with(CoordinationError("no group can take partitions"))[1]


def test_an_unknown_outcome_is_never_called_an_error() -> None:
    _, said = ended_with(TimedOut("no answer within 3 s"))
    assert said.startswith("outcome unknown: no answer within 3 s (status 48)\n")


def test_a_cut_connection_to_zookeeper_is_an_unknown_outcome() -> None:
    """A write may have been applied; only a call that never left was certainly not."""
    assert ended_with(ConnectionLost("no reply"))[1].startswith("outcome unknown: no reply\n")
    assert errors.outcome(ConnectionLost("no reply")) == "unknown"
    assert errors.outcome(NotConnected("no connection for 6 s")) == "failed"


def test_json_errors_carry_outcome_and_details() -> None:
    error = OffsetOutOfRange("offset 7", details={"earliest": 88, "latest": 900})
    _, said = ended_with(error, as_json=True)
    shown = json.loads(said)
    assert shown["error"] == "OffsetOutOfRange"
    assert shown["outcome"] == "refused"
    assert shown["details"] == {"earliest": 88, "latest": 900}


def test_a_bug_is_not_dressed_up_as_a_refusal() -> None:
    with pytest.raises(ZeroDivisionError):
        ended_with(ZeroDivisionError())


@pytest.mark.parametrize(
    ("error", "name", "said"),
    [
        (click.BadParameter("0 is not in the range x>=1."), "BadParameter", "0 is not in"),
        (click.NoSuchOption("--partitons"), "NoSuchOption", "--partitons"),
        (FileNotFoundError(2, "No such file", "/proc/x"), "FileNotFoundError", "/proc/x"),
    ],
)
def test_wrong_usage_and_the_machines_no_are_json_too(
    error: Exception, name: str, said: str
) -> None:
    told = json.loads(ended_with(error, as_json=True)[1])
    assert told["error"] == name
    assert said in told["message"]
    assert (told["outcome"], told["retriable"], told["details"]) == ("failed", False, {})


def test_what_a_broker_says_forges_no_line() -> None:
    said = errors.describe(NotMaster("no\nerror: stored"), as_json=False).split("\n")
    assert said[0] == "error: no\\nerror: stored (status 22)"
    assert [line[:14] for line in said[1:]] == ["  what to do: "]
    own = errors.ChildFailed("it ended:\n  | a line\x1b")
    assert errors.describe(own, as_json=False) == "error: it ended:\n  | a line\\x1b"


def test_a_refusal_shows_its_status_also_as_json() -> None:
    """One number for scripts, the same as on the wire and in docs/reference/errors.md."""
    assert "(status 26)" in ended_with(DiskFull("91 % in use"))[1]
    shown = json.loads(ended_with(DiskFull("91 % in use"), as_json=True)[1])
    assert (shown["status"], shown["message"]) == (26, "91 % in use")
    assert json.loads(ended_with(InvalidArgument("no"), as_json=True)[1])["status"] is None
