"""Messages go out of a local queue: they are taken, then completed, failed, or their lease ends.

What waits for a time is given again by ``Takes.watch_times``: delays, retries, leases.
"""

import math
import threading
from typing import Final

from vq.errors import CorruptData, InvalidArgument, InvalidState, LeaseLost, StorageFailed, VqError
from vq.local.core.base import QueueBase
from vq.local.core.waits import Waker
from vq.local.files.notes import Aside, code_of
from vq.local.items import LATER, LocalItem, check_item, due_ms_after
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: Messages that are due and have no room in memory are looked for again after so long.
_CROWDED_PAUSE_S: Final = 0.05
_LEASE_LOOKS: Final = 10  # per lease
_LEASE_LOOK_S: Final = 0.02  # ... and not more often


class Takes:
    """What takers of one queue need. Any thread, but for ``watch_times``.

    Attributes:
        takers: Who waits for a message.
    """

    def __init__(self, base: QueueBase) -> None:
        self._base = base
        self._state = base.state
        self._opened = base.opened
        self._intake = base.intake
        self._sleeper = base.sleeper
        self.takers = base.takers
        self._spaces = base.spaces
        self._next_look = base.clock.monotonic()

    # Taken ----------------------------------------------------------------------------------------
    def take_now(self) -> LocalItem | None:
        """Return the next message; None: there is none now. May read from the disk.

        Raises:
            InvalidState, StorageFailed: As ``QueueBase.check``.
            CorruptData, PartitionFailed, PartitionQuarantined: The next message cannot be read.
        """
        base = self._base
        base.check()
        unreadable: dict[int, VqError] = {}
        while True:
            with base.lock:
                found = self._state.next_ready(unreadable)
                if isinstance(found, LocalItem):
                    found.deadline = base.clock.monotonic() + base.lease_s
                    return found
                if found is None:
                    for error in unreadable.values():
                        raise error
                    return None
                try:
                    count = base.load(found)
                except VqError as error:  # the other lanes go on
                    unreadable[found] = error
                    continue
            if count > 1 and self.takers.line:
                self.takers.wake(count - 1)

    def wait_for_message(self, taker: Waker) -> bool:
        """Have a taker woken when there may be a message; False: there may be one already."""
        self.takers.line.append(taker)
        if self._state.has_next or self._base.refusal is not None:
            return not self.takers.leave(taker)
        return True

    def pass_on(self) -> None:
        """Wake another taker in the place of one that does not look any more."""
        if self.takers.line and self._state.has_next:
            self.takers.wake(1)

    @property
    def must_read(self) -> bool:
        """Whether the next message may be on disk only."""
        return any(line.unread and not line.ready for line in self._state.lines)

    def give_back(self, item: LocalItem) -> None:
        """Give a message again that no taker has seen."""
        if self._base.refusal is not None:  # as in ``extend``; a new start gives it again
            return
        self._base.check_not_interrupting()
        with self._base.lock:
            again = self._state.exchange(item, item.attempts)
            if again is not None:
                self._state.give(again)
        self.takers.wake()

    # What becomes of them -------------------------------------------------------------------------
    def complete(self, item: LocalItem) -> None:
        """Note that a message is done.

        Raises:
            LeaseLost, InvalidArgument, InvalidState, StorageFailed: As ``lost``.
        """
        try:
            self._opened.remove(item)
        except (KeyError, TypeError):
            raise self.lost(item) from None
        storage = self._base.storage
        if storage is not None:
            code = item.number << 2 | item.lane
            try:
                storage.pad.note(code)
            except ValueError:  # it was closed just now
                raise InvalidState("the queue is closed; the message is given again") from None
            self._intake.done.append(code)
            if self._sleeper.asleep:
                self._sleeper.kick()
        if self._spaces.line:
            self._spaces.wake()

    def lost(self, item: object) -> VqError:
        """Return the error for an item that does not stand for its message."""
        refusal = self._base.refusal
        if refusal is not None:
            return type(refusal)(refusal.message, hint=refusal.hint)
        try:
            own = check_item(item, self._base.name)
        except InvalidArgument as error:
            return error
        return LeaseLost(
            f"message {own.id} of queue {self._base.name!r} is not with this taker any more: it "
            "was completed or failed, or its lease ended and it was given to another one"
        )

    def fail(self, item: LocalItem, delay_s: float | None = None) -> None:
        """Give a message again: at once, after ``delay_s``, or as the retries say.

        Raises:
            LeaseLost: The item does not stand for it any more.
            StorageFailed: It cannot be moved to the retry lane; it stays with the taker.
        """
        base = self._base
        base.check()
        if not isinstance(item, LocalItem):
            raise self.lost(item)
        due_ms = None
        if delay_s is not None:
            due_ms = due_ms_after(delay_s, base.clock.wall_ms())
        elif item.attempts > base.config.retries:
            due_ms = base.retry_ms()
        stopped = base.stopped.get(LATER)
        if stopped is not None and due_ms is not None and item.lane != LATER:
            raise StorageFailed(stopped.message, hint=stopped.hint)
        with base.lock:
            again = self._state.exchange(item, item.attempts + 1)
            if again is None:
                raise self.lost(item)
            base.counts.failed += 1
            if due_ms is None:
                self._state.give(again)
            else:
                base.set_aside(item, again, due_ms)
        if due_ms is None:
            self.takers.wake(1)
        else:
            self._sleeper.kick()  # whether it sleeps or not: it may have looked at times before

    def extend(self, item: LocalItem) -> None:
        """Begin the lease of a message anew.

        Raises:
            LeaseLost: The item does not stand for it any more.
        """
        base = self._base
        if not isinstance(item, LocalItem):
            raise self.lost(item)
        if base.refusal is not None:  # in the child of a fork the lock may be held for ever
            raise self.lost(item)
        base.check_not_interrupting()
        with base.lock:
            if item not in self._opened:
                raise self.lost(item)
            item.deadline = base.clock.monotonic() + base.lease_s

    # Times ----------------------------------------------------------------------------------------
    def watch_times(self) -> float:
        """Give again what is due; return how long to sleep, -1 for without an end.

        For the thread only.
        """
        base, state, lease_s = self._base, self._state, self._base.config.lease_s
        now, now_ms = base.clock.monotonic(), base.clock.wall_ms()
        with base.lock:
            was_crowded = state.crowded
            due = state.take_due(now_ms)
            for aside in due:
                self._give_due(aside, now_ms)
            may_go_on = was_crowded and not state.crowded
            expired = 0
            if lease_s is not None and now >= self._next_look:
                expired = self._expire(now)
                self._next_look = now + max(lease_s / _LEASE_LOOKS, _LEASE_LOOK_S)
            next_ms = state.next_due_ms
        if may_go_on:  # all that is in line waited, too
            self.takers.wake(state.waiting)
        elif due or expired:
            self.takers.wake(len(due) + expired)
        wait_s = math.inf if lease_s is None else self._next_look - now
        if next_ms is not None:
            until_s = (next_ms - now_ms) / 1000
            wait_s = min(wait_s, until_s if until_s > 0 else _CROWDED_PAUSE_S)
        return -1 if wait_s == math.inf else min(max(wait_s, 0.001), threading.TIMEOUT_MAX)

    def _give_due(self, aside: Aside, now_ms: int) -> None:
        base, state = self._base, self._state
        try:
            item = base.item_of(aside)
        except VqError as error:
            if self._is_set_aside(aside, error):
                return
            logger.error("message cannot be read, trying again later", queue=base.name, error=error)
            state.put_back(aside, now_ms + int(base.config.retry_s * 1000))
            return
        state.kept.pop(aside.number, None)
        state.give(item, first=False)

    def _is_set_aside(self, aside: Aside, error: VqError) -> bool:
        """Whether a message that cannot be read is out of the queue, and its bytes are kept."""
        storage = self._base.storage
        if storage is None or not isinstance(error, CorruptData):
            return False
        try:
            storage.damage.set_aside(LATER, aside.offset, aside.number, error)
        except VqError:
            return False
        self._intake.done.append(code_of(LATER, aside.number))
        return True

    def _expire(self, now: float) -> int:
        count = 0
        for item in self._state.overdue(now):
            again = self._state.exchange(item, item.attempts + 1)
            if again is not None:
                self._state.give(again)
                count += 1
        self._base.counts.expired += count
        return count
