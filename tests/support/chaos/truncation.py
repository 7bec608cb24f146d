"""The fault that an operator causes: a node leads that lacks messages, and who read them is told.

    n1   common | ahead          leads alone, and is killed
    n2   common | new            leads, by decision
    n1   common | new            is back; keeps ``ahead`` in a file that is listed

Each strike has a broker group and a topic of its own, so that the load of the run, which may lose
nothing, goes on beside it.
"""

from pathlib import Path

from support.block_files import read_partition
from support.chaos.groups import Groups
from support.chaos.nemesis import EFFECT_S, Field
from support.faults import client_of

import vq
from vq.errors import GroupStopped, LogTruncated
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

_LENGTH = 1 << 20


def force_unclean(field: Field) -> bool:
    """All nodes in sync are lost, and an operator has one lead that lacks their last messages."""
    field.added += 1
    groups, group, topic = field.groups, f"u{field.added}", f"u{field.added}"
    names = [f"{group}/n1", f"{group}/n2"]
    for name in names:
        groups.add(name, "--pool", group).wait_ready(PROCESSES_WAIT_S)
    groups.cluster.vq_json("topic", "create", topic, "--pool", group)
    groups.wait_whole()
    try:
        with client_of(groups.cluster) as factory:
            _strike(field, factory, topic, names)
    finally:
        groups.wanted.difference_update(names)
        for name in names:
            groups.nodes[name].stop()
    return True


def _strike(field: Field, factory: vq.MessageFactory, topic: str, names: list[str]) -> None:
    groups, first, second = field.groups, *names
    counts = [field.rng.randrange(1, 40) for _ in range(3)]
    _send(factory, topic, "common", counts[0])
    groups.wait_whole()
    groups.wanted.discard(second)
    groups.nodes[second].stop()
    block_until(lambda: len(groups.record(topic).insync) == 1, f"{second} leaves the set")
    _send(factory, topic, "ahead", counts[1])
    with factory.create_consumer() as reader:
        ahead = reader.get_bounds(topic, 0).latest
        read = 0
        while read < ahead:
            read = reader.get(topic, 0, read, _LENGTH)[-1].next_offset
        assert len(_take(factory, topic, counts[0] + counts[1])) == counts[0] + counts[1]
        groups.kill(first)
        ends = [_end(groups, name, topic) for name in names]
        assert ends[0] == ahead > ends[1], f"{second} lacks nothing: {ends}"
        groups.start(second)
        _decide(groups, topic, first)
        _send(factory, topic, "new", counts[2])
        _check_told(factory, reader, topic, ends)
    groups.wanted.add(second)
    groups.start(first)
    groups.wait_whole()
    kept = groups.cluster.vq_json("cluster", "diverged")
    found = [
        (file["start_offset"], file["end_offset"], file["messages"])
        for file in kept
        if file["topic"] == topic
    ]
    assert found == [(ends[1], ends[0], counts[1])], f"kept: {found}, lost: {ends}"
    place = ("--topic", topic, "--partition", "0", "--offset", str(ends[1]))
    groups.cluster.vq_json("group", "reset", topic, *place, "--yes")
    again = _take(factory, topic, counts[2])
    assert again == [f"new {number}" for number in range(counts[2])], again


def _send(factory: vq.MessageFactory, topic: str, name: str, count: int) -> None:
    with factory.create_producer() as producer:
        for number in range(count):
            message = vq.Message(topic, f"{name} {number}".encode())
            producer.send_sync(message, PROCESSES_WAIT_S)


def _take(factory: vq.MessageFactory, topic: str, count: int) -> list[str]:
    """Return what a member of the topic's group is given, once that are so many."""
    found: list[str] = []
    with factory.create_consumer(vq.ConsumerConfig(group=topic, max_wait_s=1.0)) as consumer:
        consumer.subscribe(topic, _LENGTH, lambda m: found.append(m.content.decode())).start()
        block_until(lambda: len(found) >= count, f"{topic}: {count} messages")
    return found


def _end(groups: Groups, name: str, topic: str) -> int:
    """Return where the log of a node ends, as its files say."""
    return read_partition(Path(groups.data(name)) / topic / "0").end


def _decide(groups: Groups, topic: str, lost: str) -> None:
    """Do what an operator does, once the lost node is not registered any more."""
    block_until(lambda: not groups.registered(lost), f"{lost} is not registered")
    command = ("cluster", "unclean", topic, "--node", "n2", "--topic", topic, "--yes")
    block_until(
        lambda: groups.cluster.vq(*command).returncode == 0,
        f"n2 of {topic} is to lead",
        timeout_s=EFFECT_S,
    )


def _check_told(
    factory: vq.MessageFactory, reader: vq.MessageConsumer, topic: str, ends: list[int]
) -> None:
    """Check that a reader is told the range that is lost, and that a group is stopped."""
    told: dict[str, object] = {}
    try:
        found = reader.get(topic, 0, ends[0], _LENGTH)
    except LogTruncated as error:
        told = dict(error.details)
    else:
        raise AssertionError(f"{topic}: read {found} behind what is lost")
    assert (told["parts_at"], told["offset"]) == (ends[1], ends[0]), f"told {told}, lost {ends}"
    given: list[str] = []
    with factory.create_consumer(vq.ConsumerConfig(group=topic, max_wait_s=1.0)) as consumer:
        consumer.subscribe(topic, _LENGTH, lambda m: given.append(m.content.decode())).start()
        block_until(lambda: isinstance(consumer.last_error, GroupStopped), f"{topic} is stopped")
    assert not given, f"{topic} went on at {given}"
