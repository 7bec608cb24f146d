"""``vq acl``: rules are added, removed, listed, and asked."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.commands import cells, refused, run_command
from support.coordination import client_of
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.security.acl import acl
from vq.client.cluster import ClusterClient
from vq.clock import SystemClock
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.access import AccessList
from vq.errors import InvalidArgument
from vq.operations.security.access import (
    add_access_rules,
    decide_access,
    list_access_rules,
    remove_access_rules,
)
from vq.operations.security.users import add_user, change_user_roles
from vq.security.rules import AccessRule

Vq = Callable[..., tuple[int, str, str]]


async def on(
    ensemble: MemoryEnsemble, operation: Callable[..., Any], *arguments: Any, **named: Any
) -> Any:
    async with client_of(ensemble) as coordinator:
        cluster = SimpleNamespace(coordinator=coordinator, clock=SystemClock())
        return await operation(cast("ClusterClient", cluster), *arguments, **named)


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> MemoryEnsemble:
    """Commands run on this tree."""
    made = MemoryEnsemble()

    def call(_: object, operation: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run(on(made, operation, *arguments))

    monkeypatch.setattr(Invocation, "call", call)
    return made


@pytest.fixture
def vq(ensemble: MemoryEnsemble, capsys: pytest.CaptureFixture[str]) -> Vq:
    """Run ``vq acl``; return exit code, output and remarks."""
    return lambda *arguments: run_command(acl, arguments, capsys)


def test_what_was_added_is_listed_and_decides(vq: Vq, ensemble: MemoryEnsemble) -> None:
    asyncio.run(on(ensemble, add_user, "alice", None))
    assert "there are no rules" in vq("list")[2]
    assert (
        "added: allow user:alice read,write topic:orders*"
        in vq("add", "user:alice", "write,read", "topic:orders*")[2]
    )
    assert "there already: allow" in vq("add", "user:alice", "write", "topic:orders*")[2]
    vq("add", "*", "write", "topic:orders.old", "--deny")
    code, out, _ = vq("list")
    assert code == 0
    assert cells(out) == [
        {
            "effect": "allow",
            "subject": "user:alice",
            "rights": "read,write",
            "resource": "topic:orders*",
        },
        {"effect": "deny", "subject": "*", "rights": "write", "resource": "topic:orders.old"},
    ]
    assert len(cells(vq("list", "--subject", "*")[1])) == 1
    assert vq("test", "alice", "read", "topic:orders") == (
        0,
        "allowed: alice read topic:orders; rule: allow user:alice read,write topic:orders*\n",
        "",
    )
    code, out, _ = vq("test", "alice", "write", "topic:orders.old")
    assert (code, out) == (
        1,
        "refused: alice write topic:orders.old; rule: deny * write topic:orders.old\n",
    )
    code, out, _ = vq("test", "anonymous", "read", "topic:_vq.dlq.g")
    assert (code, out) == (
        1,
        "refused: anonymous read topic:_vq.dlq.g, which needs read group:g; no rule allows it\n",
    )
    vq("add", "role:clerks", "manage", "cluster")
    assert vq("test", "bob", "describe", "cluster", "--role", "clerks")[0] == 0
    assert vq("test", "bob", "describe", "cluster")[0] == 1


def test_whom_nobody_knows_gets_a_remark_and_the_rule_all_the_same(
    vq: Vq, ensemble: MemoryEnsemble
) -> None:
    asyncio.run(on(ensemble, add_user, "alice", None))
    for subject, says in {
        "user:ann": "there is no user ann; `vq user add ann` adds it",
        "role:shop": "no user has the role shop",
        "user:alice": "",
        "anonymous": "",
        "*": "",
    }.items():
        code, _, said = vq("add", subject, "read", "topic:a")
        assert code == 0
        assert f"added: allow {subject} read topic:a" in said
        assert says in said
        assert said.count("\n") == 1 + bool(says)
    assert "there is no user ann" in vq("test", "ann", "read", "topic:a")[2]
    assert vq("test", "alice", "read", "topic:a")[2] == ""
    asyncio.run(on(ensemble, change_user_roles, "alice", add=["shop"]))
    assert "no user has" not in vq("add", "role:shop", "write", "topic:a")[2]


def test_a_right_that_no_request_needs_gets_a_remark(vq: Vq, ensemble: MemoryEnsemble) -> None:
    asyncio.run(on(ensemble, add_user, "alice", None))
    assert "no request needs write on a cluster" in vq("add", "user:alice", "write", "cluster")[2]
    said = vq("add", "user:alice", "read,write", "transactional-id:x")[2]
    assert "no request needs read on a transactional-id" in said
    assert "no request" not in vq("add", "user:alice", "manage", "cluster")[2]


def test_removing_a_rule_keeps_the_others(vq: Vq) -> None:
    vq("add", "*", "read,write", "topic:a", "--deny")
    vq("add", "user:alice", "read", "topic:a")
    assert (
        "removed: deny * write topic:a; rules now: 2"
        in vq("remove", "*", "write", "topic:a", "--deny")[2]
    )
    code, _, err = vq("remove", "*", "manage", "topic:a", "--deny")
    assert code == 2
    assert "there is: deny * read topic:a" in err
    vq("remove", "user:alice", "read", "topic:a")
    assert [each["effect"] for each in cells(vq("list")[1])] == ["deny"]
    said = vq("list", "--subject", "user:alice")[2]
    assert "no rule has the subject user:alice; rules of others: 1" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "alice", "read", "topic:a"), "subject 'alice' is none of user:NAME"),
        (("add", "user:alice", "eat", "topic:a"), "rights 'eat'"),
        (("add", "user:alice", "read", "orders"), "resource 'orders'"),
        (("add", "user:alice", "read", "topic:_vq.retry.g"), "group:g"),
        (("list", "--subject", "usr:alice"), "subject 'usr:alice' is none of user:NAME"),
        (("test", "user:../x", "read", "topic:a"), "subject"),
        (("test", "alice", "read", "topic:a*"), "give a name"),
    ],
)
def test_bad_arguments_are_named(
    ensemble: MemoryEnsemble, arguments: tuple[str, ...], says: str
) -> None:
    assert says in refused(acl, arguments, code=2)["message"]


def test_json_is_what_the_schemas_say(vq: Vq) -> None:
    for arguments in (
        ("add", "user:alice", "read", "group:g"),
        ("add", "*", "read", "transactional-id:shop/1", "--deny"),
        ("list",),
        ("test", "alice", "read", "group:g"),
        ("test", "bob", "read", "group:g"),
        ("remove", "user:alice", "read", "group:g"),
    ):
        _, out, _ = vq(*arguments, "--json")
        document = json.loads(out)
        assert not list(wrong(document, schema_of(("acl", *arguments))))
    assert document == [
        {
            "effect": "deny",
            "subject": "*",
            "rights": ["read"],
            "resource": "transactional-id:shop/1",
        }
    ]


def test_rules_of_a_newer_vq_are_not_overwritten(ensemble: MemoryEnsemble) -> None:
    async def spoil(cluster: ClusterClient) -> None:
        await cluster.coordinator.create(AccessList.path(), b'{"v": 2}', parents=True)

    asyncio.run(on(ensemble, spoil))
    for arguments in (("list",), ("add", "*", "read", "cluster"), ("test", "a", "read", "cluster")):
        assert "format v2" in refused(acl, arguments, code=1)["message"]


def test_operations_take_rules_and_their_texts() -> None:
    async def work() -> None:
        ensemble = MemoryEnsemble()
        rule = AccessRule.parse("allow user:a read topic:t")
        held = await on(ensemble, add_access_rules, [rule, "deny * manage cluster"])
        assert await on(ensemble, list_access_rules) == held
        assert (await on(ensemble, decide_access, "user:a", "read", "topic:t")).rule == rule
        for bad in ("deny * manage cluster", [7]):
            with pytest.raises(InvalidArgument, match="give"):
                await on(ensemble, add_access_rules, bad)
        with pytest.raises(InvalidArgument, match="right 'eat'"):
            await on(ensemble, decide_access, "a", "eat", "topic:t")
        assert await on(ensemble, remove_access_rules, held) == []

    asyncio.run(work())
