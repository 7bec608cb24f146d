"""Values of the slots of message ids: ``slots`` and ``slot_marks``."""

from dataclasses import dataclass

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import SLOT_MARKS, SLOTS
from vq.coordination.tree.values.value import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCounter(Value):
    """``slots``: the search for a free slot starts at ``next``, which wraps around."""

    _what = "slot counter"
    next: int = 0

    @staticmethod
    def path() -> str:
        """Return the path of the counter."""
        return SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot(Value):
    """``slots/<n>``: the lease of one producer, until its session ends."""

    _what = "slot"
    holder: str = ""
    since_ms: int = 0

    @staticmethod
    def path(slot: int) -> str:
        """Return the slot's path."""
        return join(SLOTS, str(slot))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMark(Value):
    """``slot_marks/<n>``: ids of the slot up to ``until_ms`` (wall time) may have been made."""

    _what = "slot mark"
    until_ms: int = 0

    @staticmethod
    def path(slot: int) -> str:
        """Return the mark's path."""
        return join(SLOT_MARKS, str(slot))
