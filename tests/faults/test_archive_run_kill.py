"""kill -9 of the node that holds the lease while all nodes archive: real processes, real disks.

    vq archive run ──▶ ZooKeeper ──▶ b1, b2 archive block after block
                                      ✗ kill -9 of the lease holder, half-way

Goal: the next start does the rest of the run, another node takes the lease with a higher fence, and
every acknowledged message is read, from archives and blocks.
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from support.cluster import ProcessCluster
from support.faults import broker_settings, client_of, kill
from support.zookeeper import admin

import vq
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

#: Small blocks, so that a few dozen large messages fill several.
SETTINGS = {"block_bytes": 8 << 20, "session_timeout_s": 4.0}
BIG = 512 << 10
COUNT = 80


def run_of(cluster: ProcessCluster, number: int) -> Mapping[str, Any]:
    found = cluster.vq("archive", "history", "--json")
    return next(each for each in json.loads(found.stdout) if each["number"] == number)


def node_of(cluster: ProcessCluster, number: int, group: str) -> Mapping[str, Any]:
    nodes = run_of(cluster, number)["nodes"]
    return next(each for each in nodes if each["group"] == group)


def lease_of(cluster: ProcessCluster) -> Mapping[str, Any]:
    """The holder; empty while there is none."""
    path = f"/vq/{cluster.name}/leases/archive"
    with admin(cluster.zookeeper) as client:
        try:
            return json.loads(client.get(f"{path}/holder")[0])  # type: ignore[no-any-return]
        except NoNodeError:  # also when it goes between two calls
            return {}


def read_all(factory: vq.MessageFactory, partitions: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    with factory.create_consumer() as consumer:
        for number in range(partitions):
            offset, end = consumer.get_bounds("t", number)
            messages = found[number] = []
            while offset < end:
                some = consumer.get("t", number, offset, 8 << 20)
                messages += [each.content for each in some]
                offset = some[-1].next_offset
    return found


def test_the_next_start_finishes_what_a_killed_lease_holder_began(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    settings = broker_settings(tmp_path / "b.toml", **SETTINGS)
    for group in ("b1", "b2"):
        processes.add(group, *settings)
    processes.vq_json("topic", "create", "t", "--partitions", "2", "--retention-policy", "archive")
    sent: dict[int, list[bytes]] = {0: [], 1: []}
    with client_of(processes) as factory, factory.create_producer() as producer:
        for n in range(COUNT):
            content = os.urandom(BIG - 1) + bytes([n])
            result = producer.send_sync(vq.Message("t", content, key=n), timeout=60)
            sent[result.partition].append(content)
    assert min(map(len, sent.values())) * BIG > 2 * SETTINGS["block_bytes"], "several blocks each"
    block_until(lambda: lease_of(processes), "a node takes the lease")
    before = lease_of(processes)
    group = before["holder"].partition("/")[0]
    as_of = (datetime.now(UTC) + timedelta(hours=30)).isoformat()
    made = processes.vq_json("archive", "run", "--as-of", as_of, "--no-wait")["number"]

    holder = processes.brokers[group]
    data = holder.spec.data / "t"
    block_until(lambda: any(data.rglob("*.zip")), "the lease holder archives")
    assert kill(holder)
    assert any(data.rglob("*.block")), "it was half-way"
    block_until(
        lambda: lease_of(processes).get("fence", 0) > before["fence"], "another node has the lease"
    )
    assert not lease_of(processes)["holder"].startswith(f"{group}/")
    processes.restart(group)
    block_until(lambda: run_of(processes, made)["state"] == "done", "both have ended the run")
    assert node_of(processes, made, group)["failed"] == 0
    listed = processes.vq_json("archive", "list")
    assert {each["group"] for each in listed} == {"b1", "b2"}
    assert sum(each["bytes"] for each in listed) > COUNT * BIG
    verified = processes.vq_json("archive", "verify")
    assert {each["state"] for each in verified} == {"intact"}
    for name in ("b1", "b2"):
        left = list((processes.brokers[name].spec.data / "t").rglob("*.block"))
        assert left == [], "all that was closed is archived, and the file is gone"
    with client_of(processes) as factory:
        assert read_all(factory, 2) == sent
    target = tmp_path / "all.jsonl"
    exported = processes.vq_json("archive", "export", "t", "--output", str(target))
    assert exported["messages"] == COUNT
    assert len(target.read_bytes().splitlines()) == COUNT


def test_a_daily_run_that_was_missed_is_made_by_whoever_gets_the_lease(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Once, by one of two brokers that start after its time."""
    settings = broker_settings(tmp_path / "b.toml", **SETTINGS)
    for group in ("b1", "b2"):
        processes.add(group, *settings)
    processes.vq_json("topic", "create", "t", "--partitions", "2", "--retention-policy", "archive")
    block_until(lambda: lease_of(processes), "a node takes the lease")
    assert processes.vq_json("archive", "history") == [], "a new cluster has missed nothing"
    for broker in processes.brokers.values():
        assert broker.stop() == 0
    path = f"/vq/{processes.name}/archive/runs"
    with admin(processes.zookeeper) as client:
        counter = json.loads(client.get(path)[0])
        client.set(path, json.dumps({**counter, "since_ms": 1}).encode())
    for group in ("b1", "b2"):
        processes.restart(group)

    def ended() -> bool:
        found = json.loads(processes.vq("archive", "history", "--json").stdout)
        return bool(found) and found[0]["state"] == "done"

    block_until(ended, "the missed run is made and done")
    [run] = processes.vq_json("archive", "history")
    due = datetime.fromtimestamp(run["due_s"], UTC).astimezone()
    assert (due.hour, due.minute) == (2, 0)
    assert run["due_s"] <= run["as_of_s"]
    assert run["by"] == lease_of(processes)["holder"]
    assert {each["group"] for each in run["nodes"]} == {"b1", "b2"}
    found = {each["check"]: each for each in json.loads(processes.vq("doctor", "--json").stdout)}
    assert found["archive"]["level"] == "ok"
