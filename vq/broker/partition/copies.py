"""What a master knows of the copies of one of its logs on other nodes."""

from collections.abc import Callable
from typing import NamedTuple

from vq.broker.base.parked import Parked
from vq.store.care.divergence import Diverged


class CopyPosition(NamedTuple):
    """What a node that copies the log has of it."""

    offset: int  # everything before it is stored there
    incarnation: int  # of the node's registration
    session: object  # in which the node told it


class Copies:
    """The copies of one log.

    Attributes:
        parked: Those that wait for appends.
        positions: What each node has, by its name, as it told in this epoch.
        told: On a node that copies: the high watermark that its master told last.
        epoch: On a node that copies: the epoch of the master from which the log is copied now;
            0: from none. With it, what lies below ``told`` may be shown.
        watch: On such a node: has the master tell its high watermark as soon as that moves.
        deleted: Retention has deleted what lies before it, as this node has decided, or the master
            told from which the log is copied now; 0: nothing is known to be.
        cut: What was cut from the log because a newer master did not have it. Files that somebody
            removed meanwhile may be among it.
    """

    __slots__ = ("cut", "deleted", "epoch", "parked", "positions", "told", "watch")

    def __init__(self) -> None:
        self.parked: Parked = {}
        self.positions: dict[str, CopyPosition] = {}
        self.told = 0
        self.epoch = 0
        self.watch: Callable[[], None] | None = None
        self.deleted = 0
        self.cut: list[Diverged] = []

    def begin_epoch(self) -> None:
        """Note that another epoch begins: copies compare their logs anew, and may cut them."""
        self.positions.clear()

    def note(self, node: str, position: CopyPosition) -> bool:
        """Note what a node has, unless it has registered again since it said so.

        Returns:
            Whether it is something new.
        """
        known = self.positions.get(node)
        if known == position or (known is not None and known.incarnation > position.incarnation):
            return False
        self.positions[node] = position
        return True

    def offsets(self) -> dict[str, int]:
        """Return up to where each node has stored the log."""
        return {node: position.offset for node, position in self.positions.items()}

    def forget(self, node: str, session: object) -> None:
        """Forget what a node told in a session, unless it told more in another one meanwhile."""
        known = self.positions.get(node)
        if known is not None and known.session is session:
            del self.positions[node]
