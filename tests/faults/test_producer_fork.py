"""A process forks while its threads send.

    threads ──▶ producer ──▶ broker
       fork ─✗─▶ child: everything of the parent's refuses it

Goal: no child hangs, sends, or disturbs the parent; the parent loses and doubles nothing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.faults import client_of, judge_run, make_rng, read_back, times
from support.forks import UNWARNED
from support.judge import Fault

from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


def test_children_of_a_process_that_sends_are_refused_and_end_in_order(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Forks at random moments; children end by ``sys.exit``, ``os._exit``, ``multiprocessing``."""
    rng = make_rng()
    forks = times(20, 600)
    processes.add("b1")
    processes.vq_json("topic", "create", "t", "--partitions", "2")
    histories = tmp_path / "h"
    ended = subprocess.run(
        [
            *(sys.executable, *UNWARNED, "-m", "support.forking_process"),
            *(str(histories), processes.zookeeper, processes.name),
            *("t", str(forks), str(rng.randrange(1 << 32)), str(os.getpid())),
        ],
        cwd=TESTS,
        timeout=PROCESSES_WAIT_S + forks,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    with client_of(processes) as factory:
        log = read_back(factory, "t")
    judge_run(
        histories,
        log,
        Fault("fork", sum(json.loads(ended.stdout).values()), strikes=forks),
        acknowledged_min=10,
    )
