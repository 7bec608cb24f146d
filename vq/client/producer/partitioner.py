"""Which partition a message goes to.

A message with a key goes where the hash of its key says, always: a dead broker does not change
where a key goes, it makes the message wait. Messages without a key take turns over the partitions
that can be written now.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol


class Partitioner(Protocol):
    """A choice of one's own. Any thread that sends calls it, without a lock, so several at once.

    It may wait, as part of its message's send, and it may send messages; on the loop of ``vq.aio``
    it must not wait.
    """

    def choose(self, key: str | None, partitions: int, writable: Sequence[int]) -> int:
        """Return a number in ``[0, partitions)``.

        Args:
            key: The message's business id.
            partitions: How many partitions the topic has.
            writable: Those that have a living master, in rising order; may be empty.
        """
        ...


def key_partition(key: str, partitions: int) -> int:
    """Return the partition of a key: CRC-32 of its UTF-8 bytes, modulo the number of partitions.

    CRC-32 (zlib, IEEE 802.3) because every language has it and it never changes. Example: the
    CRC-32 of ``a`` is 0xE8B7BE43, so with 5 partitions ``a`` goes to 3904355907 % 5 = 2.
    """
    return zlib.crc32(key.encode()) % partitions
