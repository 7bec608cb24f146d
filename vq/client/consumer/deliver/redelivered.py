"""Messages of a group's retry topic on their way to the listener of the topic that they come from.

What the listener gets is the message as it was delivered first, with its place: ``attempts`` goes
on, and ``origin`` and ``failure`` tell of the earlier deliveries. Pure.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vq.client.consumer.deliver.tries import TriedMessage, retry_of
from vq.errors import InvalidState
from vq.model import Message
from vq.reserved import DeliveryFailure, MessageOrigin, own_headers
from vq.topic_pattern import matching


class NoListener(InvalidState):
    """A member has a message from the retry topic, and none of its listeners is for it."""


class RedeliveredMessage(TriedMessage):
    """A message from the retry topic; otherwise the same as any ``Message``."""

    origin: MessageOrigin | None = None  # of the class; each has its own
    failure: DeliveryFailure | None = None


def as_first_delivered(copy: Message) -> Message:
    """Return the message that a retry topic has a copy of.

    When it was stored is not known, nor what follows it. What is no copy is returned as it is.
    """
    origin, failure = copy.origin, copy.failure
    if origin is None or failure is None:
        return copy
    fields = copy._replace(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offset,
        next_offset=-1,
        append_time_ms=None,
        headers=own_headers(copy.headers) or None,
    )
    message = tuple.__new__(RedeliveredMessage, fields)
    message.attempts = failure.attempts + copy.attempts
    message.origin, message.failure = origin, failure
    return message


def _listener_of(
    message: Message, listeners: Mapping[str, Callable[[Any], Any]]
) -> Callable[[Any], Any]:
    topic = message.topic
    name = topic if topic in listeners else matching(listeners, topic)
    if name is None:
        raise NoListener(
            f"this member subscribes to no topic {message.topic!r}, and the group's retry topic "
            "has a message of it; have all members of the group subscribe to the same topics"
        )
    return listeners[name]


def _given(message: Message, *, in_lists: bool) -> Any:
    return [message] if in_lists else message


def _told(result: Any) -> Any:
    """Return what the listener answered; one that is done with a list of one asks for no retry."""
    retry = retry_of(result)
    return None if retry is not None and retry.done else result


def redelivering(
    listeners: Mapping[str, Callable[[Any], Any]], *, in_lists: bool
) -> Callable[[Message], Any]:
    """Return a listener for the retry topic, which calls those of the topics."""

    def call(copy: Message) -> Any:
        message = as_first_delivered(copy)
        listener = _listener_of(message, listeners)
        return _told(listener(_given(message, in_lists=in_lists)))

    return call


def redelivering_async(
    listeners: Mapping[str, Callable[[Any], Awaitable[Any]]], *, in_lists: bool
) -> Callable[[Message], Awaitable[Any]]:
    """Return what ``redelivering`` does, for coroutine functions."""

    async def call(copy: Message) -> Any:
        message = as_first_delivered(copy)
        listener = _listener_of(message, listeners)
        return _told(await listener(_given(message, in_lists=in_lists)))

    return call
