"""What notes say together: the first note that names a letter has it, for every reader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import case

from vq.errors import CorruptData
from vq.model import Message, ProducerStamp, TopicPartition
from vq.operations.messages.settling import Ledger, LetterState, Note, NoteKind
from vq.reserved import SETTLED

OPEN, RESENDING, RESENT, DELETED = LetterState
TARGET = TopicPartition("t", 3)


def begun(*letters: int) -> Note:
    stamp = ProducerStamp(2**63 - 1, 0, 7)
    return Note(
        kind=NoteKind.BEGUN,
        by="me@here",
        time_ms=5,
        letters=letters,
        target=TARGET,
        topic_id="ab",
        stamp=stamp,
    )


def ended(kind: NoteKind, at: int) -> Note:
    return Note(kind=kind, by="you@there", time_ms=6, begun=at)


def deleted(*letters: int) -> Note:
    return Note(kind=NoteKind.DELETED, by="they@home", time_ms=7, letters=letters)


def ledger_of(*notes: tuple[int, Note]) -> Ledger:
    ledger = Ledger()
    for offset, note in notes:
        ledger.add(offset, note)
    return ledger


def test_a_note_comes_back_from_its_message() -> None:
    for note in (begun(88, 250), ended(NoteKind.SENT, 400), deleted(1)):
        with case(note.kind):
            message = note.message("_vq.dlq.g")
            assert Note.of(message) == note
            assert Note.of(message._replace(headers=None)) is None


def test_a_note_that_cannot_be_read_is_told_and_is_no_letter() -> None:
    """To take it for a letter, or to pass it over, could send a letter twice."""
    values = {"v": 1, "by": "me", "time_ms": 1}
    for kind, content in (
        ("begun", b"{"),
        ("begun", b"[]"),
        ("begun", b"\xff"),
        ("later", json.dumps(values).encode()),
        ("sent", json.dumps({**values, "v": 2}).encode()),
        ("begun", json.dumps({**values, "to": ["t"]}).encode()),
        ("begun", b"[" * 100_000),
    ):
        message = Message("_vq.dlq.g", content, headers={SETTLED: kind}, partition=1, offset=88)
        with case(kind, content[:20]), pytest.raises(CorruptData, match=r"_vq\.dlq\.g-1@88"):
            Note.of(message)


def test_a_letter_belongs_to_the_first_note_that_names_it() -> None:
    ledger = ledger_of((400, begun(88, 250)), (600, begun(250, 500)))
    assert (ledger.letters_of(400), ledger.letters_of(600)) == ((88, 250), (500,))
    assert list(ledger.unfinished) == [400, 600]
    ledger.add(700, ended(NoteKind.SENT, 400))
    assert [ledger.of(each) for each in (88, 250, 500, 501)] == [RESENT, RESENT, RESENDING, OPEN]
    settled = ledger.settled(250)
    assert settled is not None
    assert (settled.by, settled.time_ms) == ("you@there", 6)
    assert list(ledger.unfinished) == [600]


def test_a_batch_without_letters_of_its_own_has_no_end_to_wait_for() -> None:
    ledger = ledger_of((400, begun(88)), (500, begun(88)), (600, ended(NoteKind.SENT, 500)))
    assert list(ledger.unfinished) == [400]
    assert ledger.of(88) is RESENDING


def test_letters_of_a_batch_whose_topic_is_gone_are_open_again() -> None:
    ledger = ledger_of((400, begun(88)), (500, ended(NoteKind.GONE, 400)), (600, begun(88)))
    assert ledger.letters_of(600) == (88,)
    ledger.add(700, ended(NoteKind.SENT, 400))  # of somebody who did not know: it has ended
    assert ledger.of(88) is RESENDING


def test_a_deleted_letter_stays_deleted_and_ends_its_batch() -> None:
    ledger = ledger_of((400, begun(88, 250)), (500, deleted(88, 300)))
    assert not ledger.unfinished
    assert [ledger.of(each) for each in (88, 250, 300)] == [DELETED, RESENDING, DELETED]
    ledger.add(600, begun(88, 250))
    assert [ledger.of(each) for each in (88, 250, 300)] == [DELETED, RESENDING, DELETED]
    ledger.add(700, deleted(250))
    assert ledger.of(250) is DELETED
    sent = ledger_of((400, begun(88)), (500, ended(NoteKind.SENT, 400)), (600, deleted(88)))
    assert sent.of(88) is RESENT


def test_the_rest_of_a_batch_that_was_sent_all_the_same_is_resent() -> None:
    """One operator gave up a letter of a batch while another one was sending it."""
    ledger = ledger_of((400, begun(88, 250)), (500, deleted(88)), (600, ended(NoteKind.SENT, 400)))
    assert [ledger.of(each) for each in (88, 250)] == [DELETED, RESENT]
    assert not ledger.unfinished


NOTES = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True).map(
        lambda letters: begun(*sorted(letters))
    ),
    st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(
        lambda letters: deleted(*sorted(letters))
    ),
    st.tuples(st.sampled_from([NoteKind.SENT, NoteKind.GONE]), st.integers(0, 12)).map(
        lambda pair: ended(pair[0], 100 + pair[1])
    ),
)


@given(st.lists(NOTES, max_size=12))
def test_no_letter_is_of_two_batches_unless_the_first_is_gone(notes: list[Note]) -> None:
    ledger = Ledger()
    gone: set[int] = set()
    for offset, note in enumerate(notes, 100):
        if note.kind is NoteKind.GONE and note.begun in ledger.unfinished:
            gone.add(note.begun)
        ledger.add(offset, note)
    batches = [ledger.letters_of(at) for at in range(100, 100 + len(notes)) if at not in gone]
    every = [letter for batch in batches for letter in batch]
    assert len(every) == len(set(every))
    for at in ledger.unfinished:
        assert all(ledger.of(each) is RESENDING for each in ledger.letters_of(at))
