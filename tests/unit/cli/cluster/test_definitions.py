"""``vq cluster export`` and ``import``: the file, and how a plan is shown."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import refused, run_command
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.cluster import definitions as module
from vq.cli.cluster.cluster import cluster
from vq.model import TopicSettings
from vq.operations.cluster.definition_file import DefinedTopic, Definitions
from vq.operations.cluster.definitions import (
    DefinitionAction,
    DefinitionChange,
    DefinitionStep,
    PlannedDefinitions,
)

FOUND = Definitions(cluster="c", topics=(DefinedTopic("t", TopicSettings()),))
CHANGE = DefinitionStep(
    kind="topic",
    name="t",
    action=DefinitionAction.CHANGE,
    changes=(DefinitionChange("partitions", "1", "2"),),
)
KEPT = DefinitionStep(kind="broker_group", name="b1", action=DefinitionAction.LEAVE)
REFUSED = DefinitionStep(
    kind="group", name="g", action=DefinitionAction.LEAVE, why_not="it has 1 member(s)"
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What operations are asked for; ``steps`` are those of the plan."""
    told: dict[str, Any] = {"steps": (CHANGE, KEPT)}
    monkeypatch.chdir(tmp_path)

    async def export(_: object, **options: Any) -> Definitions:
        told.update(options)
        return FOUND

    async def plan(_: object, definitions: Definitions, **options: Any) -> PlannedDefinitions:
        told.update(options, definitions=definitions)
        return PlannedDefinitions(definitions=definitions, steps=told["steps"])

    async def act(_: object, planned: PlannedDefinitions) -> list[DefinitionStep]:
        told["done"] = True
        return list(planned.steps)

    monkeypatch.setattr(Invocation, "call", lambda _, operation: asyncio.run(operation(None)))
    monkeypatch.setattr(module, "export_definitions", export)
    monkeypatch.setattr(module, "plan_import_definitions", plan)
    monkeypatch.setattr(module, "import_definitions", act)
    return told


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    ended, out, _ = run_command(cluster, [*arguments, "--json"], capsys)
    assert ended == code
    document = json.loads(out)
    assert not list(wrong(document, schema_of(("cluster", *arguments))))
    return document


def test_a_file_is_read_as_it_was_written(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = told(capsys, "export", "c.json", "--offsets")
    assert (document["topics"], asked["with_offsets"]) == (1, True)
    assert document["bytes"] == (tmp_path / "c.json").stat().st_size
    assert '\n  "topics": [' in (tmp_path / "c.json").read_text()
    document = told(capsys, "import", "c.json", "--prune")
    assert (document["done"], "done" in asked) == (False, False)
    assert (asked["definitions"], asked["prune"]) == (FOUND, True)
    assert (document["changed"], document["left"]) == (1, 1)
    assert told(capsys, "import", "c.json", "--yes")["done"]
    assert asked["done"]
    assert "give the name of a new one" in refused(cluster, ["export", "c.json"], code=2)["message"]


def test_people_see_what_changes_and_what_is_not_done(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "export", "c.json")
    asked["steps"] = (CHANGE, KEPT, REFUSED)
    code, out, err = run_command(cluster, ["import", "c.json"], capsys)
    assert (code, out.splitlines()[1:]) == (
        1,
        [
            "change\ttopic\tt\tpartitions: 1 -> 2",
            "leave\tgroup\tg\tnot done: it has 1 member(s)",
        ],
    )
    assert "1 thing(s) are as the file says" in err
    assert "1 of 3 thing(s) cannot be as the file says" in err


def test_what_are_no_definitions_is_named_with_its_file(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("{")
    assert "x is no JSON document" in refused(cluster, ["import", "x"], code=2)["message"]
    (tmp_path / "y").write_text("{}")
    assert "y: format = None" in refused(cluster, ["import", "y"], code=2)["message"]
