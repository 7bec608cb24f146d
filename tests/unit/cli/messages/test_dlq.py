"""``vq dlq resend`` and ``delete``: ids that no letter has."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from support.cases import case
from support.commands import refused, run_command

from vq.cli.base.options import Invocation
from vq.cli.messages import dlq
from vq.model import Message
from vq.operations.messages.dead_letters import DeadLetter
from vq.operations.messages.resending import Resending
from vq.operations.messages.settling import LetterState

LETTERS = {5: LetterState.OPEN, 6: LetterState.RESENT}


@pytest.fixture(autouse=True)
def done(monkeypatch: pytest.MonkeyPatch) -> list[Collection[int]]:
    """The ids of each call that did something; the group has an open letter and one sent again."""
    calls: list[Collection[int]] = []

    async def read(
        _: object, group: str, *, ids: Collection[int], settled: bool, **_chosen: Any
    ) -> AsyncIterator[DeadLetter]:
        for number, state in LETTERS.items():
            if (not ids or number in ids) and (settled or state == LetterState.OPEN):
                message = Message("_vq.dlq.g", b"", id=number)
                yield DeadLetter(group, message, state)

    async def resend(_: object, _group: str, *, ids: Collection[int], **_chosen: Any) -> Any:
        calls.append(ids)
        return Resending(int(5 in ids), 0, 0)

    async def delete(_: object, _group: str, *, ids: Collection[int], **_chosen: Any) -> int:
        calls.append(ids)
        return int(5 in ids)

    monkeypatch.setattr(Invocation, "call", lambda _, operation: asyncio.run(operation(None)))
    monkeypatch.setattr(dlq, "read_dead_letters", read)
    monkeypatch.setattr(dlq, "resend_dead_letters", resend)
    monkeypatch.setattr(dlq, "delete_dead_letters", delete)
    return calls


@pytest.mark.parametrize("name", ["resend", "delete"])
def test_an_id_that_no_letter_has_is_told_after_the_others_are_done(
    name: str, done: list[Collection[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--yes"]):
        with case(*more):
            error = refused(dlq.dlq, [name, "g", "--id", "5", "--id", "9", *more], code=1)
            assert error["details"] == {"unknown_ids": ["9"]}
            assert "no message with id 9 is among the chosen dead letters" in error["message"]
            assert "`vq dlq read g --settled` shows all" in error["message"]
            assert json.loads(capsys.readouterr().out)["done"] == bool(more)
    assert done == [(5, 9)]


@pytest.mark.parametrize("name", ["resend", "delete"])
def test_a_repeated_command_ends_well(
    name: str, done: list[Collection[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """It names what an earlier one has settled, or no id."""
    for ids in (["--id", "6"], []):
        code, out, _ = run_command(dlq.dlq, [name, "g", *ids, "--yes", "--json"], capsys)
        with case(*ids):
            assert code == 0
            assert json.loads(out)["group"] == "g"
    assert done == [(6,), ()]
