"""Nodes that lead a shared group, with other wall clocks: nothing waits longer than it was to."""

import pytest

from vq.broker.shared.ledger import Now, ReceiveAsk, SharedLedger, Told
from vq.broker.shared.notes import Note, Settlement, SettlementKind, SourceKey, decode_note
from vq.broker.shared.notes import encode_note as encoded
from vq.store.records.record import decode_records

SOURCE = SourceKey("t", 0, "i")
WALL_MS = 1_750_000_000_000
HOUR_MS = 3_600_000


def read_back(note: Note) -> Note:
    (record,) = decode_records(encoded(note), 0)
    return decode_note(record.payload)


def released(ahead_ms: int, *, whole: bool) -> list[Note]:
    """Return what a node notes whose clock is ahead: a message is due again after half a second."""
    ledger, now = SharedLedger(), Now(0, WALL_MS + ahead_ms)
    group = ledger.group("g")
    told = [Told(SOURCE, 0, 1)]
    notes: list[Note] = [*group.begun(told, now)]
    ledger.take(notes[0], now)
    group.tell(told)
    note = group.receive(ReceiveAsk(1, 1, 1, 1_000, 9, 9, told), now)
    assert note is not None
    ledger.take(note, now)
    run = Settlement(0, 0, 1, note.grant, SettlementKind.RELEASE, 500)
    settled = group.settle(1, 1, [SOURCE], [run], now)
    ledger.take(settled, now)
    notes += [note, settled]
    return [group.snapshot(SOURCE, now)] if whole else notes


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ahead_ms", [0, HOUR_MS, -HOUR_MS])
def test_a_released_message_waits_no_longer_than_it_was_to(ahead_ms: int, whole: bool) -> None:
    """Of a clock that is ahead the length of the pause is believed, and not its end."""
    ledger = SharedLedger()
    for note in released(ahead_ms, whole=whole):
        ledger.take(read_back(note), Now(0, WALL_MS))
    group, told = ledger.group("g"), [Told(SOURCE, 0, 1)]
    ask = ReceiveAsk(2, 1, 1, 1_000, 9, 9, told)
    early = group.receive(ask, Now(499, WALL_MS + 499))
    assert (early is None) == (ahead_ms >= 0)
    assert group.receive(ask, Now(500, WALL_MS + 500)) is not None


def test_a_lease_is_no_shorter_than_it_was_given_for() -> None:
    """The clock of leases is rounded down: of the ms in which one began, all may have been left."""
    ledger, now = SharedLedger(), Now(0, WALL_MS)
    group, told = ledger.group("g"), [Told(SOURCE, 0, 1)]
    for note in group.begun(told, now):
        ledger.take(note, now)
    group.tell(told)
    got = group.receive(ReceiveAsk(1, 1, 1, 1_000, 9, 9, told), now)
    assert got is not None
    ledger.take(got, now)
    extended = Settlement(0, 0, 1, got.grant, SettlementKind.EXTEND, 1_000)
    at_end = Now(1_000, WALL_MS + 1_000)
    settled = group.settle(1, 1, [SOURCE], [extended], at_end)
    assert not settled.lost
    ledger.take(settled, at_end)
    for ms, is_lost in ((2_000, False), (2_001, True)):
        acknowledged = Settlement(0, 0, 1, got.grant, SettlementKind.ACK)
        at = Now(ms, WALL_MS + ms)
        assert bool(group.settle(1, 2, [SOURCE], [acknowledged], at).lost) == is_lost
