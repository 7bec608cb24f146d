"""The stages of a message between the application and the accumulator.

    message ─▶ serialize ─▶ size ─▶ head ─▶ compress ─▶ partition ─▶ accumulator

Each stage is one function; a stage that is switched off is not called. They run in the thread that
sends, before the message is accepted: an error refuses the message, and nothing is appended. A
*plain* message needs none of them, see ``accumulator.Appender``. The hooks of ``interceptors`` run
before all stages.
"""

from collections.abc import Callable
from typing import Any

from vq.client.future import ANY_PARTITION
from vq.client.producer.head import Head, Heads, with_flag
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import InvalidArgument, MessageTooLarge, VqError
from vq.model import Message
from vq.serializers import Serializer
from vq.shown import shown, shown_error

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
        return bytes(
            memoryview(content)
        )  # the stored bytes, even if a subclass overrides __bytes__
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

    Args:
        serialize: The stage of that name; ``as_bytes``: switched off.
        directs_all: The stage ``partition`` must see every message, also one without a key.

    Attributes:
        heads: Makes the heads of records.
        pass_plain: A plain message passes all stages unchanged.
    """

    def __init__(
        self,
        *,
        serialize: Serialize = as_bytes,
        directs_all: bool = False,
    ) -> None:
        self.heads = Heads()
        self.pass_plain = serialize is as_bytes and not directs_all
        self._serialize = serialize

    def prepare(self, message: Message, queues: TopicQueues) -> tuple[bytes, Head | None, int]:
        """Return the bytes to store, the head before them, and the partition or ANY_PARTITION.

        Raises:
            InvalidArgument, MessageTooLarge: A stage refuses the message.
        """
        if message.partition != ANY_PARTITION and message.offset == ANY_PARTITION:
            _check_unread(message, queues)
        content = self._serialize(message.content)
        if len(content) > queues.content_bytes_max:
            raise MessageTooLarge(
                f"message of {len(content)} bytes; topic {queues.topic} takes at most "
                f"{queues.content_bytes_max}"
            )
        try:
            head = self.heads.of_message(message.tag, message.key, message.headers)
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
        return content, head, queues.partition_of(message)


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
