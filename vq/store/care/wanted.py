"""What a search looks for, and which records of a batch have it; without I/O.

Most batches have no such record. So the bytes of many batches are first searched for a *needle*, a
run of bytes that each message wanted has, and records are looked at one by one only in batches that
have it. That relies on properties as the libraries of protobuf write them: a key has one field, and
no number in front of it is padded.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from vq.errors import CorruptData
from vq.message_filter import ALL, Filter
from vq.model import Key
from vq.store.records.format import (
    FLAG_CONTROL,
    FLAG_PROPERTIES,
    FLAG_TAG,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    BatchHeader,
)
from vq.store.records.record import (
    KEY_BYTES_FIELD,
    KEY_FIELD,
    Properties,
    decode_key,
    encode_key,
    encode_properties,
    read_properties,
)
from vq.store.records.record_filter import takes

_LENGTH_BYTES: Final = 4


class Fields(NamedTuple):
    """What a record has before its payload; None: it does not."""

    tag: bytes | None
    properties: bytes | None


class Wanted(NamedTuple):
    """What a message must have; None: it may have anything.

    Attributes:
        id: Its id.
        key: Its key, of the same type. An empty text is no key.
        filter: It takes the message.
    """

    id: int | None = None
    key: Key | None = None
    filter: Filter = ALL

    @property
    def needles(self) -> tuple[bytes, ...]:
        """What the bytes of every message wanted have one of; empty: that is not known."""
        if self.id is not None:
            return (self.id.to_bytes(8, "big"),)
        if self.key is not None:
            needle = encode_key(self.key) or _long_key(self.key)
            return () if needle is None else (needle,)
        if self.filter.expression is not None:
            return tuple(sorted(self.filter.expression.needles))
        tags = sorted(self.filter.encoded)
        return tuple(len(tag).to_bytes(_LENGTH_BYTES, "big") + tag for tag in tags)

    def takes(self, message_id: int, fields: Fields) -> bool:
        """Whether a message with this id and these fields is wanted."""
        if self.id is not None and message_id != self.id:
            return False
        if self.filter and not takes(self.filter, fields.tag, fields.properties):
            return False
        if self.key is None:
            return True
        if fields.properties is None:
            return False
        key = key_of(fields.properties)
        return type(key) is type(self.key) and key == self.key


def _long_key(key: Key) -> bytes | None:
    """Return what the properties with a key that is empty or long begin with."""
    if key == b"":
        return bytes((KEY_BYTES_FIELD, 0))
    encoded = encode_properties(Properties(key=key))
    assert encoded is None or encoded[0] in {KEY_FIELD, KEY_BYTES_FIELD}
    return encoded


def key_of(properties: bytes) -> Key | None:
    """Return the key in the properties of a record; None: it has none, or they are damaged."""
    try:
        key = decode_key(properties)
    except UnicodeDecodeError:
        return None
    if key is not None:
        return key
    found = read_properties(properties)
    return None if found is None else found[0]


def fields_of(data: bytes, start: int, end: int, flag: int) -> Fields:
    """Return the fields of a record whose header is followed by ``[start, end)``.

    Raises:
        CorruptData: They do not end in there.
    """
    tag = properties = None
    if flag & FLAG_TAG:
        at = start + _LENGTH_BYTES
        start = at + int.from_bytes(data[start:at], "big")
        tag = data[at:start]
    if flag & FLAG_PROPERTIES:
        at = start + _LENGTH_BYTES
        start = at + int.from_bytes(data[start:at], "big")
        properties = data[at:start]
    if start > end:
        raise CorruptData("a record's fields go on behind its end")
    return Fields(tag, properties)


def matches(
    data: bytes, base: int, batch: BatchHeader, wanted: Wanted
) -> Iterator[tuple[int, int]]:
    """Yield positions ``[start, end)`` of the messages wanted in an intact batch, in order.

    ``base``: offset of the first byte of ``data``, which has the batch.

    Raises:
        CorruptData: Its records do not fill it.
    """
    unpack = RECORD_HEADER.unpack_from
    takes = wanted.takes
    wanted_id = wanted.id
    position, batch_end = batch.start_offset - base, batch.end_offset - base
    while position < batch_end:
        start = position + RECORD_HEADER_BYTES
        if start > batch_end:
            raise CorruptData("a record goes on behind the end of its batch")
        length, _, message_id, flag = unpack(data, position)
        end = start + length
        if end > batch_end:
            raise CorruptData("a record goes on behind the end of its batch")
        if flag & FLAG_CONTROL or wanted_id not in (None, message_id):
            position = end
            continue
        if takes(message_id, fields_of(data, start, end, flag)):
            yield position, end
        position = end
