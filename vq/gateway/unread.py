"""Answers that their peers have not taken: how many bytes of them are in memory."""

import asyncio
from typing import Final

from vq.gateway.problems import AtLimit


class Unread:
    """The connections whose peers take less than is written. Loop-bound.

    Whoever serves the gateway adds and removes them; mounted elsewhere, nobody does.

    Args:
        most: Bytes that may wait.

    Attributes:
        transports: Of these connections, which are few.
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self.transports: set[asyncio.Transport] = set()

    @property
    def size(self) -> int:
        """The bytes that wait to be taken."""
        return sum(each.get_write_buffer_size() for each in self.transports)

    def check(self) -> None:
        """Return if another answer with messages may be made.

        Raises:
            AtLimit: Peers have too much to take.
        """
        if self.transports and self.size >= self._most:
            raise AtLimit(
                f"answers of {self.size} bytes wait for their clients to take them, and no more "
                f"than {self._most} may"
            )
