"""A message of a local queue, as one taker has it."""

from typing import Final

from vq.errors import CorruptData
from vq.model import Key, Message
from vq.store.records.format import FLAG_PROPERTIES, FLAG_TAG
from vq.store.records.record import Properties, Record, decode_properties

__all__ = ["LATER", "PRIORITIES", "PRIORITY_MAX", "LocalItem"]

#: The highest priority; each one from 0 on is a lane, and a higher one goes first.
PRIORITY_MAX: Final = 2
PRIORITIES: Final = PRIORITY_MAX + 1
#: The lane of messages that wait for a time: delayed ones, and failed ones.
LATER: Final = PRIORITIES

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
