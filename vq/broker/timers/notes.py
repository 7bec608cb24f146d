"""What the master of a partition of delayed messages notes in its log. Pure.

    Sent        these messages are one batch of a target, under this stamp; all batches of the
                target before this one are stored
    Done        the last batches of these targets are stored, too
    Cancelled   a message was recalled

A note is a record with the tag ``NOTE_TAG``. It counts once it is committed, like any message, and
nothing is done before. So who leads next finds in the log what may have been sent: the last batch
of each target that is not done. It sends that batch again, under the same stamp.
"""

import json
from collections.abc import Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeAlias

from vq.broker.timers.pending import Delayed
from vq.errors import CorruptData
from vq.model import ProducerStamp, TopicPartition
from vq.store.records.record import encode_record

__all__ = ["NOTE_TAG", "Cancelled", "Done", "Note", "Sent", "decode_note", "encode_note"]

NOTE_TAG: Final = b"_vq.note"
#: A message in a note: when it is due, its offset, the length of its record.
_MESSAGE: Final = Struct(">QQI")
_END: Final = b"\n"


class Sent(NamedTuple):
    """One batch of a target.

    Attributes:
        to: The target.
        stamp: Of the batch.
        messages: In it, in their order there; their ``target`` is 0.
    """

    to: TopicPartition
    stamp: ProducerStamp
    messages: Sequence[Delayed]


class Done(NamedTuple):
    """The last batches of these targets are stored."""

    to: Sequence[TopicPartition]


class Cancelled(NamedTuple):
    """A message was recalled."""

    message: Delayed


Note: TypeAlias = Sent | Done | Cancelled


def encode_note(note: Note) -> bytes:
    """Return the record of a note."""
    messages: Sequence[Delayed] = ()
    if isinstance(note, Sent):
        head: dict[str, Any] = {"sent": list(note.to), "stamp": list(note.stamp)}
        messages = note.messages
    elif isinstance(note, Done):
        head = {"done": [list(each) for each in note.to]}
    else:
        head = {"cancelled": True}
        messages = (note.message,)
    packed = b"".join(_MESSAGE.pack(*each[:3]) for each in messages)
    payload = json.dumps(head, separators=(",", ":")).encode() + _END + packed
    return encode_record(0, payload, NOTE_TAG)


def decode_note(payload: bytes) -> Note:
    """Return the note that a record with the tag ``NOTE_TAG`` has.

    Raises:
        CorruptData: It is none.
    """
    head, _, packed = payload.partition(_END)
    try:
        value = json.loads(head)
        messages = [
            Delayed(due_ms, offset, length, 0)
            for due_ms, offset, length in _MESSAGE.iter_unpack(packed)
        ]
        if "sent" in value:
            return Sent(TopicPartition(*value["sent"]), ProducerStamp(*value["stamp"]), messages)
        if "done" in value:
            return Done([TopicPartition(*each) for each in value["done"]])
        if value.get("cancelled") is True and len(messages) == 1:
            return Cancelled(messages[0])
    except (ValueError, TypeError, AttributeError, error) as why:
        raise CorruptData(f"a note of {len(payload)} bytes cannot be read: {why}") from why
    raise CorruptData(f"a note of {len(payload)} bytes says nothing that is known")
