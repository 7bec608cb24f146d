"""Notes of transactions: read as they were written, quickly or not; what is none is damage."""

import pytest

from vq.broker.journal.notes import encode
from vq.broker.transactions.notes import (
    Checked,
    CheckPlan,
    Note,
    PartPiece,
    TransactionStep,
    decode_note,
    encode_note,
)
from vq.errors import CorruptData
from vq.model import TopicPartition, TransactionState
from vq.store.records.record import decode_records

PIECE = PartPiece(505_460_580_052_631_577, 2, TopicPartition("t,{", 3), "c0", 5, b'x\n{"piece":')


def written(record: bytes) -> bytes:
    """Return the payload of a note's record."""
    (found,) = decode_records(record, 0)
    return found.payload


@pytest.mark.parametrize(
    "note",
    [
        PIECE,
        PIECE._replace(copy=4),
        PIECE._replace(transaction=1, messages=0, data=b""),
        Checked(7, 2, 1_764_390_060_000),
        TransactionStep(
            7, 1, TransactionState.PREPARED, "", 5, checks=CheckPlan("g", 60_000, 15, True, 3, 99)
        ),
    ],
    ids=lambda note: type(note).__name__,
)
def test_notes_are_read_as_they_were_written(note: Note) -> None:
    for _ in range(2):  # the second time from what is remembered of the first one
        assert decode_note(written(encode_note(note))) == note


def test_a_piece_is_read_in_whatever_order_its_fields_stand() -> None:
    head = {
        "piece": PIECE.transaction,
        "copy": 1,
        "messages": 5,
        "topic_id": "c0",
        "to": ["t,{", 3],
        "part": 2,
    }
    for order in (head, dict(reversed(head.items()))):
        assert decode_note(written(encode(order, PIECE.data))) == PIECE._replace(copy=1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}\n",
        b'{"piece":',
        b'{"piece":\n,',
        b'{"piece":7}\n',
        b'{"piece":7,"part":0}\n',
        b'{"piece":7,"part":0,"to":["t"],"topic_id":"c0","messages":1}\n',
        b'{"piece":7,"part":0,"to":5,"topic_id":"c0","messages":1}\n',
        b'{"piece":7,"part":0,"to":["t",0],"topic_id":"c0","messages":1\n',
        b'{"step":7,"request":1,"state":99,"at":5}\n',
        b'{"step":7,"request":1,"state":[],"at":5}\n',
        b"\xff\n",
    ],
)
def test_what_is_no_note_is_damage(payload: bytes) -> None:
    """It is told, and not guessed at."""
    with pytest.raises(CorruptData, match="note"):
        decode_note(payload)
