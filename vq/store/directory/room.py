"""Which data directory a new log goes to; without I/O."""

from collections.abc import Sequence
from typing import Final, NamedTuple

#: Directories with so much of the most room count as having as much.
_ALIKE: Final = 0.9


class Room(NamedTuple):
    """What a data directory has room for.

    Attributes:
        free_bytes: Of its disk.
        partitions: That have their logs there.
        takes: It takes messages: it is there, and not too full.
    """

    free_bytes: int
    partitions: int
    takes: bool = True


def roomiest(rooms: Sequence[Room]) -> int:
    """Return the index of the directory for a new log.

    One that takes messages, if any does; of these one with the most room; of those with about as
    much the one with the fewest partitions, since a new log takes no room yet; then the first.

    *Example*: of 500, 950 and 1 000 GB free, with 1, 7 and 8 partitions, the second one.
    """
    takes = [each for each in rooms if each.takes] or rooms
    most = max(each.free_bytes for each in takes)
    alike = [each for each in takes if each.free_bytes >= _ALIKE * most]
    return rooms.index(min(alike, key=lambda each: each.partitions))
