"""``vq archive``: what it shows as text and as JSON, and when it ends with 1."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.commands import cells, run_command
from support.json_schema import schema_of, wrong

from vq.cli.archives import archive
from vq.coordination.tree.values.runs import ArchiveTopicRun
from vq.operations.archives import archive_runs
from vq.operations.archives.archive_runs import ArchiveNodeRun, ArchiveRun
from vq.operations.base import connect

SOME = ArchiveTopicRun(3, 3_000_000, 700_000)
BAD = ArchiveTopicRun(1, 1_000_000, 200_000, 2, "t-0: no space")
NODE = ArchiveNodeRun("b1", "n1", "done", 1_763_800_000_000, 1_763_800_009_500, SOME, {"t": SOME})
FAILED = ArchiveNodeRun("b1", "n2", "failed", 1_763_800_000_000, 1_763_800_009_500, BAD, {"t": BAD})
WAITS = ArchiveNodeRun("b2", "n1")
RUN = ArchiveRun(
    7, 1_763_800_000_000, 1_763_800_000_100, "b1/n1", due_ms=1_763_800_000_000, nodes=(NODE,)
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on a run; return exit code, standard output and standard error."""

    def call(found: Any, *arguments: str) -> tuple[int, str, str]:
        @asynccontextmanager
        async def client(_: object) -> AsyncIterator[None]:
            yield

        async def start(_: object, topic: str | None, **options: object) -> int:
            call.asked = {"topic": topic, **options}
            return 7

        async def wait(
            _: object, number: int, *, timeout: float | None, on_progress: Callable[[Any], object]
        ) -> Any:
            assert number == 7
            call.timeout = timeout
            on_progress(replace(found, nodes=(*found.nodes, WAITS)))
            return found

        async def history(_: object) -> Any:
            return found

        monkeypatch.setattr(connect, "cluster_client", client)
        monkeypatch.setattr(archive_runs, "start_archive_run", start)
        monkeypatch.setattr(archive_runs, "wait_for_archive_run", wait)
        monkeypatch.setattr(archive_runs, "archive_history", history)
        return run_command(archive.archive, arguments, capsys)

    return call


def test_a_run_is_waited_for_with_progress(run: Any) -> None:
    code, out, err = run(RUN, "run", "--topic", "t", "--as-of", "2025-11-22T08:26:40")
    assert code == 0
    assert run.asked == {"topic": "t", "as_of_ms": 1_763_800_000_000, "dry_run": False}
    assert "run 7: 3 block(s), 2.9 MiB, 1 broker(s) to go" in err
    [row] = cells(out)
    assert (row["group"], row["state"], row["topic"], row["blocks"]) == ("b1", "done", "t", "3")


def test_a_run_with_a_block_that_failed_ends_with_1(run: Any) -> None:
    code, out, err = run(replace(RUN, nodes=(NODE, FAILED)), "run")
    assert code == 1
    assert "2 block(s) could not be archived" in err
    assert cells(out)[1]["error"] == "t-0: no space"


def test_a_run_that_a_broker_has_not_ended_ends_with_1(run: Any) -> None:
    """It is of an earlier version, say; or the time was up."""
    code, out, err = run(replace(RUN, nodes=(NODE, WAITS)), "run", "--timeout", "300")
    assert (code, run.timeout) == (1, 300.0)
    assert "1 broker(s) have not ended run 7: b2/n1; `vq archive history`" in err
    assert [each["state"] for each in cells(out)] == ["done", "not begun"]
    code, _, err = run(RUN, "run", "--timeout", "300", "--no-wait")
    assert (code, "no effect" in err) == (2, True)


def test_a_run_need_not_be_waited_for(run: Any) -> None:
    code, out, err = run(RUN, "run", "--no-wait")
    assert (code, out) == (0, "")
    assert "run 7 is made" in err
    document = json.loads(run(RUN, "run", "--no-wait", "--json")[1])
    assert not list(wrong(document, schema_of(["archive", "run"])))
    assert document == {"number": 7, "state": None, "nodes": []}


def test_the_json_of_a_run_is_as_its_schema_says(run: Any) -> None:
    found = replace(RUN, nodes=(NODE, FAILED, WAITS))
    document = json.loads(run(found, "run", "--dry-run", "--json")[1])
    assert run.asked["dry_run"] is True
    assert not list(wrong(document, schema_of(["archive", "run"])))
    assert document["state"] == "running"


def test_a_dry_run_says_that_nothing_was_changed(run: Any) -> None:
    """Its table is that of a run that was made."""
    said = "3 block(s), 2.9 MiB: would be archived; nothing was changed\n"
    assert run(RUN, "run", "--dry-run")[2].endswith(said)
    assert "nothing was changed" not in run(RUN, "run")[2]


def test_the_history_has_a_row_for_each_run(run: Any) -> None:
    by_hand = replace(RUN, number=6, due_ms=None, topic="t", by="me@here", nodes=(NODE, WAITS))
    dry = replace(RUN, number=5, dry_run=True)
    code, out, _ = run([RUN, by_hand, dry], "history")
    assert code == 0
    rows = cells(out)
    assert [each["kind"] for each in rows] == ["daily", "by hand", "dry"]
    assert [each["missing"] for each in rows] == ["0", "1", "0"]
    assert [each["state"] for each in rows] == ["done", "running", "done"]
    assert rows[0]["as_of"] == "2025-11-22T08:26:40.000Z"
    assert len(cells(run([RUN, by_hand, dry], "history", "--limit", "2")[1])) == 2


def test_the_json_of_the_history_is_as_its_schema_says(run: Any) -> None:
    bad = ArchiveRun(8, error="it is odd")
    code, out, err = run([bad, RUN, replace(RUN, nodes=(FAILED, WAITS))], "history", "--json")
    assert code == 1
    assert "run 8 has failed: it is odd" in err
    document = json.loads(out)
    assert not list(wrong(document, schema_of(["archive", "history"])))
    assert document[0]["state"] == "unreadable"
    assert document[1]["due_s"] == 1_763_800_000


def test_the_newest_run_that_failed_ends_the_history_with_1(run: Any) -> None:
    failed = replace(RUN, nodes=(FAILED,))
    assert run([failed, RUN], "history")[0] == 1
    assert run([RUN, failed], "history")[0] == 0
    assert run([replace(failed, dry_run=True), RUN], "history")[0] == 0
    code, _, err = run([], "history")
    assert code == 0
    assert "no run yet" in err
