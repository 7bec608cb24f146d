"""Copies of messages: records with the id, key, tag, headers and content of another one.

The copy of a message in a topic of dead letters tells where it comes from by further headers, see
``vq.reserved``. Its id, and so its time of birth, is that of the message.
"""

from collections.abc import Mapping

from vq.limits import STORED_PROPERTIES_BYTES_MAX
from vq.model import Message
from vq.reserved import own_headers
from vq.store.records.record import Properties, encode_properties, encode_record


def encode_copy(message: Message, told: Mapping[str, str]) -> bytes:
    """Return the record of a copy of a received message.

    The same message gives the same bytes. The content is not compressed.

    Args:
        message: As a consumer gets it. Headers that tell of an earlier copy are left out.
        told: The headers that tell of this copy, at most 4 KiB encoded.
    """
    headers = {**own_headers(message.headers), **told}
    properties = encode_properties(
        Properties(key=message.key, headers=headers), bytes_max=STORED_PROPERTIES_BYTES_MAX
    )
    tag = None if message.tag is None else message.tag.encode()
    return encode_record(message.id, message.content, tag, properties)
