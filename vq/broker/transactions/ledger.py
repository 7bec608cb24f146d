"""The transactions of one journal: what each is, and what a request may make of it. Pure.

             ┌──────▶ prepared ─────┐
    (none) ──┼──▶ open ─────────────┼──▶ committed ──▶ all stored ──▶ remembered ──▶ forgotten
             └──────────────────────┴──▶ rolled back ───────────────▶ remembered ──▶ forgotten

An open one is rolled back when its time is over, or when somebody else takes its transactional id;
one that is prepared is ended only by a decision. The first decision counts, and whoever comes later
is told. One that has ended is remembered for longer than a request for it may be on its way; later
ones are known by the time that its number has.

A decision is kept until somebody says to forget it, if an operator has made it on one that is
prepared, or if it commits one that decides for other resources, too (``keep``).
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.broker.transactions.ended import BEGUN_WITHIN_MS, EndedTransactions
from vq.broker.transactions.journaled import (
    JournaledPart,
    JournaledTransaction,
    add_piece,
    carried,
    uncarried,
)
from vq.broker.transactions.judging import (
    Answer,
    Ask,
    after_end,
    answer_in,
    answer_of,
    check_decider,
    check_parts,
    judge_open,
    judge_prepared,
)
from vq.broker.transactions.notes import (
    FENCED,
    RECOVERED,
    Carried,
    Checked,
    Client,
    PartPiece,
    TransactionStep,
)
from vq.broker.transactions.transactional_ids import TransactionalIds
from vq.errors import Busy, InvalidRequest, TransactionRefused
from vq.model import TransactionState, time_ms_of
from vq.shown import shown

OPEN: Final = TransactionState.OPEN
PREPARED: Final = TransactionState.PREPARED
COMMITTED: Final = TransactionState.COMMITTED
ROLLED_BACK: Final = TransactionState.ROLLED_BACK
FORGOTTEN: Final = TransactionState.FORGOTTEN
_DECIDED: Final = frozenset((COMMITTED, ROLLED_BACK))
#: Of the last ones that have ended all is kept, for operators; of so many, with so many parts.
TOLD_MAX: Final = 1_000
TOLD_PARTS_MAX: Final = 50_000
#: Transactions of one journal that have not ended.
UNDECIDED_MAX: Final = 10_000
#: A producer mostly tells what a node in ZooKeeper has decided, within so long.
TOLD_WITHIN_MS: Final = 500
#: Notes with their messages.
PIECES_MAX: Final = 200_000
#: Decisions that are kept until they are forgotten, and the parts of these.
KEPT_MAX: Final = 10_000
KEPT_PARTS_MAX: Final = 100_000


@dataclass(slots=True)
class _CopiedTransaction:
    """What was read of a copy of a transaction."""

    offset: int
    pieces: int = 0
    parts: list[JournaledPart] = field(default_factory=list)


class TransactionLedger:
    """See the module. Not safe for several threads.

    Attributes:
        active: Transactions that are not decided, or not stored; in the order of their notes.
        kept: Those whose decision is kept; in the order of the notes that have it.
        ids: The transactional ids of its producers.
        size: Bytes of the notes with messages of all that is active.
    """

    def __init__(self) -> None:
        self.active: dict[int, JournaledTransaction] = {}
        self.kept: OrderedDict[int, JournaledTransaction] = OrderedDict()
        self.size = self._kept_parts = 0
        self._copies: dict[int, _CopiedTransaction] = {}
        self._ended = EndedTransactions()
        self._told: OrderedDict[int, JournaledTransaction] = OrderedDict()  # the last ones of these
        self._checked: dict[int, JournaledTransaction] = {}  # half messages that have not ended
        self.ids = TransactionalIds()
        self._pieces = self._told_parts = 0

    # Notes ----------------------------------------------------------------------------------------
    def take_piece(self, piece: PartPiece, offset: int, length: int) -> None:
        """Take a note that is at an offset of the journal and has so many bytes there."""
        number = piece.transaction
        if number in self._ended:
            return
        if piece.copy:
            self._take_copy(piece, offset, length)
            return
        found = self.active.get(number)
        if found is None:
            found = self.active[number] = JournaledTransaction(number, offset)
        if piece.part > len(found.parts):
            self._tear(found)
        if found.torn:
            return
        add_piece(found.parts, piece, offset, length)
        self._pieces += 1
        self.size += length

    def _take_copy(self, piece: PartPiece, offset: int, length: int) -> None:
        copy = self._copies.get(piece.transaction)
        if piece.copy == 1:
            copy = self._copies[piece.transaction] = _CopiedTransaction(offset)
        if copy is None or piece.copy != copy.pieces + 1 or piece.part > len(copy.parts):
            self._copies.pop(piece.transaction, None)  # its first pieces are gone, or never came
            return
        add_piece(copy.parts, piece, offset, length)
        copy.pieces += 1

    def _tear(self, found: JournaledTransaction) -> None:
        """Leave out the parts of a transaction whose first notes are gone: retention has them.

        They are kept until it has ended, so nothing of it is to be delivered.
        """
        found.torn = True
        self._drop_parts(found)

    def _drop_parts(self, found: JournaledTransaction) -> None:
        self._uncount(found)
        found.parts = []

    def _uncount(self, found: JournaledTransaction) -> None:
        for part in found.parts:
            self._pieces -= len(part.pieces)
            for _, length in part.pieces:
                self.size -= length

    def take_carried(self, note: Carried, offset: int) -> None:
        """Take a note that has what older ones have: these are not needed any more."""
        number, state = note.transaction, note.state
        copy = self._copies.pop(number, None) or _CopiedTransaction(offset)
        if state in _DECIDED:
            self._keep(note, offset)
            return
        found = self.active.get(number)
        is_decided = number in self._ended or (found is not None and found.state in _DECIDED)
        if is_decided or copy.pieces != note.pieces:
            return
        if found is not None:
            self._uncount(found)
        found = self.active[number] = uncarried(note, copy.offset)
        found.parts = copy.parts
        if found.checks is not None:
            self._checked[number] = found
        for part in found.parts:
            self._pieces += len(part.pieces)
            self.size += sum(length for _, length in part.pieces)
        self.active = dict(sorted(self.active.items(), key=lambda each: each[1].offset))

    def _keep(self, note: Carried, offset: int) -> None:
        kept = self.kept.pop(note.transaction, None)
        if kept is None:
            kept = uncarried(note, offset)
            self._kept_parts += len(kept.parts)
        kept.offset = offset
        self.kept[note.transaction] = kept

    def _forget_decision(self, number: int) -> None:
        kept = self.kept.pop(number, None)
        if kept is not None:
            self._kept_parts -= len(kept.parts)

    def take_step(self, step: TransactionStep, offset: int) -> JournaledTransaction | None:
        """Take a note; return the transaction if it is committed now, and is to be delivered."""
        number = step.transaction
        if step.state is FORGOTTEN:
            self._forget_decision(number)
            return None
        if number in self._ended:
            return None
        found = self.active.get(number)
        if found is None:
            found = self.active[number] = JournaledTransaction(number, offset)
        if not found.requests and step.request > 1:
            self._tear(found)
        if not found.begun_ms:
            found.begun_ms = step.at_ms
            found.ends_ms = step.at_ms + step.timeout_ms if step.timeout_ms else 0
            found.client, found.client_epoch = step.client, step.client_epoch
            found.xid, found.keep, found.user = step.xid, step.keep, step.user
        self.ids.used(step.client, step.at_ms)
        if found.state in _DECIDED or (found.state is not OPEN and step.is_automatic):
            return None  # the first decision counts
        found.requests, found.state = step.request, step.state
        if step.state is PREPARED and step.decision:
            found.decision, found.decision_version = step.decision, step.decision_version
            found.prepared_ms = step.at_ms
        elif step.state is not OPEN:
            found.ends_ms = 0
        if step.checks is not None:
            found.checks = step.checks
            self._checked[number] = found
        if step.state in _DECIDED:
            found.by, found.decided_ms = step.by, step.at_ms
        if step.state is ROLLED_BACK or (step.state is COMMITTED and not found.parts):
            self.end(found)
            return None
        if step.state is not COMMITTED:
            return None
        found.committed_at = offset
        return found

    def take_checked(self, note: Checked) -> None:
        """Take that a producer has got a check."""
        found = self.active.get(note.transaction)
        if found is not None and found.checks is not None:
            found.checks = found.checks._replace(sent=note.sent, next_ms=note.next_ms)

    def take_client(self, note: Client, offset: int) -> int:
        """Take who has a transactional id; return how many transactions that has rolled back."""
        self.ids.take(note, offset)
        before = [
            each
            for each in self.active.values()
            if each.client == note.id and each.client_epoch < note.epoch
        ]
        for each in before:
            if each.is_undecided:  # nobody is to decide it any more but the node
                each.ends_ms = min(each.ends_ms, note.at_ms)
        old = [each for each in before if each.state is OPEN]
        for each in old:
            each.state, each.by = ROLLED_BACK, FENCED
            each.ends_ms, each.decided_ms = 0, note.at_ms
            self.end(each)
        return len(old)

    def end(self, transaction: JournaledTransaction) -> None:
        """Remember only what became of a transaction: it is stored, or is for nobody."""
        number, parts, state = transaction.number, transaction.parts, transaction.state
        del self.active[number]
        self._checked.pop(number, None)
        offsets = tuple([each.offset for each in parts]) if state is COMMITTED else ()
        self._uncount(transaction)
        self._copies.pop(number, None)
        for part in parts:
            part.pieces.clear()
        kept = self.kept.get(number)
        if kept is not None and len(kept.parts) == len(parts):
            kept.parts = parts  # with the offsets of what is stored
        decided_ms, user = transaction.decided_ms, transaction.user
        self._ended.add(number, (int(state), transaction.by, offsets, decided_ms, user))
        self._told[number] = transaction
        self._told_parts += len(transaction.parts)
        while len(self._told) > TOLD_MAX or self._told_parts > TOLD_PARTS_MAX:
            _, told = self._told.popitem(last=False)
            self._told_parts -= len(told.parts)

    def forget(self, now_ms: int) -> None:
        """Forget what nobody can ask for any more."""
        self._ended.forget(now_ms)
        self.ids.forget(now_ms)

    # Requests -------------------------------------------------------------------------------------
    def judge(self, ask: Ask, now_ms: int) -> Answer | None:
        """Return the answer to a request; None: it is to be carried out.

        Raises:
            VqError: It is refused, and nothing was changed.
        """
        found = self.active.get(ask.number)
        if ask.state is FORGOTTEN:
            return self._judge_forget(ask, found)
        ended = self._ended.get(ask.number)
        if ended is not None:
            return after_end(ask, answer_in(ended))
        if found is None and ask.number in self.kept:
            return after_end(ask, self.answer(ask.number))
        if found is not None and found.state is COMMITTED:
            return after_end(ask, answer_of(found))
        if not ask.by:
            self.ids.check(ask, found, lambda: self._is_late(ask.number, now_ms))
        if found is None:
            return self._judge_unknown(ask, now_ms)
        if ask.group:
            check_decider(ask, found)
        if ask.state in {found.state, TransactionState.UNKNOWN} and (
            ask.request < found.requests or ask.state is not OPEN
        ):
            return Answer(found.state)
        if found.state is PREPARED:
            judge_prepared(ask)
            if self.is_kept(ask, found) and not found.keep:  # that has its place from the begin on
                self._check_kept(len(found.parts))
        else:
            judge_open(ask, found)
        return None

    def _judge_forget(self, ask: Ask, found: JournaledTransaction | None) -> Answer | None:
        if ask.has_parts:
            raise InvalidRequest("messages in a request that is to forget a decision")
        if ask.number in self.kept:
            return None
        if found is not None and found.state is not COMMITTED:
            raise TransactionRefused(
                f"transaction {ask.number} is {found.state.word}; only a decision can be forgotten"
            )
        return self.answer(ask.number)

    def is_kept(self, ask: Ask, found: JournaledTransaction | None) -> bool:
        """Whether the decision that a request asks for is kept until it is forgotten."""
        if found is None or found.state is not PREPARED or ask.state not in _DECIDED:
            return False
        by_operator = bool(ask.by) and ask.by != RECOVERED and not ask.group
        return by_operator or (found.keep and ask.state is COMMITTED)

    def _check_kept(self, parts: int) -> None:
        """Return if one more decision can be kept.

        Raises:
            Busy: It cannot.
        """
        coming = [e for e in self.active.values() if e.keep and e.number not in self.kept]
        count = len(self.kept) + len(coming)
        parts += self._kept_parts + sum(len(each.parts) for each in coming)
        if count >= KEPT_MAX or parts > KEPT_PARTS_MAX:
            raise Busy(
                f"this journal keeps {len(self.kept)} decisions, and {len(coming)} are to come, of "
                f"{parts} parts; at most {KEPT_MAX} of {KEPT_PARTS_MAX} are kept",
                hint="`vq tx list --kept` shows them, `vq tx forget` and a number forgets one",
            )

    def check_name(self, ask: Ask) -> None:
        """Return if a transaction that begins may have its name, and be kept if it wants that.

        Raises:
            TransactionRefused: Another one has the name.
            Busy: Its decision could not be kept.
        """
        if ask.number in self.active:
            return
        if ask.keep:
            self._check_kept(0)
        if not ask.xid:
            return
        for each in (*self.active.values(), *self.kept.values()):
            if each.xid == ask.xid and each.number != ask.number:
                raise TransactionRefused(
                    f"the name {shown(ask.xid)} is in use: transaction {each.number} has it, and "
                    f"is {each.state.word}",
                    hint="give each transaction a name of its own; if it is an old one, end it",
                    details={"transaction": each.number},
                )

    def check_parts(self, number: int, pieces: Sequence[PartPiece]) -> None:
        """Return if a transaction may have these pieces, too.

        Raises:
            InvalidRequest: They do not follow those that it has, or it would have too much.
            Busy: All together would have too much.
        """
        check_parts(self.active.get(number), pieces)
        if pieces and self._pieces + len(pieces) > PIECES_MAX:
            raise Busy(
                f"the transactions of this journal that have not ended have {self._pieces} parts; "
                f"at most {PIECES_MAX} may be under way"
            )

    def user_of(self, number: int) -> str:
        """Return who has begun a transaction; "": that is not known, or the transaction is not."""
        ended = self._ended.get(number)
        found = self.active.get(number) or self.kept.get(number)
        return ended[-1] if ended is not None else found.user if found is not None else ""

    def answer(self, number: int) -> Answer:
        """Return what became of a transaction."""
        ended = self._ended.get(number)
        if ended is not None:
            return answer_in(ended)
        found = self.active.get(number) or self.kept.get(number)
        return Answer(TransactionState.UNKNOWN) if found is None else answer_of(found)

    def answer_to(self, ask: Ask) -> Answer:
        """Return what became of a transaction for which a request was carried out.

        Raises:
            TransactionRefused: It became something else.
        """
        return after_end(ask, self.answer(ask.number))

    def _is_late(self, number: int, now_ms: int) -> bool:
        """Whether a transaction that is not known may have ended, and been forgotten."""
        begun_ms = time_ms_of(number)
        return now_ms - begun_ms > BEGUN_WITHIN_MS or begun_ms <= self._ended.floor_ms

    def _judge_unknown(self, ask: Ask, now_ms: int) -> Answer | None:
        number, since_ms = ask.number, now_ms - time_ms_of(ask.number)
        if ask.state is TransactionState.UNKNOWN:
            return Answer(TransactionState.UNKNOWN)
        if self._is_late(number, now_ms) or since_ms < -BEGUN_WITHIN_MS:
            raise TransactionRefused(
                f"transaction {number} is not known here, and it was begun {since_ms / 1_000:.0f} "
                f"s ago by this broker's clock; at most {BEGUN_WITHIN_MS // 1_000} s are allowed",
                hint="it is rolled back, or it ended long ago; or the clocks of producer and "
                "broker differ",
                details={"state": int(TransactionState.UNKNOWN)},
            )
        self._ended.check_may_begin(number, now_ms)
        if ask.state is ROLLED_BACK and not (ask.by and ask.group):  # a group knows what it got
            return None
        if ask.by:  # it may be on its way
            raise TransactionRefused(
                f"transaction {number} is not known here: it has not come yet, or it ended",
                details={"state": int(TransactionState.UNKNOWN)},
            )
        if ask.request:
            raise TransactionRefused(f"transaction {number} is not known here; it is rolled back")
        if len(self.active) >= UNDECIDED_MAX:
            raise Busy(
                f"{len(self.active)} transactions of this journal have not ended; at most "
                f"{UNDECIDED_MAX} may be under way"
            )
        return None

    # What is due ----------------------------------------------------------------------------------
    def overdue(self, now_ms: int) -> list[JournaledTransaction]:
        """Return the open transactions whose time is over."""
        return [
            each
            for each in self.active.values()
            if each.state is OPEN and each.ends_ms and each.ends_ms <= now_ms
        ]

    def checks_due(self, now_ms: int) -> list[JournaledTransaction]:
        """Return the half messages of which it is time to ask, or to park them."""
        return [each for each in self._checked.values() if each.is_check_due(now_ms)]

    def parked(self, now_ms: int) -> list[JournaledTransaction]:
        """Return the half messages of which no producer is asked any more."""
        return [each for each in self._checked.values() if each.is_parked(now_ms)]

    def checked_again(self, number: int) -> JournaledTransaction:
        """Return a half message that is to be checked from the beginning.

        Raises:
            TransactionRefused: It has ended, or is no half message.
        """
        found = self.active.get(number)
        if found is None or found.state is not PREPARED:
            state = self.answer(number).state
            raise TransactionRefused(
                f"transaction {number} is {'not known here' if not state else state.word}; only "
                "one that is prepared is checked",
                details={"state": int(state)},
            )
        if found.checks is None:
            raise TransactionRefused(
                f"transaction {number} is no half message: no producer can be asked",
                hint="look what became of it elsewhere, and commit it or roll it back",
            )
        return found

    def undecided(self, now_ms: int) -> list[JournaledTransaction]:
        """Return those whose nodes in ZooKeeper are to be looked at: nobody tells how they end."""
        return [
            each
            for each in self.active.values()
            if each.is_undecided and each.prepared_ms + TOLD_WITHIN_MS <= now_ms
        ]

    def awaited(self) -> set[str]:
        """Return the names of the nodes in ZooKeeper that decide a transaction."""
        return {each.decision for each in self.active.values() if each.is_undecided}

    def needs(self) -> list[int]:
        """Return the offsets from which on the journal is needed."""
        first = next(iter(self.active.values()), None)
        kept = next(iter(self.kept.values()), None)
        offsets = [each.offset for each in (first, kept) if each is not None]
        client = self.ids.first_offset()
        return offsets if client is None else [*offsets, client]

    def prepared_before(self, offset: int) -> Iterator[JournaledTransaction]:
        """Yield what only a decision ends and was noted before an offset, the oldest first."""
        for each in self.active.values():
            if each.offset >= offset:
                break
            if each.state is PREPARED:
                yield each

    def kept_before(self, offset: int) -> Iterator[Carried]:
        """Yield the decisions that are kept and noted before an offset, the oldest ones first."""
        for each in self.kept.values():
            if each.offset >= offset:
                break
            yield carried(each)

    def listed(
        self, *, ended: bool = False, kept: bool = False, xid: str = ""
    ) -> Iterator[JournaledTransaction]:
        """Yield the transactions that are known, in the order of their numbers.

        Args:
            ended: Also those that have ended.
            kept: Also those whose decision is kept.
            xid: Only those with this name; "": all.
        """
        known = {**(self.kept if kept or ended else {}), **(self._told if ended else {})}
        known |= self.active
        for number in sorted(known):
            if not xid or known[number].xid == xid:
                yield known[number]

    def committed(self) -> list[JournaledTransaction]:
        """Return what is committed, and not all of it stored, in the order of these decisions."""
        found = [each for each in self.active.values() if each.state is COMMITTED]
        return sorted(found, key=lambda each: each.committed_at)

    def counts(self) -> dict[TransactionState, int]:
        """Return how many transactions have not ended, by what they are."""
        counts = dict.fromkeys((OPEN, PREPARED, COMMITTED), 0)
        for each in self.active.values():
            counts[each.state] += 1
        return counts
