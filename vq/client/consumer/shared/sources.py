"""Partitions that a member of a shared group reads: whether they have more, and their messages.

Loop-bound. One task for each partition looks whether it has more, and tells the journal.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.shared.desk import SharedDesk, SharedSeat, SharedTerms, ToldSource
from vq.client.consumer.shared.handles import MessageHandle, SettleKind, key_number
from vq.client.consumer.shared.settler import Settler
from vq.client.consumer.shared.source import (
    NumberGone,
    NumbersUnknown,
    RecordUnreadable,
    SourceReader,
)
from vq.client.reading.nodes import Nodes
from vq.coordination.tree.values.group_terms import OnBadRecord
from vq.errors import CorruptData, VqError
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.remoting.wire_pb2 import ReceiveResponse, SharedRun
from vq.tasks import begin_task

logger = get_logger(__name__)

#: How long the journal waits for messages, and a partition for more of them: at most so long, and
#: half of what a client waits for an answer.
WAIT_S: Final = 5.0
#: Whoever has a wait at the journal end waits so long for that.
END_S: Final = 2.0
#: Partitions that are waited for at a time: each is a request that waits at its broker. If there
#: are more, each waits less, so that all of them have their turn within ``WAIT_S``;
WATCHED_MAX: Final = 200
#: but not less than this.
WATCH_S_MIN: Final = 0.25
#: For so long the journal waits if the request cannot name all partitions: what others have waits
#: for its end.
TURN_S: Final = 0.5
#: While there is something to do, a partition is looked at no more often.
LOOK_S: Final = 0.02
#: What cannot be read now is given back for so long.
UNREADABLE_S: Final = 5.0
AGAIN: Final = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)


class HeldMessage(NamedTuple):
    """A message that was taken.

    Attributes:
        message: It.
        handle: With which it is settled.
        deliveries: How often it was delivered, with this time.
    """

    message: Message
    handle: MessageHandle
    deliveries: int


@dataclass(slots=True, eq=False)
class WatchedSource:
    """A partition that is read.

    Attributes:
        reader: Of it.
        wanted: Which messages.
        task: Looks whether it has more.
        low: The lowest message that is not done, as last told; None: not yet.
        bad: The last message that nobody can read, and that the group does not pass over.
    """

    reader: SourceReader
    wanted: Filter
    task: "asyncio.Task[None] | None" = field(default=None)
    low: int | None = None
    bad: int | None = None

    @property
    def is_held_up(self) -> bool:
        """Whether a message that nobody can read is still not done."""
        return self.bad is not None and (self.low is None or self.low <= self.bad)


@dataclass(slots=True, eq=False)
class RunReading:
    """A run that is read.

    Attributes:
        at: Of which partition.
        run: It.
        number: From this message on it is still to be read.
    """

    at: int
    run: SharedRun
    number: int


class SharedSources(ABC):
    """See the module. ``SharedReceiver`` and ``SharedPull`` are what asks for messages.

    Args:
        cluster: Where the group is.
        group: Its name.
        terms: With what it asks.
        nodes: From which nodes messages are read.
        policy: What becomes of a record that nobody can read.
        bad_records: Passes over these.
        trouble: Told of a partition that does not go on, the number of the message, and why; None:
            it goes on.

    Attributes:
        gone: Messages that were not kept any more when they were to be read.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        terms: SharedTerms,
        *,
        nodes: Nodes,
        policy: PolicyInForce,
        bad_records: BadRecords,
        trouble: Callable[[TopicPartition, int, VqError | None], None],
    ) -> None:
        self.gone = 0
        self._cluster = cluster
        self._group = group
        self._terms = terms
        self._nodes = nodes
        self._policy = policy
        self._bad_records = bad_records
        self._trouble = trouble
        self._desk = SharedDesk(cluster, group, terms, SharedSeat.drawn(cluster.rng))
        self._wait_s = min(WAIT_S, cluster.config.request_timeout_s / 2)
        self._sources: dict[int, WatchedSource] = {}
        self._next_source = 0
        self._settler = Settler(self._desk, group, self._source_of, self._is_low)
        self._watched = asyncio.Semaphore(WATCHED_MAX)

    # Life ---------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to settle messages, and what else it does by itself."""
        self._settler.start()

    async def stop(self) -> None:
        """Look at partitions no more; what was taken can be settled."""
        watches = [each.task for each in self._sources.values() if each.task is not None]
        for task in watches:
            task.cancel()
        if watches:
            await asyncio.wait(watches)

    async def close(self) -> None:
        """Have settled what is to be; after ``stop``."""
        await self._settler.close()

    async def add(
        self,
        partition: TopicPartition,
        wanted: Filter,
        *,
        latest: bool,
        committed: int | None = None,
    ) -> None:
        """Read a partition, too.

        Args:
            partition: Which.
            wanted: Which of its messages; others count as done.
            latest, committed: See ``SourceReader.open``.

        Raises:
            NumbersUnknown: Nobody knows the numbers of its messages.
            VqError: A broker does not answer.
        """
        reader = SourceReader(self._cluster, partition, self._nodes)
        await reader.open(latest=latest, committed=committed)
        source = WatchedSource(reader, wanted)
        at, self._next_source = self._next_source, self._next_source + 1
        self._sources[at] = source
        source.task = begin_task(self._watch(at, source))
        self._added()

    async def remove(self, partition: TopicPartition) -> None:
        """Read a partition no more; what is in hand of it can be settled still."""
        for source in self._sources.values():
            if source.reader.partition == partition and source.task is not None:
                source.task.cancel()
                await asyncio.wait([source.task])
                source.task = None

    def partitions(self) -> list[TopicPartition]:
        """Return what is read, sorted."""
        return sorted(each.reader.partition for each in self._read_now().values())

    def lows(self) -> dict[TopicPartition, tuple[str, int]]:
        """Return, by partition, the id of its topic and the lowest message that is not done."""
        return {
            each.reader.partition: (each.reader.topic_id, each.low)
            for each in self._sources.values()
            if each.low is not None and each.task is not None
        }

    async def refresh(self) -> None:  # noqa: B027  not all need it
        """Learn which messages are the lowest that are not done, if others settle them.

        Raises:
            VqError: A broker does not answer.
        """

    # What differs by who asks -------------------------------------------------------------------
    @abstractmethod
    def settle(
        self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0
    ) -> "asyncio.Future[None]":
        """Say what becomes of a message that was taken; all but EXTEND end its time here.

        Returns:
            What is done once it is so, or has the error: ``LeaseLost``, or ``OutcomeUnknown``.
        """

    @abstractmethod
    def _settle_here(self, handle: MessageHandle, kind: SettleKind, time_ms: int = 0) -> None:
        """Say what becomes of a message that nobody has taken."""

    def drop(self, handle: MessageHandle) -> None:  # noqa: B027  not all care
        """Have a message in hand no more, and say nothing of it."""

    def _waits(self, handle: MessageHandle) -> None:  # noqa: B027  likewise
        """A message was given back, since it waits for another one of its key."""

    @abstractmethod
    def _is_asked(self, at: int) -> bool:
        """Whether the journal is asked for a partition now, and has nothing of it."""

    @abstractmethod
    async def _rest(self) -> None:
        """Return when a partition is to be looked at again."""

    def _has_more(self, at: int) -> None:  # noqa: B027  not all care
        """A partition has more, and the journal is not asked for it now."""

    def _added(self) -> None:  # noqa: B027  likewise
        """A partition was added."""

    # Looking ------------------------------------------------------------------------------------
    def _read_now(self) -> dict[int, WatchedSource]:
        return {at: each for at, each in self._sources.items() if each.task is not None}

    def _told(self, sources: Sequence[WatchedSource]) -> list[ToldSource]:
        return [
            ToldSource(
                each.reader.partition,
                each.reader.topic_id,
                each.reader.begin,
                each.reader.end,
                each.reader.cut,
            )
            for each in sources
        ]

    def _learn(self, sources: Sequence[WatchedSource], answer: ReceiveResponse) -> None:
        """Take what the journal tells of partitions."""
        for source, low in zip(sources, answer.lows, strict=True):
            source.low = low
        for each in answer.cuts:
            sources[each.source].reader.know_cuts(each.cursor, each.cuts)

    def _watch_s(self) -> float:
        """Return how long a partition is waited for, so that all have their turn."""
        turns = max(1.0, len(self._sources) / WATCHED_MAX)
        return max(self._wait_s / turns, min(WATCH_S_MIN, self._wait_s))

    async def _watch(self, at: int, source: WatchedSource) -> None:
        """Look whether a partition has more, and tell the journal."""
        tries = 0
        reader = source.reader
        while True:
            try:
                async with self._watched:
                    await reader.until_more(self._watch_s())
                is_more = await reader.look()
                if reader.cut is not None or (is_more and self._is_asked(at)):
                    self._learn([source], await self._desk.tell(self._told([source])))
                elif is_more:
                    self._has_more(at)
                tries = 0
                await self._rest()
            except VqError as error:
                tries += 1
                self._trouble(reader.partition, reader.end, error)
                if isinstance(error, NumbersUnknown):
                    logger.error(
                        "partition is not read by a shared group",
                        group=self._group,
                        partition=reader.partition,
                        error=error,
                    )
                await asyncio.sleep(AGAIN.pause_s(tries, self._cluster.rng))
            else:
                if not source.is_held_up:
                    self._trouble(reader.partition, reader.end, None)

    # Reading ------------------------------------------------------------------------------------
    async def _read(self, reading: RunReading) -> AsyncGenerator[list[HeldMessage], None]:
        """Read what is left of a run that this member got, in steps.

        Messages that are not wanted, cannot be read, or wait for others of their keys are not
        among them; it is settled what becomes of them.
        """
        at, run = reading.at, reading.run
        source, end = self._sources[at], run.first + run.messages
        while reading.number < end:
            number = reading.number
            try:
                async for first, messages in source.reader.read(number, end - number):
                    waits = await self._waiting(source, first, messages, run)
                    number = reading.number = first + len(messages)
                    yield self._wanted(at, source.wanted, first, messages, run, waits)
            except NumberGone as error:
                reading.number = min(end, max(number + 1, int(error.details["number"])))
                self._give_up(at, number, reading.number, run.grant, error)
            except RecordUnreadable as error:
                try:
                    reading.number = await self._pass_over(at, number, run, error)
                except VqError as failed:
                    reading.number = end
                    self._unread(at, number, run, failed)
            except VqError as error:
                reading.number = end
                self._unread(at, number, run, error)

    def _give_back_run(self, at: int, run: SharedRun, number: int, pause_s: float = 0.0) -> None:
        """Give back what was not read of a run, from a message on."""
        for left in range(number, run.first + run.messages):
            handle = MessageHandle(at, left, run.grant)
            self._settle_here(handle, SettleKind.UNUSED, int(pause_s * 1_000))

    def _unread(self, at: int, number: int, run: SharedRun, error: VqError) -> None:
        """Give back for a time what cannot be read now, from a message on."""
        partition = self._sources[at].reader.partition
        self._trouble(partition, number, error)
        if isinstance(error, CorruptData):
            logger.error(
                "message of shared group cannot be read, it is delivered again",
                group=self._group,
                partition=partition,
                number=number,
                error=error,
            )
        self._give_back_run(at, run, number, UNREADABLE_S)

    async def _pass_over(
        self, at: int, number: int, run: SharedRun, error: RecordUnreadable
    ) -> int:
        """Do about a record that nobody can read what the policy says.

        Returns:
            The number of the first message behind it.

        Raises:
            VqError: A broker does not answer, or the dead letter is not stored.
        """
        source, policy = self._sources[at], self._policy.now
        reader, damage = source.reader, error.damage
        is_held = policy.on_bad_record == OnBadRecord.STOP
        if is_held:
            source.bad = number
            self._trouble(reader.partition, number, damage)
            following = await reader.by_position.behind(error.offset, damage)
        else:
            following = await self._bad_records.settle(
                reader.by_position,
                error.offset,
                damage,
                keep=policy.on_bad_record == OnBadRecord.DEAD_LETTER,
            )
        behind = max(number + 1, await reader.number_of(following))
        kind, pause_ms = SettleKind.REJECT, 0
        if is_held:
            kind, pause_ms = SettleKind.UNUSED, round(policy.retry_backoff_s[-1] * 1_000)
            logger.error(
                "record cannot be read from any node, the group does not pass over it",
                group=self._group,
                partition=reader.partition,
                number=number,
                messages=behind - number,
                again_s=policy.retry_backoff_s[-1],
                error=damage,
            )
        for each in range(number, min(behind, run.first + run.messages)):
            self._settle_here(MessageHandle(at, each, run.grant), kind, pause_ms)
        return behind

    def _give_up(self, at: int, first: int, end: int, grant: int, error: VqError) -> None:
        """Settle messages that are not kept any more."""
        self.gone += end - first
        logger.error(
            "messages of shared group are not kept any more, they count as given up",
            group=self._group,
            partition=self._sources[at].reader.partition,
            first=first,
            messages=end - first,
            error=error,
        )
        for number in range(first, end):
            self._settle_here(MessageHandle(at, number, grant), SettleKind.REJECT)

    async def _waiting(
        self, source: WatchedSource, first: int, messages: Sequence[Message], run: SharedRun
    ) -> Collection[int]:
        """Return which messages wait for others of their keys; nobody has them then."""
        if not self._terms.is_keyed:
            return ()
        keys = list(map(key_number, messages))
        (told,) = self._told([source])
        return await self._desk.tell_keys(told, first, run.grant, keys)

    def _wanted(
        self,
        at: int,
        wanted: Filter,
        first: int,
        messages: Sequence[Message],
        run: SharedRun,
        waits: Collection[int],
    ) -> list[HeldMessage]:
        """Return the messages of a step that are wanted and do not wait; others are settled."""
        check, tags = wanted.check, wanted.tags
        found: list[HeldMessage] = []
        for number, message in enumerate(messages, first):
            handle = MessageHandle(at, number, run.grant)
            if number in waits:
                self._waits(handle)
                continue
            try:
                is_left_out = check is not None and not check(message)
            except VqError as error:  # it stands alone: those before and behind it go on
                self._trouble(self._sources[at].reader.partition, number, error)
                self._settle_here(handle, SettleKind.UNUSED, int(UNREADABLE_S * 1_000))
                continue
            if is_left_out or (tags and message.tag not in tags):
                self._settle_here(handle, SettleKind.ACK)
            else:
                found.append(HeldMessage(message, handle, run.deliveries))
        return found

    def _source_of(self, at: int) -> tuple[TopicPartition, str]:
        reader = self._sources[at].reader
        return reader.partition, reader.topic_id

    def _is_low(self, at: int, low: int) -> None:
        self._sources[at].low = low
