"""Real clusters with copies under faults: the short form, and what the table of rows promises.

    producers, a group ──▶ b1/n1, n2, n3, each in a network namespace ── ZooKeeper
                                └ paused, cut off from all but the clients

Goal: nothing acknowledged is lost, doubled or reordered, all copies are equal at the end, and the
group takes messages again. ``make chaos`` runs the long forms.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.chaos import cuts, heirs, network, slowness
from support.chaos.__main__ import main
from support.chaos.report import spread, summary, table
from support.chaos.rows import ROWS
from support.chaos.run import Outcome, Strike
from support.judge import Anomaly
from support.zookeeper import forbidden, unavailable

from vq.testing.waiting import PROCESSES_WAIT_S

TESTS = Path(__file__).parents[1]
FULL_HEIRS = {shape.__name__ for shape in heirs.SHAPES}


def chaos(*arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return subprocess.run(
        [sys.executable, "-m", "support.chaos", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        timeout=2 * PROCESSES_WAIT_S,
    )


@pytest.mark.slow
@pytest.mark.root
def test_a_master_that_is_paused_or_cut_off_costs_no_message(tmp_path: Path) -> None:
    """One of each; each of them ends in a master of a later epoch."""
    if missing := network.not_installed():
        unavailable(missing)
    if reason := network.why_not():
        forbidden(f"no network namespaces here: {reason}")
    ended = chaos("--rows", "SHORT", "--out", str(tmp_path))
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    row = json.loads((tmp_path / "summary.json").read_text())["rows"]["SHORT"]
    assert (row["runs"], row["faults"], row["effects"], row["anomalies"]) == (1, 2, 2, {})
    assert row["fail-overs"] >= 2
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_rows_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()] == list(ROWS)
    with pytest.raises(SystemExit) as refused:
        main(["--rows", "T-KILL,T-NONE"])
    assert refused.value.code == 2
    assert "no rows T-NONE" in capsys.readouterr().err


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_a_row_has_what_its_faults_need(row) -> None:
    """Cuts need namespaces, an ensemble's leader needs others, a full disk needs one to fill."""
    faults = {fault.__name__ for fault in row.faults}
    assert row.cuts >= bool(faults & {shape.__name__ for shape in cuts.SHAPES})
    assert row.cuts >= bool(faults & {"silent_link_first_cut_off", "silent_link_first_paused"})
    assert row.slow == bool(faults & {shape.__name__ for shape in slowness.SHAPES})
    assert row.cuts >= ("reset_zookeeper_connections" in faults)
    ensemble = {"kill_zookeeper_leader", "lose_quorum", "lose_quorum_shortly"}
    assert (row.servers == 3) >= bool(faults & ensemble)
    assert bool(row.disk_bytes) == bool(faults & {"fill_disk", *FULL_HEIRS})
    assert row.per_run <= row.strikes or row.name == "T-QUORUM"


def test_a_summary_tells_what_was_wrong() -> None:
    """A broken promise, a void fault and a run without an end are told apart."""
    strikes = [Strike("kill_master", True, 1, 0.5, 2.0), Strike("kill_master", False, 0, 1.5, 1.0)]
    good = Outcome("T-KILL", 1, strikes=strikes[:1])
    void = Outcome("T-KILL", 2, strikes=strikes)
    void.verdict.anomalies.append(Anomaly("void", "kill_master had no effect"))
    broken = Outcome("T-KILL", 3)
    broken.verdict.anomalies.append(Anomaly("lost", "x"))
    unended = Outcome("T-KILL", 4, failure="AssertionError: not in sync")
    assert [each.good for each in (good, void, broken, unended)] == [True, False, False, False]
    assert [each.void for each in (good, void, broken, unended)] == [False, True, False, False]
    found = summary([good, void, broken, unended], 1)
    row = found["rows"]["T-KILL"]
    assert (row["faults"], row["effects"], row["anomalies"], row["void"]) == (3, 2, {"lost": 1}, 1)
    assert [each["seed"] for each in row["failed"]] == [2, 3, 4]
    assert row["gap_s"] == {"p50": 0.5, "p95": 1.5, "max": 1.5}
    assert "1 (3 runs)" in table(found)
    assert spread([]) == {}
