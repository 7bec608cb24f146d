"""What a master notes in a log that it reads itself. Pure.

    Sent        these items are one batch of a target, under this stamp; all batches of the target
                before this one are stored
    Done        the last batches of these targets are stored, too

What else is noted there, is said where it is meant. A note is a record with the tag ``NOTE_TAG``:
a JSON object in one line, and bytes behind it. It counts once it is committed, like any message,
and nothing is done before. So who leads next finds in the log what may have been sent: the last
batch of each target that is not done. It sends that batch again, under the same stamp.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeVar

from vq.broker.journal.items import Item
from vq.errors import CorruptData
from vq.model import ProducerStamp, TopicPartition
from vq.store.records.record import encode_record

T = TypeVar("T")

NOTE_TAG: Final = b"_vq.note"
#: An item in a note: its key, its offset, its length.
_ITEM: Final = Struct(">QQI")
_END: Final = b"\n"
#: Of the object alone: ``json.loads`` looks for the encoding and for spaces, for half of its time.
_object_in: Final = json.JSONDecoder().raw_decode
#: Of an offset: it is not known, or nothing is stored there.
UNKNOWN: Final = -1


class Sent(NamedTuple):
    """One batch of a target.

    Attributes:
        to: The target.
        stamp: Of the batch.
        items: In it, in their order there; their ``target`` is 0.
        before: Where the batch of the target before this one is stored, or ``UNKNOWN``.
    """

    to: TopicPartition
    stamp: ProducerStamp
    items: Sequence[Item]
    before: int = UNKNOWN


class Done(NamedTuple):
    """The last batches of these targets are stored, each at an offset, or at ``UNKNOWN``."""

    to: Mapping[TopicPartition, int]


def encode(head: Mapping[str, Any], behind: bytes = b"") -> bytes:
    """Return the record of a note."""
    line = json.dumps(head, separators=(",", ":")).encode()
    return encode_record(0, line + _END + behind, NOTE_TAG)


def decode(payload: bytes, read: Callable[[dict[str, Any], bytes], T]) -> T:
    """Return the note that a record with the tag ``NOTE_TAG`` has.

    Args:
        payload: Of the record.
        read: Makes it of the JSON object and the bytes behind it, or raises ``ValueError``.

    Raises:
        CorruptData: It is none.
    """
    head, _, rest = payload.partition(_END)
    try:
        return read(_object_in(head.decode())[0], rest)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, error) as why:
        raise CorruptData(f"a note of {len(payload)} bytes cannot be read: {why}") from why


def behind(payload: bytes) -> bytes:
    """Return the bytes behind the JSON object of a note."""
    return payload.partition(_END)[2]


def pack_items(items: Iterable[Item]) -> bytes:
    """Return items as they are behind a note."""
    return b"".join(_ITEM.pack(*each[:3]) for each in items)


def items_in(behind: bytes) -> list[Item]:
    """Return the items behind a note."""
    return [Item(*each) for each in _ITEM.iter_unpack(behind)]


def encode_delivery(note: Sent | Done) -> bytes:
    """Return the record of a note about a delivery."""
    if isinstance(note, Sent):
        head: dict[str, Any] = {"sent": list(note.to), "stamp": list(note.stamp)}
        if note.before != UNKNOWN:
            head["before"] = note.before
        return encode(head, pack_items(note.items))
    done = [[*to] if at == UNKNOWN else [*to, at] for to, at in note.to.items()]
    return encode({"done": done})


def delivery_in(head: dict[str, Any], behind: bytes) -> Sent | Done:
    """Return the note about a delivery that a JSON object is.

    Raises:
        ValueError: It says nothing that is known.
    """
    if "sent" in head:
        to, stamp = TopicPartition(*head["sent"]), ProducerStamp(*head["stamp"])
        return Sent(to, stamp, items_in(behind), head.get("before", UNKNOWN))
    if "done" in head:
        return Done({TopicPartition(*e[:2]): (*e[2:], UNKNOWN)[0] for e in head["done"]})
    raise ValueError("it says nothing that is known")
