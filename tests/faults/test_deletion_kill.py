"""kill -9 of brokers while they delete what a group has read: real processes, real disks.

    sender ──▶ broker ──▶ member of a group, which commits
                 │ deletes what is committed, down to a few bytes
                 ✗ kill -9

Goal: what the group has not read is never deleted, so it reads every acknowledged message, once and
in order; the log is whole after each start.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.block_files import read_partition
from support.cluster import ForkedBroker, ProcessCluster
from support.faults import (
    Sender,
    broker_settings,
    client_of,
    everything,
    judge_run,
    kill,
    make_rng,
    member_of,
    read_back,
    read_files,
    times,
    wait_drained,
)
from support.judge import Fault
from support.strace import need_strace, traced

from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

#: Calls of a deletion, and the highest N worth trying.
POINTS = {"unlink": 40, "rename": 40, "ftruncate": 20, "fsync": 40}
SETTINGS = {"block_bytes": 16 << 20, "retention_interval_s": 0.05, "session_timeout_s": 4.0}
TOPIC = ("--retention-bytes", "50000", "--retention-policy", "keep")


def starts(data: Path, partitions: int) -> list[int]:
    """Where the first block of each partition begins; 0 without one."""
    paths = [sorted((data / "t" / str(number)).glob("*.block")) for number in range(partitions)]
    return [int(found[0].stem) if found else 0 for found in paths]


def test_a_broker_may_die_at_any_step_of_a_deletion(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """At its N-th unlink, rename, truncate or fsync."""
    need_strace()
    rng = make_rng()
    settings = broker_settings(tmp_path / "b1.toml", **SETTINGS)
    broker = processes.add("b1", *settings)
    processes.vq_json("topic", "create", "t", "--partitions", "2", *TOPIC)
    histories = tmp_path / "h"
    died: list[str] = []
    with client_of(processes) as factory, member_of(processes, histories, "m0") as seen:
        with Sender(factory, "t", histories / "s0.jsonl", rate=500, size=1_000) as sender:
            for number in range(times(4, 100)):
                call = list(POINTS)[number % len(POINTS)]
                when = rng.randint(1, POINTS[call])
                broker.kill()
                trace = tmp_path / f"trace-{number}"
                options = ("-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={when}")
                with traced(broker.spec, trace, *options) as child:
                    processes.brokers["b1"] = child
                    before, goal = starts(broker.spec.data, 2), sender.sent + 4_000
                    block_until(
                        lambda child=child, goal=goal: not child.running or sender.sent >= goal,
                        sender,
                    )
                    if not child.running:
                        died.append(f"{call} {when}")
                print(f"{call} {when}: {before} -> {starts(broker.spec.data, 2)}")
            processes.run(broker)
            sender.wait_sent(500)
            sender.finish()
        log = read_back(factory, "t")
        wait_drained(log, seen)
    assert broker.stop() == 0
    for number, messages in read_files(processes, "t", 2).items():  # it deleted on meanwhile
        assert messages == log[number][len(log[number]) - len(messages) :]
    assert min(starts(broker.spec.data, 2)) > 100_000
    assert died
    judge_run(
        histories,
        everything(histories / "m0.jsonl", log),
        *[Fault(f"death at {each}", 1) for each in died],
        acknowledged_min=500,
    )


def test_a_master_may_die_while_its_copy_follows_a_deletion(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """The copy takes over with its own start; both have equal bytes where both have some."""
    settings = broker_settings(tmp_path / "b1.toml", **SETTINGS)
    rng = make_rng()
    nodes = {"n1": processes.add("b1", *settings)}
    spec = replace(processes.spec("b1", *settings, node="n2"), data=processes.directory / "b1-n2")
    nodes["n2"] = processes.run(ForkedBroker(spec), name="b1-n2")
    processes.vq_json("topic", "create", "t", "--partitions", "1", *TOPIC)
    histories = tmp_path / "h"
    kills = 0

    def row(node: str) -> Mapping[str, object]:
        rows = json.loads(processes.vq("cluster", "status", "--json").stdout)
        return next((each for each in rows if each["node"] == node), {})

    def in_sync() -> bool:
        return all(row(node).get("in_sync") for node in nodes)

    with client_of(processes) as factory, member_of(processes, histories, "m0") as seen:
        with Sender(factory, "t", histories / "s0.jsonl", rate=300, size=1_000) as sender:
            for _ in range(times(2, 20)):
                block_until(in_sync, "both are in sync")
                sender.wait_sent(200 + rng.randrange(500))
                master = next(node for node in nodes if row(node).get("role") == "master")
                kills += kill(nodes[master])
                sender.wait_sent(200)
                nodes[master].start()
                nodes[master].wait_ready(PROCESSES_WAIT_S)
            sender.wait_sent(500)
            sender.finish()
        block_until(in_sync, "both are in sync")
        log = read_back(factory, "t")
        wait_drained(log, seen)
    for name, node in nodes.items():
        assert node.stop() == 0, name
    found = []
    for node in nodes.values():
        files = read_partition(node.spec.data / "t" / "0")
        assert not files.damage
        assert starts(node.spec.data, 1)[0] > 100_000
        found.append(dict(files.messages))
    for offset in found[0].keys() & found[1].keys():
        assert found[0][offset] == found[1][offset]
    assert kills == times(2, 20)
    judge_run(
        histories,
        everything(histories / "m0.jsonl", log),
        Fault("kill -9 of the master", kills),
        acknowledged_min=500,
    )
