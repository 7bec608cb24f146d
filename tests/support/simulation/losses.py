"""What may be lost in a simulation, taken from the disks at the moment at which it may be lost.

    power cut    what a node had written and not flushed: read from its files, minus what is surely
                 on its medium
    unclean      what any node of a group had on its disk when an operator had another one lead,
                 minus what that one surely had

The blocks are read here, batch by batch, and nothing is asked of the broker: its own idea of what
is flushed may be wrong.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from vq.errors import CorruptData
from vq.store.disk.memory_disk import MemoryDisk, keep_none
from vq.store.records.format import RECORD_HEADER, decode_control
from vq.store.records.record import boundaries

#: Partition, offset and id of a message.
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Loss:
    """What one event may have taken, and how.

    Attributes:
        at: When.
        kind: ``power`` or ``unclean``.
        group: The broker group.
        node: Who lost power, or leads from now on.
        places: The messages.
        holders: Of an unclean election: by node that surely had some of them, its disk and which.
    """

    at: float
    kind: str
    group: str
    node: str
    places: frozenset[Place]
    holders: Mapping[str, tuple[int, frozenset[Place]]] = field(default_factory=dict)

    @cached_property
    def spots(self) -> frozenset[tuple[str, int]]:
        """The messages by partition and offset."""
        return frozenset(place[:2] for place in self.places)


def messages_on(disk: MemoryDisk, data: Path, topics: Sequence[str]) -> frozenset[Place]:
    """Return all messages of some topics in the blocks on a disk."""
    found: set[Place] = set()
    for topic in topics:
        for directory in disk.listdir(data / topic) if disk.exists(data / topic) else ():
            number = directory.partition(".")[0]
            if not number.isdecimal():
                continue
            for name in disk.listdir(data / topic / directory):
                if name.endswith(".block"):
                    block = disk.read_bytes(data / topic / directory / name)
                    found.update(
                        (f"{topic}-{number}", offset, message_id)
                        for offset, message_id, _ in messages_in(block)
                    )
    return frozenset(found)


def surely_on(disk: MemoryDisk, data: Path, topics: Sequence[str]) -> frozenset[Place]:
    """Return the messages that are left on a disk whatever a power cut takes."""
    return messages_on(disk.crash(keep_none), data, topics)


def messages_in(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield offset, id and master's epoch of each message in the whole batches of a file."""
    position = 0
    while position < len(data):
        try:
            header = decode_control(data, position)
        except CorruptData:  # space allocated ahead
            return
        if header is None or position + header.byte_length > len(data):
            return
        batch = data[position : position + header.byte_length]
        for offset in boundaries(batch, header.start_offset)[1:-1]:
            at = offset - header.start_offset
            _, _, message_id, _ = RECORD_HEADER.unpack_from(batch, at)
            yield offset, message_id, header.master_epoch
        position += header.byte_length
