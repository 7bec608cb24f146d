"""A message of a local queue, as one taker has it; and how one is made of what a put was given."""

import math
from collections.abc import Mapping
from typing import Final

from vq import limits
from vq.bounds import check_between, check_within
from vq.client.producer.intake.delays import due_ms_of
from vq.client.producer.intake.stages import Head, Heads, as_bytes, encode_head
from vq.errors import CorruptData, InvalidArgument, MessageTooLarge
from vq.model import Key, Message, TopicPartition
from vq.shown import shown
from vq.store.records.format import FLAG_PROPERTIES, FLAG_TAG
from vq.store.records.record import Properties, Record, decode_properties, encode_properties

#: The highest priority; each one from 0 on is a lane, and a higher one goes first.
PRIORITY_MAX: Final = 2
PRIORITIES: Final = PRIORITY_MAX + 1
#: The lane of messages that wait for a time: delayed ones, and failed ones.
LATER: Final = PRIORITIES
#: The topic in the destination of a message in ``LATER``; its partition is the priority.
LANE_TOPIC: Final = "lane"

_NOTHING: Final = Properties()


class LocalItem:
    """A message that ``take`` returned. It is a handle: only this one completes the message.

    When the lease ends, or the message fails, its next taker gets another item. Items are equal
    only to themselves.

    Attributes:
        content: The content of the message.
        attempts: How often the message was given to a taker, with this time. It goes on over a
            crash, and may begin anew with 1 when the queue was closed.
        id: Of the message: time-ordered, 63 bits; 0 in a queue that is in memory only.
    """

    __slots__ = (
        "__weakref__",
        "attempts",
        "content",
        "deadline",
        "head",
        "id",
        "lane",
        "number",
        "offset",
        "priority",
        "topic",
    )

    def __init__(
        self,
        content: bytes,
        topic: str,
        lane: int = 0,
        priority: int = 0,
        head: tuple[int, bytes] | None = None,
        attempts: int = 1,
    ) -> None:
        """Use ``LocalQueue.take``."""
        self.content = content
        self.topic = topic
        self.lane = lane
        self.priority = priority
        self.head = head  # flag, and the bytes before the content, as in its record
        self.attempts = attempts
        self.id = 0
        self.number = -1  # in its lane
        self.offset = -1  # a boundary of records in its lane, at or before the message
        self.deadline = 0.0  # when its lease ends; 0: nobody has it

    @classmethod
    def stored(
        cls, record: Record, topic: str, lane: int, number: int, *, priority: int, attempts: int
    ) -> "LocalItem":
        """Return a message that was read. For vq only."""
        flag, head = record.flag & (FLAG_TAG | FLAG_PROPERTIES), b""
        if record.tag is not None:
            head = len(record.tag).to_bytes(4, "big") + record.tag
        if record.properties is not None:
            head += len(record.properties).to_bytes(4, "big") + record.properties
        item = cls(record.payload, topic, lane, priority, (flag, head) if flag else None, attempts)
        item.id, item.number, item.offset = record.id, number, record.offset
        return item

    def again(self, attempts: int) -> "LocalItem":
        """Return the same message for its next taker. For vq only."""
        item = LocalItem(self.content, self.topic, self.lane, self.priority, self.head, attempts)
        item.id, item.number, item.offset = self.id, self.number, self.offset
        return item

    @property
    def properties(self) -> Properties:
        """What its record says beside tag and content. For vq only.

        Raises:
            CorruptData: That cannot be parsed.
        """
        encoded = split_head(self.head)[1]
        return _NOTHING if encoded is None else decode_properties(encoded)

    @property
    def message(self) -> Message:
        """The message. Its topic is the name of the queue, whatever topic it was sent with.

        Raises:
            CorruptData: Its key or headers cannot be parsed.
        """
        tag, encoded = split_head(self.head)
        found = _NOTHING if encoded is None else decode_properties(encoded)
        return Message(
            self.topic,
            self.content,
            None if tag is None else _text(tag),
            found.key,
            {name: value for name, value in found.headers.items() if name != IDEMPOTENCY_HEADER}
            or None,
            id=self.id,
        )

    @property
    def key(self) -> Key | None:
        """The key of the message."""
        return self.properties.key

    def __repr__(self) -> str:
        return (
            f"LocalItem({len(self.content)} bytes, topic={self.topic!r}, id={self.id}, "
            f"attempts={self.attempts})"
        )


#: The header of a message that was put with an idempotency key.
IDEMPOTENCY_HEADER: Final = "_vq.idempotency-key"


def split_head(head: tuple[int, bytes] | None) -> tuple[bytes | None, bytes | None]:
    """Return tag and properties, encoded, of a record's head."""
    if head is None:
        return None, None
    flag, data = head
    tag = properties = None
    if flag & FLAG_TAG:
        end = 4 + int.from_bytes(data[:4], "big")
        tag, data = data[4:end], data[end:]
    if flag & FLAG_PROPERTIES:
        properties = data[4:]
    return tag, properties


def _text(tag: bytes) -> str:
    try:
        return tag.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"the tag {tag!r} is no UTF-8") from error


# What a put stores --------------------------------------------------------------------------------
def item_to_put(
    message: Message,
    topic: str,
    *,
    delay_s: float | None,
    priority: int,
    headers: Mapping[str, str],
    now_ms: int,
) -> LocalItem:
    """Return what to store for a put; ``deadline`` of a delayed message is its time.

    Args:
        message: What was given.
        topic: The name of the queue.
        delay_s: Given with the put; None: what the message says.
        priority: Given with the put.
        headers: vq's own, beside those of the message.
        now_ms: The time.

    Raises:
        InvalidArgument, MessageTooLarge: An argument is unusable.
    """
    if delay_s is None:
        delay_s = delay_of(message, now_ms)
    data = content_of(message)
    if type(priority) is not int or priority:  # nearly all have none
        check_between("priority", priority, 0, PRIORITY_MAX)
    head: Head | None = Heads.of(message.tag, message.key, message.headers)
    due_ms = None if delay_s is None else due_ms_after(delay_s, now_ms)
    if due_ms is None:
        if headers:
            head = _with_properties(
                head, Properties(message.key, {**(message.headers or {}), **headers})
            )
        return LocalItem(data, topic, priority, priority, head)
    properties = Properties(
        message.key,
        {**(message.headers or {}), **headers},
        due_ms,
        destination=TopicPartition(LANE_TOPIC, priority),
    )
    item = LocalItem(data, topic, LATER, priority, _with_properties(head, properties), 0)
    item.deadline = due_ms
    return item


def copy_for_later(item: LocalItem, due_ms: int, given: int) -> LocalItem:
    """Return a copy for the lane ``LATER``, which names its message; ``given`` times given."""
    found = item.properties
    properties = Properties(
        found.key,
        found.headers,
        due_ms,
        given,
        f"{LANE_TOPIC}-{item.lane}@{item.number}",
        TopicPartition(LANE_TOPIC, item.priority),
    )
    head = _with_properties(item.head, properties)
    copy = LocalItem(item.content, item.topic, LATER, item.priority, head, given)
    copy.id, copy.deadline = item.id, due_ms
    return copy


def content_of(message: Message) -> bytes:
    """Return the content to store.

    Raises:
        InvalidArgument: It is no bytes.
        MessageTooLarge: It has too many.
    """
    data = as_bytes(message.content)
    if len(data) > limits.MESSAGE_BYTES_MAX:
        raise MessageTooLarge(
            f"content of {len(data)} bytes; a message has at most {limits.MESSAGE_BYTES_MAX}",
            details={"size": len(data), "bound": limits.MESSAGE_BYTES_MAX},
        )
    return data


def delay_of(message: Message, now_ms: int) -> float | None:
    """Return the delay that a message asks for by itself.

    Raises:
        InvalidArgument: Its time is none.
    """
    if message.deliver_at is None:
        return message.delay_s
    return max(due_ms_of(message, now_ms) - now_ms, 0) / 1_000


def due_ms_after(delay_s: float, now_ms: int) -> int | None:
    """Return when a message is due after a delay; None: at once.

    Raises:
        InvalidArgument: It is no number of seconds within [0, 40 days].
    """
    check_within("delay_s", delay_s, 0, limits.DELAY_S_MAX)
    return now_ms + math.ceil(delay_s * 1000) if delay_s else None


def _with_properties(head: Head | None, properties: Properties) -> Head | None:
    """Return a head with the same tag and other properties."""
    encoded = encode_properties(properties, bytes_max=limits.STORED_PROPERTIES_BYTES_MAX)
    return encode_head(split_head(head)[0], encoded)


def check_item(item: object, queue: str) -> LocalItem:
    """Return an item that the application gave to the queue of a name.

    Raises:
        InvalidArgument: It is none, or one of a queue of another name.
    """
    if not isinstance(item, LocalItem):
        raise InvalidArgument(f"{shown(item)} is no item that take() returned")
    if item.topic != queue:
        raise InvalidArgument(
            f"{item!r} is an item of queue {item.topic!r}, and this is queue {queue!r}; "
            "give it to the queue that it was taken from"
        )
    return item
