"""To look at messages of a topic, and to send one."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from vq.aio.factory import MessageFactory
from vq.bounds import check_between
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.coordination.tree.reading import gather_all
from vq.errors import InvalidArgument, UnknownPartition, VqError
from vq.model import Message, SendResult
from vq.operations.messages.stored import read_range
from vq.operations.partitions.offsets import offsets_at_numbers, offsets_at_time
from vq.operations.topics.topics import bounds

LIMIT_MAX: Final = 200
#: Bytes that are read of one partition for a page.
_BYTES_MAX: Final = 1024 * 1024
_PARTITIONS_AT_ONCE: Final = 64
_SEND_TIMEOUT_S: Final = 15.0


class Start(StrEnum):
    """Where to begin to look."""

    NEWEST = "newest"
    OLDEST = "oldest"
    TIME = "time"
    OFFSET = "offset"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class BrowsedMessages:
    """Messages of a page.

    Attributes:
        messages: In the order of their times, the newest first if that was asked for.
        following: By partition, where to read on.
        silent: Partitions that could not be read, and why.
    """

    messages: list[Message]
    following: dict[int, int]
    silent: dict[int, str]


async def browse_messages(
    cluster: ClusterClient,
    topic: str,
    *,
    partition: int | None = None,
    start: Start = Start.NEWEST,
    at: int = 0,
    limit: int = 50,
) -> BrowsedMessages:
    """Return some messages of a topic; no group is needed and none moves.

    Args:
        topic: Its name.
        partition: Only this one; None: all, 64 at most.
        start: Where to begin.
        at: The time in milliseconds since 1970, the offset, or the number of the message.
        limit: How many messages, 1 to 200.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: A number is out of range, or an offset without a partition.
    """
    check_between("limit", limit, 1, LIMIT_MAX, "messages")
    if start is Start.OFFSET and partition is None:
        raise InvalidArgument("an offset is of one partition: name it")
    ends = await bounds(cluster, topic)
    if partition is not None:
        if partition not in ends:
            raise UnknownPartition(f"{topic} has no partition {partition}; it has {len(ends)}")
        ends = {partition: ends[partition]}
    known = {number: each for number, each in ends.items() if each is not None}
    silent = {number: "its broker does not answer" for number in ends if number not in known}
    chosen = dict(sorted(known.items())[:_PARTITIONS_AT_ONCE])
    begins: dict[int, int | None]
    if start is Start.OLDEST:
        begins = {number: each.earliest for number, each in chosen.items()}
    elif start is Start.TIME:
        begins = await offsets_at_time(cluster, topic, at)
    elif start is Start.OFFSET:
        begins = dict.fromkeys(chosen, at)
    elif start is Start.NUMBER:
        begins = await offsets_at_numbers(cluster, topic, dict.fromkeys(chosen, at))
    else:
        wanted = {
            number: max(0, each.latest_number - limit)
            for number, each in chosen.items()
            if each.latest_number is not None
        }
        begins = {number: each.earliest for number, each in chosen.items()}
        begins |= {
            number: offset
            for number, offset in (await offsets_at_numbers(cluster, topic, wanted)).items()
            if offset is not None
        }

    async def read(number: int) -> tuple[list[Message], int] | str:
        begin = begins.get(number)
        ends_of = chosen[number]
        if begin is None:
            return [], ends_of.latest
        begin = max(begin, ends_of.earliest) if start is not Start.OFFSET else begin
        found: list[Message] = []
        try:
            while len(found) < limit and begin < ends_of.latest:
                part = await read_range(cluster, topic, number, begin, max_bytes=_BYTES_MAX)
                if part.next_offset == begin:
                    break
                found += part.messages()
                begin = part.next_offset
        except VqError as error:
            return str(error)
        if len(found) > limit and start is not Start.NEWEST:
            return found[:limit], found[limit].offset
        return found[-limit:] if start is Start.NEWEST else found, begin

    results = dict(zip(chosen, await gather_all(read(each) for each in chosen), strict=True))
    messages: list[Message] = []
    following = {}
    for number, result in results.items():
        if isinstance(result, str):
            silent[number] = result
        else:
            messages += result[0]
            following[number] = result[1]
    newest_first = start is Start.NEWEST
    messages.sort(key=lambda each: (each.id, each.partition, each.offset), reverse=newest_first)
    if not newest_first and len(messages) > limit:
        for each in messages[limit:]:
            following[each.partition] = min(following[each.partition], each.offset)
    return BrowsedMessages(messages[:limit], following, silent)


async def send_message(
    cluster: ClusterClient,
    topic: str,
    content: str,
    *,
    key: str | None = None,
    tag: str | None = None,
    headers: Mapping[str, str] | None = None,
    delay_s: float | None = None,
) -> SendResult:
    """Send one message of text, by a producer of its own; return where it is stored.

    Raises:
        UnknownTopic: There is none of this name.
        Refused: It is not stored.
        OutcomeUnknown: It may or may not be stored.
        InvalidArgument: It is not valid.
    """
    message = Message(
        topic, content.encode(), key=key, tag=tag, headers=headers or None, delay_s=delay_s
    )
    factory = MessageFactory.on_cluster(cluster)
    producer = await factory.create_producer(ProducerConfig(send_timeout_s=_SEND_TIMEOUT_S))
    try:
        return await producer.send(message)
    finally:
        await producer.close()
