"""What a log holds for other partitions, as numbers. Pure."""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

#: An item in memory: its fields, in their order.
PACKED: Final = Struct("<QQII")
#: Where in that the offset is.
OFFSET_AT: Final = 8


class Item(NamedTuple):
    """Something in a log that is to be delivered.

    Attributes:
        key: By what its owner orders: the time at which a message is due, in ms by the wall clock;
            or the number of a transaction.
        offset: Of the message in the log; or the number of the part of a transaction.
        length: Of what is delivered, in bytes.
        target: Where it is to go: a number of whoever keeps these.
    """

    key: int
    offset: int
    length: int
    target: int = 0


def packed(items: Iterable[Item]) -> bytearray:
    """Return items as bytes, each as ``PACKED``."""
    return bytearray().join(PACKED.pack(*each) for each in items)


def unpacked(room: bytes | bytearray) -> Iterator[Item]:
    """Yield the items that ``packed`` has made bytes of."""
    return map(Item._make, PACKED.iter_unpack(room))
