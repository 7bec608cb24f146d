"""The blocks of one log, in rising order of their start offsets, side by side without gaps.

In here: the collection and the search in it. Not in here: one block (``block``).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from vq.store.log.block import Block


class Blocks:
    """An ordered collection of blocks; the last one is the one that grows.

    Attributes:
        active: The last block, while it takes appends; the log sets it.
    """

    __slots__ = ("_blocks", "_starts", "active")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self.active: Block | None = None
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def __getitem__(self, index: int) -> Block:
        return self._blocks[index]

    @property
    def last(self) -> Block | None:
        """The block with the highest offsets, or None."""
        return self._blocks[-1] if self._blocks else None

    def append(self, block: Block) -> None:
        """Add a block that starts where the last one ends."""
        if self._blocks and self._blocks[-1].end_offset != block.start_offset:
            raise ValueError(
                f"block {block.start_offset} does not follow on {self._blocks[-1].end_offset}"
            )
        self._blocks.append(block)
        self._starts.append(block.start_offset)

    def index_at(self, offset: int) -> int:
        """Return the index of the last block that starts at or before ``offset``; -1: none."""
        return bisect_right(self._starts, offset) - 1

    def at(self, offset: int) -> Block | None:
        """Return the last block that starts at or before ``offset``."""
        index = bisect_right(self._starts, offset) - 1
        return self._blocks[index] if index >= 0 else None

    def drop_first(self) -> Block:
        """Remove and return the block with the lowest offsets."""
        del self._starts[0]
        return self._blocks.pop(0)
