"""``vq.aio.LocalQueue``: a local queue for the coroutines of one loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from vq.bounds import check_between
from vq.clock import SystemClock
from vq.errors import InvalidState, TimedOut
from vq.local import looks
from vq.local.core.core import QueueCore
from vq.local.core.keys import KeyOnItsWay
from vq.local.core.waits import CommitWaiter, LineOfWakers
from vq.local.files.damage import DamagedMessages
from vq.local.items import LocalItem
from vq.local.looks import LocalQueueMetrics, metrics_of
from vq.local.many import complete_each
from vq.local.settings import COUNT_MAX, LocalQueueConfig, config_of, directory_of, several
from vq.model import Message, check_timeout
from vq.store.disk.real_disk import RealDisk

_monotonic: Final = time.monotonic


class _LoopWaker:
    """Wakes a coroutine, from any thread."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    def release(self) -> None:
        """See ``Waker.release``."""
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop was closed: nobody waits
            pass

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def woken(self, timeout: float | None) -> bool:
        """Wait; False: it was not woken in time."""
        if timeout is None:
            await self._future
            return True
        done, _ = await asyncio.wait((self._future,), timeout=timeout)
        return bool(done)


class LocalQueue:
    """The coroutines of ``vq.local.LocalQueue``, with the same arguments, results and errors.

    What never waits is no coroutine: ``complete``, ``complete_many``, ``fail``, ``extend``; await
    ``flush`` where a completion is to be durable.

    ::

        async with vq.aio.LocalQueue("/var/lib/app/jobs") as queue:
            await queue.put(b"job")
            item = await queue.take(timeout=5)
            queue.complete(item)

    Coroutines that put at the same time share a flush. Opening, closing and reading what is on disk
    only are done by a thread. A coroutine that is cancelled in ``take`` or ``take_many`` loses no
    message; one that is cancelled in ``put`` does not know whether the message is stored.

    Args:
        directory: Where it is, made if it is missing; None: in memory. One process has it open.
        config: How it behaves.
    """

    def __init__(
        self, directory: str | Path | None, config: LocalQueueConfig | None = None
    ) -> None:
        self._directory = directory_of(directory)
        self._config = config_of(config)
        self._opened: QueueCore | None = None
        self._losses: int | None = None  # it was told of so many; None: it has put none unwaited

    async def open(self) -> Self:
        """Open the queue; return it. Errors as of ``vq.local.LocalQueue``.

        Raises:
            InvalidState: It is open already.
        """
        if self._opened is not None:
            raise InvalidState("this queue is open already")
        making = partial(QueueCore, self._directory, self._config, RealDisk(), SystemClock())
        opening = asyncio.ensure_future(asyncio.to_thread(making))
        try:
            self._opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_end_opened)
            raise
        return self

    @classmethod
    def over(cls, core: QueueCore) -> Self:
        """Return the coroutines of a queue that is open; who opened it closes it. For vq only."""
        queue = cls(core.base.directory, core.base.config)
        queue._opened = core
        return queue

    @property
    def _core(self) -> QueueCore:
        if self._opened is None:
            raise InvalidState("the queue is not open; await open() or use it in `async with`")
        return self._opened

    async def put(
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

        With ``wait=False`` it returns at once; ``flush`` waits, and raises what went wrong.
        """
        core = self._core
        base, puts = core.base, core.puts
        base.check()
        if timeout is not None:
            timeout = check_timeout(timeout)
        deadline = None if timeout is None else _monotonic() + timeout
        while True:
            try:
                item = puts.prepare(content, delay_s, priority, idempotency_key)
                break
            except KeyOnItsWay as error:
                is_coming = lambda: idempotency_key in base.keys.coming  # noqa: E731
                if not await self._wait_while(is_coming, deadline, base.keys.arrivals):
                    raise TimedOut(f"{error.message} within {timeout:g} s") from None
                base.check()
        if item is None:
            return False
        try:
            if base.capacity is not None and puts.is_full():
                await self._wait_for_room(1, timeout)
        except BaseException:
            puts.give_up(item)
            raise
        if base.in_memory:
            puts.add_in_memory(item)
        else:
            await self._store((item,), wait=wait)
        return True

    async def put_many(
        self,
        contents: Iterable[bytes | Message | Any],
        *,
        priority: int = 0,
        wait: bool = True,
        timeout: float | None = None,
    ) -> int:
        """Add messages with one commit; return how many. ``wait`` as in ``put``."""
        core = self._core
        base, puts = core.base, core.puts
        base.check()
        if timeout is not None:
            timeout = check_timeout(timeout)
        items = [
            item
            for each in several("contents", contents)
            if (item := puts.prepare(each, None, priority, None))
        ]
        if items and base.capacity is not None and puts.is_full(len(items)):
            puts.check_fits(len(items))
            await self._wait_for_room(len(items), timeout)
        if base.in_memory:
            for item in items:
                puts.add_in_memory(item)
        elif items:
            await self._store(items, wait=wait)
        return len(items)

    async def _store(self, items: Sequence[LocalItem], *, wait: bool) -> None:
        if not wait:
            if self._losses is None:
                self._losses = self._core.commits.losses
            self._core.commits.accept(items, None)
        if wait or self._core.commits.intake_full:
            await self._commit_with(items if wait else ())

    async def flush(self) -> None:
        """Return once all that was put and completed before is durable.

        Raises:
            DiskFull: Messages of puts that did not wait are not stored.
            StorageFailed: It is unknown what is stored.
        """
        if self._core.base.in_memory:
            return
        await self._commit_with(())
        seen, losses = self._losses, self._core.commits.losses
        if seen is not None and seen != losses:
            self._losses = losses
            assert self._core.commits.lost_error is not None
            raise self._core.commits.lost_error

    async def _commit_with(self, items: Sequence[LocalItem]) -> None:
        waker = _LoopWaker()
        waiter = CommitWaiter(items, waker)
        self._core.commits.accept(items, waiter)
        await waker.woken(None)
        if waiter.error is not None:
            raise waiter.error

    async def _wait_for_room(self, count: int, timeout: float | None) -> None:
        core = self._core
        deadline = None if timeout is None else _monotonic() + timeout
        if not await self._wait_while(
            lambda: core.puts.lacks_room(count), deadline, core.base.spaces
        ):
            raise core.puts.full()

    async def _wait_while(
        self, is_so: Callable[[], bool], deadline: float | None, line: LineOfWakers
    ) -> bool:
        """See ``vq.local.LocalQueue``."""
        if not is_so():
            return True
        told = -1
        while True:
            waker, is_over = _LoopWaker(), False
            try:
                line.line.append(waker)
                if not is_so():
                    is_over = True
                    return True
                is_over = not await waker.woken(_left(deadline))
            except BaseException:
                is_over = True
                raise
            finally:
                if is_over and not line.leave(waker):
                    line.hand_on()
            if is_over:
                return False
            event = line.events
            if not is_so():
                return True
            if event != told:
                told = event
                line.hand_on()

    async def take(self, timeout: float | None = None) -> LocalItem | None:
        """Return the next message, which nobody else has now; None: none came in time.

        While a slow disk has 32,768 completions still to note, it waits for that first.
        """
        deadline = None if timeout is None else _monotonic() + check_timeout(timeout)
        while True:
            if self._core.commits.done_full:
                await self._commit_with(())
            item = await self._next()
            if item is not None:
                self._core.base.note_given(item)
            if item is not None or (deadline is not None and _monotonic() >= deadline):
                return item
            takes, waker = self._core.takes, _LoopWaker()
            try:
                if not takes.wait_for_message(waker):
                    continue
                await waker.woken(_left(deadline))
            finally:
                if not takes.takers.leave(waker):
                    takes.pass_on()  # if this one was cancelled, another one looks

    async def take_many(self, count: int, timeout: float | None = None) -> "Sequence[LocalItem]":
        """Return up to ``count`` messages: what is there once the first one is; [] in vain."""
        check_between("count", count, 1, COUNT_MAX)
        items: list[LocalItem] = []
        try:
            while len(items) < count:
                item = await self.take(0 if items else timeout)
                if item is None:
                    break
                items.append(item)
        except BaseException:  # a cancellation, too
            for each in reversed(items):
                self._core.takes.give_back(each)
            raise
        return items

    async def _next(self) -> LocalItem | None:
        takes = self._core.takes
        if not takes.must_read:
            return takes.take_now()
        taking = asyncio.ensure_future(asyncio.to_thread(takes.take_now))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._give_back)
            raise

    def _give_back(self, taking: "asyncio.Future[LocalItem | None]") -> None:
        if taking.cancelled() or taking.exception() is not None:
            return
        item = taking.result()
        if item is not None:
            self._core.takes.give_back(item)

    def complete(self, item: LocalItem) -> None:
        """Note that a message is done; see ``vq.local.LocalQueue.complete``. It does not wait.

        While a slow disk has 32,768 completions still to note, they are written by this call, and
        flushed later.
        """
        core = self._core
        core.takes.complete(item)
        if core.commits.done_full:
            core.commits.note_now()

    def complete_many(self, items: Iterable[LocalItem]) -> None:
        """Complete each of them; see ``vq.local.LocalQueue.complete_many``. It does not wait."""
        complete_each(self.complete, several("items", items), None)

    def fail(self, item: LocalItem, *, delay_s: float | None = None) -> None:
        """Give a message back; see ``vq.local.LocalQueue.fail``. It does not wait."""
        self._core.takes.fail(item, delay_s)

    def extend(self, item: LocalItem) -> None:
        """Begin the lease of a message anew."""
        self._core.takes.extend(item)

    async def peek(self) -> Message | None:
        """Return the message that would be given next, and leave it there; None: there is none."""
        return await asyncio.to_thread(looks.peek, self._core.base)

    async def list(
        self, limit: int = 100, *, standing: looks.MessageStanding | str | None = None
    ) -> "Sequence[looks.ListedMessage]":
        """Return up to ``limit`` messages; see ``vq.local.LocalQueue.list``."""
        return await asyncio.to_thread(looks.list_messages, self._core.base, limit, standing)

    async def requeue(self, ids: Iterable[int] | None = None) -> int:
        """Give messages now that wait for a time, delayed or failed; return how many."""
        return await asyncio.to_thread(looks.requeue, self._core.base, ids)

    async def purge(self) -> int:
        """Complete all messages that no taker has; return how many, once that is durable."""
        count = await asyncio.to_thread(looks.purge, self._core.base)
        await self.flush()
        return count

    def damaged(self) -> "Sequence[DamagedMessages]":
        """Return what could not be read; see ``vq.local.LocalQueue.damaged``."""
        return self._core.base.damaged

    async def drain(self, timeout: float | None = None) -> bool:
        """Wait until every message is completed; False: some are not, in time."""
        base = self._core.base
        base.check()
        deadline = None if timeout is None else _monotonic() + check_timeout(timeout)
        is_left = lambda: base.size > 0 and base.is_usable()  # noqa: E731
        drained = await self._wait_while(is_left, deadline, base.spaces)
        base.check()
        if drained:
            base.spaces.wake_all()  # others may wait for the same
        return drained

    def metrics(self) -> LocalQueueMetrics:
        """Return the numbers of the queue."""
        return metrics_of(self._core.base)

    def __len__(self) -> int:
        """Return how many messages are not completed."""
        return self._core.base.size

    async def close(self) -> None:
        """Make everything durable and give the directory back. May be called again."""
        if self._opened is not None:
            await asyncio.to_thread(self._opened.end)

    async def __aenter__(self) -> Self:
        return self if self._opened is not None else await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _end_opened(opening: "asyncio.Future[QueueCore]") -> None:
    """End a queue that nobody waits for any more."""
    if not opening.cancelled() and opening.exception() is None:
        threading.Thread(target=opening.result().end, daemon=True).start()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - _monotonic(), 0.0)
