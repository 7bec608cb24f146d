"""What a member of a shared group has in hand: asked for, read, given out one by one, settled.

    journal ──▶ runs of numbers ──▶ read from their partitions ──▶ queue ──▶ take
       ▲                                                                      │
       └──────────────── settled, many with one request ◀─────────────────────┘

Loop-bound. One task asks for messages while there is room, one sends what is settled, and one for
each partition looks whether it has more. What waits in the queue for half of its lease is given
back: it was not delivered, others may be free for it, and its lease would be over before its time.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vq import limits
from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.shared.desk import SharedDesk, SharedTerms, ToldSource
from vq.client.consumer.shared.given import GivenMessages
from vq.client.consumer.shared.handles import MessageHandle, SettleKind, key_number
from vq.client.consumer.shared.room import ROOM_S, SharedRoom
from vq.client.consumer.shared.settler import Settler
from vq.client.consumer.shared.source import (
    NumberGone,
    NumbersUnknown,
    RecordUnreadable,
    SourceReader,
)
from vq.client.consumer.shared.turns import SourceTurns
from vq.client.reading.nodes import Nodes
from vq.coordination.tree.values.group_terms import OnBadRecord
from vq.errors import CorruptData, VqError
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.remoting.wire_pb2 import SharedRun
from vq.tasks import begin_task

__all__ = ["HeldMessage", "SharedReceiver"]

logger = get_logger(__name__)

#: How long the journal waits for messages, and a partition for more of them: at most so long, and
#: half of what a client waits for an answer.
WAIT_S: Final = 5.0
#: For so long if the request cannot name all partitions: what others have waits for its end.
TURN_S: Final = 0.5
#: Partitions that are waited for at a time: each is a request that waits at its broker. If there
#: are more, each waits less, so that all of them have their turn within ``WAIT_S``;
WATCHED_MAX: Final = 200
#: but not less than this.
WATCH_S_MIN: Final = 0.25
#: While there is something to do, a partition is looked at no more often.
LOOK_S: Final = 0.02
#: Whoever closes waits so long for the end of a request that waits.
END_S: Final = 2.0
#: What cannot be read now is given back for so long.
UNREADABLE_S: Final = 5.0
#: The lease of a message that has waited for so much of it begins anew with its listener.
WAITED_SHARE: Final = 0.1
#: How long an answer of the journal is waited for before a message that was delivered before.
TOLD_S: Final = 1.0
_AGAIN: Final = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)


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
class _Source:
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
class _RunReading:
    """A run that is read.

    Attributes:
        at: Of which partition.
        run: It.
        until: When its lease is over.
        number: From this message on it is still to be read.
    """

    at: int
    run: SharedRun
    until: float
    number: int


class SharedReceiver:
    """See the module.

    Args:
        cluster: Where the group is.
        group: Its name.
        terms: With what it asks.
        nodes: From which nodes messages are read.
        workers: So many are at messages at a time.
        policy: What becomes of a record that nobody can read.
        bad_records: Passes over these.
        trouble: Told of a partition that does not go on, the number of the message, and why; None:
            it goes on.

    Attributes:
        gone: Messages that were not kept any more when they were to be read.
        expired: Messages whose lease was over before anybody took them.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        terms: SharedTerms,
        *,
        nodes: Nodes,
        workers: int,
        policy: PolicyInForce,
        bad_records: BadRecords,
        trouble: Callable[[TopicPartition, int, VqError | None], None],
    ) -> None:
        self.gone = self.expired = 0
        self._cluster = cluster
        self._group = group
        self._terms = terms
        self._nodes = nodes
        self._policy = policy
        self._bad_records = bad_records
        self._trouble = trouble
        self._desk = SharedDesk(cluster, group, terms)
        self._wait_s = min(WAIT_S, cluster.config.request_timeout_s / 2)
        self._sources: dict[int, _Source] = {}
        self._next_source = 0
        self._queue: deque[tuple[HeldMessage, float]] = deque()
        self._is_ready = asyncio.Event()  # there is something in the queue, or nothing more comes
        self._fresh_s = (1 - WAITED_SHARE) * terms.lease_ms / 1_000
        self._held: set[MessageHandle] = set()  # what ``SharedRoom`` counts as in hand
        self._room = SharedRoom(workers, cluster.clock.monotonic())
        self._has_room = asyncio.Event()
        self._turns = SourceTurns()
        self._asked: set[int] = set()  # the journal is asked for these, and has nothing of them
        self._settler = Settler(self._desk, group, self._source_of, self._is_low)
        self._watched = asyncio.Semaphore(WATCHED_MAX)
        self._reads: dict[asyncio.Task[None], _RunReading] = {}
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
        self._settler.start()

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
        watches = [each.task for each in self._sources.values() if each.task is not None]
        ended = [*watches, *reads]
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)
        self._give_back_queue()
        for reading in reads.values():
            self._give_back_run(reading.at, reading.run, reading.number)

    def _ends(self) -> bool:
        return self._is_closing

    def _give_back_queue(self) -> None:
        now = self._cluster.clock.monotonic()
        for item, until in self._queue:
            if until > now:
                self._settle_here(item.handle, SettleKind.UNUSED)
        self._queue.clear()

    def _give_back_run(self, at: int, run: SharedRun, number: int, pause_s: float = 0.0) -> None:
        """Give back what was not read of a run, from a message on."""
        for left in range(number, run.first + run.messages):
            handle = MessageHandle(at, left, run.grant)
            self._settle_here(handle, SettleKind.UNUSED, int(pause_s * 1_000))

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
        source = _Source(reader, wanted)
        at, self._next_source = self._next_source, self._next_source + 1
        self._sources[at] = source
        source.task = begin_task(self._watch(at, source))
        self._has_room.set()

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

    # Asking -------------------------------------------------------------------------------------
    def _read_now(self) -> dict[int, _Source]:
        return {at: each for at, each in self._sources.items() if each.task is not None}

    def _told(self, sources: Sequence[_Source]) -> list[ToldSource]:
        return [
            ToldSource(
                each.reader.partition, each.reader.topic_id, each.reader.begin, each.reader.end
            )
            for each in sources
        ]

    async def _receive_all(self) -> None:
        tries = 0
        while not self._ends():
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
                await asyncio.sleep(_AGAIN.pause_s(tries, self._cluster.rng))
                continue
            finally:
                self._asked = set()
            self._turns.found(something=bool(answer.runs))
            for source, low in zip(read, answer.lows, strict=True):
                source.low = low
            until = begun + (answer.waited_ms + self._terms.lease_ms) / 1_000
            for run in answer.runs:
                self._note_held(asked[run.source], run)
                if self._ends():
                    self._give_back_run(asked[run.source], run, run.first)
                    continue
                reading = _RunReading(asked[run.source], run, until, run.first)
                task = begin_task(self._read(reading))
                self._reads[task] = reading
                task.add_done_callback(self._reads.pop)

    def _note_held(self, at: int, run: SharedRun) -> None:
        numbers = range(run.first, run.first + run.messages)
        self._held.update(MessageHandle(at, number, run.grant) for number in numbers)
        self._room.in_hand = len(self._held)

    def _watch_s(self) -> float:
        """Return how long a partition is waited for, so that all have their turn."""
        turns = max(1.0, len(self._sources) / WATCHED_MAX)
        return max(self._wait_s / turns, min(WATCH_S_MIN, self._wait_s))

    async def _watch(self, at: int, source: _Source) -> None:
        """Look whether a partition has more, and tell the journal."""
        tries = 0
        reader = source.reader
        while True:
            try:
                async with self._watched:
                    await reader.until_more(self._watch_s())
                if await reader.look():
                    if at in self._asked:
                        await self._desk.tell(self._told([source]))
                    else:
                        self._turns.has_more(at)
                tries = 0
                if self._room.in_hand:
                    await asyncio.sleep(LOOK_S)
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
                await asyncio.sleep(_AGAIN.pause_s(tries, self._cluster.rng))
            else:
                if not source.is_held_up:
                    self._trouble(reader.partition, reader.end, None)

    # Reading ------------------------------------------------------------------------------------
    async def _read(self, reading: _RunReading) -> None:
        """Read a run that this member got, into the queue."""
        end = reading.run.first + reading.run.messages
        while reading.number < end:
            reading.number = await self._read_on(reading)

    async def _read_on(self, reading: _RunReading) -> int:
        """Read what is left of a run; return where to go on, or its end."""
        at, run = reading.at, reading.run
        source, end = self._sources[at], run.first + run.messages
        try:
            async for first, messages in source.reader.read(reading.number, end - reading.number):
                waits = await self._waiting(source, first, messages, run)
                self._queue_all(at, source.wanted, first, messages, reading, waits)
                reading.number = first + len(messages)
        except NumberGone as error:
            behind = min(end, max(reading.number + 1, int(error.details["number"])))
            self._give_up(at, reading.number, behind, run.grant, error)
            return behind
        except RecordUnreadable as error:
            try:
                return await self._pass_over(at, reading.number, run, error)
            except VqError as failed:
                self._unread(at, reading.number, run, failed)
        except VqError as error:
            self._unread(at, reading.number, run, error)
        return end

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
        self, source: _Source, first: int, messages: Sequence[Message], run: SharedRun
    ) -> Collection[int]:
        """Return which messages wait for others of their keys; nobody has them then."""
        if not self._terms.is_keyed:
            return ()
        keys = list(map(key_number, messages))
        (told,) = self._told([source])
        return await self._desk.tell_keys(told, first, run.grant, keys)

    def _queue_all(
        self,
        at: int,
        wanted: Filter,
        first: int,
        messages: Sequence[Message],
        reading: _RunReading,
        waits: Collection[int],
    ) -> None:
        check, tags = wanted.check, wanted.tags
        run, until = reading.run, reading.until
        for number, message in enumerate(messages, first):
            handle = MessageHandle(at, number, run.grant)
            if number in waits:
                self._held.discard(handle)
                self._room.not_mine()
                self._has_room.set()
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
                self._queue.append((HeldMessage(message, handle, run.deliveries), until))
        self._is_ready.set()
        self._look_at_queue()

    def _look_at_queue(self) -> None:
        """Look again when the first message has waited for half of its lease."""
        if self._queue and self._waits_too_long is None:
            left_s = self._queue[0][1] - self._cluster.clock.monotonic()
            wait_s = max(LOOK_S, left_s - self._terms.lease_ms / 2_000)
            loop = asyncio.get_running_loop()
            self._waits_too_long = loop.call_later(wait_s, self._give_back)

    def _give_back(self) -> None:
        """Give back what has waited for half of its lease."""
        self._waits_too_long = None
        now = self._cluster.clock.monotonic()
        while self._queue and self._queue[0][1] <= now + self._terms.lease_ms / 2_000:
            item, until = self._queue.popleft()
            self._room.forget_asked()
            if until > now:
                self._settle_here(item.handle, SettleKind.UNUSED)
            else:
                self.expired += 1
                self._over(item.handle)
        self._look_at_queue()

    async def _next_here(self) -> HeldMessage | None:
        """Return the next message of the queue, with nearly all of its lease; None: it is empty.

        A call that is cancelled gives it back.
        """
        while self._queue:
            item, until = self._queue.popleft()
            now = self._cluster.clock.monotonic()
            if until - now < self._fresh_s:
                begins_at = await self._begin_lease(item, until - now)
                if begins_at is None:
                    self.expired += 1
                    self._over(item.handle)
                    continue
                until = begins_at + self._terms.lease_ms / 1_000
            if self._given is not None:
                self._given.add(item.handle, until, now)
                self._over(item.handle)
            return item
        return None

    async def _begin_lease(self, item: HeldMessage, left_s: float) -> float | None:
        """Begin the lease of a message anew; return when, or None: it is not with this member."""
        if left_s <= 0:
            return None
        now = self._cluster.clock.monotonic()
        try:
            await self._settler.settle(item.handle, SettleKind.EXTEND, self._terms.lease_ms)
        except VqError as error:
            logger.debug("lease of a message cannot begin anew", group=self._group, error=error)
            return None
        except asyncio.CancelledError:
            self._settle_here(item.handle, SettleKind.UNUSED)
            raise
        return now

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
            for item in found:
                self.settle(item.handle, SettleKind.UNUSED)
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

    async def settled(self) -> None:
        """Return once the journal has answered to all that was said by now, or soon."""
        waiting = self._settler.waiting()
        if waiting:
            await asyncio.wait(waiting, timeout=TOLD_S)

    def _source_of(self, at: int) -> tuple[TopicPartition, str]:
        reader = self._sources[at].reader
        return reader.partition, reader.topic_id

    def _is_low(self, at: int, low: int) -> None:
        self._sources[at].low = low
