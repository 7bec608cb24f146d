"""Producers that wait at a journal for checks, and who of them gets which. No I/O.

    half message is due ──▶ a producer of its group waits here ──▶ handed to it: asked, counted
                                  │ none does
                                  └──▶ it waits, and nothing is counted

The one that has waited longest is asked first. A producer has one request here for each journal;
another one of it takes the place of the first.
"""

import asyncio
from collections.abc import Container, Sequence
from typing import Final

from vq import limits
from vq.broker.base.session import Session
from vq.broker.transactions.ledger import TransactionLedger
from vq.errors import Busy, VqError

#: Producers that wait at one journal.
WAITING_MAX: Final = 1_000
#: Answers for which messages are read at a time: each has up to 4 MiB of them.
HANDED_MAX: Final = 4


class WaitingProducer:
    """A CHECK that waits. Its connection ends it, or another request of its producer.

    Attributes:
        session, group, instance: Who asks.
        count: So many half messages it takes.
        handed: Their numbers once there are some; none: it has ended.
    """

    __slots__ = ("count", "group", "handed", "instance", "session")

    def __init__(self, session: Session, group: str, instance: int, count: int) -> None:
        self.session = session
        self.group = group
        self.instance = instance
        self.count = count
        self.handed: asyncio.Future[Sequence[int]] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        """Whether nobody would get an answer."""
        return self not in self.session.waiting

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self.session.waiting.pop(self, None)
        if not self.handed.done():
            self.handed.set_result(())


class CheckDesk:
    """See the module. Loop-bound.

    Args:
        ledger: Knows the half messages.
    """

    def __init__(self, ledger: TransactionLedger) -> None:
        self._ledger = ledger
        self._waiting: dict[str, dict[WaitingProducer, None]] = {}  # by group, in their order
        self._producers: dict[tuple[Session, int], WaitingProducer] = {}
        self._due: dict[str, list[int]] = {}  # by group, as they were when it was looked last
        self._handed: set[int] = set()
        self._answers = 0
        self._parked: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._producers

    def wait(self, session: Session, group: str, instance: int, count: int) -> WaitingProducer:
        """Have a producer wait; its earlier request here ends.

        Raises:
            Busy: Too many wait.
        """
        before = self._producers.get((session, instance))
        if before is not None:
            before.cancel()
            self.leave(before)
        if len(self._producers) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} producers wait for checks of this journal; no more may")
        waiting = WaitingProducer(session, group, instance, count)
        session.waiting[waiting] = None
        self._producers[session, instance] = waiting
        self._waiting.setdefault(group, {})[waiting] = None
        return waiting

    def leave(self, waiting: WaitingProducer) -> None:
        """Hand nothing to a producer any more."""
        key = waiting.session, waiting.instance
        if self._producers.get(key) is waiting:
            del self._producers[key]
        of_group = self._waiting.get(waiting.group, {})
        of_group.pop(waiting, None)
        if not of_group:
            self._waiting.pop(waiting.group, None)

    def look(self, now_ms: int) -> list[int]:
        """Note what is due; return what is parked since the last look."""
        due: dict[str, list[int]] = {}
        parked = set()
        for each in self._ledger.checks_due(now_ms):
            assert each.checks is not None
            if each.is_parked(now_ms):
                parked.add(each.number)
            elif each.number not in self._handed:
                due.setdefault(each.checks.group, []).append(each.number)
        self._due = due
        new, self._parked = sorted(parked - self._parked), parked
        return new

    def hand_out(self, now_ms: int, but: Container[object]) -> None:
        """Give what is due to producers that wait.

        Args:
            now_ms: The time, by the wall clock.
            but: Of these, a request is being carried out.
        """
        for group in list(self._due) if self._waiting else ():
            for waiting in list(self._waiting.get(group, ())):
                if self._answers >= HANDED_MAX:
                    return
                if waiting.session.congested or not waiting.count or waiting.handed.done():
                    continue  # the last one: its connection has ended, its task does not know it
                numbers = self._take(group, waiting.count, now_ms, but)
                if not numbers:
                    break
                self._handed.update(numbers)
                self._answers += 1
                self.leave(waiting)
                waiting.handed.set_result(numbers)

    def _take(self, group: str, count: int, now_ms: int, but: Container[object]) -> list[int]:
        """Take what is due of a group for one answer, the oldest first."""
        due, taken, room = self._due[group], list[int](), limits.TRANSACT_BYTES_MAX
        at = 0
        for at, number in enumerate(due):  # noqa: B007  it is used below
            found = self._ledger.active.get(number)
            if found is None or number in but or not found.is_check_due(now_ms):
                continue
            room -= sum(part.size for part in found.parts)
            if taken and (room < 0 or len(taken) >= count):
                break
            taken.append(number)
        else:
            at = len(due)
        del due[:at]
        return taken

    def answered(self, numbers: Sequence[int]) -> None:
        """Note that what was handed out is asked, or is not."""
        self._handed.difference_update(numbers)
        self._answers -= 1

    def close(self, error: VqError) -> None:
        """Refuse all that wait: another node leads."""
        for waiting in list(self._producers.values()):
            self.leave(waiting)
            if not waiting.handed.done():
                waiting.handed.set_exception(error)
                waiting.handed.exception()
