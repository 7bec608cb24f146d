"""Compare-and-set: what is read again, what is raised, and how often it is tried."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.coordination import FAULTS, client_of, disarm, strike

from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotConnected,
    NotEmpty,
    Operation,
    SessionExpired,
    Set,
)
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.update import TRIES_MAX, Plan, apply_plan, update
from vq.errors import CoordinationError, InvalidArgument

pytestmark = pytest.mark.virtual_time

PATH = "a/b"
LOST, AWAY, OVER = ConnectionLost("cut"), NotConnected("away"), SessionExpired("over")
FASTER = [BadVersion(PATH), NodeExists(PATH), NoNode(PATH)]


def add_one(node: Node | None) -> Sequence[Operation]:
    """Count in a node, up to 3."""
    if node is None:
        return [Create(PATH, b"1")]
    count = int(node.data)
    return () if count == 3 else [Set(PATH, str(count + 1).encode(), node.stat.version)]


async def test_a_node_is_made_with_its_parents_changed_left_and_deleted(client) -> None:
    """One write each, none when it is as wanted."""
    for expected in (b"1", b"2", b"3", b"3"):
        await update(client, PATH, add_one, what="the count")
        assert (await client.get(PATH)).data == expected
    assert (await client.get(PATH)).stat.version == 2

    def drop(node: Node | None) -> Sequence[Operation]:
        return () if node is None else [Delete(PATH, node.stat.version)]

    for _ in range(2):
        await update(client, PATH, drop, what="the count")
        assert await client.exists(PATH) is None


async def test_several_operations_are_written_together_or_not_at_all(client) -> None:
    """What fails is planned again; the result is the one of the plan that was written."""
    await client.create("a")
    tries: list[CoordinationError | None] = []

    async def plan(failed: CoordinationError | None) -> Plan[str]:
        tries.append(failed)
        if len(tries) == 1:
            return Plan([Create("a/x"), Create("b/y")], "first")
        return Plan([Create("a/x"), Create("a/y")], "second")

    assert await apply_plan(client, plan, what="both") == "second"
    assert await client.children("a") == ["x", "y"]
    assert [type(each) for each in tries] == [type(None), NoNode]


#: What becomes of a write that fails so, one failure a try; then it is done.
TABLE: list[tuple[list[CoordinationError], type[CoordinationError] | None, str]] = [
    ([], None, ""),
    (FASTER, None, ""),
    ([LOST, *FASTER, LOST], None, ""),
    ([NotEmpty(PATH)], NotEmpty, "children"),
    ([AWAY], NotConnected, "away"),
    ([OVER], SessionExpired, "over"),
    ([BadVersion(PATH), AWAY], NotConnected, "away"),
    ([LOST, AWAY], ConnectionLost, "cut"),
    ([LOST, OVER], ConnectionLost, "cut"),
    ([BadVersion(PATH)] * (TRIES_MAX - 1), None, ""),
    ([BadVersion(PATH)] * TRIES_MAX, CoordinationError, "^the count changed 20 times"),
    ([LOST] * TRIES_MAX, ConnectionLost, "cut"),
]


@pytest.mark.parametrize(("failures", "raised", "text"), TABLE)
@pytest.mark.parametrize("at", ["set", "multi"])
async def test_failures_of_a_write(
    client: MemoryCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    failures: list[CoordinationError],
    raised: type[CoordinationError] | None,
    text: str,
) -> None:
    """Another writer and a lost answer: read again. Nothing sent: raised, unless a try was lost."""
    await client.create(PATH, b"0", parents=True)
    await client.create("a/c")
    left = list(failures)
    write = getattr(client, at)

    async def fail(*args: Any, **fields: Any) -> Any:
        if left:
            raise left.pop(0)
        return await write(*args, **fields)

    def change(node: Node | None) -> Sequence[Operation]:
        assert node is not None
        also = [Set("a/c", b"", -1)] if at == "multi" else []
        return [Set(PATH, b"1", node.stat.version), *also]

    monkeypatch.setattr(client, at, fail)
    if raised is None:
        await update(client, PATH, change, what="the count")
    else:
        with pytest.raises(raised, match=text) as caught:
            await update(client, PATH, change, what="the count")
        assert type(caught.value) is raised
    assert left == []
    assert (await client.get(PATH)).data == (b"0" if raised else b"1")


async def test_a_refusal_of_the_decision_is_raised(client) -> None:
    """Also one that would mean "read again" if the write had failed with it."""
    for refusal in (InvalidArgument("no"), BadVersion(PATH), NodeExists(PATH)):

        def refuse(_: Node | None, refusal: Exception = refusal) -> Sequence[Operation]:
            raise refusal

        with pytest.raises(type(refusal)):
            await update(client, PATH, refuse, what="the count")


@pytest.mark.parametrize("failed", [BadVersion(PATH), LOST])
async def test_a_caller_may_have_failures_raised(client, monkeypatch, failed) -> None:
    """A writer that cannot recognise its own write must not try a lost one again."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise failed

    async def plan(_: CoordinationError | None) -> Plan[None]:
        return Plan([Set(PATH, b"1", 0)], None)

    monkeypatch.setattr(client, "set", fail)
    with pytest.raises(type(failed)):
        await apply_plan(client, plan, what="the count", again=(NodeExists,))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_change_that_knows_its_own_write_survives_a_fault_at_every_call(fault: str) -> None:
    """Told as done, it is done, whatever was lost on the way; told as not sent, nothing was."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as client, client_of(ensemble) as witness:
            await client.create(PATH, b"2", parents=True)
            strike(ensemble, client, fault, skip)
            expected = {b"3"}
            try:
                await update(client, PATH, add_one, what="the count")
            except ConnectionLost:
                expected = {b"2", b"3"}
            except SessionExpired:
                expected = {b"2"}
            was_struck = disarm(client)
            assert (await witness.get(PATH)).data in expected
        if not was_struck:
            break
        skip += 1
    assert skip == 2, "one read and one write, where nothing else happens"
