"""What a client knows of one part of the tree: a value for each name below a node.

Each name is read once; after that only if it is marked. Every read sets the mirror's watch, and the
path of a watch that fires tells which name to mark.

    a watch of a name fires    mark the name
    the watch of names fires   list the names again: mark new ones, forget missing ones
    the connection ended       mark everything: all watches went with it
    ``audit``                  list the names again and mark some: a watch may be lost
    a read failed              its name stays marked

In here: what to read again. Not in here: how a name is read, and when (a ``keeper``, or whoever
needs the values).
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Mapping, Set
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from vq.coordination.tree.coordinator import Coordinator, EventKind, Watch, WatchEvent
from vq.coordination.tree.reading import children_or_none, gather_all

T = TypeVar("T")

#: Names that an audit marks; the next audit continues behind them.
AUDITED_AT_ONCE: Final = 100


class Mirror(Generic[T]):
    """The values below one node, by name. Loop-bound.

    Args:
        coordinator: A started coordinator.
        parent: The path of the node.
        read: Reads one name. It sets the watch on whatever the value depends on, and returns None
            if there is nothing. It may take what ``values`` has for the name as known.
        listed: The names are those of the children of ``parent``. Otherwise they are those that
            were added; one without a value stays, since the watch tells when it gets one.
        on_hint: Called when a watch has marked something; must not block.
        on_value: Called with the name and its value when a read returned another object than
            before, None when it is gone; must not block.

    Attributes:
        values: What was read last.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        parent: str,
        read: Callable[[str, Watch], Awaitable[T | None]],
        *,
        listed: bool = True,
        on_hint: Callable[[], None] = lambda: None,
        on_value: Callable[[str, T | None], None] = lambda _name, _value: None,
    ) -> None:
        self._coordinator = coordinator
        self._parent = parent
        self._read = read
        self._listed = listed
        self._on_hint = on_hint
        self._on_value = on_value
        self._values: dict[str, T] = {}
        self.values: Mapping[str, T] = MappingProxyType(self._values)
        self._names: set[str] = set()
        self._marked: set[str] = set()
        self._to_list = listed
        self._doubted = False  # all is marked; a lost connection fires many watches
        self._audited = 0
        # One read of a name at a time: otherwise an older answer could replace a newer one.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    # Marks --------------------------------------------------------------------------------------
    def add(self, name: str) -> None:
        """Have a name read, unless it is known."""
        if name not in self._names:
            self.mark(name)

    def mark(self, name: str) -> None:
        """Have a name read again, or for the first time."""
        self._names.add(name)
        self._marked.add(name)

    def mark_names(self) -> None:
        """Have the names listed again."""
        self._to_list = self._listed

    def doubt(self) -> None:
        """Have everything read again."""
        if not self._doubted:
            self._doubted = True
            self._to_list = self._listed
            self._marked |= self._names

    def audit(self) -> None:
        """Have the names listed again, and ``AUDITED_AT_ONCE`` of them read again."""
        self._to_list = self._listed
        names = sorted(self._names)
        if names:
            start = self._audited % len(names)
            part = (names[start:] + names[:start])[:AUDITED_AT_ONCE]
            self._marked.update(part)
            self._audited = start + len(part)

    def _hint(self, event: WatchEvent) -> None:
        if event.kind is EventKind.DISCONNECTED:
            self.doubt()
        elif event.path == self._parent:
            self._to_list = self._listed
        else:
            name = event.path.removeprefix(f"{self._parent}/").partition("/")[0]
            if name in self._names:
                self._marked.add(name)
        self._on_hint()

    # Reads --------------------------------------------------------------------------------------
    async def refresh(self) -> None:
        """Read what is marked.

        Raises:
            VqError: The first one of a read. What was not read stays marked.
        """
        if self._to_list:
            await self._list()
        await gather_all(self._read_again(name) for name in sorted(self._marked))

    async def read(self, name: str) -> T | None:
        """Read a name now; return its value, None if there is nothing. It is added.

        Raises:
            VqError: Of the read. The name stays marked.
        """
        self._names.add(name)
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        async with lock:
            # A watch may fire before the read returns: it marks the name for the next time.
            self._marked.discard(name)
            self._doubted = False
            try:
                value = await self._read(name, self._hint)
            except BaseException:
                if name in self._names:  # it may be forgotten meanwhile
                    self._marked.add(name)
                raise
            if value is None and self._listed:
                self._forget(name)
            elif name in self._names:
                self._set(name, value)
            return value

    async def _read_again(self, name: str) -> None:
        await self.read(name)  # its value may be an error, which is none of the read

    def keep(self, names: Set[str]) -> None:
        """Forget all other names, until they are added again."""
        for name in self._names - names:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._names.discard(name)
        self._marked.discard(name)
        self._set(name, None)

    async def _list(self) -> None:
        self._to_list = self._doubted = False
        try:
            listed = await children_or_none(self._coordinator, self._parent, watch=self._hint)
        except BaseException:
            self._to_list = True
            raise
        names = set(listed)
        self.keep(names)
        self._marked |= names - self._names
        self._names |= names

    def _set(self, name: str, value: T | None) -> None:
        before = self._values.get(name)
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        if value is not before:
            self._on_value(name, value)
