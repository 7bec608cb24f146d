"""The messages in the files of cut bytes (``<offset>.diverged``) on the disks of a simulation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.simulation.losses import Place, messages_in
from support.simulation.world import DATA, BrokerHost, World

from vq.broker.partition.ranges import lost_in_take_overs
from vq.store.care.divergence import DIVERGED_MARK
from vq.store.disk.memory_disk import MemoryDisk


@dataclass(frozen=True, slots=True)
class Kept:
    """A message that was cut from a log: by which node, and the epoch in which it was appended."""

    group: str
    node: str
    epoch: int


def kept_messages(world: World) -> dict[Place, list[Kept]]:
    """Return all messages that some node has cut and keeps."""
    found: dict[Place, list[Kept]] = {}
    for machine in world.machines:
        for topic in world.topics:
            for number, path in _files(machine.disk, DATA / topic):
                for offset, message_id, epoch in messages_in(machine.disk.read_bytes(path)):
                    kept = Kept(machine.group, machine.node_name, epoch)
                    found.setdefault((f"{topic}-{number}", offset, message_id), []).append(kept)
    return found


def untold(machine: BrokerHost, places: list[Place]) -> list[Place]:
    """Return those of the messages, which a node keeps, that its STATUS does not tell."""
    assert machine.node is not None
    channels = machine.node.parts.partitions.channels
    told = [
        (str(channel.partition), file.start_offset, file.end_offset)
        for channel in channels.values()
        for each in (channel, *channel.older)
        for file in lost_in_take_overs(each)
    ]
    return [
        place
        for place in places
        if not any(name == place[0] and start <= place[1] < end for name, start, end in told)
    ]


def _files(disk: MemoryDisk, topic: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of cut bytes of a topic, each with the number of its partition."""
    for directory in disk.listdir(topic) if disk.exists(topic) else ():
        number = directory.partition(".")[0]
        if not number.isdecimal():
            continue
        for name in disk.listdir(topic / directory):
            if DIVERGED_MARK in name:
                yield number, topic / directory / name
