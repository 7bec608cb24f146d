"""``vq cluster scrub``: what it shows as text and as JSON, and when it ends with 1."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.commands import cells, run_command
from support.json_schema import schema_of, wrong

from vq.cli.brokers import scrub
from vq.cli.cluster import cluster
from vq.operations.base import connect
from vq.operations.brokers.scrubs import Scrub

NEW = Scrub("b1", "n1", None, None, 1_764_404_800_000, None, 5_000, 4_194_304, 0, 0)
ENDED = replace(NEW, node="n2", begun_ms=1_763_800_000_000, ended_ms=1_763_800_009_500)
ENDED = replace(ENDED, read_bytes=5_000, repairs=2)
RUNNING = Scrub("b2", "n1", 1_763_800_000_000, None, None, 0, 5_000, 4_194_304, 0, 0)
OFF = Scrub("b3", "n1", None, None, None, None, 5_000, 0, 0, 0)
DAMAGED = Scrub("b3", "n2", None, None, None, None, 5_000, 0, 3, 0)
SILENT = Scrub("b4", "n1", error="Unreachable: 127.0.0.1:18123 does not answer")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on what nodes say; return exit code, standard output and standard error."""

    def call(found: Sequence[Scrub], *arguments: str) -> tuple[int, str, str]:
        @asynccontextmanager
        async def client(_: object) -> AsyncIterator[None]:
            yield

        async def scrubs(_: object) -> list[Scrub]:
            return list(found)

        monkeypatch.setattr(connect, "cluster_client", client)
        monkeypatch.setattr(scrub, "scrubs", scrubs)
        return run_command(cluster.cluster, ["scrub", *arguments], capsys)

    return call


def test_a_pass_that_is_due_one_that_ended_and_one_that_goes_on(run: Any) -> None:
    """What there is not yet is told from 0."""
    code, out, _ = run([NEW, ENDED, RUNNING, OFF])
    assert code == 0
    new, ended, running, off = cells(out)
    following = "2025-11-29T08:26:40.000Z"
    times = ("begun", "ended", "next")
    assert [new[name] for name in times] == ["-", "-", following]
    assert [ended[name] for name in times] == [
        "2025-11-22T08:26:40.000Z",
        "2025-11-22T08:26:49.500Z",
        following,
    ]
    assert [running[name] for name in times] == ["2025-11-22T08:26:40.000Z", "-", "-"]
    assert (new["read"], running["read"], new["rate"]) == ("-", "0 B", "4.0 MiB/s")
    (silent,) = cells(run([SILENT])[1])
    assert {silent[name] for name in (*times, "read", "stored", "damaged")} == {"unknown"}
    assert (off["rate"], off["next"], ended["repaired"]) == ("off", "-", "2")
    assert new["error"] == "-"


def test_json_is_as_its_schema_says(run: Any) -> None:
    """Times in seconds, numbers that nobody told as null."""
    code, out, _ = run([NEW, ENDED, RUNNING, OFF, DAMAGED, SILENT], "--json")
    assert code == 1
    document = json.loads(out)
    assert not list(wrong(document, schema_of(["cluster", "scrub"])))
    new, ended, running, _, _, silent = document
    times = ("begun_s", "ended_s", "next_s")
    assert [new[name] for name in times] == [None, None, 1_764_404_800]
    assert [ended[name] for name in times] == [1_763_800_000, 1_763_800_009.5, 1_764_404_800]
    assert [each["running"] for each in (new, ended, running, silent)] == [False, False, True, None]
    told = {name for name, value in silent.items() if value is not None}
    assert told == {"group", "node", "error"}


def test_damage_and_silence_end_with_1(run: Any) -> None:
    for found in (DAMAGED, SILENT):
        code, out, shown = run([NEW, found])
        assert code == 1, found
        assert "docs/howto/repair-damage.md" in shown
        assert len(cells(out)) == 2
    code, _, shown = run([DAMAGED, SILENT])
    assert "3 range(s) are damaged, 1 of 2 node(s) do not answer" in shown
