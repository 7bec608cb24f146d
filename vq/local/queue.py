"""``LocalQueue``: the API of a local queue for threads."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from vq import limits
from vq.clock import Clock, SystemClock
from vq.errors import TimedOut
from vq.local import looks
from vq.local.core.core import QueueCore
from vq.local.core.keys import KeyOnItsWay
from vq.local.core.waits import CommitWaiter, LineOfWakers
from vq.local.files.damage import DamagedMessages
from vq.local.items import LocalItem
from vq.local.many import complete_each, taken
from vq.local.settings import LocalQueueConfig, config_of, directory_of, several
from vq.model import Message, check_timeout
from vq.store.disk.disk import Disk
from vq.store.disk.real_disk import RealDisk

_BYTES_MAX: Final = limits.MESSAGE_BYTES_MAX
_monotonic: Final = time.monotonic


class LocalQueue:
    """A queue for the threads of one process: each message has one taker, until it is completed.

    In a directory it is durable: ``put`` returns once the message is flushed (``fdatasync``), and
    shares the flush with all puts that wait. What was not completed is given again after a restart.
    Without a directory it is in memory, with a bound. Safe from any thread; not in the child of a
    fork, nor in a signal handler, which may interrupt a call::

        with LocalQueue("/var/lib/app/jobs") as queue:
            queue.put(b"job")
            item = queue.take(timeout=5)
            if item is not None:
                handle(item.content)
                queue.complete(item)

    Args:
        directory: Where it is, made if it is missing; None: in memory. One process has it open.
        config: How it behaves.
        disk: For tests.
        clock: For tests.

    Raises:
        DirectoryRefused: Another process has it open, or it is no queue, damaged, or of a later vq.
        InvalidArgument: A file is there, or an argument is unusable.
        DiskFull: There is no space for what opening writes; where a queue is, that is little.
    """

    def __init__(
        self,
        directory: str | Path | None,
        config: LocalQueueConfig | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._core = core = QueueCore(
            directory_of(directory),
            config_of(config),
            RealDisk() if disk is None and directory is not None else disk,  # type: ignore[arg-type]
            SystemClock() if clock is None else clock,
        )
        # Looked up for each message.
        self._base = base = core.base
        self._puts = core.puts
        self._commits = core.commits
        self._takes = core.takes
        self._seen = threading.local()  # how many losses a thread that does not wait was told of
        self._name = base.name
        self._state = base.state
        self._in_memory = base.in_memory
        self._memory_room = (base.capacity or 0) if base.in_memory else 0
        self._takers = base.takers.line
        self._opened = base.opened
        self._kept = base.state.kept
        self._line = base.state.lines[0].ready
        self._lease_s = base.lease_s

    @property
    def name(self) -> str:
        """The topic of its messages."""
        return self._name

    @property
    def directory(self) -> Path | None:
        """Where it is; None: in memory."""
        return self._base.directory

    @property
    def config(self) -> LocalQueueConfig:
        """How it behaves."""
        return self._base.config

    def put(
        self,
        content: bytes | Message | Any,
        *,
        delay_s: float | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> bool:
        """Add a message; return True once it is durable, False if its key was seen already.

        Args:
            content: Its content, or a message, whose topic does not count.
            delay_s: It is given after so many seconds, at most 40 days.
            priority: 0, 1 or 2; a higher one goes first.
            idempotency_key: A put with the same text within ``idempotency_s`` adds nothing.
            wait: False: return at once; ``flush`` waits, and raises what went wrong. Until then a
                crash may lose the message.
            timeout: How long to wait for room, in seconds, if the queue is full; None: no bound.

        Raises:
            InvalidArgument, MessageTooLarge: An argument is unusable.
            BufferFull: There is no room.
            DiskFull: It is not stored.
            StorageFailed, OutcomeUnknown: It is unknown whether it is stored.
            InvalidState: The queue is closed.
        """
        base = self._base
        if base.refusal is not None:
            base.check()
        if timeout is not None:
            timeout = check_timeout(timeout)
        item: LocalItem | None
        if (
            type(content) is bytes
            and delay_s is None
            and not priority
            and idempotency_key is None
            and len(content) <= _BYTES_MAX
        ):
            item = LocalItem(content, self._name)
            if len(self._opened) + len(self._kept) < self._memory_room:
                item.number = base.following()
                self._opened.add(item)
                self._line.append(item)
                if self._takers:
                    base.takers.wake()
                return True
        else:
            item = self._prepared(content, delay_s, priority, idempotency_key, timeout)
        if item is None:
            return False
        if base.capacity is not None and self._puts.is_full():
            try:
                self._wait_for_room(1, timeout)
            except BaseException:
                self._puts.give_up(item)
                raise
        if self._in_memory:
            self._puts.add_in_memory(item)
        elif wait:
            self._commit_with((item,))
        else:
            self._unwaited()
            self._commits.accept((item,), None)
            if self._commits.intake_full:
                self._commit_with(())
        return True

    def _prepared(
        self,
        content: object,
        delay_s: float | None,
        priority: int,
        key: str | None,
        timeout: float | None,
    ) -> LocalItem | None:
        """Return what to store; None: its key was seen. Waits for another put with that key."""
        deadline = None if timeout is None else _monotonic() + timeout
        keys = self._base.keys
        while True:
            try:
                return self._puts.prepare(content, delay_s, priority, key)
            except KeyOnItsWay as error:
                if not self._wait_while(lambda: key in keys.coming, deadline, keys.arrivals):
                    raise TimedOut(f"{error.message} within {timeout:g} s") from None
                self._base.check()

    def _unwaited(self) -> None:
        """Note that this thread has put a message and did not wait for its commit."""
        if not hasattr(self._seen, "losses"):
            self._seen.losses = self._commits.losses

    def put_many(
        self,
        contents: Iterable[bytes | Message | Any],
        *,
        priority: int = 0,
        wait: bool = True,
        timeout: float | None = None,
    ) -> int:
        """Add messages with one commit; return how many. Arguments and errors as of ``put``.

        Raises:
            OutcomeUnknown: Some of them are stored.
        """
        self._base.check()
        if timeout is not None:
            timeout = check_timeout(timeout)
        items = [
            item
            for each in several("contents", contents)
            if (item := self._puts.prepare(each, None, priority, None))
        ]
        if not items:
            return 0
        if self._base.capacity is not None and self._puts.is_full(len(items)):
            self._puts.check_fits(len(items))
            self._wait_for_room(len(items), timeout)
        if self._in_memory:
            for item in items:
                self._puts.add_in_memory(item)
        elif wait:
            self._commit_with(items)
        else:
            self._unwaited()
            self._commits.accept(items, None)
            if self._commits.intake_full:
                self._commit_with(())
        return len(items)

    def _put_copy(self, message: Message, told: Mapping[str, str], key: str) -> None:
        """Put a message with headers of vq's own, once for this idempotency key."""
        self._base.check()
        item = self._puts.prepare(message, None, 0, key, told)
        if item is not None:
            self._commit_with((item,))

    def flush(self) -> None:
        """Return once all that was put and completed before is durable.

        Raises:
            DiskFull: Messages of puts that did not wait, of this thread or another one since this
                one has put, are not stored.
            StorageFailed: It is unknown what is stored.
        """
        if self._in_memory:
            return
        self._commit_with(())
        seen, losses = getattr(self._seen, "losses", None), self._commits.losses
        if seen is not None and seen != losses:
            self._seen.losses = losses
            assert self._commits.lost_error is not None
            raise self._commits.lost_error

    def _commit_with(self, items: Sequence[LocalItem], timeout: float | None = None) -> None:
        self._base.check_may_wait()
        if items and timeout is None and self._commits.lead(items):
            return
        waker = threading.Lock()
        waker.acquire()
        waiter = CommitWaiter(items, waker)
        self._commits.accept(items, waiter)
        if not waker.acquire(timeout=-1.0 if timeout is None else timeout):
            raise TimedOut(
                f"the disk of queue {self._name!r} has not answered within {timeout:g} s"
            )
        if waiter.error is not None:
            raise waiter.error

    def _wait_for_room(self, count: int, timeout: float | None) -> None:
        deadline = None if timeout is None else _monotonic() + timeout
        puts = self._puts
        if not self._wait_while(lambda: puts.lacks_room(count), deadline, self._base.spaces):
            raise puts.full()

    def _wait_while(
        self, is_so: Callable[[], bool], deadline: float | None, line: LineOfWakers
    ) -> bool:
        """Wait while something is so; False: it still is, at the deadline.

        It looks again each time that ``line`` wakes it.
        """
        if not is_so():
            return True
        self._base.check_may_wait()
        waker = threading.Lock()
        waker.acquire()
        told = -1  # the last event for which this one has woken the next one
        while True:
            is_over = False
            try:
                line.line.append(waker)
                if not is_so():
                    is_over = True
                    return True
                left = -1.0 if deadline is None else max(deadline - _monotonic(), 0.0)
                is_over = not waker.acquire(timeout=left)
            except BaseException:
                is_over = True
                raise
            finally:
                if is_over and not line.leave(waker):
                    line.hand_on()  # this one was woken, and does not need it
            if is_over:
                return False
            event = line.events
            if not is_so():
                return True
            if event != told:
                told = event
                line.hand_on()

    def take(self, timeout: float | None = None) -> LocalItem | None:
        """Return the next message, which nobody else has now; None: none came in time.

        Waiting takes no processor time. ``complete`` or ``fail`` it within ``lease_s``.

        Args:
            timeout: Seconds; 0: do not wait; None: without an end.

        Raises:
            InvalidState: The queue is closed, perhaps while this waited.
            StorageFailed: Its disk has failed.
            CorruptData, PartitionFailed: The next message cannot be read.
        """
        if self._state.plain:
            try:
                item = self._line.popleft()
            except IndexError:
                pass
            else:
                item.deadline = _monotonic() + self._lease_s
                if not self._in_memory:
                    self._base.note_given(item)
                return item
        found = self._take_slowly(timeout)
        if found is not None:
            self._base.note_given(found)
        return found

    def _take_slowly(self, timeout: float | None) -> LocalItem | None:
        if timeout is not None:
            timeout = check_timeout(timeout)
        item = self._takes.take_now()
        if item is not None or timeout == 0:
            return item
        self._base.check_may_wait()
        deadline = None if timeout is None else _monotonic() + timeout
        waker = threading.Lock()
        waker.acquire()
        while True:
            try:
                if self._takes.wait_for_message(waker):
                    left = -1.0 if deadline is None else max(deadline - _monotonic(), 0.0)
                    woken = waker.acquire(timeout=left)
                    if not woken and not self._takes.takers.leave(waker):
                        waker.acquire()
            except BaseException:  # Ctrl-C
                if not self._takes.takers.leave(waker):
                    self._takes.pass_on()
                raise
            item = self._takes.take_now()
            if item is not None:
                return item
            if deadline is not None and _monotonic() >= deadline:
                return None

    def take_many(self, count: int, timeout: float | None = None) -> "Sequence[LocalItem]":
        """Return up to ``count`` messages: what is there once the first one is; [] in vain."""
        return taken(self.take, self._takes.give_back, count, timeout)

    def complete(self, item: LocalItem, *, wait: bool = False) -> None:
        """Note that a message is done: nobody gets it again.

        On return a kill of the process cannot undo it; a loss of power can until the next flush,
        which follows within some milliseconds.

        Args:
            item: From ``take``; any thread may complete it.
            wait: Return once it is durable.

        Raises:
            LeaseLost: Its lease ended and another taker got it, or it was completed already.
            InvalidArgument: It is no item.
            InvalidState: The queue is closed.
            StorageFailed: The disk has failed.
        """
        self._takes.complete(item)
        if (wait or self._commits.done_full) and not self._in_memory:
            self._commit_with(())

    def complete_many(self, items: Iterable[LocalItem], *, wait: bool = False) -> None:
        """Complete each of them, as ``complete`` does.

        Raises:
            LeaseLost: One of them is not with this taker any more; the others are completed.
        """
        waits = wait and not self._in_memory
        items = several("items", items)
        complete_each(self.complete, items, (lambda: self._commit_with(())) if waits else None)

    def fail(self, item: LocalItem, *, delay_s: float | None = None) -> None:
        """Give a message back: it is given again.

        The first ``retries`` times at once; after that it goes to the retry lane, from which it is
        given every ``retry_s`` without an end. What is in that lane holds up nobody.

        Args:
            item: From ``take``.
            delay_s: Give it again after so many seconds instead, 0 for at once.

        Raises:
            LeaseLost, InvalidArgument, InvalidState, StorageFailed: As ``complete``.
        """
        self._takes.fail(item, delay_s)

    def extend(self, item: LocalItem) -> None:
        """Begin the lease of a message anew: ``lease_s`` from now on.

        Raises:
            LeaseLost, InvalidArgument, InvalidState: As ``complete``.
        """
        self._takes.extend(item)

    def peek(self) -> Message | None:
        """Return the message that would be given next, and leave it there; None: there is none.

        Raises:
            InvalidState, StorageFailed, CorruptData, PartitionFailed: As ``take``.
        """
        return looks.peek(self._base)

    def list(
        self, limit: int = 100, *, standing: "looks.MessageStanding | str | None" = None
    ) -> "Sequence[looks.ListedMessage]":
        """Return up to ``limit`` messages: those with takers, in line, and waiting for a time.

        Args:
            limit: 1 to 100,000.
            standing: Only those that are ``ready``, ``taken`` or ``later``.

        Raises:
            InvalidArgument: An argument is unusable.
            InvalidState, StorageFailed, CorruptData, PartitionFailed: As ``take``.
        """
        return looks.list_messages(self._base, limit, standing)

    def damaged(self) -> "Sequence[DamagedMessages]":
        """Return what could not be read: its bytes were set aside, and the others went on.

        Each has a file in the directory, which nothing removes; remove it when you have seen it.
        """
        return self._base.damaged

    def requeue(self, ids: Iterable[int] | None = None) -> int:
        """Give messages now that wait for a time, delayed or failed; return how many.

        Args:
            ids: Those with these message ids; None: all of them.

        Raises:
            InvalidState, StorageFailed: As ``take``.
        """
        return looks.requeue(self._base, ids)

    def purge(self) -> int:
        """Complete all messages that no taker has; return how many, once that is durable.

        Raises:
            InvalidState, StorageFailed: As ``take``.
        """
        count = looks.purge(self._base)
        self.flush()
        return count

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every message is completed; False: some are not, in time.

        Others may go on putting, and delayed and failed messages count, too.
        """
        base = self._base
        base.check()
        deadline = None if timeout is None else _monotonic() + check_timeout(timeout)
        drained = self._wait_while(
            lambda: base.size > 0 and base.is_usable(), deadline, base.spaces
        )
        base.check()
        if drained:
            base.spaces.wake_all()  # others may wait for the same
        return drained

    def metrics(self) -> "looks.LocalQueueMetrics":
        """Return the numbers of the queue.

        Raises:
            InvalidState: It is closed.
        """
        self._base.check()
        return looks.metrics_of(self._base)

    def __len__(self) -> int:
        """Return how many messages are not completed."""
        return self._base.size

    def close(self) -> None:
        """Make everything durable and give the directory back. May be called again.

        Who waits in ``take`` gets InvalidState. What was taken and not completed is given again
        when the queue is opened again.

        Raises:
            StorageFailed, DiskFull: What was not durable may be lost; the directory is given back.
            InvalidState: A signal handler has called it, in the middle of another call.
        """
        self._core.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
