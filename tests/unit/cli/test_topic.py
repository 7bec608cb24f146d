"""``vq topic``: what it says when ZooKeeper goes away in the middle of a change."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.coordination import client_of

from vq.admin import topics as admin
from vq.admin.topics import Deletion
from vq.cli import errors, topic
from vq.client.config import MessageFactoryConfig
from vq.coordination import topics
from vq.coordination.coordinator import ConnectionLost, NotConnected, SessionExpired
from vq.coordination.memory import MemoryEnsemble

CUTS = [ConnectionLost("no reply"), NotConnected("away for 6 s"), SessionExpired("it ended")]


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a cluster without topics in memory."""

    @asynccontextmanager
    async def cluster_client(_config: MessageFactoryConfig) -> AsyncIterator[Any]:
        async with client_of(MemoryEnsemble()) as coordinator:
            yield SimpleNamespace(coordinator=coordinator)

    async def plan(_: object, name: str) -> Deletion:
        return Deletion(name, 1, 0, exact=True)

    monkeypatch.setattr(topic, "cluster_client", cluster_client)
    monkeypatch.setattr(admin, "plan_delete", plan)


def said(*arguments: str, expected: int = errors.EXIT_FAILED) -> dict[str, Any]:
    """Run ``vq topic ... --json`` and return the error that it ends with."""
    stderr = io.StringIO()
    code = errors.run(
        lambda: topic.topic.main([*arguments, "--json"], standalone_mode=False),
        as_json=True,
        stderr=stderr,
    )
    assert code == expected
    return json.loads(stderr.getvalue())  # type: ignore[no-any-return]


def raising(error: Exception) -> Any:
    async def call(*_: object, **__: object) -> None:
        raise error

    return call


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: type(cut).__name__)
@pytest.mark.parametrize("verb", ["create", "delete"])
def test_a_change_that_was_cut_is_perhaps_done(
    monkeypatch: pytest.MonkeyPatch, verb: str, cut: Exception
) -> None:
    """Also when its last step never left: the ones before may have been applied."""
    monkeypatch.setattr(topics, f"{verb}_topic", raising(cut))
    error = said(verb, "orders", *(["--yes"] if verb == "delete" else []))
    assert error["outcome"] == "unknown"
    assert "orders may or may not" in error["message"]
    assert "vq topic describe" in error["hint"]


@pytest.mark.parametrize("option", ["--flush-messages", "--flush-ms"])
def test_an_option_without_effect_is_refused(option: str) -> None:
    """With its value, why it has none, and what to do."""
    error = said("create", "orders", option, "5", expected=errors.EXIT_USAGE)
    assert error["message"].startswith(f"{option} 5 has no effect with --flush sync")
    assert "--flush async" in error["message"]


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize(("hours", "told"), [("5", True), ("forever", False), (None, False)])
def test_whoever_sets_an_age_is_told_that_nothing_is_deleted_yet(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hours: str | None,
    told: bool,
) -> None:
    """The setting is stored for the version that acts on it."""

    async def create(*_: object) -> SimpleNamespace:
        return SimpleNamespace(id="1", partitions=())

    monkeypatch.setattr(admin, "create_topic", create)
    given = [] if hours is None else ["--retention-hours", hours]
    topic.topic.main(["create", "orders", *given], standalone_mode=False)
    assert ("no broker deletes by age yet" in capsys.readouterr().err) is told
