"""A real broker with two data directories, each on a small file system of its own.

    sender ──▶ broker ──▶ first file system      partition 0
                     └──▶ second file system ◀── a stranger's file      partition 1

Goal: while the second one is full, messages of its partition are refused for certain and those of
the other one are taken; nothing is lost or comes in another order, also over kill -9.
"""

import json
from pathlib import Path

import pytest
from support.cluster import process_cluster
from support.faults import Sender, broker_settings, client_of, judge_run, kill, read_back
from support.judge import Fault
from support.small_disk import small_disk_at
from support.zookeeper import ZooKeeperService

import vq
from vq.limits import MIB
from vq.testing.waiting import block_until

pytestmark = [pytest.mark.slow, pytest.mark.root]

DISK_BYTES = 64 * MIB


def test_a_full_disk_of_two_takes_only_its_partitions(
    tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    histories = tmp_path / "h"
    with (
        small_disk_at(tmp_path / "one", DISK_BYTES) as one,
        small_disk_at(tmp_path / "two", DISK_BYTES) as two,
        process_cluster(one, zookeeper.hosts) as cluster,
    ):
        settings = broker_settings(tmp_path / "b1.toml", block_bytes=8 * MIB)
        broker = cluster.add("b1", "--data", str(two / "b1"), *settings)
        cluster.vq_json("topic", "create", "t", "--partitions", "2")

        def disks() -> list[dict[str, object]]:
            rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
            return list(rows[0]["disks"])

        config = vq.ProducerConfig(send_timeout_s=1.0)
        with client_of(cluster) as factory:
            with Sender(
                factory, "t", histories / "s0.jsonl", rate=200, size=10_000, config=config
            ) as sender:
                sender.wait_sent(200)
                assert (one / "b1" / "t" / "0").is_dir()
                assert (two / "b1" / "t" / "1").is_dir()
                assert {path.name for path in (one / "b1" / "t").iterdir()} == {"topic.json", "0"}
                ballast = two / "ballast"
                ballast.write_bytes(bytes(DISK_BYTES * 8 // 10))
                block_until(lambda: sender.reasons["DiskFull"], "partition 1 is refused")
                assert [each["level"] in {"refuse", "stop"} for each in disks()] == [False, True]
                ends = {number: len(found) for number, found in read_back(factory, "t").items()}
                sender.wait_sent(100)
                found = read_back(factory, "t")
                assert len(found[0]) > ends[0], "partition 0 goes on"
                assert kill(broker)
                cluster.restart("b1")
                ballast.unlink()
                refused = sender.reasons["DiskFull"]
                block_until(lambda: disks()[1]["level"] == "ok", "the disk has space again")
                block_until(
                    lambda: len(read_back(factory, "t")[1]) > ends[1], "partition 1 goes on again"
                )
                sender.finish()
            log = read_back(factory, "t")
        assert broker.stop() == 0
    faults = (Fault("refused because a disk is full", refused, strikes=1), Fault("kill -9", 1))
    judge_run(histories, log, *faults, acknowledged_min=500)
