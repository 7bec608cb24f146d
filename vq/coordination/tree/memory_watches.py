"""The watches that one client of the in-memory ZooKeeper has set, each of which is called once."""

from vq.coordination.tree.coordinator import EventKind, Watch, WatchEvent


class Watches:
    """Whom an event is told to. Setting a watch again is a no-op.

    Attributes:
        data: By path: those on the data of a node, or on whether there is one.
        children: By path: those on the names of its children.
    """

    __slots__ = ("children", "data")

    def __init__(self) -> None:
        self.data: dict[str, dict[Watch, None]] = {}
        self.children: dict[str, dict[Watch, None]] = {}

    def on_data(self, path: str, watch: Watch | None) -> None:
        """Set a watch on a node, if one is given."""
        if watch is not None:
            self.data.setdefault(path, {})[watch] = None

    def on_children(self, path: str, watch: Watch | None) -> None:
        """Set a watch on the children of a node, if one is given."""
        if watch is not None:
            self.children.setdefault(path, {})[watch] = None

    def take(self, event: WatchEvent) -> list[Watch]:
        """Remove and return the watches that an event fires."""
        found: list[Watch] = []
        if event.kind is not EventKind.CHILDREN:
            found += self.data.pop(event.path, {})
        if event.kind in {EventKind.CHILDREN, EventKind.DELETED}:
            found += self.children.pop(event.path, {})
        return found

    def take_all(self) -> list[Watch]:
        """Remove and return all watches."""
        tables = (self.data, self.children)
        found = [watch for table in tables for of_path in table.values() for watch in of_path]
        self.data, self.children = {}, {}
        return found
