"""Chooses the partition of a message.

The hash of a key chooses the partition of a message with a key. A dead broker does not change this
choice: the message waits. Messages without a key go round robin over the partitions that have a
master now.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol


class Partitioner(Protocol):
    """An application's own choice of partitions.

    Sending threads call it without a lock, several at once. It may block, which delays its message,
    and it may send messages. On the loop of ``vq.aio`` it must not block.
    """

    def choose(self, key: str | None, partitions: int, writable: Sequence[int]) -> int:
        """Return a number in ``[0, partitions)``.

        Args:
            key: The message's business id.
            partitions: How many partitions the topic has.
            writable: Partitions that have a master now, in rising order; may be empty.
        """
        ...


def key_partition(key: str, partitions: int) -> int:
    """Return the partition of a key: CRC-32 of its UTF-8 bytes, modulo the number of partitions.

    Every language has CRC-32 (zlib, IEEE 802.3), and it does not change. Example: the CRC-32 of
    ``a`` is 0xE8B7BE43, so with 5 partitions ``a`` goes to 3904355907 % 5 = 2.
    """
    return zlib.crc32(key.encode()) % partitions
