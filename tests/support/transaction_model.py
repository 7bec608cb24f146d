"""A model of one transaction in which the ledger of the brokers judges, over all orders of events.

    producer A (epoch 1) ──▶ requests that may come late, and again ──▶ journal ──▶ two partitions
    producer B takes the id (epoch 2)      an operator decides          └ notes are committed, or
                                                                          lost with a master

What is noted is a batch; it is committed, or a take-over keeps some of it that was not. Whoever
leads knows what the committed log says. Time has three steps: now, behind the time-out of the
transaction, and so late that nothing of it is remembered. ``explore`` goes through every order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from vq.broker.transactions.ended import REMEMBERED_MS
from vq.broker.transactions.judging import Answer, Ask
from vq.broker.transactions.ledger import TransactionLedger
from vq.broker.transactions.notes import TIME_OUT, Client, Note, PartPiece, TransactionStep
from vq.errors import VqError
from vq.model import TopicPartition, TransactionState, time_ms_of

OPEN, PREPARED = TransactionState.OPEN, TransactionState.PREPARED
COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK
_DECIDED: Final = (COMMITTED, ROLLED_BACK)
_BEGIN_MS: Final = time_ms_of(0) + 100_000_000
_A_MILLISECOND: Final = next(1 << n for n in range(62) if time_ms_of(1 << n) > time_ms_of(0))
NUMBER: Final = _A_MILLISECOND * (_BEGIN_MS - time_ms_of(0))
_TIMEOUT_MS: Final = 60_000
#: Now, when its time is over, and when nothing of it is remembered.
_TIMES_MS: Final = (_BEGIN_MS, _BEGIN_MS + _TIMEOUT_MS, _BEGIN_MS + _TIMEOUT_MS + REMEMBERED_MS)
_ID: Final = "id"
_PARTS: Final = (TopicPartition("x", 0), TopicPartition("y", 0))
Batch = tuple[Note, ...]
_LOG_MAX: Final = 8


class Request(NamedTuple):
    """A request: who sends it, which of the transaction it is, and what the transaction is to be.

    ``parts``: for which partitions it has a message; they are numbered so in the transaction.
    """

    who: str
    number: int
    state: TransactionState
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What the journal does; each field is a rule, and false takes it away.

    Attributes:
        ledger: Judges, and takes what is committed.
        noted_first: Parts are sent once the decision is committed, not once it is noted.
        answered_last: So are answers.
        whole: A take-over keeps a batch as a whole, or none of it.
        same_stamp: What is sent again has the stamp that it had.
    """

    ledger: Callable[[], TransactionLedger] = TransactionLedger
    noted_first: bool = True
    answered_last: bool = True
    whole: bool = True
    same_stamp: bool = True


@dataclass(frozen=True)
class Story:
    """What producer A asks for, one request after the other, and who else is there.

    ``take_overs``: so many at most.
    """

    requests: tuple[Request, ...]
    fences: bool = False
    operator: TransactionState | None = None
    take_overs: int = 1
    late: bool = True


class State(NamedTuple):
    """Where a run is.

    Attributes:
        log: The journal; of that, ``committed`` batches count.
        waits: What gets an answer once the last batches are committed, by their index.
        sent: Requests that were sent, and may come at any time, and again.
        turn: The next request of A.
        told: What somebody was told: ``(who, state)``.
        barred: B has the id, and the transaction was open then, or not begun.
        stored: Parts in their partitions, and under which stamp.
        time, takes: Steps of time, and take-overs, so far.
    """

    log: tuple[Batch, ...] = ()
    committed: int = 0
    waits: tuple[tuple[int, Request], ...] = ()
    sent: frozenset[Request] = frozenset()
    turn: int = 0
    told: frozenset[tuple[str, TransactionState]] = frozenset()
    barred: bool = False
    stored: frozenset[tuple[int, int]] = frozenset()
    time: int = 0
    takes: int = 0


FENCE: Final = Request("B", 0, TransactionState.UNKNOWN)


class Model:
    """The steps of a story under some rules."""

    def __init__(self, story: Story, rules: Rules) -> None:
        self.story = story
        self.rules = rules
        self.ledger = cache(self._ledger)  # of a log and a time

    def _ledger(
        self, log: tuple[Batch, ...], time: int, stored: frozenset[int]
    ) -> TransactionLedger:
        ledger = self.rules.ledger()
        take(ledger, ((Client(_ID, 1, _BEGIN_MS),),))
        take(ledger, log)
        found = ledger.active.get(NUMBER)
        if found is not None and found.state is COMMITTED and len(stored) == len(found.parts):
            ledger.end(found)
        ledger.forget(_TIMES_MS[time])
        return ledger

    def known(self, state: State, *, noted: bool = False) -> TransactionLedger:
        """Return what the master knows; ``noted``: with what is not committed yet."""
        log = state.log if noted else state.log[: state.committed]
        # What was committed with another stamp says nothing of this one.
        last = max((stamp for _, stamp in state.stored), default=0)
        stored = frozenset(part for part, stamp in state.stored if stamp == last)
        return self.ledger(log, state.time, stored)

    # Steps ----------------------------------------------------------------------------------------
    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what may come next."""
        story = self.story
        if state.turn < len(story.requests):
            request = story.requests[state.turn]
            if request not in state.sent:
                yield f"A sends {request.number}", state._replace(sent=state.sent | {request})
        if story.fences and FENCE not in state.sent:
            yield "B sends FENCE", state._replace(sent=state.sent | {FENCE})
        if story.operator is not None:
            asked = Request("operator", 0, story.operator)
            if asked not in state.sent:
                yield "the operator decides", state._replace(sent=state.sent | {asked})
        if len(state.log) == _LOG_MAX:
            return  # without some rule there is no end
        if state.committed == len(state.log):  # of one transaction one request is under way
            for request in sorted(state.sent):
                after = self._fence(state) if request == FENCE else self._transact(state, request)
                if after is not None and after != state:
                    yield f"{request} comes", after
            overdue = self.known(state).overdue(_TIMES_MS[state.time])
            for each in overdue:
                step = TransactionStep(
                    NUMBER, each.requests, ROLLED_BACK, TIME_OUT, _TIMES_MS[state.time]
                )
                yield "its time is over", state._replace(log=(*state.log, (step,)))
        else:
            yield "the notes are committed", self._commit(state)
        yield from self._take_overs(state)
        yield from self._deliveries(state)
        if state.time + 1 < (3 if story.late else 2):
            yield "time goes by", state._replace(time=state.time + 1)

    def _fence(self, state: State) -> State | None:
        if ("B", OPEN) in state.told:
            return None
        note = Client(_ID, 2, _TIMES_MS[state.time])
        return self._noted(state, (note,), FENCE)

    def _transact(self, state: State, request: Request) -> State | None:
        ledger = self.known(state)
        by = "operator" if request.who == "operator" else ""
        client = ("", 0) if by else (_ID, 1)
        ask = Ask(NUMBER, request.number, request.state, bool(request.parts), *client, by)
        try:
            answer = ledger.judge(ask, _TIMES_MS[state.time])
        except VqError as error:
            told = TransactionState(error.details.get("state", int(ROLLED_BACK)))
            return self._tell(state, request, told)
        if answer is not None:
            return self._tell(state, request, answer.state)
        found = ledger.active.get(NUMBER)
        pieces = tuple(PartPiece(NUMBER, each, _PARTS[each], "", 1, b"m") for each in request.parts)
        try:
            ledger.check_parts(NUMBER, pieces)
        except VqError:
            return self._tell(state, request, ROLLED_BACK)
        number = request.number + 1 if not by or found is None else found.requests
        step = TransactionStep(
            NUMBER, number, request.state, by, _TIMES_MS[state.time], *client, _TIMEOUT_MS
        )
        return self._noted(state, (*pieces, step), request)

    def _noted(self, state: State, batch: Batch, request: Request) -> State:
        waits = (*state.waits, (len(state.log), request))
        after = state._replace(log=(*state.log, batch), waits=waits)
        return after if self.rules.answered_last else self._answered(after, noted=True)

    def _commit(self, state: State) -> State:
        return self._answered(state._replace(committed=len(state.log)))

    def _answered(self, state: State, *, noted: bool = False) -> State:
        for _, request in state.waits:
            if request == FENCE:
                is_prepared = self.known(state, noted=noted).answer(NUMBER).state is PREPARED
                barred = state.barred or not (is_prepared or _decisions(state))
                state = state._replace(told=state.told | {("B", OPEN)}, barred=barred)
                continue
            answer: Answer = self.known(state, noted=noted).answer(NUMBER)
            state = self._tell(state, request, answer.state)
        return state._replace(waits=())

    def _tell(self, state: State, request: Request, told: TransactionState) -> State:
        requests = self.story.requests
        if request.who == "A" and state.turn < len(requests) and requests[state.turn] == request:
            is_next = told == request.state and told not in _DECIDED
            state = state._replace(turn=state.turn + 1 if is_next else state.turn)
        if told in (PREPARED, *_DECIDED):
            state = state._replace(told=state.told | {(request.who, told)})
        return state

    def _take_overs(self, state: State) -> Iterator[tuple[str, State]]:
        if state.takes == self.story.take_overs:
            return
        left = state.log[: state.committed]
        tails: list[tuple[Batch, ...]] = [()]
        if state.committed < len(state.log):
            (batch,) = state.log[state.committed :]
            tails += [(batch,)]
            if not self.rules.whole:
                tails += [(batch[:size],) for size in range(1, len(batch))]
        for tail in tails:
            log = (*left, *tail)
            yield (
                f"another node leads, with {len(tail)} of the notes",
                state._replace(log=log, committed=len(log), waits=(), takes=state.takes + 1),
            )

    def _deliveries(self, state: State) -> Iterator[tuple[str, State]]:
        found = self.known(state, noted=not self.rules.noted_first).active.get(NUMBER)
        if found is None or found.state is not COMMITTED:
            return
        # The batch that commits it has the stamp; what is committed again has another one.
        stamp = _decisions(state).count(COMMITTED)
        if not self.rules.same_stamp:
            stamp = -state.takes
        for part in found.parts:
            index = _PARTS.index(part.to)
            if (index, stamp) not in state.stored:
                stored = state.stored | {(index, stamp)}
                yield f"part {index} is stored", state._replace(stored=stored)

    # What must hold -------------------------------------------------------------------------------
    def wrong(self, state: State) -> str:
        """Return what is wrong; "": nothing."""
        told = {what for _, what in state.told}
        if {*_DECIDED} <= told:
            return "one was told that it is committed, and one that it is not"
        if state.stored and COMMITTED not in _decisions(state):
            return "a part is stored, and no decision says so"
        if state.stored and ROLLED_BACK in told:
            return "a part is stored of what is rolled back"
        if state.stored and state.barred:
            return "a producer without the id has committed"
        if len({index for index, _ in state.stored}) < len(state.stored):
            return "a part is stored twice"
        if state.time < 2:
            return self._wrong_with(state, self.known(state), told)
        return ""

    def _wrong_with(
        self, state: State, ledger: TransactionLedger, told: set[TransactionState]
    ) -> str:
        answer = ledger.answer(NUMBER).state
        if COMMITTED in told and answer is not COMMITTED:
            return f"one was told that it is committed, and it is {answer.word}"
        if PREPARED in told and answer not in (PREPARED, *_DECIDED):
            return f"one was told that it is prepared, and it is {answer.word}"
        asked = {request.state for request in state.sent}
        if PREPARED in told and answer is ROLLED_BACK and ROLLED_BACK not in asked:
            return "nobody has rolled back what was prepared, and it is"
        found = ledger.active.get(NUMBER)
        if found is not None and found.state is OPEN and not found.ends_ms:
            return "it is open, and nothing will end it"
        if found is not None and found.state is COMMITTED:
            parts = sorted(_PARTS.index(each.to) for each in found.parts)
            wanted = sorted(part for each in self.story.requests for part in each.parts)
            if parts != wanted or any(each.messages != 1 for each in found.parts):
                return f"it is committed with the parts {found.parts}, not {wanted}"
        return ""


def _decisions(state: State) -> list[TransactionState]:
    """Return what the committed log decides, one after the other."""
    return [
        note.state
        for batch in state.log[: state.committed]
        for note in batch
        if isinstance(note, TransactionStep) and note.state in _DECIDED
    ]


def take(ledger: TransactionLedger, log: tuple[Batch, ...]) -> None:
    """Have a ledger read batches."""
    offset = 0
    for batch in log:
        for note in batch:
            offset += 10
            if isinstance(note, PartPiece):
                ledger.take_piece(note, offset, 10)
            elif isinstance(note, TransactionStep):
                ledger.take_step(note, offset)
            else:
                assert isinstance(note, Client)
                ledger.take_client(note, offset)


class Outcome(NamedTuple):
    """The result: how many states there are, and the steps to what is wrong, if anything is."""

    states: int
    wrong: str = ""
    steps: tuple[str, ...] = ()


def explore(story: Story, rules: Rules | None = None, *, most: int = 400_000) -> Outcome:
    """Go through all that may happen, until something is wrong.

    Raises:
        AssertionError: There are more states than ``most``.
    """
    model = Model(story, rules or Rules())
    begin = State()
    came: dict[State, tuple[State, str] | None] = {begin: None}
    waiting = deque([begin])
    while waiting:
        state = waiting.popleft()
        for name, after in model.steps(state):
            if after in came:
                continue
            came[after] = state, name
            wrong = model.wrong(after)
            if wrong:
                return Outcome(len(came), wrong, _path(came, after))
            waiting.append(after)
            assert len(came) <= most, f"more than {most} states"
    return Outcome(len(came))


def _path(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[state]) is not None:
        state, name = before
        steps.append(name)
    return tuple(reversed(steps))
