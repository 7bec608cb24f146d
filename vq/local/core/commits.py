"""What came into a local queue becomes durable: one commit for many callers, or a caller's own.

Callers put messages and codes of completed ones into ``intake``; the thread takes all there is,
appends it, flushes once for all of it (group commit), and wakes who waits. While it flushes, the
next round gathers. A caller that finds nobody at work commits its messages itself (``lead``): that
saves the hand-over to the thread and back. ``leading`` is held by whoever commits.

In here as well: snapshots, and what an I/O error stops.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from vq import limits
from vq.errors import Busy, CorruptData, DiskFull, InvalidState, StorageFailed, VqError
from vq.local.core.base import QueueBase
from vq.local.core.waits import (
    DONE_LINGER_S,
    CommitWaiter,
    Company,
    error_of,
    is_unstored,
    pop_into,
)
from vq.local.files.lanes import ALL_LANES, LOGS, NOTES
from vq.local.files.notes import Aside, LaneRange, code_of
from vq.local.files.pad import SLOTS
from vq.local.files.storage import Storage
from vq.local.items import LATER, LocalItem, copy_for_later
from vq.log_lines import get_logger

logger = get_logger(__name__)

_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper
#: So many messages, or bytes, that no commit has yet; then a put waits for a commit.
_INTAKE_ITEMS: Final = 50_000
_INTAKE_BYTES: Final = 64 * limits.MIB
#: Before the next try to write to a disk that is full.
_FULL_PAUSE_S: Final = 1.0
#: So many bytes of contents are few: they are copied, so that the blocks they lie in can go.
_MOVED_BYTES: Final = 8 * limits.MIB


class Led(NamedTuple):
    """What a caller commits by itself.

    Attributes:
        items: Its messages.
        lane: Of all of them.
        number, offset: The end of that lane before.
    """

    items: Sequence[LocalItem]
    lane: int
    number: int
    offset: int


#: Who waits for the end of a commit, and what went wrong, by lane.
_Round = tuple[Sequence[CommitWaiter], Mapping[int, VqError]]


class Commits:
    """The commits of one queue.

    Attributes:
        lost_error: Of the last put that nobody waited for,
        losses: and so often there was one.
    """

    def __init__(self, base: QueueBase) -> None:
        self._base = base
        self._state = base.state
        self._storage = base.storage
        self._intake = base.intake
        self._sleeper = base.sleeper
        self._leading = base.leading
        self._company = Company()
        self._note_at = self._notes_wait_until = base.clock.monotonic()
        self._thread_waits = False  # for ``leading``
        self._led: Led | None = None  # what a caller commits; left behind if it was interrupted
        self.lost_error: VqError | None = None
        self.losses = 0

    # For callers ----------------------------------------------------------------------------------
    @property
    def intake_full(self) -> bool:
        """Whether so many messages wait for a commit that a put must wait, too."""
        return len(self._intake.items) >= _INTAKE_ITEMS or self._intake.size_bytes >= _INTAKE_BYTES

    @property
    def done_full(self) -> bool:
        """Whether so many completions are in no note that the next one must wait."""
        return len(self._intake.done) >= SLOTS // 2

    def note_now(self) -> None:
        """Append notes of what was completed, for who cannot wait for a commit.

        They outlive a killed process, for which the pad has no slots any more; the next commit
        flushes them.
        """
        base, intake, storage = self._base, self._intake, self._storage
        if storage is None or base.refusal is not None:
            return
        now = base.clock.monotonic()
        if now < self._notes_wait_until:
            return
        try:
            base.check_not_interrupting()
        except InvalidState:  # the message is completed; a later call notes it
            return
        codes: list[int] = []
        with base.lock:
            try:
                pop_into(codes, intake.done, len(intake.done) - 1)  # one is left: a commit follows
                storage.note(codes)
            except (DiskFull, Busy):
                intake.done.extendleft(reversed(codes))
                self._notes_wait_until = now + _FULL_PAUSE_S
            except VqError as failed:
                self.stop(failed)
            except BaseException:  # a signal handler raised: they may be noted twice, which is once
                intake.done.extendleft(reversed(codes))
                raise

    def accept(self, items: Sequence[LocalItem], waiter: CommitWaiter | None) -> None:
        """Have messages stored with the next commit; ``waiter`` hears of its end."""
        self._intake.items.extend(items)
        if waiter is None:
            self._intake.size_bytes += sum(len(item.content) for item in items)
        else:
            self._intake.barriers.append(waiter)
            if self._base.refusal is not None:  # it may have missed the end
                self._base.refuse_waiters()
        if self._sleeper.idle:
            self._sleeper.kick()

    def lead(self, items: Sequence[LocalItem]) -> bool:
        """Commit messages on the thread of their caller; False: they are to be accepted.

        Only if nobody else commits or is about to. An exception that is raised in between (Ctrl-C)
        leaves ``_led`` behind: the thread puts the log in order before it is used again. For that
        each step may be interrupted wherever CPython looks for signals: when a function begins,
        when a call has returned and when a loop turns.

        Raises:
            DiskFull: They are not stored.
            StorageFailed, OutcomeUnknown: It is unknown whether they are.
        """
        base, intake, storage, lane = self._base, self._intake, self._storage, items[0].lane
        if (
            self._thread_waits
            or intake.items
            or intake.barriers
            or base.counts.commits < self._company.alone_from
            or storage is None
            or lane == LATER
            or (len(items) > 1 and any(item.lane != lane for item in items))
        ):
            return False
        errors: Mapping[int, VqError]
        try:
            if not self._leading.acquire(blocking=False):
                return False
            if self._sleeper.is_ending or base.refusal is not None or self._led is not None:
                return False
            self._led = _new(Led, (items, lane, *storage.end_of(lane)))
            errors = self._write(storage, {lane: items}, (), flushed=(lane,))
            if errors:
                self._settle_unstored(items, errors, set(items))
            self._led = None
        except BaseException:
            self._sleeper.kick()
            raise
        finally:
            try:
                self._leading.release()
            except RuntimeError:  # somebody else holds it
                pass
        if storage.wants_snapshot:
            self._sleeper.kick()
        if errors:
            error = error_of(items, errors)
            if error is not None:
                raise error
        return True

    # For the thread -------------------------------------------------------------------------------
    def work(self) -> None:
        """Commit what there is. For the thread only."""
        if self._sleeper.has_work or self._intake.done or self._led or self._wants_save:
            self._thread_waits = True
            with self._leading:
                self._thread_waits = False
                waiters, errors = self._work_once()
            for waiter in waiters:  # without a lock: a callback of a send may send again
                waiter.end(errors)
            self._pause_if_full(errors)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to commit, or a full disk does not take it before a close."""
        intake = self._intake
        return bool(intake.unwritten) or not (intake.items or intake.barriers or intake.done)

    def _work_once(self) -> _Round:
        """Commit what there is; return who is to be told. Under ``leading``."""
        if self._led is not None:
            led, self._led = self._led, None
            self._mend(led)
        if self._company.expected:
            self._company.gather(self._sleeper, self._base.counts.commits)
        if self._sleeper.has_work or self._intake.done:
            return self._commit()
        if self._wants_save:
            self._save_state()
        return (), {}

    def _mend(self, led: Led) -> None:
        """Open a log anew whose writer was interrupted, and publish what of it is stored.

        What is not stored stays so: its caller has not returned.
        """
        storage, base = self._storage, self._base
        assert storage is not None
        logger.info("a put was interrupted", queue=base.name, messages=len(led.items))
        with base.lock:
            try:
                storage.reopen(led.lane)
                count = storage.stored_again(led.lane, led.offset, led.number, led.items)
            except (VqError, OSError) as error:
                self._stop_lane(led.lane, error)
                count = 0
            if count and self._state.lines[led.lane].end_number == led.number:
                self._publish(led.lane, led.items[:count])
            for item in led.items[count:]:
                base.keys.release(item)
        base.takers.wake(count)

    def _commit(self) -> _Round:
        """Store and flush all that came in, and give it to takers; return who waits for it."""
        intake, base = self._intake, self._base
        now = base.clock.monotonic()
        is_due = now >= self._note_at or self.done_full or self._sleeper.is_ending
        waiters, batch, codes = intake.take(notes_due=is_due)
        if codes:
            self._note_at = now + DONE_LINGER_S
        purged = [intake.purged.popleft() for _ in range(len(intake.purged))]
        errors: Mapping[int, VqError] = {}
        try:
            if self._storage is not None:
                lanes: dict[int, list[LocalItem]] = {}
                for item in batch:
                    lanes.setdefault(item.lane, []).append(item)
                errors = self._write(self._storage, lanes, codes, purged=purged)
                if self._wants_save:
                    self._save_state()
            intake.committing = 0
            if errors and base.refusal is None:
                waited = {item for waiter in waiters for item in waiter.items}
                self._settle_unstored(batch, errors, waited)
        except BaseException as failed:  # the thread ends; nobody else would tell who waits
            refused = dict.fromkeys(ALL_LANES, self.stop(failed))
            for waiter in waiters:
                waiter.end(refused)
            raise
        self._company.note(
            base.counts.commits, len(waiters), len(intake.barriers), messages=len(batch)
        )
        return waiters, errors

    def _pause_if_full(self, errors: Mapping[int, VqError]) -> None:
        intake = self._intake
        full = [error for error in errors.values() if isinstance(error, DiskFull | Busy)]
        if full and self._sleeper.is_ending and isinstance(full[0], DiskFull):
            # The pad and the logs have all but puts that did not wait.
            intake.unwritten = full[0]
        elif full:
            time.sleep(_FULL_PAUSE_S)
            intake.items.extend(intake.unmoved)
            intake.unmoved = []

    def _settle_unstored(
        self, batch: Iterable[LocalItem], errors: Mapping[int, VqError], waited: set[LocalItem]
    ) -> None:
        """Decide what becomes of messages that are not stored; ``waited``: their puts are told."""
        base, intake, given = self._base, self._intake, 0
        with base.lock:
            for item in batch:
                if item.lane not in errors or not is_unstored(item, errors[item.lane]):
                    continue
                moved = intake.moves.get(item)
                if moved is None:
                    base.keys.release(item)
                    if item not in waited:
                        self.lost_error = errors[item.lane]
                        self.losses += 1
                elif LATER in base.stopped:  # it waits for no time: its next failure tells
                    del intake.moves[item]
                    moved.deadline = 0.0
                    self._state.give(moved)
                    given += 1
                else:
                    intake.unmoved.append(item)
        base.takers.wake(given)

    def _write(
        self,
        storage: Storage,
        lanes: Mapping[int, Sequence[LocalItem]],
        codes: Sequence[int],
        *,
        purged: Sequence[LaneRange] = (),
        flushed: Sequence[int] = ALL_LANES,
    ) -> Mapping[int, VqError]:
        """Store, flush these lanes, and publish; return what went wrong, by lane."""
        base, intake = self._base, self._intake
        if base.refusal is not None:
            return dict.fromkeys(ALL_LANES, base.refusal)
        stored: list[Sequence[LocalItem]] = []
        errors: dict[int, VqError] = {}
        with base.lock:
            for lane, items in lanes.items():
                try:
                    storage.append(lane, items, stored)
                except (DiskFull, Busy) as refused:
                    errors[lane] = refused
                except VqError as failed:
                    errors[lane] = self._stop_lane(lane, failed)
            try:
                if codes or purged:
                    storage.note(codes, purged)
                    codes = purged = ()
            except (DiskFull, Busy) as refused:
                errors[NOTES] = refused
            except VqError as failed:
                return dict.fromkeys(ALL_LANES, self.stop(failed))
            tickets = storage.begin_flush(flushed)
        begin = base.clock.monotonic()
        outcome = storage.flush(tickets)
        self._company.flush_s = base.clock.monotonic() - begin
        if codes:
            intake.done.extendleft(reversed(codes))
        intake.purged.extend(purged)
        with base.lock:
            failures = storage.end_flush(tickets, outcome)
            if NOTES in failures:
                return dict.fromkeys(ALL_LANES, self.stop(failures[NOTES]))
            for lane, failure in failures.items():
                errors[lane] = self._stop_lane(lane, failure)
            base.counts.commits += 1
            ready = 0
            for part in stored:
                lane = part[0].lane
                if lane not in base.stopped:
                    ready += self._publish(lane, part)
            intake.committing = 0
        if ready and base.takers.line:
            base.takers.wake(ready)
        return errors

    def _publish(self, lane: int, items: Sequence[LocalItem]) -> int:
        """Give messages to takers that are stored; return how many to wake. Under the lock."""
        base = self._base
        if base.keys.coming:
            base.keys.remember(items, base.clock.wall_ms())
        if lane != LATER:
            ready = self._state.publish(lane, items)
            return ready or len(items)  # or a taker reads them from the disk
        base.counts.delayed += len(items)
        for copy in items:
            self._state.set_aside(copy, int(copy.deadline), copy.attempts)
            moved = self._intake.moves.pop(copy, None)
            if moved is not None:
                base.counts.delayed -= 1
                base.opened.discard(moved)
                self._intake.done.append(code_of(moved.lane, moved.number))
        return 0

    # Snapshots ------------------------------------------------------------------------------------
    @property
    def _wants_save(self) -> bool:
        storage = self._storage
        return self._intake.wants_save or (storage is not None and storage.wants_snapshot)

    def _save_state(self) -> None:
        storage = self._storage
        if storage is not None and self._base.refusal is None:
            self._intake.wants_save = False
            self._move_forward(storage)
            self.save(storage)

    def save(self, storage: Storage) -> None:
        """Save a snapshot, and drop what nobody needs any more.

        For the thread, or once it has ended.
        """
        if NOTES in self._flush(storage, checkpoints=True):
            return
        if self._is_saved(storage):
            self._flush(storage)

    def save_at_open(self, storage: Storage) -> None:
        """Save what the opening found. Before any use.

        Raises:
            StorageFailed: A log cannot be flushed.
        """
        for failed in self._flush(storage, checkpoints=True).values():
            raise failed
        # If the disk is full, takers make room, and the logs say the same.
        self._intake.wants_save = not self._is_saved(storage)

    def _is_saved(self, storage: Storage) -> bool:
        """Save a snapshot of what is durable; False: it cannot be written, which is logged."""
        base = self._base
        try:
            with base.lock:
                snapshot = self._state.snapshot(
                    base.keys.seen.items(), storage.ends, storage.later_end, storage.notes_end
                )
            storage.save(snapshot)
        except OSError as error:
            logger.warning("snapshot cannot be written", queue=base.name, error=error)
            return False
        with base.lock:
            storage.saved(snapshot)
        return True

    def _move_forward(self, storage: Storage) -> None:
        """Copy the few messages that keep the oldest blocks of the lane ``LATER`` to its end.

        As with a message that fails, the one record says that the copy is there and the message is
        gone. Only this thread gives asides to takers, so none of them is given meanwhile.
        """
        base = self._base
        if LATER in base.stopped:
            return
        copies: dict[LocalItem, Aside] = {}
        stored: list[Sequence[LocalItem]] = []
        size = 0
        with base.lock:
            try:
                for block in self._state.few_in(storage.later_blocks):
                    some = self._copies_of(block, _MOVED_BYTES - size)
                    if some is None:
                        break
                    copies |= some
                    size += sum(len(each.content) for each in some)
                if not copies:
                    return
                storage.append(LATER, list(copies), stored)
            except (DiskFull, Busy, CorruptData) as error:
                logger.info("old messages cannot be moved", queue=base.name, error=error)
            except VqError as failed:
                self._stop_lane(LATER, failed)
                return
        if self._flush(storage) and LATER in base.stopped:
            return
        places = {
            copies[each].number: (each.number, each.offset) for part in stored for each in part
        }
        with base.lock:
            gone = self._state.moved(places)
            self._intake.done.extend(code_of(LATER, number) for number in gone)

    def _copies_of(self, asides: Iterable[Aside], most: int) -> dict[LocalItem, Aside] | None:
        """Return copies of messages of at most so many bytes; None: they have more."""
        copies: dict[LocalItem, Aside] = {}
        for aside in asides:
            item = self._base.item_of(aside)
            most -= len(item.content)
            if most < 0:
                return None
            copies[copy_for_later(item, aside.due_ms, aside.attempts)] = aside
        return copies

    def _flush(self, storage: Storage, *, checkpoints: bool = False) -> Mapping[int, VqError]:
        """Make durable what is not yet; return what went wrong, by lane. For the thread only."""
        with self._base.lock:
            tickets = storage.begin_flush(checkpoints=checkpoints)
        outcome = storage.flush(tickets)
        with self._base.lock:
            failures = storage.end_flush(tickets, outcome)
            return {lane: self._stop_lane(lane, error) for lane, error in failures.items()}

    # Errors ---------------------------------------------------------------------------------------
    def _stop_lane(self, lane: int, error: BaseException) -> VqError:
        """Have a lane take no more messages after an I/O error: nobody knows what is stored.

        What is durable is given and completed as before, and the other lanes go on. Without notes
        of completions nothing does.
        """
        if self._led is not None and not is_of_disk(error):
            raise error  # a signal handler raised it in the caller that commits
        if lane == NOTES:
            return self.stop(error)
        base = self._base
        if lane not in base.stopped:
            base.stopped[lane] = StorageFailed(
                f"{LOGS[lane]} of queue {base.name!r} takes no more messages after an I/O error; "
                f"what was put into it and not acknowledged may or may not be stored: {error}",
                hint="the other lanes go on, and what was acknowledged is given as before; check "
                "the disk (dmesg), then close the queue and open it again: it reads what is stored",
            )
            logger.error("lane takes no more messages", queue=base.name, lane=LOGS[lane])
        return base.stopped[lane]

    def stop(self, error: BaseException) -> VqError:
        """End all work for good: completions cannot be noted, or the thread has failed."""
        refusal = StorageFailed(
            f"queue {self._base.name!r} has stopped after an error, and what was not acknowledged "
            f"may or may not be stored: {error}",
            hint="nothing can be completed now; check the disk (dmesg), then close the queue and "
            "open it again: it reads what is stored",
        )
        self._base.end_with(refusal)
        return refusal


def is_of_disk(error: BaseException) -> bool:
    """Whether the disk has failed, and not a signal handler raised something of its own."""
    cause = error.__cause__ or error
    if isinstance(cause, OSError):
        return cause.errno is not None  # a TimeoutError of a handler has none
    return isinstance(cause, VqError) and not isinstance(cause, InvalidState)
