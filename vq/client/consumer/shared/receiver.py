"""What a member of a shared group has in hand: asked for, read, given out one by one, settled.

    journal ──▶ runs of numbers ──▶ read from their partitions ──▶ queue ──▶ take
       ▲                                                                      │
       └──────────────── settled, many with one request ◀─────────────────────┘

Loop-bound. One task asks for messages while there is room, one sends what is settled, and one for
each partition looks whether it has more. What waits in the queue when its lease is over is dropped:
somebody else gets it.
"""

import asyncio
import contextlib
from collections import deque
from typing import Any

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.consumer.shared.desk import SharedTerms
from vq.client.consumer.shared.handles import MessageHandle, SettleKind
from vq.client.consumer.shared.room import ROOM_S, SharedRoom
from vq.client.consumer.shared.sources import AGAIN, LOOK_S, TURN_S, HeldMessage, SharedSources
from vq.client.consumer.shared.turns import SourceTurns
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.remoting.wire_pb2 import SharedRun
from vq.tasks import begin_task

__all__ = ["HeldMessage", "SharedReceiver"]

logger = get_logger(__name__)


class SharedReceiver(SharedSources):
    """See the module.

    Args:
        cluster, group, terms, rest: See ``SharedSources``.
        workers: So many are at messages at a time.

    Attributes:
        expired: Messages whose lease was over before anybody took them.
    """

    def __init__(
        self, cluster: ClusterClient, group: str, terms: SharedTerms, *, workers: int, **rest: Any
    ) -> None:
        super().__init__(cluster, group, terms, **rest)
        self.expired = 0
        self._queue: deque[tuple[HeldMessage, float]] = deque()
        self._is_ready = asyncio.Event()  # there is something in the queue, or nothing more comes
        self._room = SharedRoom(workers, cluster.clock.monotonic())
        self._has_room = asyncio.Event()
        self._turns = SourceTurns()
        self._asked: set[int] = set()  # the journal is asked for these, and has nothing of them
        self._reads: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self._is_closing = False

    # Life ---------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to ask for messages."""
        self._receiving = begin_task(self._receive_all())
        super().start()

    async def stop(self) -> None:
        """Ask for no more, and give back what nobody has taken; what was taken can be settled."""
        self._is_closing = True
        receiving = [] if self._receiving is None else [self._receiving]
        ended = [*receiving, *self._reads]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)
        await super().stop()
        now = self._cluster.clock.monotonic()
        for item, until in self._queue:
            if until > now:
                self.settle(item.handle, SettleKind.UNUSED)
        self._queue.clear()
        self._is_ready.set()

    def _added(self) -> None:
        self._has_room.set()

    # Asking -------------------------------------------------------------------------------------
    def _is_asked(self, at: int) -> bool:
        return at in self._asked

    def _has_more(self, at: int) -> None:
        self._turns.has_more(at)

    async def _rest(self) -> None:
        if self._room.in_hand:
            await asyncio.sleep(LOOK_S)

    async def _receive_all(self) -> None:
        tries = 0
        while True:
            self._has_room.clear()
            sources = self._read_now()
            room = self._room.free(self._cluster.clock.monotonic())
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
            except VqError as error:
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
            for source, low in zip(read, answer.lows, strict=True):
                source.low = low
            until = begun + self._terms.lease_ms / 1_000
            for run in answer.runs:
                self._room.in_hand += run.messages
                task = begin_task(self._read_all(asked[run.source], run, until))
                self._reads.add(task)
                task.add_done_callback(self._reads.discard)

    async def _read_all(self, at: int, run: SharedRun, until: float) -> None:
        """Read a run that this member got, into the queue."""
        async for _, messages in self._read(at, run):
            self._queue.extend((each, until) for each in messages)
            self._is_ready.set()

    async def take(self) -> HeldMessage | None:
        """Return the next message; None: this was closed."""
        while True:
            while self._queue:
                item, until = self._queue.popleft()
                if until > self._cluster.clock.monotonic():
                    return item
                self.expired += 1
                self._over()
            if self._is_closing:
                return None
            self._is_ready.clear()
            await self._is_ready.wait()

    # Settling ---------------------------------------------------------------------------------
    def settle(
        self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0
    ) -> "asyncio.Future[None]":
        """Say what becomes of a message; each but for EXTEND ends its time with this member.

        Returns:
            What is done once it is so, or has the error: ``LeaseLost``, or ``OutcomeUnknown``.
        """
        if kind is not SettleKind.EXTEND:
            self._over()
        return self._settler.settle(handle, kind, time_ms)

    def _over(self) -> None:
        self._room.over()
        self._has_room.set()
