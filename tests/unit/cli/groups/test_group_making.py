"""``vq group create``, ``export`` and ``import``: options, and files of any vq."""

import asyncio
import json
from pathlib import Path
from typing import Any

import click
import pytest
from support.commands import run_command
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.groups import group_making
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.operations.groups.making import ExportedOffset, GroupExport, PlannedGroup
from vq.operations.groups.terms import GroupTerms, terms_of

TERMS = GroupTerms(
    model="clustering",
    mode="keyed",
    order="relaxed",
    strategy="circle",
    failure=FailurePolicy(
        on_failure="retry-topic",
        max_attempts=7,
        retry_backoff_s=(0.5, 5.0),
        retry_topic_s=(10.0, 60.0),
        on_bad_record="skip",
    ),
    offset_store="file:1234",
)
EXPORT = GroupExport(
    group="g",
    time_ms=1_763_800_000_000,
    start="latest",
    topics={"orders.*": "", "t": "a || b"},
    offsets=(
        ExportedOffset(
            topic="t", partition=0, offset=9, topic_id="x", message_id=5, ahead=((30, 7), (50, 8))
        ),
    ),
    terms=TERMS,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the commands ask the operations for."""
    found: dict[str, Any] = {}

    def planned(terms: GroupTerms) -> PlannedGroup:
        return PlannedGroup("h", True, "earliest", {"t": ""}, terms, ())

    async def export(*_: object) -> GroupExport:
        return EXPORT

    async def plan_import(_: object, exported: GroupExport, group: str) -> PlannedGroup:
        found.update(exported=exported, group=group)
        return planned(exported.terms)

    async def plan_create(
        _: object, group: str, filters: object, target: object, **terms: Any
    ) -> PlannedGroup:
        found.update(group=group, **terms)
        return planned(TERMS)

    monkeypatch.setattr(
        Invocation, "call", lambda _, operation, *given: asyncio.run(operation(None, *given))
    )
    monkeypatch.setattr(group_making, "export_group", export)
    monkeypatch.setattr(group_making, "plan_import_group", plan_import)
    monkeypatch.setattr(group_making, "plan_create_group", plan_create)
    return found


@pytest.fixture
def run(asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> Any:
    def call(command: click.Command, *arguments: str) -> tuple[int, str, str]:
        return run_command(command, arguments, capsys)

    return call


def test_a_file_has_the_whole_contract(asked: dict[str, Any], run: Any, tmp_path: Path) -> None:
    code, out, _ = run(group_making.export, "g")
    assert code == 0
    assert not list(wrong(json.loads(out), schema_of(["group", "export"])))
    file = tmp_path / "g.json"
    file.write_text(out)
    run(group_making.import_, "h", str(file))
    assert asked == {"exported": EXPORT, "group": "h"}


@pytest.mark.parametrize(("named", "store"), [({}, "zookeeper"), ({"offset_store": "any"}, "any")])
def test_a_file_of_an_earlier_vq_has_the_terms_that_it_knew(
    asked: dict[str, Any], run: Any, tmp_path: Path, named: dict[str, str], store: str
) -> None:
    """Those of a group that was exported by it: the defaults, but for the store."""
    document = {
        "v": 1,
        "group": "g",
        "time_s": 1_763_800_000.0,
        "start": "latest",
        "topics": [{"topic": "t", "filter": None}],
        "offsets": [],
        **named,
    }
    file = tmp_path / "g.json"
    file.write_text(json.dumps(document))
    assert run(group_making.import_, "h", str(file))[0] == 0
    terms = asked["exported"].terms
    assert terms.offset_store == store
    assert terms.failure == FailurePolicy()
    assert (terms.mode, terms.order, terms.strategy) == ("orderly", "strict", "sticky")
    assert terms_of(ConsumerGroup(offset_store=store)) == terms


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"v": 3}, "has format v3, this vq reads v1 and v2"),
        ({"mode": None}, "no export of a group"),
        ({"failure": {}}, "no export of a group"),
    ],
)
def test_a_file_that_is_none_is_refused(
    asked: dict[str, Any], run: Any, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    document = json.loads(run(group_making.export, "g")[1])
    document |= {name: value for name, value in change.items() if value is not None}
    for name in [name for name, value in change.items() if value is None]:
        del document[name]
    file = tmp_path / "g.json"
    file.write_text(json.dumps(document))
    code, _, err = run(group_making.import_, "h", str(file))
    assert code
    assert told in err
    assert not asked


def test_a_group_is_made_with_any_terms(asked: dict[str, Any], run: Any) -> None:
    begin = ("--topic", "t", "--to-earliest")
    terms = ("--offset-store", "any", "--on-bad-record", "skip", "--retry-backoff", "1,5")
    code, _, err = run(group_making.create, "h", *begin, "--mode", "keyed", *terms)
    assert code == 0, err
    assert asked == {
        "group": "h",
        "start": "earliest",
        "mode": "keyed",
        "offset_store": "any",
        "on_bad_record": "skip",
        "retry_backoff_s": (1.0, 5.0),
    }
    code, _, err = run(group_making.create, "h", *begin, "--to-latest")
    assert code == 2
    assert "give one of --to-earliest, --to-latest, --to-time and --offset" in err
