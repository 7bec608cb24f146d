"""``vq secure plan``: what is shown of a plan, to people and as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.commands import run_command
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.security.secure import secure
from vq.operations.security.security_plan import (
    AnonymousSeen,
    MissingAccess,
    NodeSecurity,
    SecurityFacts,
    security_plan,
)

NODE = NodeSecurity(
    "b1/n1",
    authentication="required",
    authorization="permissive",
    tls="required",
    tls_client_certificates="none",
    zookeeper_auth=True,
    anonymous=(AnonymousSeen("10.0.0.7", "shop", 2),),
    missing=(
        MissingAccess("anna", "write", "topic:orders", 9, 1_000, "no rule allows it", True, False),
    ),
    missing_left_out=4,
)
FACTS = SecurityFacts((NODE,), users=("anna",), identities=True)


def shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    facts: SecurityFacts,
    *more: str,
) -> tuple[str, str]:
    def call(_: object, _operation: Any) -> Any:
        return security_plan(facts)

    monkeypatch.setattr(Invocation, "call", call)
    code, out, said = run_command(secure, ("plan", *more), capsys)
    assert code == 0
    return out, said


def test_the_next_step_has_its_commands_and_who_would_be_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = shown(monkeypatch, capsys, FACTS)
    assert "Next: rules (docs/howto/rules.md)" in out
    assert "\n  vq acl add user:anna write topic:orders\n" in out
    assert "10.0.0.7" in out
    assert "no rule allows it" in out
    assert "and 4 more" in out


def test_a_closed_cluster_has_nothing_left_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = replace(NODE, authorization="enforced", anonymous=(), missing=(), missing_left_out=0)
    out, _ = shown(monkeypatch, capsys, replace(FACTS, nodes=(closed,)))
    assert "Nothing is left to do." in out
    silent = replace(FACTS, nodes=(closed, NodeSecurity("b2/n1", "Unreachable: no")))
    out, said = shown(monkeypatch, capsys, silent)
    assert "Nothing is left to do." not in out
    assert "b2/n1 does not tell how it takes clients: Unreachable: no" in said


def test_json_is_as_its_schema_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(shown(monkeypatch, capsys, FACTS, "--json")[0])
    assert not list(wrong(found, schema_of(("secure", "plan"))))
    assert found["next"] == "rules"
    assert found["missing"][0]["last"] == 1.0
