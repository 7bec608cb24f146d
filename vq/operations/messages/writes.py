"""Repeatable writes: what earlier attempts of a task have stored, and that they store no more.

Loop-bound functions on a ``ClusterClient``. ``coordination.leases.writes`` says which attempt
writes under which epoch. An attempt that repeats another one stops that first: it begins its next
epoch with an empty batch in every partition. What the earlier attempts have stored lies before
these batches.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.backoff import Backoff
from vq.bounds import check_between
from vq.client.cluster import ClusterClient
from vq.client.puts import put_batch
from vq.client.reading.decode import decode_messages
from vq.coordination.leases import writes
from vq.coordination.leases.writes import WriteTopic
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    CorruptData,
    NotMaster,
    Unreachable,
)
from vq.model import (
    Message,
    ProducerIdentity,
    ProducerStamp,
    TopicPartition,
    check_name,
    check_timeout,
)
from vq.operations.messages.stored import RANGE_BYTES, read_range
from vq.operations.partitions.offsets import Inspector
from vq.store.records.batches import headers
from vq.store.records.format import CONTROL_BYTES, BatchHeader

#: How long an attempt waits for the brokers of a topic.
WAIT_S: Final = 60.0
_BATCH_MAX: Final = 2**63 - 1
_TASK_MAX: Final = 2**31 - 1
_PAUSE: Final = Backoff(first_s=0.02, most_s=0.5)


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """One attempt of a task of a repeatable write; see ``vq.Admin.begin_attempt``.

    Attributes:
        write: The name of the write.
        batch: The number of its batch.
        task: The number of the batch's task.
        identity: For the producer of this attempt; nobody else has it.
        first_epoch: The epoch of the first attempt of the task in this batch.
        topics: If it is repeated: those to which its batch may have written.
    """

    write: str
    batch: int
    task: int
    identity: ProducerIdentity
    first_epoch: int
    topics: tuple[str, ...] = ()

    @property
    def is_repeated(self) -> bool:
        """Whether earlier attempts may have stored messages: see ``vq.Admin.enter_topic``."""
        return self.identity.epoch > self.first_epoch


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """What attempts of a task have stored in ``[offset, next_offset)`` of a partition.

    Attributes:
        messages: Theirs, verified, in order; those of all others are left out.
        next_offset: Where to read on.
    """

    messages: list[Message]
    next_offset: int


async def begin_write(cluster: ClusterClient, write: str) -> None:
    """Begin a repeatable write: one whose tasks may be tried again, and store nothing twice.

    For programs such as a sink of Spark. A write has batches with rising numbers, each with
    tasks. An attempt of a task calls ``begin_attempt``, ``enter_topic`` before its first
    message to a topic, and sends with a producer of the attempt's identity. If it repeats
    another attempt, it leaves out what ``read_written`` gives. Beginning a write again changes
    nothing. It is in ZooKeeper until ``end_write``.

    Raises:
        InvalidArgument: That is no name.
    """
    await writes.begin(cluster.coordinator, write)


async def end_write(cluster: ClusterClient, write: str) -> None:
    """Forget a repeatable write: no attempt of it can begin any more. May be repeated."""
    await writes.end(cluster.coordinator, write)


async def list_writes(cluster: ClusterClient) -> list[str]:
    """Return the names of all repeatable writes, sorted."""
    return await writes.names(cluster.coordinator)


async def begin_attempt(cluster: ClusterClient, write: str, batch: int, task: int) -> WriteAttempt:
    """Begin an attempt of a task: it has an epoch that is higher than those of earlier ones.

    Give its ``identity`` to the producer, see ``vq.ProducerConfig``.

    Args:
        write: A write that was begun.
        batch: The batch's number; all tasks of earlier batches have ended.
        task: The task's number within the batch.

    Raises:
        InvalidState: A later batch has begun, or the write is not there.
    """
    for what, number, most in (("batch", batch, _BATCH_MAX), ("task", task, _TASK_MAX)):
        check_between(what, number, 0, most)
    coordinator = cluster.coordinator
    found = await writes.attempt(
        coordinator, write, batch, task, lambda: cluster.rng.getrandbits(63) | 1
    )
    known = await writes.topics_written(coordinator, write, batch) if found.is_repeated else ()
    identity = ProducerIdentity(found.producer_id, found.epoch)
    return WriteAttempt(write, batch, task, identity, found.first_epoch, tuple(known))


async def tasks_begun(cluster: ClusterClient, write: str, batch: int) -> list[int]:
    """Return the tasks of a batch of which attempts have begun, sorted."""
    return await writes.tasks_begun(cluster.coordinator, write, batch)


async def enter_topic(
    cluster: ClusterClient, attempt: WriteAttempt, topic: str, *, timeout: float = WAIT_S
) -> dict[int, tuple[int, int]]:
    """Make a topic ready for an attempt, before its first message to the topic.

    A repeated attempt so has all partitions refuse what earlier attempts still send.

    Args:
        attempt: The attempt.
        topic: The topic. A missing one is created if producers may do so.
        timeout: How long to wait for the brokers of all partitions, in seconds.

    Returns:
        By partition, the range of offsets in which earlier attempts may have stored messages;
        nothing for a first attempt. Read all of it with ``read_written`` before sending.

    Raises:
        UnknownTopic: There is no such topic.
        InvalidState: A later batch has begun, or the write is not there.
        ProducerFenced: A later attempt of the task has begun.
        VqError: A partition gave no answer in time, or takes no messages.
    """
    check_name("topic", topic)
    deadline = cluster.clock.monotonic() + check_timeout(timeout)
    await cluster.track_or_create(topic)
    noted = await _noted_ends(cluster, attempt, topic, deadline)
    if not attempt.is_repeated:
        return {}
    partitions = range(len(cluster.routes.topic(topic).partitions))
    stops = await gather_all(
        _stop_earlier(cluster, TopicPartition(topic, each), noted.topic_id, attempt, deadline)
        for each in partitions
    )
    starts = [*noted.ends, *(0 for _ in partitions)]
    return {
        number: (starts[number], stop)
        for number, stop in zip(partitions, stops, strict=True)
        if starts[number] < stop - CONTROL_BYTES
    }


async def _noted_ends(
    cluster: ClusterClient, attempt: WriteAttempt, topic: str, deadline: float
) -> WriteTopic:
    coordinator, write, batch = cluster.coordinator, attempt.write, attempt.batch
    topic_id = cluster.routes.topic(topic).id
    known = await writes.read_topic(coordinator, write, batch, topic, topic_id)
    if known is not None:
        return known
    tries = 0
    while True:
        tries += 1
        # A placement that is out of date gives an earlier end, and so only more to look at.
        inspector = Inspector(cluster)
        placements = cluster.routes.topic(topic).partitions
        bounds = await gather_all(inspector.ends(each) for each in placements)
        silent = [number for number, ends in enumerate(bounds) if ends is None]
        if not silent:
            break
        pause = _PAUSE.pause_s(tries)
        if cluster.clock.monotonic() + pause >= deadline:
            raise Unreachable(
                f"the ends of {len(silent)} partitions of topic {topic} are not known, of "
                f"{TopicPartition(topic, silent[0])} first: their brokers do not answer; nothing "
                "was sent"
            )
        cluster.refresh(topic)
        await asyncio.sleep(pause)
    ends = tuple(found.latest for found in bounds if found is not None)
    wanted = WriteTopic(batch=batch, topic_id=topic_id, ends=ends)
    return await writes.note_ends(coordinator, write, topic, wanted)


async def _stop_earlier(
    cluster: ClusterClient,
    partition: TopicPartition,
    topic_id: str,
    attempt: WriteAttempt,
    deadline: float,
) -> int:
    """Have a partition take nothing of earlier attempts any more; return the offset of that.

    An empty batch that is stored twice does no harm, so each try may be the first one.

    Raises:
        ProducerFenced: A later attempt has done so with this one.
        VqError: The broker refuses it, or does not answer in time.
    """
    identity = attempt.identity
    stamp = ProducerStamp(identity.producer_id, identity.epoch - 1, 0)
    return await put_batch(cluster, partition, stamp, (), topic_id=topic_id, deadline=deadline)


async def read_written(
    cluster: ClusterClient,
    attempt: WriteAttempt,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    max_bytes: int = RANGE_BYTES,
    timeout: float = WAIT_S,
) -> WrittenRange:
    """Return the messages that earlier attempts have stored in a part of ``[start, end)``.

    Read on at the ``next_offset`` of the result until that is ``end``.

    Args:
        attempt: A repeated attempt.
        topic: A topic that it has entered.
        partition: The partition's number.
        start: As ``enter_topic`` says, or the ``next_offset`` of the reading before.
        end: As ``enter_topic`` says.
        max_bytes: Stored bytes to look at, those of others included, 1 to 8 MiB; more only if
            a batch is larger.
        timeout: How long to wait, in seconds, for messages that readers do not get yet,
            because copies are behind.

    Raises:
        OffsetOutOfRange: Retention has deleted a part of it, so that it cannot be told.
        NotMaster: Readers still do not get the message at ``start``.
        CorruptData: A record is damaged.
    """
    deadline = cluster.clock.monotonic() + check_timeout(timeout)
    size, tries = max_bytes, 0
    while True:
        found = await read_range(cluster, topic, partition, start, end, max_bytes=size)
        batches = whole_batches(found.data, start)
        if batches or start >= end:
            break
        if not found.data:
            # It is stored, but readers do not get it yet: copies lack it, or a new master does not
            # know whether they have it. To go on without would store it again.
            tries += 1
            pause = _PAUSE.pause_s(tries)
            if cluster.clock.monotonic() + pause >= deadline:
                raise NotMaster(
                    f"{topic}-{partition}: readers get nothing behind offset {start} yet, and what "
                    f"an earlier attempt has stored may end at {end}; its copies are behind, or "
                    "the messages were lost with a master"
                )
            await asyncio.sleep(pause)
            continue
        if size >= limits.FETCH_BYTES_MAX:
            raise CorruptData(f"{topic}-{partition}: no batch starts at offset {start}")
        size = limits.FETCH_BYTES_MAX  # has any batch whole
    messages: list[Message] = []
    where = TopicPartition(topic, partition)
    for batch in batches:
        if is_of(batch, attempt):
            at = batch.start_offset - start
            data = found.data[at : at + batch.byte_length]
            position, more = 0, True
            while more:
                position, more = decode_messages(
                    data, batch.start_offset, where, messages, start=position
                )
    return WrittenRange(messages, batches[-1].end_offset if batches else found.next_offset)


def whole_batches(data: bytes, start: int) -> list[BatchHeader]:
    """Return the headers of the whole batches that ``data`` begins with.

    Raises:
        CorruptData: There is something else between them.
    """
    end = start + len(data)
    return [each for each in headers(data, start) if each.end_offset <= end]


def is_of(batch: BatchHeader, attempt: WriteAttempt) -> bool:
    """Return whether an attempt of the same task and batch, earlier than this one, wrote it."""
    identity = attempt.identity
    return (
        batch.producer_id == identity.producer_id
        and attempt.first_epoch <= batch.producer_epoch < identity.epoch
    )
