"""The disk of a real broker fills up: by its producers, by a stranger, to the last byte or inode.

    sender ──▶ broker ──▶ small file system ◀── a stranger's file

Goal: sends are refused for certain (``DiskFull``), reading and committing go on, nothing is lost,
and the broker takes messages again by itself once there is space.
"""

import contextlib
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.faults import (
    LONG,
    Sender,
    broker_settings,
    client_of,
    judge_run,
    read_back,
    read_files,
    times,
)
from support.history import read_history
from support.judge import Fault
from support.small_disk import loop_disk_at, remount, small_disk_at
from support.zookeeper import ZooKeeperService

import vq
from vq.errors import DiskFull
from vq.limits import MIB
from vq.testing.waiting import block_until

pytestmark = [pytest.mark.slow, pytest.mark.root]

DISK_BYTES = 64 * MIB
BALLAST_BYTES = 24 * MIB
RESUME_S = 5.0 if LONG else 60.0
#: ext4 reserves more than it needs for bytes it has not written yet, and frees the rest by then.
FREED_S = 15.0
KINDS = {"tmpfs": small_disk_at, "ext4": loop_disk_at}
RUNS = times(1, 10)  # of every test on each of them


@pytest.fixture(
    params=[
        # Of the short form, ``test_disk_freed`` has ext4.
        pytest.param(f"{kind}-{run}", marks=pytest.mark.long if kind == "ext4" else ())
        for run in range(RUNS)
        for kind in KINDS
    ]
)
def full(
    request: pytest.FixtureRequest, tmp_path: Path, zookeeper: ZooKeeperService
) -> Iterator[ProcessCluster]:
    """A cluster whose data lie on a small file system, none of it used yet, no broker."""
    mount: Callable[[Path, int], AbstractContextManager[Path]] = KINDS[
        request.param.partition("-")[0]
    ]
    with (
        mount(tmp_path / "small", DISK_BYTES) as place,
        process_cluster(place, zookeeper.hosts) as cluster,
    ):
        yield cluster


def start_broker(cluster: ProcessCluster, tmp_path: Path, **settings: object) -> None:
    """Start the broker with small blocks, and make the topic."""
    cluster.add("b1", *broker_settings(tmp_path / "b1.toml", block_bytes=8 * MIB, **settings))
    cluster.vq_json("topic", "create", "t", "--partitions", "2")


def write_ballast(place: Path, size: int) -> Path:
    """Take ``size`` bytes of the file system, as a stranger would, or all that is left."""
    path = place / "ballast"
    with path.open("ab", buffering=0) as file:
        step = MIB
        while size >= step >= 1:
            try:
                size -= file.write(bytes(step))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return path


def is_full(place: Path) -> bool:
    """Whether the file system has no block left for a stranger."""
    probe = place / "probe"
    try:
        with probe.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        probe.unlink(missing_ok=True)
    return False


def refusals(history: Path, begin: float, end: float) -> Counter[str]:
    """Return how often which error refused a send between two moments."""
    refused = (event for event in read_history(history) if event["kind"] == "refused")
    return Counter(event["error"] for event in refused if begin <= event["at"] < end)


def check_full(
    cluster: ProcessCluster,
    tmp_path: Path,
    fill: Callable[[Sender], None],
    free: Callable[[], None],
) -> None:
    """Send until the disk is full, see what still works, give space back, see that it goes on."""
    histories = tmp_path / "h"
    config = vq.ProducerConfig(send_timeout_s=1.0, batch_bytes=256 * 1024)
    seen: list[vq.Message] = []
    with client_of(cluster) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(group="g", commit_interval_s=0.1, max_wait_s=1.0)
        )
        consumer.subscribe("t", MIB, seen.append).start()
        with Sender(
            factory, "t", histories / "s0.jsonl", rate=1_200, size=20_000, config=config
        ) as sender:
            sender.wait_sent(50)
            fill(sender)
            block_until(
                lambda: sender.reasons["DiskFull"], "sends are refused, since the disk is full"
            )
            # Full: what is there can be read to its end, and progress is committed.
            log = read_back(factory, "t")
            stored = sum(len(messages) for messages in log.values())
            block_until(lambda: len(seen) >= stored, "everything can still be consumed")
            block_until(
                lambda: (
                    sum(consumer.get_offset("t").values()) > 0
                    and consumer.get_offset("t") == ends(factory, consumer)
                ),
                "offsets can still be committed",
            )
            refused = sender.refused
            full_since = time.monotonic()
            block_until(lambda: sender.refused > refused + 20, "refused as long as it is full")
            begin = time.monotonic()
            free()
            sent = sender.sent
            block_until(lambda: sender.sent > sent, "messages are taken again")
            took_s = time.monotonic() - begin
            assert took_s < RESUME_S, f"it took {took_s:.1f} s to resume"
            sender.finish()
        consumer.close()
        log = read_back(factory, "t")
    assert cluster.brokers["b1"].stop() == 0
    # A batch whose outcome the sender did not wait for may be stored after the log was read.
    stored_at_last = read_files(cluster, "t", 2)
    assert {number: stored_at_last[number][: len(log[number])] for number in log} == log
    why = refusals(histories / "s0.jsonl", full_since, begin)
    print(dict(why), f"resumed after {took_s:.1f} s")
    assert why["DiskFull"] >= 0.99 * why.total(), f"{dict(why)}: refusals should say why"
    fault = Fault("refused because the disk is full", why["DiskFull"], strikes=1)
    judge_run(histories, stored_at_last, fault, acknowledged_min=50)


def ends(factory: vq.MessageFactory, consumer: vq.MessageConsumer) -> dict[vq.TopicPartition, int]:
    """Return the end of every partition that has messages."""
    found = {}
    for placement in factory.get_partitions_for_topic("t"):
        latest = consumer.get_bounds("t", placement.partition).latest
        if latest:
            found[vq.TopicPartition("t", placement.partition)] = latest
    return found


def test_producers_fill_the_disk_to_the_watermark(full: ProcessCluster, tmp_path: Path) -> None:
    """Refused at 90 %, before the file system says no; a stranger's file goes, and it resumes."""
    ballast = write_ballast(full.directory, BALLAST_BYTES)
    start_broker(full, tmp_path)
    check_full(full, tmp_path, fill=lambda _: None, free=ballast.unlink)
    assert b"No space left" not in (full.directory / "b1.log").read_bytes()


def test_a_stranger_fills_the_disk_to_the_last_byte(full: ProcessCluster, tmp_path: Path) -> None:
    """The file system itself says no, in the middle of appending: still a definite refusal."""
    start_broker(full, tmp_path, disk_refuse=1.0, disk_resume=1.0)

    def fill(sender: Sender) -> None:
        block_until(
            lambda: write_ballast(full.directory, DISK_BYTES) and sender.reasons["DiskFull"],
            "the disk is full",
        )

    check_full(full, tmp_path, fill=fill, free=(full.directory / "ballast").unlink)


@pytest.mark.long
@pytest.mark.parametrize("run", range(2 * RUNS))
def test_the_inodes_run_out(tmp_path: Path, zookeeper: ZooKeeperService, run: int) -> None:
    """No new block can be made; the rest as with a full disk."""
    print(f"run {run}")
    with (
        small_disk_at(tmp_path / "small", 4 * DISK_BYTES) as place,
        process_cluster(place, zookeeper.hosts) as cluster,
    ):
        start_broker(cluster, tmp_path)

        def limit(inodes: int) -> None:
            remount(place, f"nr_inodes={inodes}")

        def fill(_: Sender) -> None:
            stat = os.statvfs(place)
            limit(stat.f_files - stat.f_ffree)

        check_full(cluster, tmp_path, fill=fill, free=lambda: limit(100_000))


def fill_up(place: Path) -> Path:
    """Take all that is left, also what the file system gives back when it has written that."""
    deadline = time.monotonic() + FREED_S
    while True:
        ballast = write_ballast(place, DISK_BYTES)
        if is_full(place) or time.monotonic() > deadline:
            return ballast


def test_a_broker_starts_on_a_full_disk(full: ProcessCluster, tmp_path: Path) -> None:
    """Killed when not a byte is left: it comes back, serves what it has, and refuses the rest."""
    start_broker(full, tmp_path)
    broker = full.brokers["b1"]
    histories = tmp_path / "h"
    with client_of(full) as factory:
        with Sender(factory, "t", histories / "s0.jsonl", rate=400, size=5_000) as sender:
            sender.wait_sent(200)
            sender.finish()
        broker.kill()
        ballast = fill_up(full.directory)
        was_full = is_full(full.directory)
        full.restart("b1")
        log = read_back(factory, "t")
        producer = factory.create_producer()
        with pytest.raises(DiskFull):
            producer.send_sync(vq.Message("t", b"one more"), timeout=5.0)
        ballast.unlink()
        begin = time.monotonic()
        producer.send_sync(vq.Message("t", b"now"), timeout=RESUME_S)
        assert time.monotonic() - begin < RESUME_S
    fault = Fault("start on a full disk", was_full, strikes=1)
    judge_run(histories, log, fault, acknowledged_min=50)
