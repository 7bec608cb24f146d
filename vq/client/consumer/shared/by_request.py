"""Messages of a shared group for somebody who asks, and who says elsewhere what became of them.

Loop-bound. Nothing is taken ahead: a message is with whoever has asked for it, and with nobody
before. What an answer has no room for is given back, and does not count as delivered. What an
answer has is still with whoever asked, for half a lease at least; but what comes again, since an
attempt is repeated, is had for what is left of its first lease.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.shared.desk import SharedDesk, SharedSeat, SharedTerms
from vq.client.consumer.shared.failed import FailedDeliveries, is_spent
from vq.client.consumer.shared.handles import MessageHandle, PlacedHandle, SettleKind
from vq.client.consumer.shared.sources import (
    END_S,
    LOOK_S,
    TURN_S,
    HeldMessage,
    RunReading,
    SharedSources,
    WatchedSource,
)
from vq.client.consumer.shared.turns import SourceTurns
from vq.client.copies import MessageCopies
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.remoting.wire_pb2 import ReceiveResponse, SharedRun
from vq.tasks import begin_task

logger = get_logger(__name__)

#: While nobody asks, a partition is looked at no more often.
IDLE_LOOK_S: Final = 0.25
#: A journal that answers so much before its time with nothing has ended the request: another one of
#: its seat has come.
_EARLY_S: Final = 0.05
#: The shortest wait that a request can name.
_TIME_S: Final = 0.001


class SharedByRequest(SharedSources):
    """See the module.

    Args:
        cluster, group, terms, policy, rest: See ``SharedSources``.
        copier: Makes dead letters of what was delivered too often.

    Attributes:
        reading_bytes: Contents of messages that were read, and not yet returned.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        terms: SharedTerms,
        *,
        policy: PolicyInForce,
        copier: MessageCopies,
        **rest: Any,
    ) -> None:
        super().__init__(cluster, group, terms, policy=policy, **rest)
        self._failed = FailedDeliveries(
            self, group, policy, copier, rng=cluster.rng, clock=cluster.clock
        )
        self.reading_bytes = 0
        self._asked: Counter[int] = Counter()  # how often the journal is asked for each now
        self._is_wanted = asyncio.Event()  # somebody asks
        self._is_new = asyncio.Event()  # a partition was added

    # Looking ------------------------------------------------------------------------------------
    def _is_asked(self, at: int) -> bool:
        return self._asked[at] > 0

    async def _rest(self) -> None:
        if self._is_wanted.is_set():
            await asyncio.sleep(LOOK_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_LOOK_S):
                await self._is_wanted.wait()

    def _added(self) -> None:
        self._is_new.set()

    @contextmanager
    def _asking(self, sources: Sequence[int]) -> Iterator[None]:
        self._asked.update(sources)
        self._is_wanted.set()
        try:
            yield
        finally:
            self._asked.subtract(sources)
            self._asked = +self._asked
            if not self._asked:
                self._is_wanted.clear()

    async def refresh(self) -> None:
        """See ``SharedSources``: others settle what was received here."""
        sources = list(self._read_now().values())
        for start in range(0, len(sources), limits.SHARED_SOURCES_PER_REQUEST_MAX):
            some = sources[start : start + limits.SHARED_SOURCES_PER_REQUEST_MAX]
            self._learn(some, await self._desk.tell(self._told(some)))

    # Receiving ----------------------------------------------------------------------------------
    async def receive(
        self,
        seat: SharedSeat,
        most: int,
        room: Callable[[], int],
        *,
        lease_ms: int,
        wait_s: float,
        repeats: bool,
        over: "asyncio.Future[None]",
    ) -> list[HeldMessage]:
        """Return messages; none if none came in time. Any number of calls at a time.

        Args:
            seat: Who asks; nobody else uses it meanwhile.
            most: So many at most.
            room: So many bytes their contents may have now, but for the first one.
            lease_ms: They are with who asks for so long.
            wait_s: How long to wait for a first one.
            repeats: This is the attempt of the seat, perhaps once more: what that has got, and
                still has, comes again. An answer may have none before the time is over.
            over: Done when nobody waits for the answer any more; it is none then.

        Raises:
            VqError: The journal does not answer, or refuses.
        """
        clock, turns = self._cluster.clock, SourceTurns()
        desk = SharedDesk(self._cluster, self._group, self._terms._replace(lease_ms=lease_ms), seat)
        deadline = clock.monotonic() + wait_s
        while True:
            sources, begun = self._read_now(), clock.monotonic()
            left_s = max(0.0, deadline - begun)
            if sources:
                turn = turns.next(list(sources))
                slice_s = self._wait_s if turn.is_all else min(TURN_S, self._wait_s)
                asked_s = min(left_s, slice_s) if turn.waits else 0.0
                read = [sources[each] for each in turn.sources]
                each_bytes = max(each.reader.each_bytes for each in read)
                count = max(1, min(most, int(room() / each_bytes)))
                with self._asking(turn.sources):
                    asking = begin_task(
                        (desk.repeat if repeats else desk.receive)(self._told(read), count, asked_s)
                    )
                    answer = await self._answer(asking, desk, read[0], over)
                turns.found(something=bool(answer.runs))
                self._learn(read, answer)
                found = await self._read_all(turn.sources, answer.runs, room)
                until = begun + (answer.waited_ms + lease_ms) / 1_000
                found = await self._still_had(found, until, lease_ms)
                if found and over.done() and not repeats:
                    for each in found:
                        self.settle(each.handle, SettleKind.UNUSED)
                    return []
                is_early = clock.monotonic() - begun < asked_s - _EARLY_S
                if found or (repeats and (answer.runs or (turn.is_all and is_early))):
                    return found
            else:  # none is claimed yet
                self._is_new.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, self._wait_s)):
                        await self._is_new.wait()
            if deadline - clock.monotonic() < _TIME_S or over.done():
                return []

    async def _answer(
        self,
        asking: "asyncio.Task[ReceiveResponse]",
        desk: SharedDesk,
        source: WatchedSource,
        over: "asyncio.Future[None]",
    ) -> ReceiveResponse:
        """Return the answer of the journal; once nobody waits for it, have it come at once."""
        try:
            waits: set[asyncio.Future[Any]] = {asking, over}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                with contextlib.suppress(VqError, TimeoutError):
                    async with asyncio.timeout(END_S):
                        await desk.end(self._told([source]))
            return await asking
        finally:
            asking.cancel()

    async def _read_all(
        self, asked: Sequence[int], runs: Sequence[SharedRun], room: Callable[[], int]
    ) -> list[HeldMessage]:
        """Read runs as far as there is room; give back the rest, and end what is spent."""
        found: list[HeldMessage] = []
        spent: list[HeldMessage] = []
        size, is_full, most_bytes = 0, False, room()
        try:
            for run in runs:
                reading = RunReading(asked[run.source], run, run.first)
                if not is_full:
                    async with aclosing(self._read(reading)) as steps:
                        async for messages in steps:
                            for each in messages:
                                if is_spent(self._policy.now, each.deliveries):
                                    spent.append(each)
                                    continue
                                more = len(each.message.content)
                                is_full = is_full or (size + more > most_bytes and bool(found))
                                if is_full:
                                    self._settle_here(each.handle, SettleKind.UNUSED)
                                    continue
                                found.append(each)
                                size += more
                                self.reading_bytes += more
                            if is_full:
                                break
                if is_full:
                    self._give_back_run(reading.at, run, reading.number)
            await asyncio.gather(*(self._failed.end(each, None) for each in spent))
        finally:
            self.reading_bytes -= size
        return found

    async def _still_had(
        self, found: list[HeldMessage], until: float, lease_ms: int
    ) -> list[HeldMessage]:
        """Return those that who asked still has, with half of their time left at least.

        If reading took longer than the other half, their leases begin anew.

        Args:
            found: What was read.
            until: When their leases end.
            lease_ms: How long they last.
        """
        clock, lease_s = self._cluster.clock, lease_ms / 1_000
        now = clock.monotonic()
        if not found or until - now >= lease_s / 2:
            return found
        said = [self._settler.settle(each.handle, SettleKind.EXTEND, lease_ms) for each in found]
        await asyncio.wait(said)
        still = [each for each, done in zip(found, said, strict=True) if done.exception() is None]
        if clock.monotonic() >= now + lease_s:
            still = []
        if len(still) < len(found):
            logger.warning(
                "leases were over before messages were read, they are delivered again",
                group=self._group,
                messages=len(found) - len(still),
                lease_s=lease_s,
            )
        return still

    def placed(self, handle: MessageHandle) -> PlacedHandle:
        """Return a handle that anybody can settle."""
        partition, topic_id = self._source_of(handle.source)
        return PlacedHandle(partition, topic_id, handle.number, handle.grant)

    def settle(
        self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0
    ) -> "asyncio.Future[None]":
        """See ``SharedSources``."""
        return self._settler.settle(handle, kind, time_ms)

    def _settle_here(self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0) -> None:
        self._settler.settle(handle, kind, time_ms)
