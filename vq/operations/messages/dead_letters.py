"""Dead letters of consumer groups: which there are, and what became of them.

Loop-bound functions on a ``ClusterClient``. ``settling`` says how it is noted what became of a
letter; ``resending`` writes the notes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.client.kinds import check_text
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView
from vq.errors import InvalidArgument, NotMaster, UnknownTopic, VqError
from vq.model import Message, TopicPartition, check_name
from vq.operations.messages.settling import Ledger, LetterState, Note, Settled
from vq.operations.messages.stored import read_range
from vq.operations.partitions.offsets import ends_of
from vq.reserved import DeliveryFailure, MessageOrigin, Purpose, group_of, topic_of
from vq.shown import shown


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up, and what became of it.

    Attributes:
        group: The group.
        message: As it is stored; topic, partition and offset are those of the letter.
        state: ``open``, ``resending``, ``resent`` or ``deleted``.
        settled: Who did something about it, and when; None: nobody.
    """

    group: str
    message: Message
    state: LetterState
    settled: Settled | None = None

    @property
    def origin(self) -> MessageOrigin | None:
        """Where the message was stored that was given up; None: the letter does not tell."""
        return self.message.origin

    @property
    def failure(self) -> DeliveryFailure | None:
        """How often listeners failed, since when, and why; None: the letter does not tell."""
        return self.message.failure

    @property
    def is_raw(self) -> bool:
        """Whether the content is the bytes of a record that nobody could read."""
        return self.failure is not None and self.failure.raw_bytes is not None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of one group.

    Attributes:
        group: The group, which need not be there any more.
        topic: Where they are kept.
        letters: How many are in each state.
        oldest_ms: When the oldest open one was given up, in milliseconds since 1970; None: there is
            none, or the time is not known.
    """

    group: str
    topic: str
    letters: Mapping[LetterState, int]
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class WantedLetters:
    """Which letters somebody means; see ``read_dead_letters``."""

    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    states: frozenset[LetterState] = frozenset(LetterState)
    ids: Collection[int] = ()

    def __post_init__(self) -> None:
        if self.reason is not None:
            check_text("reason", self.reason)
        ids: object = self.ids
        if isinstance(ids, str) or not isinstance(ids, Collection):
            raise InvalidArgument(f"ids = {shown(ids)}; give a list of ids of messages")
        for each in self.ids:
            check_whole("an id", each)
        for what, moment in (("since_ms", self.since_ms), ("until_ms", self.until_ms)):
            if moment is not None:
                check_whole(what, moment)

    def takes(self, letter: DeadLetter) -> bool:
        """Return whether a letter is meant. One without a known time is in no span of time."""
        if letter.state not in self.states:
            return False
        if self.ids and letter.message.id not in self.ids:
            return False
        if self.reason is not None:
            failure = letter.failure
            if failure is None or self.reason.casefold() not in failure.reason.casefold():
                return False
        stored_ms = letter.message.append_time_ms
        if stored_ms is None:
            return self.since_ms is None and self.until_ms is None
        is_late = self.since_ms is None or stored_ms >= self.since_ms
        return is_late and (self.until_ms is None or stored_ms < self.until_ms)


#: How often, and with which pause, a stored note is read until readers get it.
_READS_MAX: Final = 100
_PAUSE_S: Final = 0.1
#: Letters of which nobody has disposed.
UNSETTLED: Final = frozenset({LetterState.OPEN, LetterState.RESENDING})


# Looking --------------------------------------------------------------------------------------
async def list_dead_letters(cluster: ClusterClient) -> list[DeadLetters]:
    """Return how many dead letters each group has, sorted by group; all of them are read.

    A group without a topic of dead letters has none, and is left out.

    Raises:
        CorruptData: A record is damaged.
        VqError: A broker does not answer.
    """
    found, failed = await look_at_dead_letters(cluster)
    if failed:
        raise failed[0]
    return found


async def look_at_dead_letters(cluster: ClusterClient) -> tuple[list[DeadLetters], list[VqError]]:
    """Return what ``list_dead_letters`` does of groups that can be read, and why others cannot."""
    found: list[DeadLetters] = []
    failed: list[VqError] = []
    for name in await topics.list_topics(cluster.coordinator):
        group = group_of(name, Purpose.DEAD_LETTERS)
        if group is not None:
            try:
                found.append(await counted(cluster, group))
            except UnknownTopic:
                continue  # deleted, or being made
            except VqError as error:
                failed.append(error)
    return found, failed


async def counted(cluster: ClusterClient, group: str) -> DeadLetters:
    counts = dict.fromkeys(LetterState, 0)
    oldest: int | None = None
    async for letter in _letters(cluster, group, WantedLetters()):
        counts[letter.state] += 1
        stored_ms = letter.message.append_time_ms
        if letter.state is LetterState.OPEN and stored_ms is not None:
            oldest = stored_ms if oldest is None else min(oldest, stored_ms)
    return DeadLetters(group, topic_of(Purpose.DEAD_LETTERS, group), counts, oldest)


async def read_dead_letters(
    cluster: ClusterClient,
    group: str,
    *,
    reason: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    ids: Collection[int] = (),
    settled: bool = False,
) -> AsyncGenerator[DeadLetter, None]:
    """Yield the dead letters of a group, partition by partition, in order.

    Args:
        group: The group; it need not be there any more.
        reason: Only those whose reason has this text, in upper or lower case.
        since_ms: Only those given up at or after this time, in milliseconds since 1970.
        until_ms: Only those given up before this time.
        ids: Only messages with these ids; none: all.
        settled: Also those that were sent again or deleted.

    Raises:
        UnknownTopic: The group has none.
        CorruptData: A record is damaged.
    """
    states = frozenset(LetterState) if settled else UNSETTLED
    wanted = WantedLetters(reason, since_ms, until_ms, states, ids)
    async for letter in _letters(cluster, group, wanted):
        yield letter


async def _letters(
    cluster: ClusterClient, group: str, wanted: WantedLetters
) -> AsyncIterator[DeadLetter]:
    async for log in logs(cluster, group):
        async for letter in log.letters(wanted):
            yield letter


async def logs(cluster: ClusterClient, group: str) -> "AsyncIterator[LetterLog]":
    """Yield the partitions of a group's dead letters, each with its notes read.

    Raises:
        NotMaster: A broker that has one does not answer.
    """
    view = await _view(cluster, group)
    ends = await ends_of(cluster, view.partitions, view.id)
    for number, found in sorted(ends.items()):
        if found is None:
            raise NotMaster(
                f"dead letters of group {group!r}: no broker tells which offsets "
                f"{TopicPartition(view.name, number)} has; try again when it answers"
            )
        log = LetterLog(cluster, group, view, number, found.earliest, found.earliest)
        await log.read_on(found.earliest - 1)
        yield log


async def _view(cluster: ClusterClient, group: str) -> TopicView:
    name = topic_of(Purpose.DEAD_LETTERS, check_name("group", group))
    try:
        return await topics.describe_topic(cluster.coordinator, name)
    except UnknownTopic:
        raise UnknownTopic(
            f"group {group!r} has no dead letters: there is no topic {name}",
            hint="`vq dlq list` shows the groups that have some",
        ) from None  # its hint is to make the topic, which the first letter does


@dataclass(slots=True)
class LetterLog:
    """One partition of a topic of dead letters: what its notes say, and how far they are read."""

    cluster: ClusterClient
    group: str
    view: TopicView
    number: int
    earliest: int
    end: int
    ledger: Ledger = field(default_factory=Ledger)

    async def read_on(self, to: int = 0) -> None:
        """Read the notes up to the end of the partition, which is behind the message at ``to``.

        Raises:
            NotMaster: Readers do not get that message, because it has a new master.
        """
        for _ in range(_READS_MAX):
            async for message in self._messages(self.end, None):
                self._add(message)
            if self.end > to:
                return
            await asyncio.sleep(_PAUSE_S)
        raise NotMaster(
            f"{TopicPartition(self.view.name, self.number)}: readers still do not get the message "
            f"at offset {to}, which is stored; try again"
        )

    def _add(self, message: Message) -> None:
        note = Note.of(message)
        if note is not None:
            self.ledger.add(message.offset, note)

    async def _messages(self, start: int, end: int | None) -> AsyncIterator[Message]:
        """Yield the messages of ``[start, end)``, and note how far that went if it has no end."""
        while True:
            found = await read_range(self.cluster, self.view.name, self.number, start, end)
            for message in found.messages():
                yield message
            start = found.next_offset
            if end is None:
                self.end = start
            if not found.data or (end is not None and start >= end):
                return

    async def letters(self, wanted: WantedLetters) -> AsyncIterator[DeadLetter]:
        """Yield the letters that somebody means, as far as the notes are read."""
        if self.earliest >= self.end:
            return
        async for message in self._messages(self.earliest, self.end):
            if Note.of(message) is None:
                letter = self.letter(message)
                if wanted.takes(letter):
                    yield letter

    def letter(self, message: Message) -> DeadLetter:
        """Return a message of the partition as a letter."""
        settled = self.ledger.settled(message.offset)
        return DeadLetter(self.group, message, self.ledger.of(message.offset), settled)

    async def letters_at(self, offsets: Sequence[int]) -> list[Message]:
        """Return the letters at some offsets."""
        found: list[Message] = []
        for offset in offsets:
            read = await read_range(self.cluster, self.view.name, self.number, offset, max_bytes=1)
            found += [each for each in read.messages()[:1] if each.offset == offset]
        return found
