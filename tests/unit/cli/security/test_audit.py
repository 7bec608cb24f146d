"""``vq audit list``: acts as a table and as JSON."""

import json
from typing import Any

import pytest
from support.commands import cells, run_command
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.security.audit import audit
from vq.operations.cluster.audit import OperatorAct

ACT = OperatorAct(
    record="1760001000010-000003-5f0a1c",
    time_ms=1_760_001_000_010,
    who="root@host",
    user="",
    identity="ops",
    person="carla from 10.0.0.9",
    act="alter_topic",
    subject="orders",
    arguments="{}",
    before="",
    after="",
    outcome="begun",
    error="",
    ended_ms=None,
    changed=True,
)


def test_acts_are_shown_to_people_and_as_the_schema_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def call(_: object, _operation: Any, **named: Any) -> Any:
        asked.append(named)
        return [ACT]

    monkeypatch.setattr(Invocation, "call", call)
    options = ("list", "--by", "carla", "--what", "orders", "--since", "2025-10-09T00:00")
    code, out, _ = run_command(audit, options, capsys)
    (row,) = cells(out)
    assert (code, row["who"], row["act"]) == (0, "carla from 10.0.0.9", "alter_topic")
    assert row["outcome"] == "begun, changed since"
    assert (row["subject"], row["error"]) == ("orders", "-")
    code, out, _ = run_command(audit, ("list", "--json"), capsys)
    found = json.loads(out)
    assert not list(wrong(found, schema_of(("audit", "list"))))
    assert (found[0]["time"], found[0]["ended"]) == (1_760_001_000.01, None)
    assert asked == [
        {"by": "carla", "what": "orders", "since_ms": 1_759_968_000_000, "count": 100},
        {"by": "", "what": "", "since_ms": None, "count": 100},
    ]
