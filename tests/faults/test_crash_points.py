"""A real broker dies at its N-th write, sync, rename … while producing, starting or recovering.

    strace kills it on entering the call; it is started again to die at another one, and so on

Goal: whatever was acknowledged in any of its lives is there at the end, once and in order, and no
start fails.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cluster import ForkedBroker, ProcessCluster
from support.faults import (
    Sender,
    broker_settings,
    client_of,
    judge_run,
    make_rng,
    read_back,
    read_files,
    times,
)
from support.judge import Fault
from support.strace import need_strace, traced

from vq.devtools.processes import BrokerChild, ask_status
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

#: Calls to die at, and the highest N worth trying: so many of them one life surely makes.
POINTS = {
    "pwritev2": 300,  # append
    "fdatasync": 300,  # group commit
    "fsync": 6,  # names of new blocks and files
    "rename": 3,  # epoch, checkpoint, index
    "ftruncate": 3,  # lock file, closed block, cut tail
    "fallocate": 8,  # space taken ahead
    "unlink": 2,  # leftovers
}
#: The same for a start in a directory that is not there yet.
FIRST_START = {"mkdir": 1, "fsync": 4, "rename": 2, "pwrite64": 1, "pwritev2": 2, "fdatasync": 2}
#: Large messages after which a life has made every call often enough: measured, not timed, so that
#: a slow machine is given its time.
LIFE_MESSAGES = times(4000, 1000)


def die_at(
    processes: ProcessCluster,
    broker: BrokerChild,
    trace: Path,
    call: str,
    number: int,
    *,
    enough: Callable[[], object],
) -> bool:
    """Run one life of the broker, until ``enough`` at most; whether it died at the N-th call."""
    options = ("-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}")
    with traced(broker.spec, trace, *options) as child:
        processes.brokers[broker.spec.group] = child
        block_until(lambda: not child.running or enough(), f"{call} {number} or the end of a life")
        died = not child.running
    assert not died or "killed by SIGKILL" in trace.read_text(), child.log_tail()
    return died


def serves(broker: BrokerChild) -> bool:
    """Whether somebody at the broker's address leads its group."""
    status = asyncio.run(ask_status(broker.spec.address, cluster=broker.spec.cluster))
    return status is not None and status.master


def test_a_broker_may_die_at_any_system_call(processes: ProcessCluster, tmp_path: Path) -> None:
    """Small and large messages, so that blocks are rolled, to two partitions."""
    need_strace()
    rng = make_rng()
    settings = broker_settings(tmp_path / "b1.toml", block_bytes=8 << 20)
    broker = processes.add("b1", *settings)
    processes.vq_json("topic", "create", "t", "--partitions", "2")
    deaths = times(0, 300)
    hits: Counter[str] = Counter()

    def calls() -> Iterator[str]:
        yield from POINTS
        for _ in range(3 * deaths):
            if hits.total() < deaths:
                yield rng.choices(list(POINTS), weights=[6, 6, 2, 1, 1, 1, 1])[0]

    with client_of(processes) as factory:
        with (
            Sender(factory, "t", tmp_path / "h" / "s0.jsonl", rate=500) as small,
            Sender(
                factory, "t", tmp_path / "h" / "s1.jsonl", rate=times(300, 100), size=20_000
            ) as large,
        ):
            small.wait_sent(10)
            broker.kill()
            for number, call in enumerate(calls()):
                when = rng.randint(1, POINTS[call])
                goal = large.sent + LIFE_MESSAGES
                died = die_at(
                    processes,
                    broker,
                    tmp_path / f"trace-{number}",
                    call,
                    when,
                    enough=lambda goal=goal: large.sent >= goal,
                )
                print(f"{call} {when}: {'died' if died else 'did not get there'}")
                hits[call] += died
            assert hits.total() >= deaths
            processes.run(broker)
            small.wait_sent(max(50, 50 * hits.total() - small.sent))
            large.wait_sent(1)
            small.finish()
            large.finish()
        log = read_back(factory, "t")
    assert broker.stop() == 0
    assert read_files(processes, "t", 2) == log
    faults = [Fault(f"death at {call}", count) for call, count in hits.items()]
    judge_run(tmp_path / "h", log, *faults, acknowledged_min=50)


def test_a_first_start_may_be_interrupted_anywhere(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Directory, identity, lock, epoch: whatever is half there, the next start completes it."""
    need_strace()
    rng = make_rng()
    points = [(call, number + 1) for call, most in FIRST_START.items() for number in range(most)]
    died = 0
    for number, (call, when) in enumerate(rng.sample(points, times(4, len(points)))):
        broker = ForkedBroker(processes.spec(f"b{number}"))
        broker.spec.data.parent.mkdir(exist_ok=True)
        hit = die_at(
            processes,
            broker,
            tmp_path / f"trace-{number}",
            call,
            when,
            enough=lambda broker=broker: serves(broker),
        )
        print(f"{call} {when}: {'died' if hit else 'did not get there'}")
        died += hit
        processes.run(broker)
        assert broker.stop() == 0
    judge_run(tmp_path / "h", {}, Fault("death while starting", died))
