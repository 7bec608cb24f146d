"""A file system that turns read-only under a real broker: what ext4 does after a device's error.

    sender ──▶ broker ──▶ first file system             one partition
                     └──▶ ext4, errors=remount-ro       the other one: an archive and blocks
                             ✗ an error of the device

Goal: all that is stored stays readable, the partition says that its file system is read-only, and
nothing counts as damaged; with a new mount the partition takes messages again, and has all
acknowledged ones.
"""

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.cluster import process_cluster
from support.faults import broker_settings, client_of, kill
from support.small_disk import loop_disk_at, make_image, mounted_image, turn_read_only
from support.zookeeper import ZooKeeperService

import vq
from vq.errors import OutcomeUnknown, PartitionFailed
from vq.limits import MIB

pytestmark = [pytest.mark.slow, pytest.mark.root]

IMAGE_BYTES = 128 * MIB  # of both, so that each gets one partition
BLOCK_BYTES = 8 * MIB
BIG = 1 * MIB - 100
EROFS = "Read-only file system"


def send(factory: vq.MessageFactory, partition: int, count: int, size: int) -> list[bytes]:
    """Send so many messages to a partition; return their contents."""
    config = vq.ProducerConfig(partitioner=lambda message, partitions: partition)
    sent = [os.urandom(size) for _ in range(count)]
    with factory.create_producer(config) as producer:
        for each in sent:
            producer.send_sync(vq.Message("t", each), timeout=60)
    return sent


def read(factory: vq.MessageFactory, partition: int) -> list[bytes]:
    """Read all that a partition has, by offset."""
    found: list[bytes] = []
    with factory.create_consumer() as consumer:
        offset, end = consumer.get_bounds("t", partition)
        while offset < end:
            some = consumer.get("t", partition, offset, 8 * MIB)
            found += [each.content for each in some]
            offset = some[-1].next_offset
    return found


def told(factory: vq.MessageFactory, partition: int) -> dict[str, Any]:
    """Return what the broker says of the partition."""
    found = factory.get_status()
    assert isinstance(found, dict)
    (status,) = found.values()
    (one,) = [each for each in status.raw["partitions"] if each["partition"] == partition]
    return dict(one)


def test_what_is_on_a_file_system_that_turned_read_only_is_read_and_is_not_called_damaged(
    tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    image, place = tmp_path / "two.img", tmp_path / "two"
    make_image(image, IMAGE_BYTES, "ext4")
    settings = broker_settings(tmp_path / "b1.toml", block_bytes=BLOCK_BYTES)
    with (
        loop_disk_at(tmp_path / "one", IMAGE_BYTES) as one,
        process_cluster(one, zookeeper.hosts) as cluster,
    ):
        with mounted_image(image, place, "errors=remount-ro"):
            broker = cluster.add("b1", "--data", str(place / "b1"), *settings)
            cluster.vq_json("topic", "create", "t", "--partitions", "2")
            with client_of(cluster) as factory:
                first = [send(factory, each, 1, 100) for each in range(2)]
                (hurt,) = [each for each in range(2) if (place / f"b1/t/{each}").is_dir()]
                later = (datetime.now(UTC) + timedelta(hours=50)).isoformat()
                cluster.vq_json("archive", "run", "--as-of", later)
                sent = first[hurt] + send(factory, hurt, BLOCK_BYTES // BIG + 2, BIG)
                files = place / f"b1/t/{hurt}"
                assert [len(list(files.glob(kind))) for kind in ("*.zip", "*.block")] == [1, 2]
                assert broker.stop() == 0  # so that the next one opens all of these files anew
                cluster.restart("b1")
                sent += send(factory, hurt, 1, 100)
                turn_read_only(place)
                with pytest.raises(OutcomeUnknown, match=EROFS):
                    send(factory, hurt, 1, 100)  # this one may be there afterwards
                with pytest.raises(PartitionFailed, match=EROFS) as refused:
                    send(factory, hurt, 1, 100)
                assert "restart the broker" in refused.value.hint
                send(factory, 1 - hurt, 1, 100)  # the other file system is well
                assert read(factory, hurt) == sent
                found = told(factory, hurt)
                assert (found["state"], found["damaged_ranges"]) == ("failed", 0)
                assert EROFS in found["reason"]
                for command in ("cluster", "status"), ("doctor",):
                    shown = cluster.vq(*command)
                    text = (shown.stdout + shown.stderr).decode()
                    assert (shown.returncode, "damage" in text) == (1, False), text
                    assert re.search(f"t-{hurt} is failed.*{EROFS}", text), text
                verified = json.loads(cluster.vq("topic", "verify", "t", "--json").stdout)
                (row,) = [each for each in verified if each["partition"] == hurt]
                assert (row["damaged"], row["damage"]) == (None, []), "as the log may go on"
                assert EROFS in row["error"]
                assert row["read_bytes"] >= sum(map(len, sent))
                assert told(factory, hurt)["damaged_ranges"] == 0
            assert kill(broker)
        with mounted_image(image, place, "errors=remount-ro"), client_of(cluster) as factory:
            cluster.restart("b1")
            sent += send(factory, hurt, 1, 100)
            acknowledged = set(sent)
            assert [each for each in read(factory, hurt) if each in acknowledged] == sent
            assert told(factory, hurt)["state"] == "rw"
            assert broker.stop() == 0
