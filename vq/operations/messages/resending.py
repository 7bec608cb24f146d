"""Dead letters are sent again, or given up: once, however often that is interrupted and repeated.

Loop-bound functions on a ``ClusterClient``. For each batch a note ``begun`` is stored beside the
letters, then the batch is sent, then a note ``sent`` is stored; see ``settling``. A later call
first finishes the batches that have no end yet: it sends the same bytes with the same stamp.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.producer.spread.partitioner import key_partition
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView
from vq.errors import (
    InvalidArgument,
    InvalidState,
    OutcomeUnknown,
    SequenceStale,
    UnknownTopic,
    VqError,
)
from vq.model import Message, TopicPartition, check_timeout
from vq.operations.base.acts import About, audited
from vq.operations.base.who import who
from vq.operations.messages.dead_letters import (
    UNSETTLED,
    DeadLetter,
    LetterLog,
    WantedLetters,
    logs,
)
from vq.operations.messages.settling import LetterState, Note, NoteKind
from vq.operations.messages.single_batches import SingleBatches, about_bytes
from vq.reserved import RESENT, MessageOrigin, check_own_name
from vq.store.records.copies import encode_copy
from vq.store.records.record import Properties, encode_properties, encode_record

#: Letters a second that ``resend_dead_letters`` sends unless it is told, and at most.
RATE: Final = 100.0
RATE_MAX: Final = 1_000_000.0
#: Most letters of one batch; those that wait to be sent have so many bytes, and one letter more.
BATCH_LETTERS: Final = 100
BATCH_BYTES: Final = limits.MIB
#: Most letters that one note ``deleted`` names.
DELETED_LETTERS: Final = 1_000
#: How long the brokers of one batch are waited for, in seconds.
WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Resending:
    """What ``resend_dead_letters`` did.

    Attributes:
        resent: Letters that it sent.
        finished: Letters that an earlier call had begun to send, and this one has finished.
        homeless: Letters that it left, because they do not tell where they come from, are no
            messages but bytes that nobody could read, or the topic or its partition is not there,
            takes no messages, or takes none so large.
    """

    resent: int
    finished: int
    homeless: int


@audited(About.GROUP)
async def resend_dead_letters(
    cluster: ClusterClient,
    group: str,
    *,
    reason: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    ids: Collection[int] = (),
    to: str | None = None,
    rate: float = RATE,
    timeout: float = WAIT_S,
) -> Resending:
    """Send the open dead letters of a group again: each once, however often this is repeated.

    They go to the topic and the partition that they come from, so every group that reads the topic
    gets them again. A letter keeps content, key, tag, id and headers; ``_vq.resent`` among these
    tells which letter it was. Who sent it, and when, is noted beside the letters.

    A call that was interrupted, or whose outcome is unknown, is repeated: what it had begun is
    finished first, whatever the other arguments say.

    Args:
        group: The group; it need not be there any more.
        reason: Only letters whose reason has this text, in upper or lower case.
        since_ms: Only letters given up at or after this time, in milliseconds since 1970.
        until_ms: Only letters given up before this time.
        ids: Only messages with these ids; none: all.
        to: Send them to this topic; those with a key to the partition of the key.
        rate: At most so many letters a second.
        timeout: How long to wait for the brokers of each batch, in seconds.

    Raises:
        UnknownTopic: The group has no dead letters, or there is no topic ``to``.
        InvalidArgument: ``to`` is reserved, or ``rate`` is out of range.
        InvalidState: A letter of a batch that was begun is not stored any more. All other letters
            were sent.
        OutcomeUnknown: Of the last batch; repeat the call.
        VqError: A broker refuses a batch, or does not answer in time; repeat the call. If it is one
            that an earlier call had begun, all other letters were sent.
    """
    if to is not None:
        check_own_name(to)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= RATE_MAX:
        raise InvalidArgument(f"rate = {rate!r} is not in (0, {RATE_MAX:.0f}] letters a second")
    run = _Run(SingleBatches(cluster, check_timeout(timeout)), to, float(rate))
    wanted = WantedLetters(reason, since_ms, until_ms, frozenset({LetterState.OPEN}), ids)
    if to is not None and await run.topic(to) is None:
        raise UnknownTopic(
            f"there is no topic {to!r}, or it takes no messages",
            hint=f"`vq topic list` shows all topics; create it: `vq topic create {to}`",
        )
    finished = resent = 0
    async for log in logs(cluster, group):
        finished += await run.finish(log)
        resent += await run.resend(log, wanted)
    if run.unfinished is not None:
        raise run.unfinished
    return Resending(resent, finished, run.homeless)


@audited(About.GROUP)
async def delete_dead_letters(
    cluster: ClusterClient,
    group: str,
    *,
    reason: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    ids: Collection[int] = (),
    timeout: float = WAIT_S,
) -> int:
    """Give up dead letters of a group: they are listed no more, and never sent again.

    It is noted beside the letters who did so, and when. Their bytes stay until the topic of dead
    letters drops them; see ``read_dead_letters`` for the arguments. May be repeated.

    Returns:
        How many letters there were to give up, those included whose sending was interrupted.

    Raises:
        UnknownTopic: The group has none.
        OutcomeUnknown, VqError: As ``resend_dead_letters``; repeat the call.
    """
    run = _Run(SingleBatches(cluster, check_timeout(timeout)), None, RATE_MAX)
    wanted = WantedLetters(reason, since_ms, until_ms, UNSETTLED, ids)
    count = 0
    async for log in logs(cluster, group):
        found = [each.message.offset async for each in log.letters(wanted)]
        for at in range(0, len(found), DELETED_LETTERS):
            letters = tuple(found[at : at + DELETED_LETTERS])
            await run.note(log, run.says(NoteKind.DELETED, letters=letters))
        count += len(found)
    return count


@dataclass(slots=True)
class _Run:
    """One call: under which stamps it writes, and how fast.

    Attributes:
        homeless: How many letters it has left.
        unfinished: Why the first batch that it could not finish is refused.
    """

    batches: SingleBatches
    to: str | None
    rate: float
    homeless: int = 0
    unfinished: VqError | None = None

    @property
    def cluster(self) -> ClusterClient:
        """Where the letters are."""
        return self.batches.cluster

    def says(self, kind: NoteKind, **values: object) -> Note:
        """Return a note of this user, now."""
        note = Note(kind=kind, by=who(), time_ms=self.cluster.clock.wall_ms())
        return replace(note, **values)  # type: ignore[arg-type]

    async def topic(self, name: str) -> TopicView | None:
        """Return a topic that takes messages; None: it does not, or there is none."""
        view = await self.batches.topic(name)
        return view if view is not None and view.settings.writable else None

    # Notes ------------------------------------------------------------------------------------
    async def note(self, log: LetterLog, note: Note) -> int:
        """Store a note beside the letters that it is about; return its offset."""
        await self.cluster.lease_slot()
        await self.cluster.track(log.view.name)
        message = note.message(log.view.name)
        properties = encode_properties(Properties(headers=message.headers or {}))
        record = encode_record(self.cluster.take_ids(1)[0], message.content, None, properties)
        partition = TopicPartition(log.view.name, log.number)
        stamp = self.batches.stamp(partition)
        at = await self.batches.put(partition, log.view.id, stamp, [record])
        self.batches.stored(partition)
        return at

    # Letters ----------------------------------------------------------------------------------
    async def finish(self, log: LetterLog) -> int:
        """Send the batches that somebody began and did not finish; return how many letters."""
        count = 0
        for at, begun in list(log.ledger.unfinished.items()):
            try:
                count += await self._finish(log, at, begun)
            except VqError as error:
                is_unknown = isinstance(error, OutcomeUnknown)
                if error.retriable or (is_unknown and not isinstance(error, SequenceStale)):
                    raise
                self.unfinished = self.unfinished or error  # the others can be sent
        return count

    async def _finish(self, log: LetterLog, at: int, begun: Note) -> int:
        assert begun.target is not None
        assert begun.stamp is not None
        own = log.ledger.letters_of(at)
        view = await self._present(begun)
        if view is None:
            await log.read_on(await self.note(log, self.says(NoteKind.GONE, begun=at)))
            return 0
        letters = await log.letters_at(own)
        if len(letters) < len(own):
            raise InvalidState(
                f"{len(own) - len(letters)} of the letters that {begun.by} began to send from "
                f"{TopicPartition(log.view.name, log.number)} to {begun.target} are not stored "
                "any more, so it cannot be finished",
                hint="`vq dlq delete` gives the others of this batch up",
            )
        records = _records(letters)
        await self.batches.put(begun.target, begun.topic_id, begun.stamp, records, resend=True)
        await log.read_on(await self.note(log, self.says(NoteKind.SENT, begun=at)))
        await asyncio.sleep(len(own) / self.rate)
        return len(own)

    async def _present(self, begun: Note) -> TopicView | None:
        """Return the topic that a batch was begun for; None if it is gone, or another one."""
        assert begun.target is not None
        try:
            view = await topics.describe_topic(self.cluster.coordinator, begun.target.topic)
        except UnknownTopic:
            return None
        if view.id != begun.topic_id:
            return None
        await self.cluster.track(begun.target.topic)
        return view

    async def resend(self, log: LetterLog, wanted: WantedLetters) -> int:
        """Send the open letters of one partition that somebody means; return how many."""
        count = held = 0
        waiting: dict[TopicPartition, list[Message]] = {}
        most = max(1, min(BATCH_LETTERS, int(self.rate)))
        async for letter in log.letters(wanted):
            target = await self._target(letter)
            if target is None:
                self.homeless += 1
                continue
            batch = waiting.setdefault(target, [])
            batch.append(letter.message)
            held += about_bytes(letter.message)
            if len(batch) >= most or held >= BATCH_BYTES:
                count += await self._send_all(log, waiting)
                held = 0
        return count + await self._send_all(log, waiting)

    async def _send_all(self, log: LetterLog, waiting: dict[TopicPartition, list[Message]]) -> int:
        count = 0
        while waiting:
            count += await self._send(log, *waiting.popitem())
        return count

    async def _target(self, letter: DeadLetter) -> TopicPartition | None:
        """Return where a letter goes; None: nowhere."""
        origin: MessageOrigin | None = letter.origin
        message = letter.message
        if letter.is_raw:
            return None
        name = self.to if self.to is not None else (origin.topic if origin is not None else None)
        view = None if name is None else await self.topic(name)
        if view is None or len(message.content) > view.settings.max_message_bytes:
            return None
        if self.to is None:
            assert origin is not None
            number = origin.partition
        elif message.key is not None:
            number = key_partition(message.key, len(view.partitions))
        else:
            number = message.partition % len(view.partitions)
        return TopicPartition(view.name, number) if number < len(view.partitions) else None

    async def _send(
        self, log: LetterLog, target: TopicPartition, letters: Sequence[Message]
    ) -> int:
        """Send letters to one partition, those that nobody else has begun to send."""
        view = await self.topic(target.topic)
        assert view is not None
        stamp = self.batches.stamp(target)
        offsets = tuple(each.offset for each in letters)
        begun = self.says(
            NoteKind.BEGUN, letters=offsets, target=target, topic_id=view.id, stamp=stamp
        )
        at = await self.note(log, begun)
        await log.read_on(at)
        own = set(log.ledger.letters_of(at))
        if own:
            records = _records([each for each in letters if each.offset in own])
            await self.batches.put(target, view.id, stamp, records)
            self.batches.stored(target)
            await self.note(log, self.says(NoteKind.SENT, begun=at))
            await asyncio.sleep(len(own) / self.rate)
        return len(own)


def _records(letters: Sequence[Message]) -> list[bytes]:
    """Return the records of letters that are sent again; the same letters give the same bytes."""
    return [
        encode_copy(each, {RESENT: str(MessageOrigin(each.topic, each.partition, each.offset))})
        for each in letters
    ]
