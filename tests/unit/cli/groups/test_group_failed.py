"""``vq group failed``: what members on this machine have skipped."""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.cases import case
from support.commands import cells, refused, run_command

from vq.cli.groups import group_failed
from vq.cli.groups.group import group
from vq.client.failed_file import FailedFile, commands_lock, file_of
from vq.model import Message
from vq.operations.base import connect
from vq.operations.groups.failed import FailedRun, RunTo
from vq.reserved import DeliveryFailure, MessageOrigin, headers_of_copy
from vq.store.records.copies import encode_copy


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailedFile:
    """Three messages: the first has no key, and the last one another member's id."""
    monkeypatch.setenv("VQ_FAILED_DIR", str(tmp_path))
    monkeypatch.setenv("VQ_CLUSTER", "c")
    files = [file_of("c", "g", "a"), file_of("c", "g", "b")]
    for number, key in enumerate((None, b"\0\x01", "k")):
        message = Message("orders", b"%d" % number, key=key, headers={"n": "1"}, id=70 + number)
        origin = MessageOrigin("orders", 3, number * 100)
        failure = DeliveryFailure(3, 1_764_000_000_000, f"ValueError: no {number}")
        files[number == 2].add(encode_copy(message, headers_of_copy(origin, failure)), 1_000)
    return files[0]


def test_they_are_listed_and_forgotten(
    file: FailedFile, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command(group, ["failed", "list", "g"], capsys)
    assert code == 0
    rows = cells(out)
    assert [(row["member"], row["offset"], row["key"], row["id"]) for row in rows] == [
        ("a", "0", "-", "70"),
        ("a", "100", "0x0001", "71"),
        ("b", "200", "k", "72"),
    ]
    assert {row["state"] for row in rows} == {"open"}
    assert rows[0]["reason"] == "ValueError: no 0"
    assert rows[0]["skipped"] == "1970-01-01T00:00:01.000Z"

    _, out, _ = run_command(group, ["failed", "list", "g", "--id", "71", "--json"], capsys)
    [found] = json.loads(out)
    assert found["content"] == "1"
    assert found["key_hex"] == "0001"
    assert (found["id"], found["attempts"], found["skipped_s"]) == ("71", 3, 1.0)

    code, _, err = run_command(group, ["failed", "forget", "g", "--id", "71"], capsys)
    assert "plan: forget 1 message(s)" in err
    assert "add --yes" in err
    assert len(file.read().messages) == 2
    _, _, err = run_command(group, ["failed", "forget", "g", "--id", "71", "--yes"], capsys)
    assert "forgot 1 message(s) of group g" in err
    assert len(file.read().messages) == 1
    run_command(group, ["failed", "forget", "g", "--yes"], capsys)
    code, out, err = run_command(group, ["failed", "list", "g"], capsys)
    assert code == 0
    assert "no member of group g on this machine has skipped a message, by the files in" in err
    assert not file.path.exists()


def test_the_list_tells_what_cannot_be_read(
    file: FailedFile, capsys: pytest.CaptureFixture[str]
) -> None:
    with file.path.open("ab") as out:
        out.write(b"torn")
    code, _, err = run_command(group, ["failed", "list", "g"], capsys)
    assert code == 0
    assert "4 bytes at the end of the files cannot be read" in err


def test_a_run_is_planned_and_carried_out(
    file: FailedFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, RunTo, Collection[int]]] = []

    @asynccontextmanager
    async def client(_: object) -> AsyncIterator[None]:
        yield

    async def run(_: object, name: str, *, to: RunTo, ids: Collection[int]) -> FailedRun:
        calls.append((name, to, ids))
        return FailedRun(2, 1, 1)

    monkeypatch.setattr(connect, "cluster_client", client)
    monkeypatch.setattr(group_failed, "run_failed", run)
    file.note("begun", 1, of=[next(iter(file.read().messages))], to=["t", 0], topic_id="x",
              stamp=[1, 0, 0])  # fmt: skip
    _, _, err = run_command(group, ["failed", "run", "g"], capsys)
    assert "plan: send 2 message(s) of group g to its members, and finish 1 begun before" in err
    assert not calls
    _, _, err = run_command(
        group, ["failed", "run", "g", "--to", "origin", "--id", "71", "--yes"], capsys
    )
    assert calls == [("g", RunTo.ORIGIN, (71,))]
    assert "sent 2 message(s) of group g again, and finished 1" in err
    assert "left 1" in err


def test_an_id_that_no_message_has_is_told_after_the_others_are_done(
    file: FailedFile, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in (
        (["run", "g", "--id", "5"], "no message with id 5 is among those that `vq group failed"),
        (["forget", "g", "--id", "5"], "no message with id 5 is among"),
        (["forget", "g", "--id", "71", "--id", "5", "--yes"], "no message with id 5 is among"),
        (["forget", "none", "--id", "71", "--yes"], "`vq group failed list none` shows"),
    ):
        with case(" ".join(arguments)):
            assert said in str(refused(group, ["failed", *arguments], code=1))
    assert '"messages": 1' in capsys.readouterr().out
    assert len(file.read().messages) == 1


def test_a_second_command_is_refused(file: FailedFile) -> None:
    with commands_lock("c", "g"):
        error = refused(group, ["failed", "forget", "g", "--yes"], code=1)
    assert "locked by another process" in str(error)
