"""What a member of a shared group has in hand: asked for, read, given out one by one, settled.

    journal ──▶ runs of numbers ──▶ read from their partitions ──▶ queue ──▶ take
       ▲                                                                      │
       └──────────────── settled, many with one request ◀─────────────────────┘

Loop-bound. One task asks for messages while there is room, one sends what is settled, and one for
each partition looks whether it has more. What waits in the queue for a second, or for half of its
lease, is given back: it was not delivered, and others may be free for it. What would wait with
more bytes than ``buffer_bytes`` is given back unread, or not asked for.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.consumer.shared.desk import SharedTerms
from vq.client.consumer.shared.given import GivenMessages
from vq.client.consumer.shared.handles import MessageHandle, SettleKind
from vq.client.consumer.shared.room import ROOM_S, SharedRoom
from vq.client.consumer.shared.sources import (
    AGAIN,
    END_S,
    LOOK_S,
    TURN_S,
    HeldMessage,
    RunReading,
    SharedSources,
    WatchedSource,
)
from vq.client.consumer.shared.turns import SourceTurns
from vq.client.copies import origin_of
from vq.client.reading.forward import READ_BYTES
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.remoting.wire_pb2 import SharedRun
from vq.tasks import begin_task

logger = get_logger(__name__)

#: The lease of a message that has waited for so much of it begins anew with its listener.
WAITED_SHARE: Final = 0.1
#: So long a message waits for a worker of this member; then others may have it.
QUEUED_S: Final = 1.0
#: How long an answer of the journal is waited for before a message that was delivered before; half
#: of a lease at most.
TOLD_S: Final = 1.0


class SharedReceiver(SharedSources):
    """See the module.

    Args:
        cluster, group, terms, rest: See ``SharedSources``.
        workers: So many are at messages at a time.
        buffer_bytes: Half of it bounds what is read at a time, the other half what waits.

    Attributes:
        expired: Messages whose lease was over before anybody took them; they were given back, too.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        terms: SharedTerms,
        *,
        workers: int,
        buffer_bytes: int,
        **rest: Any,
    ) -> None:
        super().__init__(cluster, group, terms, **rest)
        self.expired = 0
        #: With the times when its lease is over, and until when it waits here.
        self._queue: deque[tuple[HeldMessage, float, float]] = deque()
        self._queued_bytes = 0  # of their contents
        self._queued_bytes_max = buffer_bytes // 2
        self._may_read = asyncio.Semaphore(max(1, buffer_bytes // 2 // READ_BYTES))
        self._is_ready = asyncio.Event()  # there is something in the queue, or nothing more comes
        self._fresh_s = (1 - WAITED_SHARE) * terms.lease_ms / 1_000
        self._held: set[MessageHandle] = set()  # not settled, nor taken by a call
        self._room = SharedRoom(workers, cluster.clock.monotonic())
        self._has_room = asyncio.Event()
        self._turns = SourceTurns()
        self._asked: set[int] = set()  # the journal is asked for these, and has nothing of them
        self._reads: dict[asyncio.Task[None], RunReading] = {}
        self._waits_too_long: asyncio.TimerHandle | None = None  # looks at the queue
        self._given: GivenMessages | None = None  # to calls; None: workers take messages
        self._error: VqError | None = None  # why no message follows
        self._receiving: asyncio.Task[None] | None = None
        self._is_closing = False

    # Life ---------------------------------------------------------------------------------------
    def be_pulled(self) -> None:
        """Have calls take messages, and no workers; before ``start``."""
        if self._given is None:
            self._given = GivenMessages()
            self._room.be_pulled()

    @property
    def is_pulled(self) -> bool:
        """Whether calls take messages, and no workers."""
        return self._given is not None

    def fail(self, error: VqError) -> None:
        """Have those that take messages told that none follows."""
        self._error = error
        self._is_ready.set()

    def start(self) -> None:
        """Begin to ask for messages."""
        self._receiving = begin_task(self._receive_all())
        super().start()

    async def stop(self) -> None:
        """Ask for no more, and give back what nobody has taken; what was taken can be settled.

        What calls have taken and not settled is given back, too, as delivered: nobody can settle it
        behind the end.
        """
        self._is_closing = True
        if self._waits_too_long is not None:
            self._waits_too_long.cancel()
        self._give_back_queue()
        if self._given is not None:
            for handle in self._given.left(self._cluster.clock.monotonic()):
                self._settler.settle(handle, SettleKind.RELEASE, 0)
        self._is_ready.set()
        if self._receiving is not None:
            await self._end_receiving(self._receiving)
        reads = dict(self._reads)
        for task in reads:
            task.cancel()
        if reads:
            await asyncio.wait(reads)
        await super().stop()
        self._give_back_queue()
        for reading in reads.values():
            self._give_back_run(reading.at, reading.run, reading.number)

    def _ends(self) -> bool:
        return self._is_closing

    def _give_back_queue(self) -> None:
        while self._queue:
            self._settle_here(self._pop()[0].handle, SettleKind.UNUSED)

    async def _end_receiving(self, receiving: "asyncio.Task[None]") -> None:
        """End the request that waits for messages; the journal would give it what others want."""
        asked = [self._sources[each] for each in sorted(self._asked)[:1]]
        if asked:
            with contextlib.suppress(VqError, TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._desk.end(self._told(asked))
                    await asyncio.wait([receiving])
        receiving.cancel()
        await asyncio.wait([receiving])

    def _added(self) -> None:
        self._has_room.set()

    # Asking -------------------------------------------------------------------------------------
    def _is_asked(self, at: int) -> bool:
        return at in self._asked

    def _has_more(self, at: int) -> None:
        self._turns.has_more(at)

    async def _rest(self) -> None:
        if self._held:
            await asyncio.sleep(LOOK_S)

    async def _receive_all(self) -> None:
        tries = 0
        while not self._ends():
            self._has_room.clear()
            sources = self._read_now()
            now = self._cluster.clock.monotonic()
            room = min(self._room.free(len(self._held), now), self._fitting(sources))
            if not sources or not room:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ROOM_S):
                        await self._has_room.wait()
                continue
            turn = self._turns.next(list(sources))
            asked, wait_s = turn.sources, 0.0
            if turn.waits:
                wait_s = self._wait_s if turn.is_all else min(TURN_S, self._wait_s)
            read = [sources[each] for each in asked]
            most = min(room, limits.SHARED_MESSAGES_PER_RECEIVE_MAX)
            begun = self._cluster.clock.monotonic()
            self._asked = set(asked)
            try:
                answer = await self._desk.receive(self._told(read), most, wait_s)
                tries = 0
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                tries += 1
                logger.warning(
                    "messages of shared group cannot be received, trying again",
                    group=self._group,
                    error=error,
                )
                await asyncio.sleep(AGAIN.pause_s(tries, self._cluster.rng))
                continue
            finally:
                self._asked = set()
            self._turns.found(something=bool(answer.runs))
            self._learn(read, answer)
            until = begun + (answer.waited_ms + self._terms.lease_ms) / 1_000
            for run in answer.runs:
                self._note_held(asked[run.source], run)
                if self._ends():
                    self._give_back_run(asked[run.source], run, run.first)
                    continue
                reading = RunReading(asked[run.source], run, run.first)
                task = begin_task(self._read_all(reading, until))
                self._reads[task] = reading
                task.add_done_callback(self._reads.pop)

    def _note_held(self, at: int, run: SharedRun) -> None:
        numbers = range(run.first, run.first + run.messages)
        self._held.update(MessageHandle(at, number, run.grant) for number in numbers)

    # Waiting and taken ----------------------------------------------------------------------------
    async def _read_all(self, reading: RunReading, until: float) -> None:
        """Read a run that this member got, into the queue."""
        async with self._may_read, contextlib.aclosing(self._read(reading)) as steps:
            while self._queued_bytes < self._queued_bytes_max:
                try:
                    messages = await anext(steps)
                except StopAsyncIteration:
                    return
                queued_s = min(QUEUED_S, self._terms.lease_ms / 2_000)
                waits = min(self._cluster.clock.monotonic() + queued_s, until - queued_s)
                self._queue.extend((each, until, waits) for each in messages)
                self._queued_bytes += sum(len(each.message.content) for each in messages)
                self._is_ready.set()
                self._look_at_queue()
            self._give_back_run(reading.at, reading.run, reading.number)

    def _fitting(self, sources: dict[int, WatchedSource]) -> int:
        """Return about how many messages fit in beside what waits and is read.

        One at least if that is nothing.
        """
        each_bytes = max((each.reader.each_bytes for each in sources.values()), default=1.0)
        reading = sum(
            each.run.first + each.run.messages - each.number for each in self._reads.values()
        )
        least = 0 if self._queue or reading else 1
        free_bytes = self._queued_bytes_max - self._queued_bytes - reading * each_bytes
        return max(least, int(free_bytes / each_bytes))

    def _pop(self) -> tuple[HeldMessage, float]:
        """Take the first one out of the queue, with the time when its lease is over."""
        item, until, _ = self._queue.popleft()
        self._queued_bytes -= len(item.message.content)
        self._has_room.set()
        return item, until

    def _waits(self, handle: MessageHandle) -> None:
        if handle in self._held:
            self._held.remove(handle)
            self._has_room.set()

    def _look_at_queue(self) -> None:
        """Look again when the first message has waited for long enough."""
        if self._queue and self._waits_too_long is None:
            wait_s = self._queue[0][2] - self._cluster.clock.monotonic()
            loop = asyncio.get_running_loop()
            self._waits_too_long = loop.call_later(max(LOOK_S, wait_s), self._give_back)

    def _give_back(self) -> None:
        """Give back what has waited for long enough."""
        self._waits_too_long = None
        now = self._cluster.clock.monotonic()
        over: list[HeldMessage] = []
        while self._queue and self._queue[0][2] <= now:
            item, until = self._pop()
            self._room.forget_asked()
            self._settle_here(item.handle, SettleKind.UNUSED)
            if until <= now:
                over.append(item)
        self._told_over(over)
        self._look_at_queue()

    def _told_over(self, items: Sequence[HeldMessage]) -> None:
        """Say that leases were over before anybody took the messages; they were given back."""
        if items:
            self.expired += len(items)
            logger.warning(
                "leases were over before listeners had the messages, they are delivered again",
                group=self._group,
                messages=len(items),
                first=origin_of(items[0].message),
                deliveries=items[0].deliveries,
            )

    async def _next_here(self) -> HeldMessage | None:
        """Return the next message of the queue, with nearly all of its lease; None: it is empty.

        A call that is cancelled gives it back.
        """
        while self._queue:
            item, until = self._pop()
            over_at = await self._lease_end(item, until)
            if over_at is None:
                self._settle_here(item.handle, SettleKind.UNUSED)
                self._told_over([item])
                continue
            if self._given is not None:
                self._given.add(item.handle, over_at, self._cluster.clock.monotonic())
                self._over(item.handle)
            return item
        return None

    async def _lease_end(self, item: HeldMessage, until: float) -> float | None:
        """Return until when a message is with this member, nearly a lease; None: it is not.

        Its lease begins anew if it must. Behind each wait the clock is looked at again: this
        process may have been stopped meanwhile, or starved, for longer than a lease.
        """
        clock, lease_s = self._cluster.clock, self._terms.lease_ms / 1_000
        try:
            if self._given is None and item.deliveries > 1:
                # Perhaps it ends the process: what is handled is told before.
                await self._settled()
            now = clock.monotonic()
            if until - now >= self._fresh_s:
                return until
            if until <= now:
                return None
            await self._settler.settle(item.handle, SettleKind.EXTEND, self._terms.lease_ms)
        except VqError as error:
            logger.debug("lease of a message cannot begin anew", group=self._group, error=error)
            return None
        except asyncio.CancelledError:
            self._settle_here(item.handle, SettleKind.UNUSED)
            raise
        return now + lease_s if clock.monotonic() < now + lease_s else None

    async def take(self) -> HeldMessage | None:
        """Return the next message; None: this was closed."""
        found = await self.take_many(1)
        return found[0] if found else None

    async def take_many(self, most: int) -> list[HeldMessage]:
        """Return up to so many messages, waiting for a first one; none: this was closed.

        A call that is cancelled has taken none.

        Raises:
            VqError: No message follows; see ``fail``.
        """
        found: list[HeldMessage] = []
        if self._given is not None:
            self._room.asks(most)
            self._has_room.set()
        try:
            while True:
                if self._error is not None:
                    raise self._error.with_traceback(None)  # at each call: it shows where that was
                while not self._is_closing and len(found) < most:
                    item = await self._next_here()
                    if item is None:
                        break
                    found.append(item)
                if found or self._is_closing:
                    return found
                self._is_ready.clear()
                await self._is_ready.wait()
        except asyncio.CancelledError:
            self.give_back(item.handle for item in found)
            raise
        finally:
            if self._given is not None:
                self._room.asked(most, in_vain=not found)

    # Settling ---------------------------------------------------------------------------------
    def settle(
        self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0
    ) -> "asyncio.Future[None]":
        """Say what becomes of a message that was taken; all but EXTEND end its time here.

        Returns:
            What is done once it is so, or has the error: ``LeaseLost``, or ``OutcomeUnknown``.
        """
        if self._given is None:
            if kind is not SettleKind.EXTEND:
                self._over(handle)
        elif kind is SettleKind.EXTEND:
            now = self._cluster.clock.monotonic()
            self._given.add(handle, now + time_ms / 1_000, now)
        else:
            self._given.remove(handle)
        return self._settler.settle(handle, kind, time_ms)

    def give_back(self, handles: Iterable[MessageHandle]) -> None:
        """Give back messages that were taken for a call that nobody waits for any more."""
        for handle in handles:
            self.settle(handle, SettleKind.UNUSED)

    def _settle_here(self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0) -> None:
        """Say what becomes of a message that nobody has taken."""
        self._over(handle)
        self._settler.settle(handle, kind, time_ms)

    def drop(self, handle: MessageHandle) -> None:
        """Say nothing of a message that was taken, and is not with this member any more."""
        if self._given is not None:
            self._given.remove(handle)
        self._over(handle)

    def _over(self, handle: MessageHandle) -> None:
        """Have a message in hand no more."""
        if handle in self._held:  # an application may settle one twice
            self._held.remove(handle)
            self._room.over()
            self._has_room.set()

    async def _settled(self) -> None:
        """Return once the journal has answered to all that was said by now, or soon."""
        waiting = self._settler.waiting()
        if waiting:
            await asyncio.wait(waiting, timeout=min(TOLD_S, self._terms.lease_ms / 2_000))
