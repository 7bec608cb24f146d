"""``vq cluster settings``: what it takes, keeps and shows."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.commands import refused
from support.coordination import client_of

from vq.cli.base import errors
from vq.cli.cluster import cluster
from vq.client.config import MessageFactoryConfig
from vq.coordination.topics import cluster_settings
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.memory import MemoryEnsemble
from vq.operations.base import connect
from vq.operations.cluster import settings as admin

ALL = {
    "--partitions": ("partitions", 3),
    "--flush": ("flush", "async"),
    "--flush-messages": ("flush_interval_messages", 7),
    "--flush-ms": ("flush_interval_ms", 70),
    "--retention-hours": ("retention_hours", "forever"),
    "--retention-bytes": ("retention_bytes", 900),
    "--retention-early-hours": ("retention_early_hours", 5),
    "--retention-policy": ("retention_policy", "keep"),
    "--archive-after-hours": ("archive_after_hours", 48),
    "--archive-to": ("archive_to", "file:///mnt/archive"),
    "--max-message-bytes": ("max_message_bytes", 1000),
    "--replication": ("replication", "async"),
    "--min-insync": ("min_insync", 2),
    "--compression": ("compression", "zstd"),
    "--compression-threshold": ("compression_threshold", 500),
}
#: As programs see it.
SHOWN = dict(ALL.values()) | {
    "flush_interval_s": 0.07,
    "retention_s": None,
    "archive_after_s": 172_800,
}
SHOWN["compression_threshold_bytes"] = SHOWN.pop("compression_threshold")
SHOWN["retention_early_s"] = 5 * 3600
del SHOWN["flush_interval_ms"], SHOWN["retention_hours"], SHOWN["retention_early_hours"]
del SHOWN["archive_after_hours"]
GIVEN = [text for option, (_, value) in ALL.items() for text in (option, str(value))]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find one cluster in memory."""
    ensemble = MemoryEnsemble()

    @asynccontextmanager
    async def cluster_client(_config: MessageFactoryConfig) -> AsyncIterator[Any]:
        async with client_of(ensemble) as coordinator:
            yield SimpleNamespace(coordinator=coordinator)

    monkeypatch.setattr(connect, "cluster_client", cluster_client)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``vq cluster settings ... --json`` and return what it shows."""

    def run(*arguments: str) -> dict[str, Any]:
        cluster.cluster.main(["settings", *arguments, "--json"], standalone_mode=False)
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    return run


def said(*arguments: str, expected: int = errors.EXIT_USAGE) -> dict[str, Any]:
    """Run the command and return the error that it ends with."""
    return refused(cluster.cluster, ["settings", *arguments], code=expected)


def test_all_settings_of_a_topic_can_be_given_and_are_shown(shown: Any) -> None:
    found = shown("--auto-create", "on", *GIVEN)
    assert found["auto_create"] is True
    assert {name: found[name] for name in SHOWN} == SHOWN
    assert shown() == found


def test_off_keeps_the_settings_and_on_brings_them_back(shown: Any) -> None:
    on = shown("--auto-create", "on", *GIVEN)
    off = shown("--auto-create", "off")
    assert off == on | {"auto_create": False}
    assert shown() == off
    assert shown("--auto-create", "on", "--partitions", "4") == on | {"partitions": 4}


def test_a_pool_is_left_by_the_name_of_the_common_pool(shown: Any) -> None:
    assert shown("--auto-create", "on", "--pool", "common")["pool"] == "common"
    assert "'fast'; no broker has registered yet" in said("--pool", "fast")["message"]
    assert "pool = '' is not the name of a pool" in said("--pool", "")["message"]


@pytest.mark.parametrize("hours", ["x", "-1", "²", "0"])
def test_an_age_is_a_number_of_hours(hours: str) -> None:
    assert hours in said("--auto-create", "on", "--retention-hours", hours)["message"]
    assert hours in said("--auto-create", "on", "--retention-early-hours", hours)["message"]


def test_messages_go_early_only_where_that_is_said(shown: Any) -> None:
    assert shown("--auto-create", "on")["retention_early_s"] is None
    assert shown("--retention-early-hours", "24")["retention_early_s"] == 24 * 3600
    assert shown("--retention-early-hours", "never")["retention_early_s"] is None


def test_an_early_age_that_no_message_reaches_is_remarked(
    shown: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.cluster.main(
        ["settings", "--auto-create", "on", "--retention-early-hours", "72"], standalone_mode=False
    )
    assert "no message becomes so old" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "stored"), [("500", 500), ("3K", 3072), ("2g", 2 << 30), ("unlimited", None)]
)
def test_a_size_may_have_a_unit_and_be_unset(shown: Any, given: str, stored: int | None) -> None:
    assert shown("--auto-create", "on", "--retention-bytes", given)["retention_bytes"] == stored


@pytest.mark.parametrize("size", ["x", "-1", "1.5G", "٣K", "", "0"])
def test_a_size_to_keep_is_a_number_of_bytes(size: str) -> None:
    assert size in said("--auto-create", "on", "--retention-bytes", size)["message"]


def test_archive_settings_are_unset_by_words(shown: Any) -> None:
    shown("--auto-create", "on", "--retention-policy", "archive", "--archive-after-hours", "48")
    shown("--archive-to", "file:///mnt/archive")
    found = shown("--archive-after-hours", "default", "--archive-to", "beside")
    assert (found["archive_after_s"], found["archive_to"]) == (86_400, None)
    assert shown("--retention-policy", "delete")["archive_after_s"] is None


@pytest.mark.parametrize("hours", ["x", "-1", "²", "0", "72"])
def test_the_age_of_archives_is_a_number_below_that_of_deletion(hours: str) -> None:
    given = ("--auto-create", "on", "--retention-policy", "archive", "--archive-after-hours", hours)
    assert hours in said(*given)["message"]


def test_a_policy_that_archives_nothing_refuses_what_is_set_for_archives(shown: Any) -> None:
    shown("--auto-create", "on", "--retention-policy", "archive", "--archive-after-hours", "48")
    message = said("--retention-policy", "delete")["message"]
    assert "archive_after_hours = 48 has no effect with retention_policy = 'delete'" in message


def test_an_option_without_effect_is_refused(shown: Any) -> None:
    """What counts is the flush mode that is stored, unless another one is given."""
    assert (
        "no effect with --flush sync" in said("--auto-create", "on", "--flush-ms", "5")["message"]
    )
    shown("--auto-create", "on", "--flush", "async")
    assert shown("--flush-ms", "5")["flush_interval_s"] == 0.005
    assert "no effect" in said("--flush-ms", "5", "--flush", "sync")["message"]
    assert "takes no settings" in said("--auto-create", "off", "--partitions", "2")["message"]


def test_settings_change_only_together_with_auto_create(shown: Any) -> None:
    assert "give --auto-create on" in said("--partitions", "2")["message"]
    assert shown()["partitions"] == 1


def test_the_defaults_of_all_topics_change_without_auto_create(shown: Any) -> None:
    assert shown()["archive_after_s"] == 86_400
    found = shown("--archive-after-hours", "never")
    assert (found["auto_create"], found["retention_policy"]) == (False, "delete")
    assert found["archive_after_s"] is None
    found = shown("--retention-policy", "archive", "--retention-hours", "200")
    assert (found["archive_after_s"], found["retention_s"]) == (86_400, 720_000)
    assert (
        "leaves nothing"
        in said("--retention-policy", "archive", "--archive-after-hours", "never")["message"]
    )


def test_too_many_partitions_are_refused_with_the_bound(shown: Any) -> None:
    message = said("--auto-create", "on", "--partitions", "501")["message"]
    assert "partitions = 501 is above 500" in message
    assert "vq topic create" in message
    assert shown()["auto_create"] is False


def test_a_change_that_was_cut_is_perhaps_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(*_: object) -> None:
        raise ConnectionLost("no reply")

    monkeypatch.setattr(cluster_settings, "change_settings", cut)
    error = said("--auto-create", "on", expected=errors.EXIT_FAILED)
    assert error["outcome"] == "unknown"
    assert error["hint"] == admin.SettingsUnknown.hint
