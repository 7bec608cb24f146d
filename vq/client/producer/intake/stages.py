"""The stages of a message between the application and the accumulator.

    message ─▶ serialize ─▶ size ─▶ head ─▶ compress ─▶ partition ─▶ accumulator

Each stage is one function; a stage that is switched off is not called. They run in the thread that
sends, before the message is accepted: an error refuses the message, and nothing is appended. A
*plain* message needs none of them, see ``appender.Appender``. The hooks of ``interceptors`` run
before all stages.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vq import limits
from vq.client.config import ProducerConfig
from vq.client.future import ANY_PARTITION
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.client.producer.spread.partitioner import Keys, strategy_of
from vq.errors import InvalidArgument, MessageTooLarge, VqError
from vq.message_filter import TAG_SEPARATOR
from vq.model import Key, Message, TopicPartition
from vq.reserved import CORRELATION, PREFIX, answered_topic, check_own_name, is_reserved_header
from vq.serializers import Serializer
from vq.shown import shown, shown_error
from vq.store.records.format import FLAG_PROPERTIES, FLAG_TAG
from vq.store.records.record import Properties, encode_key, encode_properties

# The head of a record: flag bits, tag and properties, which are before the payload ----------------
_TAGS_REMEMBERED = 1_024
_KEY_MIN = -(2**63)
_KEY_MAX = 2**63 - 1
_RESERVED_HEADER = PREFIX.encode()
_SHOWN = 40  # characters of a value in an error
_SHOWN_BITS = 128

Head = tuple[int, bytes]
"""Flag bits, and the bytes before the payload."""

Delivery = tuple[int, TopicPartition]
"""When a delayed message is due, in ms since 1970, and where it goes then."""


def encode_head(tag: bytes | None, properties: bytes | None) -> Head | None:
    """Return a record's head; None when it has neither tag nor properties."""
    flag = 0
    head = b""
    if tag is not None:
        flag = FLAG_TAG
        head = len(tag).to_bytes(4, "big") + tag
    if properties is not None:
        flag |= FLAG_PROPERTIES
        head += len(properties).to_bytes(4, "big") + properties
    return (flag, head) if flag else None


def with_flag(head: Head | None, flag: int) -> Head | None:
    """Return a head with more flag bits; the same head if there are none."""
    if not flag:
        return head
    return (flag, b"") if head is None else (head[0] | flag, head[1])


class Heads:
    """Makes heads for one producer, and checks tags, keys and headers. Any thread.

    Attributes:
        of_tags: Heads of tags that were already checked.
    """

    def __init__(self) -> None:
        self.of_tags: dict[str, Head] = {}

    def of_tag(self, tag: str) -> Head | None:
        """Return the head of a message that has only a tag, and remember it.

        Raises:
            InvalidArgument: The tag is unusable.
        """
        head = encode_head(_checked_tag(tag), None)
        if head is not None and type(tag) is str and len(self.of_tags) < _TAGS_REMEMBERED:
            self.of_tags[tag] = head
        return head

    def of_message(
        self,
        tag: str | None,
        key: Key | None,
        headers: Mapping[str, str] | None,
        delivery: Delivery | None = None,
    ) -> Head | None:
        """Return the head of any message; remember it if it has only a tag.

        Raises:
            InvalidArgument, MessageTooLarge: Tag, key or headers are unusable.
        """
        if key is not None or headers is not None or delivery is not None:
            return self.of(tag, key, headers, delivery)
        if tag is None:
            return None
        known = self.of_tags.get(tag) if type(tag) is str else None
        return known or self.of_tag(tag)

    @staticmethod
    def of(
        tag: str | None,
        key: Key | None,
        headers: Mapping[str, str] | None,
        delivery: Delivery | None = None,
    ) -> Head | None:
        """Return the head of any message.

        Raises:
            InvalidArgument, MessageTooLarge: Tag, key or headers are unusable.
        """
        if headers is not None or type(key) is not str:
            _check_types(key, headers)
            key = plain_key(key)
        headers = {} if headers is None else headers
        try:
            properties = None
            if delivery is not None:
                due_ms, to = delivery
                properties = encode_properties(
                    Properties(key=key, headers=headers, delivery_time_ms=due_ms, destination=to)
                )
            elif key is not None and not headers:
                properties = encode_key(key)
            if properties is None:
                properties = encode_properties(Properties(key=key, headers=headers))
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"key {_shown(key)} is not text: {error}") from error
        except InvalidArgument as error:
            _check_unicode(headers)
            raise InvalidArgument(
                f"key {_shown(key)} and {len(headers)} headers: {error}"
            ) from error
        except MessageTooLarge as error:
            raise MessageTooLarge(
                f"key {_shown(key)} and {len(headers)} headers take {error.details['size']} bytes, "
                f"encoded; a message has at most {limits.PROPERTIES_BYTES_MAX} bytes of them",
                details=error.details,
                hint="shorten the key or the headers, or put their data into the content",
            ) from None
        if properties is not None and headers and _RESERVED_HEADER in properties:
            _check_own_headers(headers)
        return encode_head(None if tag is None else _checked_tag(tag), properties)


def plain_key(key: Key | None) -> Key | None:
    """Return a key as the text, bytes or integer that it holds.

    A subclass may override what ``encode``, ``len`` and ``%`` do. What is stored and where it goes
    does not depend on that.
    """
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, bytes):
        return bytes(memoryview(key))
    return None if key is None else int.__index__(key)


def _check_types(key: object, headers: object) -> None:
    if isinstance(key, bool) or not isinstance(key, str | bytes | int | None):
        raise InvalidArgument(
            f"key {_shown(key)} is {type(key).__name__}; give text, bytes or an integer"
        )
    if isinstance(key, int) and not _KEY_MIN <= int.__index__(key) <= _KEY_MAX:
        raise InvalidArgument(f"key {_shown(key)} is outside [{_KEY_MIN}, {_KEY_MAX}], 64 bits")
    if headers is None:
        return
    if not isinstance(headers, Mapping):
        raise InvalidArgument(
            f"headers {_shown(headers)} is {type(headers).__name__}; give a mapping of text to text"
        )
    if "" in headers:
        raise InvalidArgument("a header has an empty name; give it a name, or leave it out")
    for name, value in headers.items():
        for what, part in (("name", name), ("value", value)):
            if not isinstance(part, str):
                raise InvalidArgument(
                    f"the {what} of header {_shown(name)} is {_shown(part)} "
                    f"({type(part).__name__}); give text"
                )


def check_topic_of(message: Message) -> str:
    """Return the topic of a message to send: one of users, or that of the replies for a reply.

    Raises:
        InvalidArgument: It is another one of vq's own.
    """
    is_reply = (
        message.partition != ANY_PARTITION
        and isinstance(message.topic, str)
        and answered_topic(message.topic) is not None
        and isinstance(message.headers, Mapping)
        and CORRELATION in message.headers
    )
    return message.topic if is_reply else check_own_name(message.topic)


def _check_own_headers(headers: Mapping[str, str]) -> None:
    """Refuse the first header that only vq gives; called if the encoded ones have its prefix.

    Raises:
        InvalidArgument: There is one.
    """
    for name in headers:
        if is_reserved_header(name):
            raise InvalidArgument(
                f"header {_shown(name)}: names that begin with {PREFIX!r} are reserved for what vq "
                "tells of copies; leave it out. `vq dlq resend` sends dead letters again"
            )


def _check_unicode(headers: Mapping[str, str]) -> None:
    """Refuse the first header that cannot be encoded; only called once encoding has failed."""
    for name, value in headers.items():
        for what, part in (("name", name), ("value", value)):
            try:
                part.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(
                    f"the {what} of header {_shown(name)} is not text: {error}"
                ) from error


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:  # too many digits for repr
        return f"of {value.bit_length()} bits"
    return shown(value, _SHOWN)


def _checked_tag(tag: str) -> bytes:
    if not isinstance(tag, str):
        raise InvalidArgument(f"tag {_shown(tag)} is {type(tag).__name__}; give text")
    tag = str.__str__(tag)  # whatever a subclass overrides
    try:
        encoded = tag.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"tag {_shown(tag)} is not text: {error}") from error
    if not 1 <= len(encoded) <= limits.TAG_BYTES_MAX:
        raise InvalidArgument(
            f"tag {_shown(tag)} of {len(encoded)} bytes is outside [1, {limits.TAG_BYTES_MAX}]"
        )
    if TAG_SEPARATOR in tag:
        raise InvalidArgument(
            f"tag {_shown(tag)} has '{TAG_SEPARATOR}', which separates the tags of a filter: no "
            "consumer could name this tag; use another separator"
        )
    if tag.strip() != tag:
        raise InvalidArgument(
            f"tag {_shown(tag)} begins or ends with white space, which filters leave out: no "
            "consumer could name this tag; leave it out here, too"
        )
    return encoded


#: Returns the bytes of a content.
Serialize = Callable[[Any], bytes]


def as_bytes(content: object) -> bytes:
    """Return bytes as they are; the stage ``serialize`` of a producer without a serializer.

    Raises:
        InvalidArgument: It is not bytes.
    """
    if type(content) is bytes:
        return content
    if not isinstance(content, bytes | bytearray | memoryview):
        raise InvalidArgument(
            f"content {shown(content)} is {type(content).__name__}; {_instead_of(content)}"
        )
    try:
        # The stored bytes, even if a subclass overrides ``__bytes__``.
        return bytes(memoryview(content))
    except ValueError as error:
        raise InvalidArgument(f"content cannot be read: {error}") from error


def _instead_of(content: object) -> str:
    if isinstance(content, str):
        return "give bytes: content.encode()"
    return (
        "give bytes, or have a serializer make them: "
        "ProducerConfig(serializer=vq.serializers.Json())"
    )


def serialize_with(serializer: Serializer | None) -> Serialize:
    """Return the stage ``serialize`` of a producer with this serializer.

    The stage raises InvalidArgument for whatever the serializer raises, which is its cause.
    """
    if serializer is None:
        return as_bytes
    name, dumps = serializer.name, serializer.dumps

    def serialize(content: object) -> bytes:
        try:
            data = dumps(content)
        except InvalidArgument:
            raise
        except Exception as error:
            raise InvalidArgument(
                f"the serializer {name} does not take content of type {type(content).__name__}: "
                f"{shown_error(error)}"
            ) from error
        if type(data) is not bytes:
            raise InvalidArgument(
                f"the serializer {name} made {type(data).__name__} of content of type "
                f"{type(content).__name__}; it must make bytes"
            )
        return data

    return serialize


class Stages:
    """The stages of one producer. Any thread, several at once.

    Attributes:
        heads: Makes the heads of records.
        pass_plain: A plain message passes all stages unchanged.
    """

    def __init__(self, config: ProducerConfig) -> None:
        strategy = strategy_of(config.partitioner)
        directs_all = strategy is None or strategy.keys is Keys.REQUIRED
        self.heads = Heads()
        self.pass_plain = config.serializer is None and not directs_all
        self._is_raw = config.serializer is None
        self._serialize = serialize_with(config.serializer)

    def prepare(
        self, message: Message, queues: TopicQueues, delivery: Delivery | None = None
    ) -> tuple[bytes, Head | None, int]:
        """Return the bytes to store, the head before them, and the partition or ANY_PARTITION.

        The head of a delayed message says its ``delivery``, whose partition is returned.

        Raises:
            InvalidArgument, MessageTooLarge: A stage refuses the message.
        """
        if message.partition != ANY_PARTITION and message.offset == ANY_PARTITION:
            _check_unread(message, queues)
        content, tag, key, headers = message.content, message.tag, message.key, message.headers
        if not self._is_raw or type(content) is not bytes:
            content = self._serialize(content)
        if len(content) > queues.content_bytes_max:
            raise MessageTooLarge(
                f"message of {len(content)} bytes; topic {queues.topic} takes at most "
                f"{queues.content_bytes_max}"
            )
        head = None
        try:
            if tag is not None or key is not None or headers is not None or delivery:
                head = self.heads.of_message(tag, key, headers, delivery)
        except VqError:
            raise
        except Exception as error:  # a mapping or a text of the application, whose code raises
            raise InvalidArgument(
                f"tag, key or headers cannot be read: {shown_error(error)}"
            ) from error
        compressor = queues.compressor  # the topic's settings may change meanwhile
        if compressor is not None:
            flag, content = compressor(content)
            head = with_flag(head, flag)
        return content, head, delivery[1].partition if delivery else queues.partition_of(message)


def _check_unread(message: Message, queues: TopicQueues) -> None:
    """Refuse a partition that nothing would look at; an application's partitioner may.

    Raises:
        InvalidArgument: There is no such partitioner.
    """
    if queues.choose is None:
        raise InvalidArgument(
            f"partition = {shown(message.partition)} of a message to send: a key or the producer's "
            "partitioner chooses the partition; leave it out, or give "
            "ProducerConfig(partitioner=lambda message, _: message.partition)"
        )
