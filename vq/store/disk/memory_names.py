"""What a disk in memory keeps of files and names, and what a crash leaves of them.

In here: contents and directories as they are now and as they are durable. Not in here: the calls
that change them (``memory_disk``).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, Protocol

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


class MemoryContent:
    """The bytes of a file. Zeros at its end cost no memory: most of a file is allocated ahead."""

    __slots__ = ("_length", "_written")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self._written = bytearray(content)
        self._length = len(content)

    def __len__(self) -> int:
        return self._length

    def copy(self) -> "MemoryContent":
        """Return another one with the same bytes."""
        other = MemoryContent(self._written)
        other._length = self._length
        return other

    def read(self, position: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes (None: all), or up to the end of the file."""
        end = self._length if length is None else min(position + length, self._length)
        found = bytes(self._written[position:end])
        return found + bytes(max(0, end - position - len(found)))

    def write(self, position: int, data: bytes) -> None:
        """Put bytes there; the file grows if it ends before them."""
        if position > len(self._written):
            self._written.extend(bytes(position - len(self._written)))
        self._written[position : position + len(data)] = data
        self._length = max(self._length, position + len(data))

    def resize(self, length: int) -> None:
        """Cut the file, or let it grow with zeros."""
        del self._written[length:]
        self._length = length

    def write_sectors(self, position: int, data: bytes, chance: Chance) -> None:
        """Put those sectors there that reached the medium; the file does not grow."""
        at = 0
        while at < len(data):
            step = min(len(data) - at, SECTOR_BYTES - (position + at) % SECTOR_BYTES)
            space = self._length - (position + at)
            if chance.keep_sector() and space > 0:
                self.write(position + at, data[at : at + min(step, space)])
            at += step


@dataclass(slots=True, eq=False)
class MemoryNode:
    """A file: what is read now, what is surely on the medium, and the changes between the two."""

    now: MemoryContent = field(default_factory=MemoryContent)
    durable: MemoryContent = field(default_factory=MemoryContent)
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)
    born: int = 0

    def make_durable(self, count: int | None = None) -> None:
        """Bring the medium up to date with the first ``count`` changes (None: all)."""
        for kind, position, data in self.pending[:count]:
            if kind == "truncate":
                self.durable.resize(position)
            else:
                self.durable.write(position, data)
        del self.pending[:count]

    def after_crash(self, chance: Chance) -> MemoryContent:
        """Return what is left of the content."""
        content = self.durable.copy()
        sizes = chance.keep_changes(len(self.pending))
        for at, (kind, position, data) in enumerate(self.pending):
            if kind == "truncate":
                if at < sizes:
                    content.resize(position)
                continue
            end = position + len(data)
            if at < sizes and end > len(content):
                content.resize(end)
            if kind == "write":
                content.write_sectors(position, data, chance)
        return content


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
                    survivors[id(node)] = MemoryNode(content, content.copy(), born=node.born)
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
