"""A copy of a message: the same in everything but what it tells of the copy."""

import random

from support.cases import case

from vq.client.reading.decode import to_message
from vq.limits import MESSAGE_BYTES_MAX, PROPERTIES_BYTES_MAX
from vq.model import Key, Message, TopicPartition
from vq.reserved import DeliveryFailure, MessageOrigin, headers_of_copy
from vq.store.records.codec import well_formed
from vq.store.records.copies import encode_copy
from vq.store.records.record import Properties, decode_records, encode_properties

TOLD = headers_of_copy(MessageOrigin("t", 1, 88), DeliveryFailure(3, 5, "ValueError: no"))
KEYS: tuple[Key | None, ...] = (None, "k", "k" * 1_000, b"\0", b"", 0, -(2**63))


def copied(message: Message) -> Message:
    record = encode_copy(message, TOLD)
    assert encode_copy(message, TOLD) == record
    assert well_formed(record, 1, MESSAGE_BYTES_MAX) == (1, len(record))
    (found,) = decode_records(record, 0)
    return to_message(TopicPartition(message.topic, 1), found)


def test_id_key_tag_headers_and_content_survive() -> None:
    for key in KEYS:
        for tag in (None, "täg"):
            for headers in (None, {"a": "b", "ä": ""}):
                with case(key, tag, headers):
                    message = Message("t", b"content", tag, key, headers, 1, 88, 200, 2**63 - 1, 7)
                    copy = copied(message)
                    assert copy.headers == {**(headers or {}), **TOLD}
                    same = ("topic", "content", "tag", "key", "id", "timestamp", "partition")
                    assert [getattr(copy, n) for n in same] == [getattr(message, n) for n in same]


def test_a_copy_of_a_copy_tells_of_itself_alone() -> None:
    earlier = headers_of_copy(MessageOrigin("old", 0, 0, 5), DeliveryFailure(1, 1, "x"))
    message = Message("t", b"", headers={"a": "b", **earlier, "_vq.later": "y"}, id=1)
    assert copied(message).headers == {"a": "b", **TOLD}


def test_the_largest_message_has_room_for_what_a_copy_tells() -> None:
    rest = PROPERTIES_BYTES_MAX - len(encode_properties(Properties(headers={"h": ""})) or b"") - 8
    headers = {"h": "x" * rest}
    assert len(encode_properties(Properties(headers=headers)) or b"") > PROPERTIES_BYTES_MAX - 16
    content = random.Random(5).randbytes(MESSAGE_BYTES_MAX)
    message = Message("t", content, "x" * 255, None, headers, 1, 88, 200, 7)
    assert copied(message).content == content
