"""What a member of a shared group says of messages: many with one request, one after the other.

Loop-bound. Of one message, one thing is said after the other.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from vq import limits
from vq.client.consumer.shared.desk import SharedDesk
from vq.client.consumer.shared.handles import MessageHandle, SaidOfMessage, SettleKind, merged
from vq.errors import InvalidRequest, InvalidState, LeaseLost, OutcomeUnknown
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.tasks import begin_task

logger = get_logger(__name__)

#: At the end it is waited so long for what is settled.
CLOSE_S: Final = 10.0

#: What is said of a message, and who waits for the answer.
_Said = tuple[SaidOfMessage, "asyncio.Future[None]"]


class Settler:
    """See the module.

    Args:
        desk: Asks the journal.
        group: Of the member.
        source_of: Returns the partition of a source, and the id of its topic.
        told: Called with a source and its lowest message that is not done.
    """

    def __init__(
        self,
        desk: SharedDesk,
        group: str,
        source_of: Callable[[int], tuple[TopicPartition, str]],
        told: Callable[[int, int], None],
    ) -> None:
        self._desk = desk
        self._group = group
        self._source_of = source_of
        self._told = told
        self._outgoing: list[_Said] = []
        self._sent: list[asyncio.Future[None]] = []  # of these the answer is not there yet
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Begin to send what is said."""
        self._task = begin_task(self._settle_all())

    def settle(
        self, handle: MessageHandle, kind: SettleKind, time_ms: int
    ) -> "asyncio.Future[None]":
        """Say what becomes of a message; see ``SharedReceiver.settle``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(retrieved)
        if self._is_closed:
            told = f"this consumer of group {self._group!r} is closed: what it had is given back"
            future.set_exception(InvalidState(told))
            return future
        self._outgoing.append((SaidOfMessage(handle, kind, time_ms), future))
        self._wake.set()
        return future

    def waiting(self) -> "list[asyncio.Future[None]]":
        """Return what ends with the answers to all that was said by now."""
        return [*self._sent, *(each for _, each in self._outgoing)]

    async def close(self) -> None:
        """Have settled what is to be."""
        self._is_closed = True
        waiting = self.waiting()
        if waiting:
            await asyncio.wait(waiting, timeout=CLOSE_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for each in waiting:
            told = f"there was no answer within {CLOSE_S:g} s, and the consumer is closed"
            _fail(each, OutcomeUnknown(told))

    async def _settle_all(self) -> None:
        while True:
            await self._wake.wait()
            batch: dict[MessageHandle, _Said] = {}
            later: list[_Said] = []
            for each in self._outgoing:
                is_full = len(batch) >= limits.SHARED_RUNS_PER_SETTLE_MAX
                if is_full or each[0].handle in batch:
                    later.append(each)
                else:
                    batch[each[0].handle] = each
            self._outgoing = later
            if not later:
                self._wake.clear()
            if batch:
                self._sent = [each for _, each in batch.values()]
                await self._settle(batch)

    async def _settle(self, batch: dict[MessageHandle, _Said]) -> None:
        said = [each for each, _ in batch.values()]
        try:
            lost, lows = await settle_all(self._desk, said, self._source_of)
        except InvalidRequest as error:
            if len(batch) == 1:
                self._fail_all(batch, error)
            for handle, each in batch.items() if len(batch) > 1 else ():
                await self._settle({handle: each})  # one of them must not cost the others
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the next batch is sent
            self._fail_all(batch, error)
            return
        for source, low in lows.items():
            self._told(source, low)
        for handle, (_, future) in batch.items():
            if handle in lost:
                partition, _id = self._source_of(handle.source)
                _fail(future, lease_lost(partition, handle.number, self._group))
            elif not future.done():
                future.set_result(None)

    def _fail_all(self, batch: dict[MessageHandle, _Said], error: Exception) -> None:
        logger.warning(
            "messages of shared group cannot be settled",
            group=self._group,
            messages=len(batch),
            error=error,
        )
        for _, future in batch.values():
            _fail(future, error)


async def settle_all(
    desk: SharedDesk,
    said: Sequence[SaidOfMessage],
    source_of: Callable[[int], tuple[TopicPartition, str]],
) -> tuple[set[MessageHandle], dict[int, int]]:
    """Settle messages, each named once, with one request.

    Returns:
        Those that are not had any more; and the lowest message of each source that is not done.

    Raises:
        OutcomeUnknown: There is no answer.
        VqError: The broker refuses.
    """
    used = sorted({each.handle.source for each in said})
    at = {source: index for index, source in enumerate(used)}
    runs = [each._replace(source=at[each.source]) for each in merged(said)]
    answer = await desk.settle(list(map(source_of, used)), runs)
    lost = {
        MessageHandle(used[run.source], number, run.grant)
        for run in answer.lost
        for number in range(run.first, run.first + run.messages)
    }
    return lost, dict(zip(used, answer.lows, strict=True))


def lease_lost(partition: TopicPartition, number: int, group: str) -> LeaseLost:
    """Return what is raised for a message that is not had any more."""
    return LeaseLost(
        f"message {number} of {partition} is not with this member of group {group!r} any more: its "
        "lease has ended, or it was settled before",
        details={"number": number},
    )


def _fail(future: "asyncio.Future[None]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def retrieved(future: "asyncio.Future[Any]") -> None:
    """Whoever does not await it does not care."""
    if not future.cancelled():
        future.exception()
