"""Notes in the log of delayed messages: what is written is read, and nothing else is."""

import pytest

from vq.broker.journal.items import Item
from vq.broker.journal.notes import NOTE_TAG, UNKNOWN, Done, Sent
from vq.broker.timers.notes import Cancelled, Note, decode_note, encode_note
from vq.errors import CorruptData
from vq.model import ProducerStamp, TopicPartition
from vq.store.records.record import decode_records

TO = TopicPartition("orders", 3)
MESSAGE = Item(1_750_000_000_123, 4_711, 300, 0)


@pytest.mark.parametrize(
    "note",
    [
        Sent(TO, ProducerStamp(7, 0, 12), [MESSAGE, MESSAGE._replace(offset=1)]),
        Sent(TO, ProducerStamp(7, 0, 13), [MESSAGE], before=4_096),
        Done({TO: UNKNOWN, TopicPartition("t", 0): 512}),
        Cancelled(MESSAGE),
    ],
    ids=["sent", "sent behind another", "done", "cancelled"],
)
def test_a_note_comes_back(note: Note) -> None:
    """As the one record that it is."""
    (record,) = decode_records(encode_note(note), 0)
    assert record.tag == NOTE_TAG
    assert decode_note(record.payload) == note


def test_the_bytes_of_a_note_are_those_of_the_format() -> None:
    """A golden vector: other versions, and other languages, read them."""
    (record,) = decode_records(encode_note(Sent(TO, ProducerStamp(7, 0, 12), [MESSAGE])), 0)
    assert record.payload == (
        b'{"sent":["orders",3],"stamp":[7,0,12]}\n'
        + (1_750_000_000_123).to_bytes(8, "big")
        + (4_711).to_bytes(8, "big")
        + (300).to_bytes(4, "big")
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"5\n",
        b'{"sent":["t"],"stamp":[1,0,0]}\n',
        b'{"sent":["t",0],"stamp":[1]}\n',
        b'{"done":[["t"]]}\n',
        b'{"cancelled":true}\n',
        b'{"cancelled":true}\n' + bytes(19),
        b"\xff\n",
    ],
)
def test_what_is_no_note_is_damage(payload: bytes) -> None:
    """It is told, and not guessed at."""
    with pytest.raises(CorruptData, match="note"):
        decode_note(payload)
