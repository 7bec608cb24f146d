"""A small disk that producers fill and retention frees, again and again, beside a stranger's file.

    sender ──▶ broker ──▶ small file system ◀── a stranger's file
                 │ deletes what the group has read, once it may
                 ▼
               member of a group, which commits

Goal: nothing acknowledged is lost to the group, each message comes once and in order, refusals are
definite, and messages are taken again by themselves.
"""

import contextlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.cluster import process_cluster
from support.faults import (
    Sender,
    broker_settings,
    client_of,
    everything,
    judge_run,
    member_of,
    read_back,
    times,
    wait_drained,
)
from support.judge import Fault
from support.small_disk import loop_disk_at, small_disk_at
from support.zookeeper import ZooKeeperService

import vq
from vq.limits import MIB
from vq.testing.waiting import block_until

pytestmark = [pytest.mark.slow, pytest.mark.root]

DISK_BYTES = 64 * MIB
KINDS = {"tmpfs": small_disk_at, "ext4": loop_disk_at}
KEEP_ALL = ("--retention-hours", "forever", "--retention-bytes", "unlimited")
KEEP_LITTLE = ("--retention-bytes", "1M")


@pytest.mark.parametrize("kind", ["ext4", pytest.param("tmpfs", marks=pytest.mark.long)])
def test_a_disk_is_filled_and_freed_again_and_again(
    tmp_path: Path, zookeeper: ZooKeeperService, kind: str
) -> None:
    mount: Callable[[Path, int], AbstractContextManager[Path]] = KINDS[kind]
    histories = tmp_path / "h"
    config = vq.ProducerConfig(send_timeout_s=1.0, batch_bytes=256 * 1024)
    rounds, seen_levels = times(2, 10), set[str]()
    with (
        mount(tmp_path / "small", DISK_BYTES) as place,
        process_cluster(place, zookeeper.hosts) as cluster,
    ):
        settings = {"block_bytes": 8 * MIB, "retention_interval_s": 0.2}
        cluster.add("b1", *broker_settings(tmp_path / "b1.toml", **settings))
        cluster.vq_json(
            "topic", "create", "t", "--partitions", "2", "--retention-policy", "keep", *KEEP_ALL
        )

        def level() -> str:
            rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
            found = rows[0]["disks"][0]["level"]
            seen_levels.add(found)
            return str(found)

        with client_of(cluster) as factory, member_of(cluster, histories, "m0") as seen:
            with Sender(
                factory, "t", histories / "s0.jsonl", rate=1_500, size=20_000, config=config
            ) as sender:
                for number in range(rounds):
                    refused = sender.reasons["DiskFull"]
                    ballast = place / "ballast"
                    if number % 2:
                        # Less, if what retention gives back is not there yet.
                        with contextlib.suppress(OSError):
                            ballast.write_bytes(bytes(20 * MIB))
                    block_until(
                        lambda refused=refused: sender.reasons["DiskFull"] > refused + 20,
                        "sends are refused, since the disk is full",
                    )
                    block_until(lambda: level() in {"refuse", "stop"}, "the level is told")
                    cluster.vq_json("topic", "alter", "t", *KEEP_LITTLE)
                    sent = sender.sent
                    block_until(lambda sent=sent: sender.sent > sent + 100, "retention made room")
                    ballast.unlink(missing_ok=True)
                    if number + 1 < rounds:
                        cluster.vq_json("topic", "alter", "t", *KEEP_ALL)
                sender.finish()
            log = read_back(factory, "t")
            wait_drained(log, seen)
            block_until(lambda: level() in {"ok", "warn"}, "the disk has space again")
        assert cluster.brokers["b1"].stop() == 0
        lines = (cluster.directory / "b1.log").read_text()
    assert seen_levels & {"refuse", "stop"}
    assert lines.count("crossed a watermark") >= 2 * rounds
    fault = Fault("refused because the disk is full", sender.reasons["DiskFull"], strikes=1)
    judge_run(histories, everything(histories / "m0.jsonl", log), fault, acknowledged_min=500)
