"""``vq zk``: files, plans, and how findings are shown."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.commands import refused, run_command
from support.coordination import client_of
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.cluster import zk as module
from vq.cli.cluster.zk import zk
from vq.client.cluster import ClusterClient
from vq.clock import ManualClock
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.consumers import Member
from vq.coordination.tree.values.slots import SlotCounter


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryEnsemble:
    """Commands run on this tree, in a directory of their own."""
    made = MemoryEnsemble()
    monkeypatch.chdir(tmp_path)

    async def run(operation: Callable[..., Any], *arguments: Any) -> Any:
        async with client_of(made) as coordinator:
            face = SimpleNamespace(
                coordinator=coordinator,
                clock=ManualClock(),
                config=SimpleNamespace(cluster="c"),
            )
            return await operation(cast("ClusterClient", face), *arguments)

    async def anywhere(_: Invocation, work: Callable[..., Any]) -> Any:
        return await run(work)

    def call(_: object, operation: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run(run(operation, *arguments))

    monkeypatch.setattr(Invocation, "call", call)
    monkeypatch.setattr(module, "anywhere", anywhere)
    return made


def stored(ensemble: MemoryEnsemble, **nodes: bytes) -> None:
    """Make nodes; ``__`` in a name is a slash."""

    async def make() -> None:
        async with client_of(ensemble) as coordinator:
            for name, data in nodes.items():
                await coordinator.create(name.replace("__", "/"), data, parents=True)

    asyncio.run(make())


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    ended, out, _ = run_command(zk, [*arguments, "--json"], capsys)
    assert ended == code
    document = json.loads(out)
    assert not list(wrong(document, schema_of(("zk", *arguments))))
    return document


def test_a_finding_has_its_node_and_what_a_repair_does(
    ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(ensemble, slots=b"{", consumers__g__members__m=Member().encode())
    document = told(capsys, "check", code=1)
    assert (document["errors"], document["nodes"]) == (2, 5)
    assert {(each["path"], each["repair"]) for each in document["findings"]} == {
        ("slots", None),
        ("consumers/g/members/m", "deletes the node"),
        ("consumers/g", None),
    }
    code, out, _ = run_command(zk, ["check"], capsys)
    assert code == 1
    assert "  -> vq zk repair --yes (deletes the node)" in out


def test_a_repair_exports_the_tree_before_and_only_with_yes(
    ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told(capsys, "repair") == {"done": False, "backup": None, "repairs": []}
    stored(ensemble, consumers__g__members__m=Member().encode())
    planned = told(capsys, "repair")
    assert [each["path"] for each in planned["repairs"]] == ["consumers/g/members/m"]
    assert [*tmp_path.iterdir()] == []
    done = told(capsys, "repair", "--backup", "before.jsonl", "--yes")
    assert (done["done"], done["backup"]) == (True, "before.jsonl")
    assert "consumers/g/members/m" in (tmp_path / "before.jsonl").read_text()
    assert told(capsys, "check")["errors"] == 0
    back = told(capsys, "import", "before.jsonl", "--yes")
    assert [each["path"] for each in back["steps"]] == ["consumers/g/members/m"]


def test_a_file_is_whole_new_and_for_its_owner_alone(
    ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stored(ensemble, slots=SlotCounter().encode())
    document = told(capsys, "export", "tree.jsonl")
    file = tmp_path / "tree.jsonl"
    assert (document["nodes"], document["bytes"]) == (1, file.stat().st_size)
    assert (file.stat().st_mode & 0o777, [*tmp_path.iterdir()]) == (0o600, [file])
    assert "give the name of a new one" in refused(zk, ["export", "tree.jsonl"], code=2)["message"]


def test_an_export_that_fails_leaves_no_file(
    ensemble: MemoryEnsemble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def cut(*_: Any, **__: Any) -> AsyncIterator[str]:
        yield "first"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "export_tree", cut)
    assert refused(zk, ["export", "tree.jsonl"], code=1)
    assert [*tmp_path.iterdir()] == []


def test_an_import_shows_its_plan_and_says_why_it_is_refused(
    ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(ensemble, slots=SlotCounter().encode())
    told(capsys, "export", "tree.jsonl")

    async def change() -> None:
        async with client_of(ensemble) as coordinator:
            await coordinator.set("slots", SlotCounter(next=9).encode())

    asyncio.run(change())
    document = told(capsys, "import", "tree.jsonl", code=1)
    assert (document["different"], document["done"]) == (["slots"], False)
    assert "--replace" in document["refused"]
    document = told(capsys, "import", "tree.jsonl", "--replace", "--yes")
    assert (document["changed"], document["refused"]) == (1, None)
    assert told(capsys, "import", "tree.jsonl")["same"] == 1


def test_what_is_no_tree_is_named_with_its_file(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff")
    assert "x is no exported tree" in refused(zk, ["import", "x"], code=2)["message"]
    (tmp_path / "y").write_text("{}\n")
    assert "y: line 1 is none" in refused(zk, ["import", "y"], code=2)["message"]


@pytest.mark.parametrize(
    "given",
    [
        ("--operators", "a.zk", "--brokers", "b.zk"),
        ("--operators", "a.zk", "--clients", "b.zk=orders-*"),
        ("--clients", "a.zk=orders-*", "--clients", "a.zk=billing", "--operators", "c.zk"),
    ],
)
def test_an_identity_that_is_given_twice_is_refused(
    ensemble: MemoryEnsemble, tmp_path: Path, given: tuple[str, ...]
) -> None:
    """Brokers with the identity of operators could change every ACL."""
    one = "x:0123456789abcdef"
    for name, text in (("a", one), ("b", one), ("c", "y:" + "z" * 16)):
        path = tmp_path / f"{name}.zk"
        path.touch(mode=0o600)
        path.write_text(text)
    said = refused(zk, ["secure", *given], code=2)["message"]
    assert "is given twice" in said
    assert "0123456789abcdef" not in said
