"""kill -9 of a process with eight threads at a local queue, at random, again and again.

Goal: nothing that was put is lost; nothing that was completed is done again; done again is at most
what a taker had in hand.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.faults import LONG, make_rng
from support.local_queue_process import CONFIG, THREADS

from vq.local import LocalQueue
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
#: A minute of work in the long form; kills while it opens come on top.
RUN_S = 60.0 if LONG else 1.5
ONE_RUN_S = (0.05, 1.0) if LONG else (0.05, 0.4)


def run_and_kill(directory: Path, history: Path, number: int, rng: random.Random) -> float:
    """Start a process, kill it after a while; return how long it worked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.local_queue_process", directory, history, str(number)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
    )
    try:
        opened = f"open {number}\n"
        block_until(
            lambda: (
                process.poll() is not None or (history.exists() and opened in history.read_text())
            ),
            timeout_s=PROCESSES_WAIT_S,
        )
        assert process.poll() is None, "the queue cannot be opened"
        work_s = rng.uniform(*ONE_RUN_S)
        time.sleep(work_s)  # a kill at a random moment is the subject
    finally:
        process.kill()
        process.wait()
    return work_s


def judge(history: list[str], left: list[str], kills: int) -> None:
    """Check what was lost, and what was done again.

    What a taker has in hand at a kill may be completed, or not: the kill may be between.
    """
    put, done, in_hand = set[str](), set[str](), Counter[str]()
    again = 0
    for line in history:
        event, _, name = line.partition(" ")
        if event == "put":
            put.add(name)
        elif event == "take":
            assert name not in done, f"{name} was completed, and given again"
            again += in_hand[name]
            in_hand[name] = 1
        elif event == "fail":
            in_hand[name] = 0
        elif event == "done":
            done.add(name)
            in_hand[name] = 0
    assert len(left) == len(set(left))
    assert not done & set(left), "completed, and given again"
    lost = put - done - set(left) - {name for name, count in in_hand.items() if count}
    assert not lost, sorted(lost)[:10]
    again += sum(in_hand.pop(name, 0) for name in left)
    assert again + sum(in_hand.values()) <= 2 * THREADS * kills
    assert again <= THREADS * kills
    assert put


@pytest.mark.timeout(1_800 if LONG else 120)
def test_kills_lose_nothing_and_redo_only_what_was_in_hand(tmp_path: Path) -> None:
    rng, directory, history = make_rng(), tmp_path / "jobs", tmp_path / "history"
    kills, worked_s = 0, 0.0
    while worked_s < RUN_S:
        worked_s += run_and_kill(directory, history, kills, rng)
        kills += 1
    left = []
    with LocalQueue(directory, CONFIG) as queue:
        while len(queue):
            item = queue.take(1.0)
            if item is not None:  # else what was completed last is only counted now
                left.append(item.content.decode())
                queue.complete(item)
    judge(history.read_text().splitlines(), left, kills)
