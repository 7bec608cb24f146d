"""Transactional ids that one partition of the journal knows: who has each now. Pure."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from vq.broker.transactions.journaled import JournaledTransaction
from vq.broker.transactions.judging import Ask
from vq.broker.transactions.notes import Client
from vq.errors import Busy, ProducerFenced, TransactionRefused
from vq.model import TransactionState

#: A transactional id that nobody has used for so long is forgotten.
CLIENT_KEPT_MS: Final = 7 * 86_400_000
CLIENTS_MAX: Final = 20_000
#: The epoch of one is at most so high when it is taken first: it has 32 bits on the wire.
FIRST_EPOCH_MAX: Final = 2**31


@dataclass(slots=True)
class _KnownClient:
    epoch: int
    offset: int
    used_ms: int


class TransactionalIds:
    """See the module. Not safe for several threads."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _KnownClient] = OrderedDict()  # in the order of their notes

    def take(self, note: Client, offset: int) -> None:
        """Take a note of who has one."""
        self._clients[note.id] = _KnownClient(note.epoch, offset, note.at_ms)
        self._clients.move_to_end(note.id)

    def used(self, client: str, at_ms: int) -> None:
        """Take that one was used."""
        known = self._clients.get(client)
        if known is not None:
            known.used_ms = max(known.used_ms, at_ms)

    def forget(self, now_ms: int) -> None:
        """Forget the oldest one if nobody has used it for long."""
        first = next(iter(self._clients), None)
        if first is not None and self._clients[first].used_ms + CLIENT_KEPT_MS <= now_ms:
            del self._clients[first]

    def check(
        self, ask: Ask, found: JournaledTransaction | None, is_late: Callable[[], bool]
    ) -> None:
        """Return if who asks for a transaction may do that.

        Args:
            ask: The request.
            found: The transaction, if it has not ended.
            is_late: Whether one that is not found may have ended, and been forgotten.

        Raises:
            TransactionRefused: Somebody else has begun it, or the id is not known.
            ProducerFenced: Another producer has the id.
        """
        if found is not None and ask.state is TransactionState.UNKNOWN:
            return
        if found is not None and found.client != ask.client:
            raise TransactionRefused(
                f"transaction {ask.number} was begun by {_named(found.client)}, and "
                f"{_named(ask.client)} asks for it"
            )
        if not ask.client:
            return
        known = self._clients.get(ask.client)
        if known is None:
            raise TransactionRefused(
                f"transactional id {ask.client!r} is not known here; nobody has used it for "
                f"{CLIENT_KEPT_MS // 86_400_000} days",
                hint="make a new producer with that id",
            )
        if ask.client_epoch != known.epoch:  # a higher one was known here, and forgotten
            if found is not None:
                state = found.state  # it is prepared: others decide it
            else:
                state = TransactionState.UNKNOWN if is_late() else TransactionState.ROLLED_BACK
            raise ProducerFenced(
                f"another producer has taken the transactional id {ask.client!r}: epoch "
                f"{ask.client_epoch} is over, {known.epoch} holds; transaction {ask.number} is "
                f"{state.word}",
                details={"state": int(state)},
            )

    def epoch_of(self, client: str) -> int:
        """Return the epoch of a transactional id; 0: it is not known.

        Raises:
            Busy: It would be one too many.
        """
        known = self._clients.get(client)
        if known is None and len(self._clients) >= CLIENTS_MAX:
            raise Busy(
                f"{len(self._clients)} transactional ids are known to this journal; at most "
                f"{CLIENTS_MAX} may be, and each is for {CLIENT_KEPT_MS // 86_400_000} days after "
                "its last use"
            )
        return 0 if known is None else known.epoch

    def next_epoch(self, client: str, now_ms: int) -> int:
        """Return the epoch for who takes a transactional id now.

        That of one which is not known is the time, in seconds: it may have been known before, and
        whoever had it then must not have the same one. Between was a week.

        Raises:
            Busy: See ``epoch_of``.
        """
        known = self.epoch_of(client)
        return known + 1 if known else min(max(1, now_ms // 1_000), FIRST_EPOCH_MAX)

    def before(self, offset: int) -> Iterator[Client]:
        """Yield the clients whose notes are before an offset, the oldest ones first."""
        for id, known in self._clients.items():
            if known.offset >= offset:
                break
            yield Client(id, known.epoch, known.used_ms)

    def first_offset(self) -> int | None:
        """Return where the oldest note is that is needed; None: there is none."""
        first = next(iter(self._clients.values()), None)
        return None if first is None else first.offset


def _named(client: str) -> str:
    return f"transactional id {client!r}" if client else "a producer without a transactional id"
