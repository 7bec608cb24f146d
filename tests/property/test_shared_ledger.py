"""Shared groups against a model that knows each message, and their journal read again at any time.

Members receive, settle what they have or had, repeat requests, and stay away; time passes. After
each step the ledger is what the model is, and so is what is made of the notes alone.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vq.broker.journal.notes import NOTE_TAG
from vq.broker.shared.ledger import (
    LOST_MAX,
    Now,
    ReceiveAsk,
    SharedGroup,
    SharedLedger,
    SharedSource,
    Told,
)
from vq.broker.shared.notes import (
    Acquired,
    Lost,
    Members,
    Note,
    SettledMessages,
    Settlement,
    SettlementKind,
    SourceKey,
    SourceState,
    decode_note,
    encode_note,
    is_snapshot,
)
from vq.errors import SequenceStale
from vq.store.records.record import decode_records

GROUP = "g"
SOURCES = [SourceKey("t", 0, "i"), SourceKey("t", 1, "i"), SourceKey("u", 0, "j")]
LEASE_MS = 1_000
OPEN_MAX, GROUP_OPEN_MAX = 12, 20
WALL_MS = 1_750_000_000_000
KINDS = st.sampled_from(SettlementKind)


@dataclass
class Message:
    """What the model knows of a message that was delivered and is not done."""

    deliveries: int
    grant: int
    until_ms: int


class Machine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SharedLedger()
        self.notes: list[Note] = []
        self.wholes: dict[SourceKey | None, int] = {}  # which notes say all of something
        self.ms = 0
        self.model: dict[SourceKey, dict[int, Message]] = {each: {} for each in SOURCES}
        self.cursors = dict.fromkeys(SOURCES, 0)
        self.ends = dict.fromkeys(SOURCES, 0)
        self.handles: list[tuple[SourceKey, int, int, int]] = []  # first, messages, grant
        self.attempts: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.last: dict[int, tuple[ReceiveAsk, int]] = {}
        self.said: dict[int, tuple[int, SettledMessages]] = {}

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL_MS + self.ms)

    @property
    def group(self) -> SharedGroup:
        return self.ledger.group(GROUP)

    def note(self, note: Note) -> None:
        """Note something as a broker does: what others read is what is taken here."""
        (record,) = decode_records(encode_note(note), 0)
        assert record.tag == NOTE_TAG
        read = decode_note(record.payload)
        assert read == note
        assert is_snapshot(record.payload) == isinstance(note, SourceState | Members)
        if isinstance(read, SourceState):
            self.wholes.setdefault(None, len(self.notes))
        if isinstance(read, SourceState | Members):
            key = read.source if isinstance(read, SourceState) else None
            self.wholes[key] = len(self.notes)
        self.notes.append(read)

    def do(self, note: Note) -> None:
        """Note something, and have it so."""
        self.note(note)
        self.ledger.take(note, self.now)

    def ask(self, member: int, attempt: int, most: int) -> ReceiveAsk:
        told = tuple(Told(each, 0, end) for each, end in self.ends.items())
        ask = ReceiveAsk(member, attempt, most, LEASE_MS, OPEN_MAX, GROUP_OPEN_MAX, told)
        for state in self.group.begun(told, self.now):
            self.do(state)
        self.group.tell(told)
        return ask

    # What happens ---------------------------------------------------------------------------------
    @rule(source=st.sampled_from(SOURCES), messages=st.integers(1, 10))
    def send(self, source: SourceKey, messages: int) -> None:
        self.ends[source] += messages

    @rule(ms=st.sampled_from((1, 100, 499, 501, 1_000)))
    def wait(self, ms: int) -> None:
        self.ms += ms

    @rule(member=st.integers(1, 3), most=st.integers(1, 9))
    def receive(self, member: int, most: int) -> None:
        """What is delivered was due or new; how often, the model knows."""
        attempt = self.attempts[member] = self.attempts.get(member, 0) + 1
        ask = self.ask(member, attempt, most)
        assert self.group.again(ask, self.now) is None
        note = self.group.receive(ask, self.now)
        model = self.model
        due = sum(each.until_ms <= self.ms for of in model.values() for each in of.values())
        new = sum(
            max(0, min(end - self.cursors[source], OPEN_MAX - len(model[source])))
            for source, end in self.ends.items()
        )
        could = due + max(0, min(new, GROUP_OPEN_MAX - sum(map(len, model.values()))))
        assert (note is None) == (could == 0)
        if note is None:
            return
        assert sum(each.messages for each in note.runs) == min(most, could)
        for run in note.runs:
            source = note.sources[run.source]
            for number in range(run.first, run.first + run.messages):
                before = self.model[source].get(number)
                if before is None:
                    assert number == self.cursors[source] < self.ends[source]
                    self.cursors[source] += 1
                else:
                    assert before.until_ms <= self.ms
                assert run.deliveries == (0 if before is None else before.deliveries) + 1
                until_ms = self.ms + LEASE_MS + 1  # the ms that has begun is not counted
                self.model[source][number] = Message(run.deliveries, note.grant, until_ms)
            self.handles.append((source, run.first, run.messages, note.grant))
        self.last[member] = ask, note.grant
        self.do(note)

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def receive_again(self, data: st.DataObject) -> None:
        """A repeated request gets what it had got and still has, and nothing else."""
        member = data.draw(st.sampled_from(sorted(self.last)))
        ask, grant = self.last[member]
        if ask.attempt != self.attempts[member]:
            return
        again = self.group.again(ask, self.now)
        assert again is not None
        found = {
            (source, number): run.deliveries
            for source, run in again
            for number in range(run.first, run.end)
        }
        assert found == {
            (source, number): each.deliveries
            for source, messages in self.model.items()
            for number, each in messages.items()
            if each.grant == grant and each.until_ms > self.ms
        }

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), member=st.integers(1, 3), kind=KINDS, delay_ms=st.integers(0, 700))
    def settle(self, data: st.DataObject, member: int, kind: SettlementKind, delay_ms: int) -> None:
        """What a grant does not have any more is lost, and not changed."""
        source, first, messages, grant = data.draw(st.sampled_from(self.handles))
        begin = data.draw(st.integers(first, first + messages - 1))
        end = data.draw(st.integers(begin + 1, first + messages))
        time_ms = {SettlementKind.RELEASE: delay_ms, SettlementKind.EXTEND: delay_ms + 1}
        settlement = Settlement(0, begin, end - begin, grant, kind, time_ms.get(kind, 0))
        sequence = self.sequences[member] = self.sequences.get(member, 0) + 1
        assert self.group.settled_before(member, sequence) is None
        note = self.group.settle(member, sequence, [source], [settlement], self.now)
        self.do(note)
        self.said[member] = sequence, note
        lost = set()
        for number in range(begin, end):
            found = self.model[source].get(number)
            if found is None or found.grant != grant or found.until_ms <= self.ms:
                lost.add(number)
            elif kind in {SettlementKind.ACK, SettlementKind.REJECT}:
                del self.model[source][number]
            elif kind is SettlementKind.EXTEND:
                found.until_ms = self.ms + delay_ms + 2
            else:
                found.grant = 0
                found.until_ms = self.ms + (delay_ms if kind is SettlementKind.RELEASE else 0)
                found.deliveries -= kind is SettlementKind.UNUSED
        assert {n for each in note.lost for n in range(each.first, each.first + each.messages)} == (
            lost
        )

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def settle_again(self, data: st.DataObject) -> None:
        """A repeated request has the same answer."""
        member = data.draw(st.sampled_from(sorted(self.said)))
        sequence, note = self.said[member]
        before = self.group.settled_before(member, sequence)
        assert before is not None
        assert [lost for _, lost in before.lost] == list(note.lost)

    @precondition(lambda self: self.notes)
    @rule(source=st.sampled_from(SOURCES), lost=st.integers(0, 5), others=st.integers(0, 3))
    def cut(self, source: SourceKey, lost: int, others: int) -> None:
        """What is gone is with nobody, and its numbers are given anew; told twice, it counts once.

        Some messages came since, or the group had been given none of what is gone.
        """
        at = max(0, self.ends[source] - lost)
        told = [Told(source, 0, at + others, at, self.group.sources[source].cuts)]
        (state,) = self.group.cut(told, self.now)
        self.do(state)
        assert not self.group.cut(told, self.now)
        self.ends[source] = at + others
        self.cursors[source] = min(self.cursors[source], at)
        model = self.model[source]
        self.model[source] = {number: each for number, each in model.items() if number < at}

    @precondition(lambda self: self.notes)
    @rule(data=st.data(), all=st.booleans())
    def snapshot(self, data: st.DataObject, all: bool) -> None:
        """Note some of it again, or all: what was noted of it before is not needed any more."""
        states: list[Note] = list(self.group.snapshots(self.now))
        for state in states if all else [data.draw(st.sampled_from(states))]:
            self.note(state)

    # What holds -----------------------------------------------------------------------------------
    @invariant()
    def agrees(self) -> None:
        self.check(self.ledger, is_time_known=True)

    @invariant()
    def is_read_again(self) -> None:
        """Who reads the log, wherever it begins, knows all but when leases have begun."""
        other = SharedLedger()
        for note in self.notes[min(self.wholes.values(), default=0) :]:
            other.take(note, self.now)
        self.check(other, is_time_known=False)
        group = other.group(GROUP)
        assert group.grants == self.group.grants
        assert dict(group.members) == dict(self.group.members)

    def check(self, ledger: SharedLedger, *, is_time_known: bool) -> None:
        group = ledger.group(GROUP)
        assert group.open == sum(map(len, self.model.values()))
        for key, source in group.sources.items():
            model = self.model[key]
            assert source.cursor == self.cursors[key]
            assert source.low == min(model, default=self.cursors[key])
            assert source.open == len(model)
            found = messages_of(source)
            assert {n: (e.deliveries, e.grant) for n, e in found.items()} == {
                n: (e.deliveries, e.grant) for n, e in model.items()
            }
            for number, each in found.items() if is_time_known else ():
                assert max(each.until_ms, self.ms) == max(model[number].until_ms, self.ms)
            for number, each in found.items() if not is_time_known else ():
                if not each.grant:  # by the wall clock
                    assert max(each.until_ms, self.ms) == max(model[number].until_ms, self.ms)


def messages_of(source: SharedSource) -> dict[int, Message]:
    found: dict[int, Message] = {}
    end = 0
    for run in source.runs:
        assert end <= run.first < run.end <= source.cursor
        end = run.end
        for number in range(run.first, run.end):
            found[number] = Message(run.deliveries, run.grant, run.until_ms)
    return found


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSharedLedger = Machine.TestCase


def test_of_a_settlement_that_found_little_it_is_known_that_it_was_carried_out() -> None:
    """Its lost runs would take much room: who repeats it is not told that all of it is lost."""
    group = SharedGroup(GROUP)
    key = SOURCES[0]
    for state in group.begun([Told(key, 7, 7)], Now(0, 0)):
        group.take(state, Now(0, 0))
    runs = [Settlement(0, 2 * each, 1, 1, SettlementKind.ACK) for each in range(LOST_MAX + 1)]
    note = group.settle(1, 1, [key], runs, Now(0, 0))
    assert [*note.lost] == [Lost(0, each.first, 1, 1) for each in runs]
    group.take(note, Now(0, 0))
    with pytest.raises(SequenceStale):
        group.settled_before(1, 1)
    assert group.sources[key].low == 7, "it begins where it was told first"
    assert isinstance(
        group.receive(ReceiveAsk(1, 1, 1, 1, 1, 9, [Told(key, 0, 0)]), Now(0, 0)), type(None)
    )
    group.tell([Told(key, 0, 9)])
    got = group.receive(ReceiveAsk(1, 1, 5, 1, 5, 9, [Told(key, 0, 0)]), Now(0, 0))
    assert isinstance(got, Acquired)
    assert [(each.first, each.messages) for each in got.runs] == [(7, 2)]
