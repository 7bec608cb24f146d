"""What a disk in memory keeps of files and names, and what a crash leaves of them.

In here: contents and directories as they are now and as they are durable. Not in here: the calls
that change them (``memory_disk``).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Protocol

__all__ = [
    "SECTOR_BYTES",
    "Chance",
    "FixedChance",
    "MemoryDirectory",
    "MemoryNode",
    "RandomChance",
    "resize",
    "write_sectors",
]

SECTOR_BYTES: Final = 512


class Chance(Protocol):
    """What decides, at a crash, which un-synced parts survive."""

    def keep_sector(self) -> bool:
        """Whether one written sector reached the medium."""
        ...

    def keep_changes(self, count: int) -> int:
        """How many of the first of ``count`` changes in order reached the medium."""
        ...


class FixedChance:
    def __init__(self, *, keep: bool) -> None:
        self._keep = keep

    def keep_sector(self) -> bool:
        return self._keep

    def keep_changes(self, count: int) -> int:
        return count if self._keep else 0


class RandomChance:
    """Sectors by the toss of a coin with a bias of its own, changes up to a random one."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._bias = rng.choice((0.1, 0.5, 0.9))

    def keep_sector(self) -> bool:
        """See ``Chance.keep_sector``."""
        return self._rng.random() < self._bias

    def keep_changes(self, count: int) -> int:
        """See ``Chance.keep_changes``."""
        return self._rng.randint(0, count)


@dataclass(slots=True, eq=False)
class MemoryNode:
    """A file: what is read now, what is surely on the medium, and the changes between the two."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)
    born: int = 0

    def make_durable(self, count: int | None = None) -> None:
        """Bring the medium up to date with the first ``count`` changes (None: all)."""
        for kind, position, data in self.pending[:count]:
            if kind == "truncate":
                resize(self.durable, position)
            else:
                if position > len(self.durable):
                    resize(self.durable, position)
                self.durable[position : position + len(data)] = data
        del self.pending[:count]

    def after_crash(self, chance: Chance) -> bytes:
        """Return what is left of the content."""
        content = bytearray(self.durable)
        sizes = chance.keep_changes(len(self.pending))
        for at, (kind, position, data) in enumerate(self.pending):
            if kind == "truncate":
                if at < sizes:
                    resize(content, position)
                continue
            end = position + len(data)
            if at < sizes and end > len(content):
                resize(content, end)
            if kind == "write":
                write_sectors(content, position, data, chance)
        return bytes(content)


@dataclass(slots=True, eq=False)
class MemoryDirectory:
    """A directory: its names now, the names surely on the medium, the changes since, in order.

    A change gives names their new meaning, all of them or none; None is a name that is gone.
    """

    now: dict[str, "MemoryNode | MemoryDirectory"] = field(default_factory=dict)
    durable: dict[str, "MemoryNode | MemoryDirectory"] = field(default_factory=dict)
    pending: list[dict[str, "MemoryNode | MemoryDirectory | None"]] = field(default_factory=list)

    def change(self, names: "dict[str, MemoryNode | MemoryDirectory | None]") -> None:
        apply_names(self.now, names)
        self.pending.append(names)

    def make_durable(self, count: int | None = None) -> None:
        """The same as that of a file."""
        for change in self.pending[:count]:
            apply_names(self.durable, change)
        del self.pending[:count]

    def after_crash(
        self, chance: Chance, survivors: "dict[int, MemoryNode | MemoryDirectory]"
    ) -> "MemoryDirectory":
        """Return what is left of the directory and of all below it."""
        names = dict(self.durable)
        for change in self.pending[: chance.keep_changes(len(self.pending))]:
            apply_names(names, change)
        left = MemoryDirectory()
        for name, node in sorted(names.items()):
            if id(node) not in survivors:
                if isinstance(node, MemoryDirectory):
                    survivors[id(node)] = node.after_crash(chance, survivors)
                else:
                    content = node.after_crash(chance)
                    survivors[id(node)] = MemoryNode(
                        bytearray(content), bytearray(content), born=node.born
                    )
            left.now[name] = survivors[id(node)]
        left.durable = dict(left.now)
        return left

    def walk(self, path: PurePath) -> "Iterator[tuple[PurePath, MemoryNode | MemoryDirectory]]":
        """Yield everything below, parents first."""
        for name, node in sorted(self.now.items()):
            yield path / name, node
            if isinstance(node, MemoryDirectory):
                yield from node.walk(path / name)

    def size_bytes(self) -> int:
        """Return how many bytes all files below it have."""
        return sum(
            node.size_bytes() if isinstance(node, MemoryDirectory) else len(node.now)
            for node in self.now.values()
        )


def apply_names(
    names: "dict[str, MemoryNode | MemoryDirectory]",
    change: "dict[str, MemoryNode | MemoryDirectory | None]",
) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def resize(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))


def write_sectors(content: bytearray, position: int, data: bytes, chance: Chance) -> None:
    at = 0
    while at < len(data):
        step = min(len(data) - at, SECTOR_BYTES - (position + at) % SECTOR_BYTES)
        space = len(content) - (position + at)
        if chance.keep_sector() and space > 0:
            part = data[at : at + min(step, space)]
            content[position + at : position + at + len(part)] = part
        at += step
