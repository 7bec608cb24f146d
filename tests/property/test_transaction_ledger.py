"""Whoever reads the journal of transactions knows what the one before it knew, wherever it begins.

Random requests, time-outs and fences are judged by a ledger; what it notes is read by others: all
of it, or from a batch on before which nothing is needed any more, as retention leaves it. What is
prepared is noted again now and then, whole or only the beginning of it, as a crash leaves it.
"""

import random
from collections.abc import Sequence

import pytest
from support.cases import case

from vq.broker.transactions import ended, transactional_ids
from vq.broker.transactions import ledger as ledgers
from vq.broker.transactions.journaled import JournaledTransaction, carried
from vq.broker.transactions.judging import Ask
from vq.broker.transactions.ledger import TransactionLedger
from vq.broker.transactions.notes import (
    TIME_OUT,
    Carried,
    Checked,
    CheckPlan,
    Client,
    Note,
    PartPiece,
    TransactionStep,
)
from vq.errors import Busy, ProducerFenced, TransactionRefused, VqError
from vq.model import TopicPartition, TransactionState, time_ms_of

OPEN, PREPARED = TransactionState.OPEN, TransactionState.PREPARED
COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
STATES = (OPEN, OPEN, OPEN, PREPARED, COMMITTED, ROLLED_BACK)
ZERO = time_ms_of(0)
SHIFT = next(bits for bits in range(63) if time_ms_of(1 << bits) > ZERO)
NOW_MS = ZERO + 100_000_000_000


def number_of(time_ms: int) -> int:
    """Return the first number that was made at a time."""
    return (time_ms - ZERO) << SHIFT


def take(
    ledger: TransactionLedger, batch: Sequence[tuple[int, Note]]
) -> list[JournaledTransaction]:
    """Have a ledger read a batch; return what is committed by it."""
    committed = []
    for offset, note in batch:
        if isinstance(note, PartPiece):
            ledger.take_piece(note, offset, 10)
        elif isinstance(note, TransactionStep):
            entry = ledger.take_step(note, offset)
            committed += [] if entry is None else [entry]
        elif isinstance(note, Carried):
            ledger.take_carried(note, offset)
        elif isinstance(note, Checked):
            ledger.take_checked(note)
        else:
            assert isinstance(note, Client)
            ledger.take_client(note, offset)
    return committed


class Journal:
    """A ledger, its log, and what must be so, counted beside it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ledger = TransactionLedger()
        self.log: list[list[tuple[int, Note]]] = []
        self.offset = 0
        self.now_ms = NOW_MS
        self.decided: dict[int, TransactionState] = {}
        self.delivered: dict[int, list[tuple[TopicPartition, int]]] = {}
        self.pieces: dict[int, dict[int, tuple[TopicPartition, int]]] = {}
        self.requests: dict[int, int] = {}
        self.owners: dict[int, tuple[str, int]] = {}
        self.epochs: dict[str, int] = {}
        self.numbers = [number_of(NOW_MS) + each for each in range(8)]
        self.kept: dict[int, TransactionState] = {}
        self.notes: dict[int, PartPiece] = {}  # by offset
        self.carried = 0

    def note(self, notes: Sequence[Note]) -> None:
        batch = [(self.offset + index * 10, note) for index, note in enumerate(notes)]
        self.offset += 10 * len(batch)
        self.log.append(batch)
        self.notes |= {at: note for at, note in batch if isinstance(note, PartPiece)}
        for entry in take(self.ledger, batch):
            assert entry.number not in self.delivered
            self.delivered[entry.number] = [(each.to, each.size) for each in entry.parts]

    def ask(self) -> None:
        rng, number = self.rng, self.rng.choice(self.numbers)
        found = self.ledger.active.get(number)
        client = rng.choice(("", "a", "b")) if found is None else found.client
        epoch = self.epochs.get(client, 0) - (rng.random() < 0.2)
        following = 0 if found is None else found.requests
        request = following if rng.random() < 0.9 else rng.randrange(3)
        by = "operator" if rng.random() < 0.1 else ""
        state = rng.choice(STATES)
        many = rng.randrange(4) if state is not ROLLED_BACK else 0
        has = 0 if found is None else len(found.parts)
        first = rng.randrange(has + 1)
        pieces = [
            PartPiece(number, part, TopicPartition("t", part), "i", 1, bytes(rng.randrange(1, 9)))
            for part in range(first, first + many)
        ]
        keep = rng.random() < 0.5
        ask = Ask(number, request, state, bool(pieces), client, max(0, epoch), by, "", keep)
        try:
            answer = self.ledger.judge(ask, self.now_ms)
            if answer is None:
                self.ledger.check_parts(number, pieces)
        except ProducerFenced:
            assert client
            assert number in self.decided or epoch < self.epochs[client]
            return
        except VqError:
            return
        if answer is not None:
            assert answer.state is self.decided.get(number, answer.state)
            return
        assert number not in self.decided
        requests = request + 1 if found is None or not by else following
        step = TransactionStep(
            number, requests, state, by, self.now_ms, client, ask.client_epoch, 60_000, "", keep
        )
        if state is PREPARED and rng.random() < 0.5:
            step = step._replace(checks=CheckPlan("g", 30_000, 3, False, 0, self.now_ms + 6_000))
        notes: list[Note] = [*pieces, step]
        if found is not None and self.ledger.is_kept(ask, found):
            notes.insert(0, carried(found)._replace(request=requests, state=state, by=by))
            self.kept[number] = state
        self.note(notes)
        self.owners.setdefault(number, (client, ask.client_epoch))
        for piece in pieces:
            room = self.pieces.setdefault(number, {})
            room[piece.part] = piece.to, room.get(piece.part, (piece.to, 0))[1] + len(piece.data)
        if state in (COMMITTED, ROLLED_BACK):
            self.decided[number] = state
        if state is COMMITTED and number in self.pieces:
            assert self.delivered[number] == list(self.pieces[number].values())
        assert self.ledger.answer_to(ask).state is state

    def fence(self) -> None:
        client = self.rng.choice("ab")
        self.epochs[client] = self.ledger.ids.epoch_of(client) + 1
        before = {n for n, e in self.ledger.active.items() if e.state is OPEN}
        self.note([Client(client, self.epochs[client], self.now_ms)])
        for number in before - self.ledger.active.keys():
            assert self.owners[number][0] == client
            self.decided[number] = ROLLED_BACK
        assert not [e for e in self.ledger.active.values() if e.client == client and e.state == 1]

    def time_out(self) -> None:
        self.now_ms += self.rng.choice((10, 1_000, 61_000))
        for entry in self.ledger.overdue(self.now_ms):
            self.note(
                [TransactionStep(entry.number, entry.requests, ROLLED_BACK, TIME_OUT, self.now_ms)]
            )
            self.decided[entry.number] = ROLLED_BACK

    def check(self) -> None:
        """Have a producer asked about what is due; ask again about one that is parked."""
        for entry in self.ledger.checks_due(self.now_ms):
            plan = entry.checks
            assert plan is not None
            assert entry.number not in self.decided
            assert entry.is_parked(self.now_ms) is (plan.sent == plan.most)
            if plan.sent < plan.most:
                self.note([Checked(entry.number, plan.sent + 1, self.now_ms + plan.interval_ms)])
                assert not entry.is_check_due(self.now_ms)
            elif self.rng.random() < 0.3:
                again = plan._replace(sent=0, next_ms=self.now_ms)
                found = self.ledger.checked_again(entry.number)
                assert found is entry
                step = TransactionStep(
                    entry.number, entry.requests, PREPARED, "", self.now_ms, checks=again
                )
                self.note([step])

    def store(self) -> None:
        committed = [e for e in self.ledger.active.values() if e.state is COMMITTED]
        if committed:
            entry = self.rng.choice(committed)
            for part in entry.parts:
                part.stored, part.offset = True, 7
            self.ledger.end(entry)

    def carry(self) -> None:
        """Note again what is prepared, in batches, and decisions; a crash may end it before."""
        rng = self.rng
        prepared = [e for e in self.ledger.active.values() if e.state is PREPARED]
        for entry in rng.sample(prepared, min(len(prepared), 2)):
            pieces = [at for part in entry.parts for at, _ in part.pieces]
            for count, at in enumerate(pieces, 1):
                self.note([self.notes[at]._replace(copy=count)])
                if rng.random() < 0.1:
                    return
                if rng.random() < 0.1:
                    self.ask()
            if self.ledger.active.get(entry.number) == entry and entry.state is PREPARED:
                self.note([carried(entry, len(pieces))])
                assert self.ledger.active[entry.number].offset > entry.offset
                self.carried += 1
        if self.ledger.kept:
            self.note([carried(each) for each in self.ledger.kept.values()])
        if self.kept and rng.random() < 0.3:
            number = rng.choice(list(self.kept))
            ask = Ask(number, 0, TransactionState.FORGOTTEN, has_parts=False)
            assert self.ledger.judge(ask, self.now_ms) is None
            self.note([TransactionStep(number, 1, TransactionState.FORGOTTEN, "", self.now_ms)])
            del self.kept[number]

    def forget_and_begin(self) -> None:
        self.numbers[self.rng.randrange(8)] = number_of(self.now_ms) + self.offset % 4_096

    def read_again(self) -> None:
        """Read the log from any batch on from which it is kept, and compare."""
        needed = min([self.offset, *self.ledger.needs()])
        kept = [index for index, batch in enumerate(self.log) if batch[0][0] <= needed]
        begin = self.rng.choice([0, *kept])
        other = TransactionLedger()
        again = [entry.number for batch in self.log[begin:] for entry in take(other, batch)]
        assert set(again) <= self.delivered.keys()
        for number, entry in self.ledger.active.items():
            assert other.active[number] == entry
        for number, entry in other.active.items():
            if number not in self.ledger.active:  # it is stored: all of it would be sent again
                assert entry.state is COMMITTED
                assert [(e.to, e.size) for e in entry.parts] == self.delivered[number]
        for number, state in self.decided.items():
            assert other.answer(number).state in (state, TransactionState.UNKNOWN)
        assert {n: e.state for n, e in other.kept.items()} == self.kept
        assert {n: carried(e) for n, e in other.kept.items()} == {
            n: carried(e) for n, e in self.ledger.kept.items()
        }
        for client, epoch in self.epochs.items():
            assert other.ids.epoch_of(client) == epoch == self.ledger.ids.epoch_of(client)

    def step(self) -> None:
        actions = (self.ask,) * 12 + (
            self.store,
            self.time_out,
            self.fence,
            self.forget_and_begin,
            self.carry,
        )
        actions += (self.check,) * 2
        self.rng.choice(actions)()
        if self.rng.random() < 0.2:
            self.read_again()


@pytest.mark.parametrize("first", [0])
def test_a_journal_that_is_read_again_says_what_it_said(first: int) -> None:
    committed = carries = 0
    for seed in range(first, first + 60):
        with case(seed):
            journal = Journal(seed)
            for _ in range(150):
                journal.step()
            committed += len(journal.delivered)
            carries += journal.carried
    assert min(committed, carries) > 100


def test_what_is_remembered_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten before its time is known by its number's time, and is not taken as new."""
    monkeypatch.setattr(ended, "ENDED_PARTS_MAX", 10)
    monkeypatch.setattr(ledgers, "TOLD_PARTS_MAX", 6)
    monkeypatch.setattr(transactional_ids, "CLIENTS_MAX", 1)
    ledger = TransactionLedger()
    for index in range(20):
        number = number_of(NOW_MS + index)
        pieces = [
            PartPiece(number, part, TopicPartition("t", part), "i", 1, b"x") for part in range(3)
        ]
        batch = [*enumerate(pieces), (3, TransactionStep(number, 1, COMMITTED, "", NOW_MS))]
        (entry,) = take(ledger, batch)
        ledger.end(entry)
    assert len(list(ledger.listed(ended=True))) == 2
    first = Ask(number_of(NOW_MS), 0, COMMITTED, has_parts=False)
    with pytest.raises(VqError, match="not known here"):
        ledger.judge(first, NOW_MS + 20)
    ledger.take_client(Client("a", 1, NOW_MS), 0)
    assert ledger.ids.epoch_of("a") == 1
    with pytest.raises(VqError, match="at most 1"):
        ledger.ids.epoch_of("b")


def test_numbers_ahead_of_the_clock_keep_out_none_that_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever uses up what is remembered, with numbers of the future, stops no transaction."""
    monkeypatch.setattr(ended, "ENDED_MAX", 20)
    monkeypatch.setattr(ended, "AHEAD_MAX", 10)
    ledger = TransactionLedger()

    def end(number: int, now_ms: int = NOW_MS) -> bool:
        """Roll one back of which nothing is known; whether that is carried out."""
        try:
            assert ledger.judge(Ask(number, 0, ROLLED_BACK, has_parts=False), now_ms) is None
        except Busy:
            return False
        take(ledger, [(0, TransactionStep(number, 1, ROLLED_BACK, "", now_ms))])
        return True

    ahead = [number_of(NOW_MS + 200_000) + each for each in range(50)]
    assert sum(map(end, ahead)) == 10
    assert all(end(number_of(now_ms), now_ms) for now_ms in range(NOW_MS, NOW_MS + 100))
    right = Ask(number_of(NOW_MS + 100), 0, COMMITTED, has_parts=True)
    assert ledger.judge(right, NOW_MS + 100) is None
    for number in ahead[:10]:
        with pytest.raises(TransactionRefused, match="is rolled back"):
            ledger.judge(Ask(number, 0, COMMITTED, has_parts=True), NOW_MS)
    ledger.forget(NOW_MS + ended.REMEMBERED_MS)
    assert sum(map(end, ahead)) == 10


def test_decisions_that_are_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would need one more is refused while it can be; a decision of its producer is not."""
    monkeypatch.setattr(ledgers, "KEPT_MAX", 3)
    ledger = TransactionLedger()
    numbers = [number_of(NOW_MS) + each for each in range(4)]
    for offset, number in enumerate(numbers):
        step = TransactionStep(number, 1, PREPARED, "", NOW_MS, xid=f"x{number}", keep=offset < 1)
        ledger.take_step(step, offset)
    for number in numbers[1:3]:
        ask = Ask(number, 1, ROLLED_BACK, has_parts=False, by="ada@desk")
        assert ledger.judge(ask, NOW_MS) is None
        assert ledger.is_kept(ask, ledger.active[number])
        note = carried(ledger.active[number])._replace(state=ROLLED_BACK, by="ada@desk")
        step = TransactionStep(number, 1, ROLLED_BACK, "ada@desk", NOW_MS)
        take(ledger, [(10, note), (11, step)])
    late = Ask(numbers[3], 1, COMMITTED, has_parts=False, by="ada@desk")
    with pytest.raises(
        VqError, match=r"keeps 2 decisions, and 1 are to come, of 0 parts; at most 3 of"
    ):
        ledger.judge(late, NOW_MS)
    new = Ask(numbers[3] + 1, 0, PREPARED, has_parts=False, xid="new", keep=True)
    with pytest.raises(VqError, match="at most 3 of"):
        ledger.check_name(new)
    with pytest.raises(VqError, match=r"the name 'x\d+' is in use"):
        ledger.check_name(new._replace(keep=False, xid=f"x{numbers[1]}"))
    assert ledger.judge(late._replace(by=""), NOW_MS) is None
    has_place = late._replace(by="", number=numbers[0])
    assert ledger.judge(has_place, NOW_MS) is None
    assert ledger.judge(late._replace(by="vq tx recover"), NOW_MS) is None
    forget = Ask(numbers[1], 0, TransactionState.FORGOTTEN, has_parts=False)
    with pytest.raises(VqError, match="messages in a request"):
        ledger.judge(forget._replace(has_parts=True), NOW_MS)
    with pytest.raises(VqError, match="at most 3 of"):
        ledger.check_name(new._replace(xid=""))
    assert ledger.judge(forget, NOW_MS) is None
    take(ledger, [(20, TransactionStep(numbers[1], 1, TransactionState.FORGOTTEN, "", NOW_MS))])
    assert ledger.judge(late, NOW_MS) is None
    assert ledger.judge(forget, NOW_MS) is not None
    with pytest.raises(VqError, match="only a decision can be forgotten"):
        ledger.judge(Ask(numbers[3], 0, TransactionState.FORGOTTEN, has_parts=False), NOW_MS)
