"""What earlier attempts of a task have stored, so that its rows are left out. Pure.

Rows are compared by content, not by place: Spark may hand a task the same rows in another order.
Equal rows are counted. Example: ``a b a`` was stored; of the rows ``a a c a b`` the third and the
last ``a`` are sent.
"""

from hashlib import blake2b
from typing import Final

from vq import Message

#: Messages that one task compares at most; each takes about 120 bytes.
STORED_MAX: Final = 4_000_000


class Repeats:
    """The messages that earlier attempts of a task have stored, less those that were met.

    Attributes:
        left: How many were not met yet.
    """

    def __init__(self, *, by_partition: bool) -> None:
        """Begin without any; ``by_partition``: rows say their partition, so that it counts."""
        self.left = 0
        self._by_partition = by_partition
        self._counts: dict[bytes, int] = {}

    def add(self, message: Message) -> None:
        """Note a message that is stored."""
        mark = self._mark(message)
        self._counts[mark] = self._counts.get(mark, 0) + 1
        self.left += 1

    def met(self, message: Message) -> bool:
        """Return whether a row is stored already; an equal one is asked for separately."""
        mark = self._mark(message)
        count = self._counts.get(mark, 0)
        if not count:
            return False
        if count == 1:
            del self._counts[mark]
        else:
            self._counts[mark] = count - 1
        self.left -= 1
        return True

    def _mark(self, message: Message) -> bytes:
        headers = sorted((message.headers or {}).items())
        partition = message.partition if self._by_partition else -1
        about = repr((message.topic, partition, message.tag, message.key, headers))
        mark = blake2b(about.encode("utf-8", "surrogatepass"), digest_size=16)
        mark.update(b"\0")
        mark.update(message.content)
        return mark.digest()
