"""What the master of a partition of delayed messages notes in its log. Pure.

Sent, Done  see ``journal.notes``; an item is a message: when it is due, its offset, its length
Cancelled   a message was recalled
"""

from typing import Any, NamedTuple, TypeAlias

from vq.broker.journal import notes
from vq.broker.journal.items import Item
from vq.broker.journal.notes import Done, Sent


class Cancelled(NamedTuple):
    """A message was recalled."""

    message: Item


Note: TypeAlias = Sent | Done | Cancelled


def encode_note(note: Note) -> bytes:
    """Return the record of a note."""
    if isinstance(note, Cancelled):
        return notes.encode({"cancelled": True}, notes.pack_items((note.message,)))
    return notes.encode_delivery(note)


def decode_note(payload: bytes) -> Note:
    """Return the note that a record with the tag ``NOTE_TAG`` has.

    Raises:
        CorruptData: It is none.
    """
    return notes.decode(payload, _read)


def _read(head: dict[str, Any], behind: bytes) -> Note:
    if head.get("cancelled") is True:
        (message,) = notes.items_in(behind)
        return Cancelled(message)
    return notes.delivery_in(head, behind)
