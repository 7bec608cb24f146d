"""kill -9 at every step of archiving, restoring and dropping archives: real files, a real process.

    process: append ── flush ── archive ── restore ── drop ── …
                          ✗ strace kills it on entering its N-th write, sync, rename or unlink
    then:    the log opens, has every message that was durable, and the next life goes on in it

Goal: a kill at any step is finished or undone by the next start.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.archiving_process import number_of, opened
from support.command_server import TRACED, command_server
from support.faults import make_rng, times
from support.store import blocks_of, payloads
from support.strace import attached, need_strace

from vq.store.disk.real_disk import RealDisk
from vq.store.log.log_config import LogState

pytestmark = pytest.mark.slow

#: Calls to die at, and how many of them a life surely makes.
POINTS = {"pwritev2": 60, "fdatasync": 40, "fsync": 50, "rename": 30, "unlink": 20}
CYCLES = 8


def life(directory: Path, call: str, number: int) -> tuple[int, bool]:
    """Run one life; return how many messages it told to be durable, and whether it was killed."""
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}")
    program = ("-m", "support.archiving_process", str(directory), str(CYCLES))
    server = command_server(os.environ)
    if server is None:
        ended = subprocess.run(
            ["strace", "-f", "-o", os.devnull, *inject, sys.executable, *program],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            check=False,
        )
        told, code = ended.stdout.split(), ended.returncode
    else:
        ours, theirs = os.pipe()
        with open(os.devnull) as nothing:
            environ = {**os.environ, TRACED: "1"}
            process = server.start(program, environ, (nothing.fileno(), theirs, 2))
        os.close(theirs)
        with attached(process.pid, Path(os.devnull), *inject, waits=True), open(ours) as output:
            told, code = output.read().split(), process.wait()
    assert code in {0, -signal.SIGKILL, 128 + signal.SIGKILL}
    return (int(told[-1]) if told else 0), code != 0


def judge(directory: Path, durable: int) -> int:
    """Check the log after a life; return how many messages are durable now."""
    log = opened(directory, RealDisk())
    assert log.state is LogState.OK, log.reason
    assert not log.recovery.cut_messages
    numbers = [number_of(each) for each in payloads(log)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] + 1 >= durable
    assert numbers[-1] + 1 - durable <= 3, "more than one batch of messages was not told"
    names = os.listdir(directory)
    archived = sum(block.is_archived for block in blocks_of(log))
    assert sum(name.endswith(".zip") for name in names) == archived
    assert sum(name.endswith(".archive") for name in names) == archived
    assert sum(name.endswith(".block") for name in names) == len(blocks_of(log)) - archived
    assert not any(name.endswith(".tmp") for name in names)
    log.close()
    return numbers[-1] + 1


@pytest.mark.parametrize("call", POINTS)
def test_a_process_may_die_at_any_step(call: str, tmp_path: Path) -> None:
    """One life after the other in the same directory; each dies at another call."""
    need_strace()
    rng = make_rng()
    directory = tmp_path / "orders" / "0"
    durable = kills = 0
    for number in rng.sample(range(1, POINTS[call] + 1), times(8, POINTS[call])):
        told, killed = life(directory, call, number)
        kills += killed
        if told or durable:
            durable = judge(directory, max(durable, told))
        print(call, number, killed, durable)
    assert kills >= times(5, 15)
    assert durable
