"""The steps of docs/howto/bring-back-a-partition.md, done on a damaged partition.

kill -9, a flipped byte ──▶ quarantined, and told by every command
                              │ restore the files ──▶ everything is there
                              │ or give up the rest ──▶ goes on at a new offset
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.cluster import ProcessCluster, consumed, drained

import vq
from vq.errors import PartitionQuarantined
from vq.store.records.format import CONTROL_BYTES
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow
#: Long enough that one is not found in the random bytes of an id or a checksum.
LINES = [f"message-{number}" for number in range(6)]
BATCH = CONTROL_BYTES + 20 + len(LINES[0])  # with one message


def partition_row(cluster: ProcessCluster) -> dict[str, object]:
    (row,) = cluster.vq_json("topic", "describe", "t")["partitions"]
    return dict(row)


@pytest.fixture
def damaged(processes: ProcessCluster) -> Path:
    """A cluster whose only partition is damaged in its third batch; a copy lies in ``t.copy``."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    for line in LINES:
        processes.vq_json("produce", "t", stdin=line.encode())  # a batch each
    assert consumed(processes, "t", "old", 6) == LINES
    broker.kill()
    topic = broker.spec.data / "t"
    shutil.copytree(topic, processes.directory / "t.copy")
    (block,) = (topic / "0").glob("*.block")
    content = bytearray(block.read_bytes())
    third = content.index(LINES[2].encode())
    assert third > 3 * CONTROL_BYTES
    content[third] ^= 1
    block.write_bytes(content)
    processes.restart("b1")
    return topic


def test_a_quarantined_partition_is_told_and_comes_back_with_its_files(
    processes: ProcessCluster, damaged: Path
) -> None:
    """No command shows it as healthy; the copy brings every message back."""
    row = partition_row(processes)
    assert row["state"] == "quarantined"
    status = processes.vq("cluster", "status")
    assert status.returncode == 1
    assert b"t-0 is quarantined: " in status.stderr
    doctor = processes.vq("doctor", "--json")
    assert doctor.returncode == 1
    failed = [each["detail"] for each in json.loads(doctor.stdout) if each["level"] == "fail"]
    assert len(failed) == 1
    assert "t-0 is quarantined" in failed[0]
    assert drained(processes, "t", "new", 2) == LINES[:2]
    described = processes.vq("group", "describe", "old")
    assert b"lies beyond the end" in described.stderr
    assert described.stdout.split()[-1] == b"unknown", "a lag that cannot be told is not 0"

    assert processes.brokers["b1"].stop() == 0
    shutil.rmtree(damaged)
    shutil.copytree(processes.directory / "t.copy", damaged)
    processes.restart("b1")
    assert partition_row(processes)["state"] == "rw"
    assert drained(processes, "t", "new", 4) == LINES[2:]
    assert drained(processes, "t", "old", 0) == []
    assert processes.vq("cluster", "status").returncode == 0


def test_a_consumer_that_waits_at_damage_is_told_and_goes_on_once_it_is_put_right(
    processes: ProcessCluster, damaged: Path
) -> None:
    """In the API, in ``vq group describe``; the same consumer reads the rest, without a restart."""
    lines: list[str] = []
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(vq.ConsumerConfig(group="waits"))
        consumer.subscribe("t", 1 << 20, lambda message: lines.append(message.content.decode()))
        consumer.start()
        block_until(consumer.troubles)
        block_until(lambda: lines == LINES[:2])
        (trouble,) = consumer.troubles().values()
        assert isinstance(trouble.error, PartitionQuarantined)
        assert isinstance(consumer.last_error, PartitionQuarantined)

        def described() -> dict[str, Any]:
            (row,) = processes.vq_json("group", "describe", "waits")["partitions"]
            return dict(row)

        block_until(lambda: described()["stopped"] is not None)
        row = described()
        assert row["stopped"].startswith("PartitionQuarantined: ")
        assert (row["stopped_at"], row["stopped_since_s"] * 1000) == (
            trouble.offset,
            pytest.approx(trouble.since_ms),
        )
        shown = processes.vq("group", "describe", "waits").stderr.decode()
        assert f"does not go on at offset {trouble.offset} since 20" in shown

        assert processes.brokers["b1"].stop() == 0
        shutil.rmtree(damaged)
        shutil.copytree(processes.directory / "t.copy", damaged)
        processes.restart("b1")
        block_until(lambda: lines == LINES)
        assert consumer.troubles() == {}
        block_until(lambda: described()["stopped"] is None)


def test_the_rest_of_a_damaged_partition_can_be_given_up(
    processes: ProcessCluster, damaged: Path
) -> None:
    """The partition goes on at an offset nobody has used; a group is set to its begin."""
    begin = 1_000_000
    command = ("topic", "begin", "t", "--partition", "0", "--at", str(begin))
    refused = processes.vq(*command, "--yes")
    assert refused.returncode == 1
    assert b"b1/n1 must not run meanwhile" in refused.stderr
    assert processes.brokers["b1"].stop() == 0
    shutil.move(damaged / "0", processes.directory / "damaged")
    planned = processes.vq(*command)
    assert f"t-0 begins at {begin} on b1; given up: [0, its end) on b1".encode() in planned.stderr
    assert b"nothing was changed; add --yes" in planned.stderr
    assert processes.vq_json(*command, "--yes")["committed"] == 6 * BATCH
    processes.restart("b1")
    reset = ("group", "reset", "old", "--to-earliest")
    planned = processes.vq(*reset)
    assert planned.returncode == 0
    assert f"plan: old on t-0 from {6 * BATCH} to {begin}".encode() in planned.stderr
    assert b"nothing was changed; add --yes" in planned.stderr
    (done,) = processes.vq_json(*reset, "--yes")["partitions"]
    assert (done["from"], done["to"]) == (6 * BATCH, begin)
    processes.vq_json("produce", "t", stdin=b"after")
    row = partition_row(processes)
    assert (row["state"], row["earliest"]) == ("rw", begin)
    assert drained(processes, "t", "old", 1) == ["after"]


def test_a_group_ahead_of_its_log_is_stopped_until_it_is_reset(processes: ProcessCluster) -> None:
    """kill -9, a log cut at the end of an acknowledged batch, new messages over the old offsets."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    for line in LINES:
        processes.vq_json("produce", "t", stdin=line.encode())
    assert consumed(processes, "t", "old", 6) == LINES
    broker.kill()
    (block,) = (broker.spec.data / "t" / "0").glob("*.block")
    os.truncate(block, 4 * BATCH)
    processes.restart("b1")
    assert drained(processes, "t", "old", 0) == []
    later = [f"n{number}" for number in range(3)]
    for line in later:
        processes.vq_json("produce", "t", stdin=line.encode())
    assert drained(processes, "t", "old", 0) == [], "it jumped over messages"
    described = processes.vq("group", "describe", "old")
    assert f"t-0: the group was stopped at offset {6 * BATCH}: ".encode() in described.stderr
    assert b"`vq group reset old`" in described.stderr
    (row,) = processes.vq_json("group", "describe", "old")["partitions"]
    assert row["needs_reset"]
    offset = ("--offset", str(4 * BATCH))
    (done,) = processes.vq_json("group", "reset", "old", "--stopped", *offset, "--yes")[
        "partitions"
    ]
    assert (done["from"], done["to"]) == (6 * BATCH, 4 * BATCH)
    assert drained(processes, "t", "old", 3) == later


def test_an_end_that_a_start_took_off_is_shown_until_an_operator_has_seen_it(
    processes: ProcessCluster,
) -> None:
    """kill -9, a flipped bit in the last message: it was acknowledged, and looks like a torn write.

    No other node has it. It is kept, told by every command, and can be had back as far as it goes.
    """
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    processes.vq_json("produce", "t", stdin=LINES[0].encode())
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        producer.publish("t")
        producer.send_batch([vq.Message("t", line.encode()) for line in LINES[1:4]])  # one batch
    broker.kill()
    (block,) = (broker.spec.data / "t" / "0").glob("*.block")
    place = block.read_bytes().index(LINES[3].encode())
    _write(block, place, block.read_bytes()[place] ^ 1)
    for _ in range(2):
        processes.restart("b1")
        assert partition_row(processes)["state"] == "rw"
        for command in (("cluster", "status"), ("doctor",)):
            ended = processes.vq(*command)
            told = ended.stdout + ended.stderr
            assert b"a start took the end of partition t-0 off" in told
            assert b"with 3 whole messages" in told
        (found,) = processes.vq_json("cluster", "diverged")
        assert (found["at_start"], found["messages"], found["topic"]) == (True, 3, "t")
        broker.kill()
    processes.restart("b1")
    assert drained(processes, "t", "g", 1) == LINES[:1]
    printed = processes.vq("cluster", "diverged", found["file"])
    assert (printed.returncode, printed.stdout.decode().split()) == (1, LINES[1:3])
    assert processes.vq_json("cluster", "diverged", found["file"], "--delete", "--yes")["done"]
    assert processes.vq_json("cluster", "diverged") == []
    assert processes.vq("cluster", "status").returncode == 0
    assert processes.vq("doctor").returncode == 0


def test_damage_in_what_is_served_is_shown_until_it_is_put_right(processes: ProcessCluster) -> None:
    """Nothing tells of it before somebody looks; then every command does."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    for line in LINES:
        processes.vq_json("produce", "t", stdin=line.encode())  # a batch each
    for _ in range(2):  # a start verifies what lies right before the checkpoint
        processes.vq_json("produce", "t", stdin=b"x" * 100_000)
    (block,) = (broker.spec.data / "t" / "0").glob("*.block")
    assert processes.vq("topic", "verify", "t").returncode == 0
    assert processes.vq("doctor").returncode == 0

    size = CONTROL_BYTES + 20 + len(LINES[0])
    place = 3 * size - 1  # the last byte of the third message
    good = block.read_bytes()[place]
    _write(block, place, good ^ 1)
    assert processes.vq("topic", "verify", "t").returncode == 0, "it was found intact just now"
    broker.stop()
    processes.restart("b1")
    assert partition_row(processes)["damaged"] == 0
    assert consumed(processes, "t", "early", 2) == LINES[:2]

    def is_reported() -> bool:
        assert drained(processes, "t", "early", 0) == []
        return bool(partition_row(processes)["damaged"] == 1)

    block_until(is_reported, "its consumer reports it")
    broker.stop()
    processes.restart("b1")
    (found,) = _verify(processes, 1)["damage"]
    assert (found["start"], found["end"], found["file"]) == (2 * size, 3 * size, str(block))
    row = partition_row(processes)
    assert (row["state"], row["damaged"]) == ("rw", 1)
    for command in (("cluster", "status"), ("doctor",), ("topic", "verify", "--all")):
        ended = processes.vq(*command)
        assert ended.returncode == 1
        assert f"offsets [{2 * size}, {3 * size})".encode() in ended.stdout + ended.stderr
    assert broker.spec.log.read_text().count("damage found") == 2, "once in each life"

    _write(block, place, good)
    assert _verify(processes, 0)["damage"] == []
    assert processes.vq("cluster", "status").returncode == 0
    assert consumed(processes, "t", "new", 6) == LINES


def skip_for_another_group(processes: ProcessCluster) -> None:
    """Do with one command what the steps above did for group ``g``."""
    assert drained(processes, "t", "h", 2) == LINES[:2]
    described = processes.vq("topic", "describe", "t").stdout + processes.vq("doctor").stdout
    assert described.count(b"are damaged") + described.count(b"damaged in") >= 2
    (planned,) = processes.vq_json("group", "reset", "h", "--past-damage")["partitions"]
    assert drained(processes, "t", "h", 0) == [], "it was only planned"
    done = processes.vq_json("group", "reset", "h", "--past-damage", "--yes")
    assert done["partitions"] == [planned]
    assert drained(processes, "t", "h", 3) == LINES[3:]


def test_a_group_goes_on_behind_a_message_that_is_lost(processes: ProcessCluster) -> None:
    """Only the message with the flipped byte is lost, whatever else is in its batch."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    produced = processes.vq("produce", "t", stdin="\n".join(LINES).encode())
    assert produced.returncode == 0, produced.stderr.decode()
    first, _, lost, following, *_ = _messages(processes, "0", "--count", str(len(LINES)))
    (block,) = (broker.spec.data / "t" / "0").glob("*.block")
    content = block.read_bytes()
    place = content.index(LINES[2].encode())
    _write(block, place, content[place] ^ 1)

    assert drained(processes, "t", "g", 2) == LINES[:2]
    (damage,) = _verify(processes, 1)["damage"]
    assert first["offset"] - CONTROL_BYTES <= damage["start"] <= lost["offset"] < damage["end"]
    assert processes.vq("message", "get", "t", "0", str(lost["offset"])).returncode == 1
    (found,) = _messages(processes, str(lost["offset"] + 1), "--next")
    assert found["offset"] == following["offset"]
    place_of = ("--topic", "t", "--partition", "0", "--offset", str(found["offset"]))
    assert processes.vq("group", "reset", "g", *place_of, "--yes").returncode == 0
    assert drained(processes, "t", "g", 3) == LINES[3:]
    skip_for_another_group(processes)


def test_a_group_goes_on_behind_a_batch_whose_control_record_is_lost(
    processes: ProcessCluster,
) -> None:
    """Where messages begin is hidden inside the range, and known at its end."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    for line in LINES:
        processes.vq_json("produce", "t", stdin=line.encode())  # a batch each
    (block,) = (broker.spec.data / "t" / "0").glob("*.block")
    place = 2 * BATCH + 30
    _write(block, place, block.read_bytes()[place] ^ 1)
    assert drained(processes, "t", "g", 2) == LINES[:2]
    hidden = processes.vq("message", "get", "t", "0", str(2 * BATCH + 1), "--next")
    assert hidden.returncode == 1
    (damage,) = _verify(processes, 1)["damage"]
    assert damage["end"] == 3 * BATCH
    (found,) = _messages(processes, str(damage["end"]))
    assert found["content"] == LINES[3]
    place_of = ("--topic", "t", "--partition", "0", "--offset", str(damage["end"]))
    assert processes.vq("group", "reset", "g", *place_of, "--yes").returncode == 0
    assert drained(processes, "t", "g", 3) == LINES[3:]
    skip_for_another_group(processes)


def _messages(cluster: ProcessCluster, offset: str, *options: str) -> list[dict[str, Any]]:
    ended = cluster.vq("message", "get", "t", "0", offset, *options, "--json")
    assert ended.returncode == 0, ended.stderr.decode()
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_a_topic_that_a_broker_refuses_is_shown_with_the_reason(processes: ProcessCluster) -> None:
    """Every command that looks at the cluster ends with 1 and names the file."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    processes.vq_json("produce", "t", stdin=b"m")
    broker.stop()
    file = broker.spec.data / "t" / "topic.json"
    _write(file, file.read_bytes().index(b"id") + 7, ord("!"))
    processes.restart("b1")
    for command in (("cluster", "status"), ("doctor",), ("topic", "describe", "t")):
        ended = processes.vq(*command)
        assert ended.returncode == 1, command
        assert str(file).encode() in ended.stdout + ended.stderr, command
    log = broker.spec.log.read_text()
    assert "ERROR" in log
    assert "Traceback" not in log


def _verify(cluster: ProcessCluster, code: int) -> dict[str, Any]:
    ended = cluster.vq("topic", "verify", "t", "--partition", "0", "--json")
    assert ended.returncode == code, ended.stderr.decode()
    (row,) = json.loads(ended.stdout)
    return dict(row)


def _write(path: Path, position: int, byte: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([byte]))
