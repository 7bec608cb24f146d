"""``vq broker jobs``: what it shows as text and as JSON, and when it ends with 1."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.commands import cells, run_command
from support.json_schema import schema_of, wrong

from vq.cli.brokers import broker, jobs
from vq.operations.base import connect
from vq.operations.brokers.jobs import BrokerJob, NodeJobs

DONE = BrokerJob(
    name="retention",
    trigger="every 60 s",
    state="waits",
    why_off="",
    runs=7,
    failures=1,
    begun_ms=1_763_800_000_000,
    ended_ms=1_763_800_001_500,
    late_ms=0,
    error="",
    next_ms=1_763_800_061_500,
)
RUNS = replace(DONE, name="scrub", state="runs", ended_ms=None, next_ms=None, late_ms=2_500)
OFF = BrokerJob("lags", "every 1 s", "off", "another node leads", 0, 0, None, None, 0, "", None)
FAILS = replace(DONE, name="trash", error="the disk is full")
NODE = NodeJobs("b1", "n1", (OFF, DONE, RUNS))
FAILING = NodeJobs("b1", "n2", (FAILS,))
SILENT = NodeJobs("b2", "n1", error="Unreachable: 127.0.0.1:18123 does not answer")
OLD = NodeJobs("b3", "n1")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on what nodes say; return exit code, standard output and standard error."""

    def call(found: Sequence[NodeJobs], *arguments: str) -> tuple[int, str, str]:
        @asynccontextmanager
        async def client(_: object) -> AsyncIterator[None]:
            yield

        async def broker_jobs(_: object, name: str | None) -> list[NodeJobs]:
            return list(found)

        monkeypatch.setattr(connect, "cluster_client", client)
        monkeypatch.setattr(jobs, "broker_jobs", broker_jobs)
        return run_command(broker.broker, ["jobs", *arguments], capsys)

    return call


def test_a_job_that_waits_one_that_runs_and_one_that_is_off(run: Any) -> None:
    code, out, _ = run([NODE])
    assert code == 0
    off, done, runs = cells(out)
    shown = ("job", "state", "last", "took", "late", "next", "runs", "failed", "reason")
    assert [off[name] for name in shown] == [
        *("lags", "off", "-", "-", "-", "-", "0", "0", "another node leads"),
    ]
    assert [done[name] for name in shown] == [
        *("retention", "waits", "2025-11-22T08:26:40.000Z", "1.5 s", "-"),
        *("2025-11-22T08:27:41.500Z", "7", "1", "-"),
    ]
    assert [runs[name] for name in shown[1:6]] == [
        *("runs", "2025-11-22T08:26:40.000Z", "-", "2.5 s", "-"),
    ]


def test_a_job_that_failed_and_a_node_that_is_silent_end_it_with_1(run: Any) -> None:
    code, out, err = run([NODE, FAILING, SILENT, OLD])
    assert code == 1
    assert cells(out)[-1]["reason"] == "the disk is full"
    assert "b2/n1: Unreachable" in err
    assert "b3/n1: its version tells no jobs" in err
    assert "the last run of 1 job(s) failed, 1 of 4 node(s) do not answer" in err
    assert run([NODE, OLD])[0] == 0


def test_json_has_all_of_it(run: Any) -> None:
    code, out, _ = run([NODE, FAILING, SILENT, OLD], "--json")
    assert code == 1
    found = json.loads(out)
    assert not list(wrong(found, schema_of(["broker", "jobs"])))
    assert [each["error"] for each in found] == [None, None, SILENT.error, None]
    assert found[0]["jobs"][1] == {
        "name": "retention",
        "trigger": "every 60 s",
        "state": "waits",
        "why_off": None,
        "runs": 7,
        "failures": 1,
        "begun_s": 1_763_800_000.0,
        "ended_s": 1_763_800_001.5,
        "late_s": 0.0,
        "error": None,
        "next_s": 1_763_800_061.5,
    }
