"""``vq quota``: quotas are set, removed, listed, and shown for a user."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.commands import cells, run_command
from support.coordination import client_of
from support.json_schema import schema_of, wrong

from vq.cli.base.options import Invocation
from vq.cli.security.quota import quota
from vq.client.cluster import ClusterClient
from vq.coordination.tree.memory import MemoryEnsemble
from vq.errors import InvalidArgument
from vq.operations.security.quotas import list_quotas, set_quotas
from vq.security.quotas import Quota

Vq = Callable[..., tuple[int, str, str]]


async def on(ensemble: MemoryEnsemble, operation: Callable[..., Any], *arguments: Any) -> Any:
    async with client_of(ensemble) as coordinator:
        nobody = SimpleNamespace(user="")
        face = SimpleNamespace(coordinator=coordinator, login=nobody)
        cluster = cast("ClusterClient", face)
        return await operation(cluster, *arguments)


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
    """Run ``vq quota``; return exit code, output and remarks."""
    return lambda *arguments: run_command(quota, arguments, capsys)


def test_what_was_set_is_listed_and_shown_for_those_whom_it_holds_for(vq: Vq) -> None:
    assert "nobody is limited" in vq("list")[2]
    assert "set: user:* bytes-in=10M requests=5" in vq("set", "user:*", "requests=5",
                                                       "bytes-in=10M")[2]  # fmt: skip
    vq("set", "user:alice", "requests=unlimited")
    assert cells(vq("list")[1]) == [
        {"subject": "user:*", "limits": "bytes-in=10M, requests=5"},
        {"subject": "user:alice", "limits": "requests=unlimited"},
    ]
    assert cells(vq("show", "alice")[1]) == [
        {"limit": "bytes-in", "value": "10M", "subject": "user:*"},
        {"limit": "requests", "value": "unlimited", "subject": "user:alice"},
    ]
    vq("remove", "user:*", "requests")
    assert cells(vq("show", "bob")[1]) == [
        {"limit": "bytes-in", "value": "10M", "subject": "user:*"}
    ]
    vq("remove", "user:*")
    assert "'bob' is not limited" in vq("show", "bob")[2]


def test_a_user_that_nobody_knows_gets_a_remark_and_the_quota_all_the_same(vq: Vq) -> None:
    said = vq("set", "user:ann", "requests=5")[2]
    assert "set: user:ann requests=5" in said
    assert "there is no user ann" in said
    for subject in ("user:*", "anonymous", "client:etl", "client:*"):
        assert "there is no" not in vq("set", subject, "requests=5")[2]


def test_json_has_numbers_and_null_for_no_limit(vq: Vq) -> None:
    vq("set", "client:*", "time=5%", "requests=unlimited")
    listed = json.loads(vq("list", "--json")[1])
    assert listed == [{"subject": "client:*", "limits": {"requests": None, "time": 0.05}}]
    shown = json.loads(vq("show", "anonymous", "--client", "etl", "--json")[1])
    assert shown == [
        {"limit": "requests", "value": None, "subject": "client:*"},
        {"limit": "time", "value": 0.05, "subject": "client:*"},
    ]
    assert not [*wrong(listed, schema_of(("quota", "list")))]
    assert not [*wrong(shown, schema_of(("quota", "show")))]


def test_a_wrong_quota_is_refused_and_changes_nothing(vq: Vq, ensemble: MemoryEnsemble) -> None:
    vq("set", "user:a", "requests=5")
    for arguments, why in {
        ("set", "user:a", "requests=0"): "is not a number",
        ("set", "a", "requests=1"): "is none of user:NAME",
        ("remove", "user:a", "time"): "has no quota for time",
        ("show", "role:x"): "is no user",
    }.items():
        code, _, err = vq(*arguments)
        assert code == 2
        assert why in err
    assert list(map(str, asyncio.run(on(ensemble, list_quotas)))) == ["user:a requests=5"]


async def test_operations_take_values_and_texts_and_no_single_one() -> None:
    ensemble = MemoryEnsemble()
    made = await on(ensemble, set_quotas, [Quota.parse("user:a requests=1"), "user:b time=1%"])
    assert list(map(str, made)) == ["user:a requests=1", "user:b time=1%"]
    for wrong_one, why in (("user:a requests=1", "is one quota"), ([5], "quota 5 is int")):
        with pytest.raises(InvalidArgument, match=why):
            await on(ensemble, set_quotas, wrong_one)
