"""The clients of a simulation: they produce, consume as a group, and read by position."""

import asyncio
import random
from collections.abc import Callable, Sequence

from support.simulation.history import History
from support.simulation.world import ClientHost, World

from vq import aio
from vq.client.config import ConsumerConfig, ProducerConfig, ReadFrom
from vq.errors import (
    LogTruncated,
    OffsetNotBoundary,
    OffsetOutOfRange,
    OutcomeUnknown,
    PartitionFailed,
    Refused,
    VqError,
)
from vq.model import Message, SendResult

#: First letter of a member's name → its group. Members of ``f`` take only what has the tag.
GROUPS = {"c": "shop", "f": "filtered"}
TAG = "third"
#: What a reader is told whose place is gone.
LOST = (LogTruncated, OffsetNotBoundary, OffsetOutOfRange)
#: Padding of messages; the last one needs a block of its own, and is rare.
PADDING_BYTES = (*(0, 20, 20, 150, 150, 150, 1_500, 3_000) * 12, 30_000)

KEYS = (None, None, "a", "b", "c")
#: Where one message of a key waits for the other: each key comes less often.
KEYS_OF_MANY = (*[None] * 20, *map(str, range(30)))


def has_tag(value: str) -> bool:
    """Whether the message with this value has the tag: every third one of a producer."""
    return int(value.rpartition("/")[2]) % 3 == 0


def is_for(member: str, value: str) -> bool:
    """Whether a member's group gets a message."""
    return member[0] != "f" or has_tag(value)


def one_of(topics: Sequence[str], rng: random.Random) -> str:
    """Return one of the topics; nothing is drawn if there is no choice."""
    return topics[0] if len(topics) == 1 else rng.choice(topics)


def value_of(message: Message) -> str:
    """Return the unique value inside a message."""
    return message.content.partition(b"|")[0].decode()


async def produce(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Send messages one by one and in bursts until the host stops; record every outcome."""
    history = host.world.history
    config = ProducerConfig(
        send_timeout_s=rng.choice((0.7, 3.0, 12.0)),
        batch_records=rng.choice((3, 2_000)),
        window=rng.choice((1, 2, 5, 5)),
    )
    producer = await factory.create_producer(config)
    topics = host.world.topics
    for topic in topics:
        await producer.publish(topic)
    number = 0
    while not host.stopping:
        for _ in range(rng.choice((1, 1, 1, 2, 12))):
            value = f"{name}/{number}"
            number += 1
            key = rng.choice(KEYS_OF_MANY if host.world.size.keyed else KEYS)
            content = value.encode() + b"|" + bytes(rng.choice(PADDING_BYTES))
            topic = one_of(topics, rng)
            message = Message(topic, content, tag=TAG if has_tag(value) else None, key=key)
            history.add("send", name, value, key)
            try:
                await producer.send_async(message, _note_outcome(history, name, value, topic))
            except VqError as error:
                history.add("refused", name, value, type(error).__name__)
                await asyncio.sleep(0.2)
        await asyncio.sleep(rng.expovariate(8 / host.world.size.producers))
    await producer.flush()


def _note_outcome(
    history: History, name: str, value: str, topic: str
) -> Callable[[SendResult | None, VqError | None], None]:
    def note(result: SendResult | None, error: VqError | None) -> None:
        if result is not None:
            partition = f"{topic}-{result.partition}"
            history.add("ok", name, value, partition, result.offset, result.id)
        elif isinstance(error, OutcomeUnknown):
            history.add("unknown", name, value, type(error).__name__)
        elif isinstance(error, Refused):
            history.add("refused", name, value, type(error).__name__)
        else:
            history.add("broken", name, f"{value} ends with {error!r}")

    return note


async def consume(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Be a member of the group until the host stops; record every message."""
    history = host.world.history
    read_from = ReadFrom.MASTER
    if host.world.copies:
        read_from = rng.choice((ReadFrom.MASTER, ReadFrom.ANY))
    consumer = await factory.create_consumer(
        ConsumerConfig(
            group=GROUPS[name[0]],
            member_id=name.replace("#", "-"),
            commit_interval_s=rng.choice((0.3, 1.0, 5.0)),
            prefetch_bytes=rng.choice((64 * 1024, 1024 * 1024)),
            max_wait_s=4.0,
            audit_interval_s=10.0,
            read_from=read_from,
        )
    )
    length = rng.choice((500, 8_000, 1024 * 1024))
    for topic in host.world.topics:
        consumer.subscribe(topic, length, message_filter=TAG if name[0] == "f" else None)
    slow_s = rng.choice((0.01, 0.1, 0.5))
    leaving = asyncio.create_task(leave(host, name, consumer))
    async for message in consumer:
        partition = f"{message.topic}-{message.partition}"
        history.add(
            "read",
            consumer.member,
            partition,
            message.offset,
            message.next_offset,
            value_of(message),
        )
        if rng.random() < 0.05:
            await asyncio.sleep(rng.expovariate(1 / slow_s))
    await leaving


async def leave(host: ClientHost, name: str, consumer: aio.MessageConsumer) -> None:
    """Close a consumer when its host stops."""
    while not host.stopping:
        await asyncio.sleep(0.1)
    await consumer.close()
    host.world.history.add("note", name, "left")


async def audit(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Read by position now and then: what was seen once must stay."""
    history = host.world.history
    consumer = await factory.create_consumer(ConsumerConfig())
    known: dict[tuple[str, int], list[int]] = {}
    while not host.stopping:
        await asyncio.sleep(rng.expovariate(0.7))
        topic = one_of(host.world.topics, rng)
        partition = rng.randrange(host.world.size.partitions)
        offsets = known.setdefault((topic, partition), [0])
        offset = offsets[-1] if rng.random() < 0.3 else rng.choice(offsets)
        try:
            found = await consumer.get(topic, partition, offset, 4096, timeout=0.5)
        except LOST as error:  # the judge tells whether something may have been lost
            history.add("told", name, f"{topic}-{partition}", type(error).__name__)
            offsets[:] = [0]
            continue
        except PartitionFailed as error:
            if not any(broker.disk_ever_failed for broker in host.world.brokers):
                history.add("broken", name, f"reading {topic}-{partition}: {error!r}")
            continue
        except VqError as error:
            if not (error.retriable or isinstance(error, OutcomeUnknown)):
                history.add("broken", name, f"reading {topic}-{partition}: {error!r}")
            continue
        history.add("asked", name, f"{topic}-{partition}", offset)
        for message in found:
            _note_seen(history, name, message)
        offsets += [message.next_offset for message in found[-1:]]


def _note_seen(history: History, name: str, message: Message) -> None:
    partition = f"{message.topic}-{message.partition}"
    history.add("seen", name, partition, message.offset, message.next_offset, value_of(message))


async def read_all(world: World, factory: aio.MessageFactory) -> dict[str, list[Message]]:
    """Return every message of every partition, in order: the final log."""
    consumer = await factory.create_consumer(ConsumerConfig())
    log: dict[str, list[Message]] = {}
    for topic in world.topics:
        for placement in await factory.get_partitions_for_topic(topic):
            partition = placement.partition
            bounds = await consumer.get_bounds(topic, partition)
            messages: list[Message] = []
            offset = bounds.earliest
            while offset < bounds.latest:
                found = await consumer.get(topic, partition, offset, 65_536, timeout=1.0)
                if not found:
                    break
                messages += found
                offset = found[-1].next_offset
            log[f"{topic}-{partition}"] = messages
    return log
