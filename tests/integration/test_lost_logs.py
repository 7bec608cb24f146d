"""Logs whose directories vanished while no broker ran: told, and never begun again at 0.

publish ──▶ stop, or kill -9 ──▶ rm -rf ──▶ start: quarantined
                                              │ put the directory back ──▶ everything is there
                                              │ or give it up ──▶ goes on at a new offset
"""

import json
import os
import shutil
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.zookeeper import admin

pytestmark = pytest.mark.slow
LINES = [f"m{number}" for number in range(3)]


def publish(cluster: ProcessCluster) -> Path:
    """Publish to both partitions of a topic; return the topic's directory."""
    broker = cluster.add("b1")
    cluster.vq_json("topic", "create", "t", "--partitions", "2")
    for number in ("0", "1"):
        ended = cluster.vq("produce", "t", "--partition", number, stdin="\n".join(LINES).encode())
        assert ended.returncode == 0, ended.stderr.decode()
    return broker.spec.data / "t"


def end(cluster: ProcessCluster, how: str) -> None:
    broker = cluster.brokers["b1"]
    if how == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()


def rows(cluster: ProcessCluster) -> list[dict[str, object]]:
    return [dict(row) for row in cluster.vq_json("topic", "describe", "t")["partitions"]]


def states(cluster: ProcessCluster) -> list[object]:
    return [row["state"] for row in rows(cluster)]


def consumed(cluster: ProcessCluster, group: str, count: int) -> list[str]:
    ended = cluster.vq("consume", "t", "--group", group, "--max", str(count), "--timeout", "30")
    assert ended.returncode == 0, ended.stderr.decode()
    return sorted(ended.stdout.decode().split())


@pytest.mark.parametrize(
    ("lost", "how"),
    [
        ("t/1", "kill"),
        ("t", "stop"),
        pytest.param("t/1", "stop", marks=pytest.mark.long),
        pytest.param("t", "kill", marks=pytest.mark.long),
    ],
)
def test_a_log_whose_directory_is_gone_is_quarantined(
    processes: ProcessCluster, how: str, lost: str
) -> None:
    """Every command shows it, the broker's log names the directory, and no send is taken."""
    topic = publish(processes)
    end(processes, how)
    copy = processes.directory / "copy"
    shutil.copytree(topic, copy)
    shutil.rmtree(topic.parent / lost)
    processes.restart("b1")
    broker = processes.brokers["b1"]

    expected = ["quarantined"] * 2 if lost == "t" else ["rw", "quarantined"]
    assert states(processes) == expected
    for command in (("cluster", "status"), ("doctor",), ("topic", "describe", "t")):
        ended = processes.vq(*command)
        assert str(topic / "1").encode() in ended.stdout + ended.stderr, command
        assert ended.returncode == (command[0] != "topic"), command
    log = broker.spec.log.read_text()
    told = [line for line in log.splitlines() if f"{topic / '1'} " in line and "ERROR" in line]
    assert len(told) == 1, log
    refused = processes.vq("produce", "t", "--partition", "1", stdin=b"over the old offsets")
    assert refused.returncode != 0
    assert not list(topic.glob("1/*.block"))

    assert broker.stop() == 0
    shutil.rmtree(topic)
    shutil.copytree(copy, topic)
    processes.restart("b1")
    assert states(processes) == ["rw", "rw"]
    assert consumed(processes, "g", 2 * len(LINES)) == sorted(LINES * 2)


def tear(log: Path, fault: str, left: int) -> Path:
    """Make a log shorter than it was when its broker stopped; return the file."""
    (block,) = log.glob("*.block")
    size = block.stat().st_size
    if fault == "gone":
        block.unlink()
    elif fault == "cut":
        os.truncate(block, left)
    else:
        os.truncate(block, size - 10)
        os.truncate(block, size)
    return block


@pytest.mark.parametrize("fault", ["cut", pytest.param("zeroed", marks=pytest.mark.long), "gone"])
def test_a_log_shorter_than_it_was_is_told_everywhere(
    processes: ProcessCluster, fault: str
) -> None:
    """The broker is alone: it says which offsets are missing of which file, and serves the rest."""
    topic = publish(processes)
    last = processes.vq_json("topic", "describe", "t")["partitions"][1]["latest"]
    processes.vq("produce", "t", "--partition", "1", stdin=b"last")
    end(processes, "stop")
    whole = int(next((topic / "1").glob("*.block")).stat().st_size)
    left = 0 if fault == "gone" else int(last)
    block = tear(topic / "1", fault, left)
    processes.restart("b1")

    missing = f"offsets [{left}, {whole})"
    assert states(processes) == ["rw", "quarantined"]
    for command in (("cluster", "status"), ("doctor",), ("topic", "describe", "t")):
        ended = processes.vq(*command)
        shown = (ended.stdout + ended.stderr).decode()
        for part in (missing, str(block.parent), block.name, "t-1"):
            assert part in shown or (part == "t-1" and command[0] == "topic"), (command, shown)
        assert ended.returncode == (command[0] != "topic"), command
    log = processes.brokers["b1"].spec.log.read_text().splitlines()
    (told,) = [line for line in log if "ERROR" in line and "recovery finding" in line]
    assert all(part in told for part in ("partition=t-1", missing, block.name))
    refused = processes.vq("produce", "t", "--partition", "1", stdin=b"over the old offsets")
    assert refused.returncode != 0
    read = processes.vq("consume", "t", "--group", "g", "--timeout", "2")
    assert len(read.stdout.split()) == (3 if fault == "gone" else 6)
    assert missing in read.stderr.decode()


def test_a_log_that_is_lost_can_be_given_up(processes: ProcessCluster) -> None:
    """It goes on at the offset that its placement says, as one that is damaged."""
    topic = publish(processes)
    end(processes, "stop")
    shutil.rmtree(topic / "1")
    processes.restart("b1")
    assert states(processes) == ["rw", "quarantined"]
    end(processes, "stop")
    begin = 1_000_000
    root = f"/vq/{processes.name}"
    value = {"v": 1, "placement": [{"group": "b1", "start": begin, "end": None}], "state": "rw"}
    with admin(processes.zookeeper) as zookeeper:
        zookeeper.set(f"{root}/topics/t/partitions/1", json.dumps(value).encode())
        zookeeper.set(f"{root}/topics/t", zookeeper.get(f"{root}/topics/t")[0])
    processes.restart("b1")
    ended = processes.vq("produce", "t", "--partition", "1", stdin=b"after")
    assert ended.returncode == 0, ended.stderr.decode()
    row = rows(processes)[1]
    assert (row["state"], row["earliest"]) == ("rw", begin)
    end(processes, "kill")
    shutil.rmtree(topic / "1")
    processes.restart("b1")
    assert states(processes) == ["rw", "quarantined"], "the new log was recorded, too"
