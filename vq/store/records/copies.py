"""Copies of messages: records with the id, key, tag, headers and content of another one.

The copy of a message in a topic of dead letters tells where it comes from by further headers, see
``vq.reserved``. Its id, and so its time of birth, is that of the message.
"""

from collections.abc import Mapping

from vq.limits import STORED_PROPERTIES_BYTES_MAX
from vq.model import Message, TopicPartition
from vq.reserved import own_headers
from vq.store.records.compression import compress
from vq.store.records.format import COMPRESSION_ZSTD
from vq.store.records.record import Properties, encode_properties, encode_record


def was_compressed(message: Message) -> bool:
    """Whether a received message is larger than its record."""
    return message.offset < message.next_offset < message.offset + len(message.content)


def encode_copy(
    message: Message,
    told: Mapping[str, str],
    due: tuple[int, TopicPartition] | None = None,
    *,
    is_compressed: bool = False,
) -> bytes:
    """Return the record of a copy of a received message.

    The same message gives the same bytes; compressed, only with the same library.

    Args:
        message: As a consumer gets it. Headers that tell of an earlier copy are left out.
        told: The headers that tell of this copy; with ``due``, at most 4 KiB encoded.
        due: When it is delivered, in ms since 1970, and where; None: where it is stored.
        is_compressed: Compress the content, if that makes it smaller, by zstd: nobody knows by what
            that of the message was.
    """
    headers = {**own_headers(message.headers), **told}
    due_ms, destination = (0, None) if due is None else due
    properties = encode_properties(
        Properties(
            key=message.key, headers=headers, delivery_time_ms=due_ms, destination=destination
        ),
        bytes_max=STORED_PROPERTIES_BYTES_MAX,
    )
    tag = None if message.tag is None else message.tag.encode()
    if is_compressed:
        content = compress(message.content, COMPRESSION_ZSTD)
        if len(content) < len(message.content):
            return encode_record(message.id, content, tag, properties, COMPRESSION_ZSTD)
    return encode_record(message.id, message.content, tag, properties)
