"""``vq topic``: what it takes and shows, and what it says when ZooKeeper goes away meanwhile."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.commands import refused
from support.coordination import client_of

from vq.cli.base import errors
from vq.cli.topics import topic, topic_closing
from vq.cli.topics.topic_settings import settings_among, with_options
from vq.client.config import MessageFactoryConfig
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected, SessionExpired
from vq.coordination.tree.memory import MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, Registration
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.errors import InvalidArgument
from vq.model import TopicOrigin, TopicSettings
from vq.operations.base import connect
from vq.operations.groups.groups import GroupProgress
from vq.operations.topics import deletion
from vq.operations.topics import topics as admin
from vq.operations.topics.deletion import Deletion
from vq.operations.topics.emptying import GroupDrain
from vq.operations.topics.topics import HeldBack, Topic

ORIGIN = TopicOrigin(client="app", host="web1", time_ms=1_763_800_000_007, auto=True)
CUTS = [ConnectionLost("no reply"), NotConnected("away for 6 s"), SessionExpired("it ended")]


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a cluster without topics in memory."""

    @asynccontextmanager
    async def cluster_client(_config: MessageFactoryConfig) -> AsyncIterator[Any]:
        async with client_of(MemoryEnsemble()) as coordinator:
            yield SimpleNamespace(coordinator=coordinator, origin=lambda: ORIGIN)

    async def plan(_: object, name: str, *, now: bool = False) -> Deletion:
        return Deletion(name, 1, 0, exact=True)

    monkeypatch.setattr(connect, "cluster_client", cluster_client)
    monkeypatch.setattr(deletion, "plan_delete", plan)


def said(*arguments: str, expected: int = errors.EXIT_FAILED) -> dict[str, Any]:
    """Run ``vq topic ... --json`` and return the error that it ends with."""
    return refused(topic.topic, arguments, code=expected)


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
    error = said(verb, "orders", *(["--yes", "--now"] if verb == "delete" else []))
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
@pytest.mark.parametrize(
    ("given", "compression", "threshold"),
    [
        ([], None, None),
        (["--compression", "zstd"], "zstd", None),
        (["--compression", "none", "--compression-threshold", "0"], "none", 0),
        (["--compression", "lz4", "--compression-threshold", "64K"], "lz4", 65_536),
        (["--compression-threshold", "1m"], None, 1_048_576),
        (["--compression-threshold", "100"], None, 100),
    ],
)
def test_compression_of_a_new_topic(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    compression: str | None,
    threshold: int | None,
) -> None:
    """A threshold alone counts only for some producers, which the command says."""
    asked: list[TopicSettings] = []

    async def create(_cluster: object, _name: str, settings: TopicSettings) -> SimpleNamespace:
        asked.append(settings)
        return SimpleNamespace(id="1", partitions=())

    monkeypatch.setattr(admin, "create_topic", create)
    topic.topic.main(["create", "orders", *given], standalone_mode=False)
    assert [(each.compression, each.compression_threshold) for each in asked] == [
        (compression, threshold)
    ]
    alone = threshold is not None and compression in {None, "none"}
    assert ("counts only for producers whose own" in capsys.readouterr().err) is alone


@pytest.mark.parametrize("size", ["", "K", "-1", "1.5K", "64k b", "64KB", "1048577", "2M", "٣K"])
def test_a_threshold_is_a_size_within_its_bounds(size: str) -> None:
    error = said("create", "t", "--compression-threshold", size, expected=errors.EXIT_USAGE)
    assert "--compression-threshold" in error["message"]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        (TopicSettings(), ("none", 131_072)),
        (TopicSettings(compression="zstd", compression_threshold=0), ("zstd", 0)),
    ],
)
def test_the_settings_of_a_topic_are_shown_as_they_count(
    settings: TopicSettings, shown: tuple[str, int]
) -> None:
    fields = topic.settings_rows(Topic("t", "id", settings, ()))
    assert (fields["compression"], fields["compression_threshold"]) == shown


def test_who_created_a_topic_is_shown() -> None:
    """Nothing of a topic that an earlier vq created."""
    fields = topic.settings_rows(Topic("t", "id", TopicSettings(), (), ORIGIN))
    assert fields["created"] == "2025-11-22T08:26:40.007Z"
    assert (fields["created_by"], fields["auto_created"]) == ("app on web1", True)
    odd = replace(ORIGIN, time_ms=10**18)
    fields = topic.settings_rows(Topic("t", "id", TopicSettings(), (), odd))
    assert fields["created"] == f"{10**18} ms"  # somebody wrote it into the tree
    fields = topic.settings_rows(Topic("t", "id", TopicSettings(), ()))
    assert (fields["created"], fields["created_by"], fields["auto_created"]) == (None, None, None)


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--retention-policy", "keep"], False),
        (["--retention-hours", "forever", "--retention-policy", "keep"], True),
        (["--retention-hours", "forever", "--retention-policy", "archive"], False),
        (["--retention-hours", "forever", "--retention-bytes", "1G"], False),
        (["--retention-hours", "forever"], False),
    ],
)
def test_a_policy_without_limits_is_told_to_have_no_effect(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    told: bool,
) -> None:
    async def create(*_: object) -> SimpleNamespace:
        return SimpleNamespace(id="1", partitions=())

    monkeypatch.setattr(admin, "create_topic", create)
    topic.topic.main(["create", "orders", *given], standalone_mode=False)
    assert ("nothing is deleted" in capsys.readouterr().err) is told


def test_settings_that_are_given_are_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others keep their values."""
    ensemble = MemoryEnsemble()

    @asynccontextmanager
    async def cluster_client(_config: MessageFactoryConfig) -> AsyncIterator[Any]:
        async with client_of(ensemble) as coordinator:
            if await coordinator.exists("topics/orders") is None:
                await add_broker(coordinator)
                settings = TopicSettings(partitions=2, max_message_bytes=2_000, flush="async")
                await topics.create_topic(coordinator, "orders", settings)
            yield SimpleNamespace(coordinator=coordinator)

    monkeypatch.setattr(connect, "cluster_client", cluster_client)
    for replication in ("async", "sync"):
        arguments = ["alter", "orders", "--replication", replication, "--flush-ms", "70"]
        topic.topic.main([*arguments, "--json"], standalone_mode=False)
        shown = json.loads(capsys.readouterr().out)
        assert shown["replication"] == replication
        assert (shown["flush_interval_s"], shown["max_message_bytes"], shown["flush"]) == (
            0.07,
            2_000,
            "async",
        )
    assert said("alter", "missing", "--min-insync", "1")["error"] == "UnknownTopic"


def test_a_name_that_cannot_be_is_refused_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect, "cluster_client", lambda _: pytest.fail("it connects"))
    error = said("create", "a b", expected=errors.EXIT_USAGE)
    assert "topic name 'a b'" in error["message"]


def test_altering_nothing_is_refused() -> None:
    """It would look like a success."""
    assert "at least one setting" in said("alter", "t", expected=errors.EXIT_USAGE)["message"]


async def add_broker(coordinator: Any) -> None:
    """Put a live broker group into the tree."""
    await coordinator.create(BrokerGroup.path("b1"), BrokerGroup().encode(), parents=True)
    node = Registration(host="127.0.0.1", port=1)
    path = Registration.path("b1", "n1")
    stat = await coordinator.create(path, node.encode(), ephemeral=True, parents=True)
    state = GroupState(epoch=1, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await coordinator.create(GroupState.path("b1"), state.encode())


@pytest.mark.parametrize(
    ("by", "since_ms", "told"),
    [
        (
            "group billing",
            1_763_800_000_000,
            "t-3: 500 bytes from offset 70 on are kept beyond the retention, since "
            "2025-11-22T08:26:40.000Z: group billing has not read it",
        ),
        (
            "no consumer group",
            None,
            "t-3: 500 bytes from offset 70 on are kept beyond the retention: no consumer group "
            "reads the topic yet",
        ),
    ],
)
def test_who_holds_back_what_is_said(by: str, since_ms: int | None, told: str) -> None:
    held = HeldBack(by, 70, 500, since_ms)
    assert topic.held_text("t", 3, held) == told
    since_s = None if since_ms is None else since_ms / 1000
    assert topic.HELD(held) == {"by": by, "start": 70, "bytes": 500, "since_s": since_s}


@pytest.mark.parametrize(
    ("options", "policy", "hours"),
    [
        ({}, "archive", 24),
        ({"archive_after_hours": "48"}, "archive", 48),
        ({"archive_after_hours": "never"}, "delete", None),
        ({"retention_hours": "12"}, "archive", None),
        ({"archive_to": "file:///mnt/a"}, "archive", 24),
        ({"retention_policy": "delete"}, "delete", None),
        ({"retention_policy": "keep"}, "keep", None),
        ({"retention_policy": "keep", "archive_after_hours": "never"}, "keep", None),
    ],
)
def test_a_new_topic_is_archived_unless_something_else_is_said(
    options: dict[str, str], policy: str, hours: int | None
) -> None:
    given = {"retention_policy": None, **options}
    found = settings_among(ClusterSettings(), given)
    assert (found.retention_policy, found.archived_after_hours) == (policy, hours)


def test_a_new_topic_is_not_archived_where_the_cluster_says_so() -> None:
    never = ClusterSettings(new_topics=TopicSettings(retention_hours=5))
    found = settings_among(never, {"retention_policy": None})
    assert (found.retention_policy, found.retention_hours) == ("delete", 5)


@pytest.mark.parametrize(
    "name", ["retention_hours", "retention_early_hours", "archive_after_hours"]
)
@pytest.mark.parametrize("text", ["-1", "1.5", "x", "", "9" * 21, "9" * 5_000])
def test_hours_that_are_none_are_refused_with_the_option(name: str, text: str) -> None:
    """Also a number with more digits than Python turns into an integer."""
    option = "--" + name.replace("_", "-")
    with pytest.raises(InvalidArgument, match=option) as refused:
        with_options(TopicSettings(), {name: text})
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("by_stream", "readable", "told"),
    [
        (False, True, "10 bytes behind in 1 partition(s), and it has no members"),
        (True, True, "10 bytes behind in 1 partition(s)"),
        (True, False, "10 bytes behind in 1 partition(s), and the topic is not readable"),
    ],
)
def test_a_drain_says_why_a_group_may_stay_behind(
    by_stream: bool, readable: bool, told: str
) -> None:
    """A stream misses no members."""
    behind = GroupProgress(topic="t", partition=0, lag_bytes=10, readable=readable)
    found = GroupDrain("g", 0, (behind,), by_stream=by_stream)
    assert topic_closing.group_sentence(found) == f"group g: {told}"
