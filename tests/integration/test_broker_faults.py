"""What a real broker does when its disk is full and when its ZooKeeper is away."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import process_cluster
from support.raw_client import RawClient, message
from support.small_disk import remount, small_disk_at

from vq.errors import DiskFull
from vq.limits import MIB
from vq.store.records.record import decode_records
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

STAMP = {"producer_id": 5, "producer_epoch": 1}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    with small_disk_at(tmp_path / "small", 24 * MIB) as place:
        yield place


def _count(client: RawClient) -> int:
    found, offset = 0, 0
    while True:
        _, body = client.get("t", 0, offset, max_bytes=8 << 20)
        if not body:
            return found
        records = decode_records(body, offset)
        found += len(records)
        offset = records[-1].next_offset  # the last record of an answer may be cut off


def _fill(client: RawClient) -> int:
    """Send until the broker refuses; return how many were acknowledged."""
    for sent in range(200):
        try:
            client.put("t", 0, [message(os.urandom(200_000), sent)], sequence=sent, **STAMP)
        except DiskFull:
            return sent
    raise AssertionError("the disk never filled up")


@pytest.mark.root
@pytest.mark.parametrize("refuse", ["0.9", "1.0"], ids=["watermark", "no space left"])
def test_a_full_disk_is_refused_definitely_and_recovered_from(small_disk, zookeeper, refuse):
    """Sends end in DiskFull, never in silence; reads go on; space coming back is enough."""
    with process_cluster(small_disk, zookeeper.hosts) as cluster:
        config = small_disk / "broker.toml"
        config.write_text(f"[broker]\ndisk_refuse = {refuse}\ndisk_resume = 0.88\n")
        broker = cluster.add("b1", "--config", str(config))
        assert cluster.vq("topic", "create", "t").returncode == 0
        with RawClient(broker.spec.address) as client:
            sent = _fill(client)
            assert sent > 20
            assert _count(client) == sent
            with pytest.raises(DiskFull):
                client.put("t", 0, [message(os.urandom(400_000), sent)], sequence=sent, **STAMP)
            remount(small_disk, f"size={48 * MIB}")

            def taken_again() -> bool:
                try:
                    client.put("t", 0, [message(b"again", sent)], sequence=sent, **STAMP)
                except DiskFull:
                    return False
                return True

            block_until(taken_again, "it takes messages again")
            assert _count(client) == sent + 1
        broker.kill()
        cluster.restart("b1")
        with RawClient(broker.spec.address) as client:
            assert _count(client) == sent + 1


def test_messages_flow_while_zookeeper_is_stopped_and_topics_follow_later(tmp_path, make_zookeeper):
    """Longer than a session lives: nothing is lost, and the broker is registered again after."""
    zookeeper = make_zookeeper(tick_ms=100)
    with process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster:
        config = tmp_path / "broker.toml"
        config.write_text("[broker]\nsession_timeout_s = 1.0\n")
        broker = cluster.add("b1", "--config", str(config))
        block_until(
            lambda: cluster.vq("topic", "create", "t").returncode == 0,
            "a topic made on a broker whose short session lives",
        )
        with RawClient(broker.spec.address) as client:
            client.put("t", 0, [message(b"x")])
            zookeeper.pause()
            count, end = 1, time.monotonic() + 3
            while time.monotonic() < end:
                client.put("t", 0, [message(b"x", count)])
                count += 1
            zookeeper.resume()
            broker.wait_ready(PROCESSES_WAIT_S)
            # What it was ready by may be its node of before, which ends with its session.
            block_until(
                lambda: cluster.vq("topic", "create", "later").returncode == 0,
                "a topic made on the broker that is registered again",
            )
            client.put("later", 0, [message(b"x")])
            assert _count(client) == count
