"""``vq topic verify``: what it shows, and when it ends with 1."""

import io
import json

import pytest

from vq.cli.base.errors import CommandFailed
from vq.cli.base.output import Output
from vq.cli.topics.verify import _show
from vq.errors import Busy
from vq.model import Address
from vq.operations.topics.verification import HeldPart, Verified
from vq.remoting.wire_pb2 import DamagedRange, VerifyResponse


class Invocation:
    """What ``_show`` needs of one."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.stdout = io.StringIO()
        self.output = Output(as_json=as_json, stdout=self.stdout, stderr=io.StringIO())


class Cluster:
    """Answers VERIFY with one answer after the other."""

    def __init__(self, *answers: VerifyResponse | Exception) -> None:
        self._answers = list(answers)

    async def request(self, *_: object) -> tuple[VerifyResponse, bytes]:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, b""


async def asked(*answers: VerifyResponse | Exception) -> Verified:
    """Return what is known of a part that was asked as often as there are answers."""
    part = HeldPart("t", "id", 0, "g1", Address("b", 1))
    cluster = Cluster(*answers)
    for number in range(len(answers)):
        await part.ask(cluster, begin=number == 0)  # type: ignore[arg-type]
    return part.result()


def cells(verified: Verified) -> dict[str, str]:
    invocation = Invocation()
    try:
        _show(invocation, [verified])  # type: ignore[arg-type]
    except CommandFailed:
        pass
    names, values = invocation.stdout.getvalue().splitlines()
    return dict(zip(names.split("\t"), values.split("\t"), strict=True))


def document(verified: Verified) -> dict[str, object]:
    """Show a part that was not verified, in JSON; the command must fail."""
    invocation = Invocation(as_json=True)
    with pytest.raises(CommandFailed):
        _show(invocation, [verified])  # type: ignore[arg-type]
    return json.loads(invocation.stdout.getvalue())[0]  # type: ignore[no-any-return]


async def test_an_intact_partition_has_no_error() -> None:
    shown = cells(await asked(VerifyResponse(begun_ms=5, verified_bytes=10)))
    assert (shown["damaged"], shown["error"]) == ("0", "-")


async def test_what_was_repaired_is_told_and_no_failure() -> None:
    shown = cells(await asked(VerifyResponse(begun_ms=5, verified_bytes=10, repaired=2)))
    assert (shown["damaged"], shown["repaired"]) == ("0", "2")


async def test_damage_fails() -> None:
    row = document(await asked(VerifyResponse(damage=[DamagedRange(start=1, end=2)])))
    assert (row["damaged"], row["error"]) == (1, None)


async def test_a_broker_that_refuses_tells_of_no_damage_not_even_none() -> None:
    """What nobody looked for is unknown."""
    row = document(await asked(Busy("not now")))
    assert (row["damaged"], row["damage"], row["read_bytes"]) == (None, None, None)
    assert "not now" in str(row["error"])


async def test_what_the_broker_could_not_verify_fails() -> None:
    row = document(await asked(VerifyResponse(begun_ms=5, unverified="it is quarantined")))
    assert (row["damaged"], row["error"]) == (None, "it is quarantined")


async def test_a_broker_that_restarts_meanwhile_has_verified_nothing() -> None:
    """A new process does not know of the pass."""
    row = document(await asked(VerifyResponse(running=True, begun_ms=5), VerifyResponse()))
    assert "restarted" in str(row["error"])
