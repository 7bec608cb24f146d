"""Delayed messages on their way in: when each is due, and where it waits until then. Pure.

A delayed message waits in a topic of its own, with its partition and its time among its properties.
There, messages of like delays are together: a log is kept from the oldest message on that waits, so
one that waits for weeks would keep all that came and went meanwhile. Of one length, all messages
for one partition are together, too, and are delivered in the order of their times.
"""

import math
from datetime import datetime
from numbers import Real
from typing import Final

from vq import limits
from vq.client.producer.spread.partitioner import key_partition
from vq.errors import InvalidArgument
from vq.model import Message, TopicPartition
from vq.reserved import DELAYED_TOPIC
from vq.shown import shown

#: Up to ten minutes, four hours, four days, and above.
_LENGTHS_MS: Final = (600_000, 4 * 3_600_000, 4 * 86_400_000)


def is_delayed(message: Message) -> bool:
    """Whether a message says when it is to be delivered."""
    return message.deliver_at is not None or message.delay_s is not None


def topics_of(message: Message) -> tuple[str, ...]:
    """Return the topics that a producer must know to send a message."""
    if isinstance(message, Message) and is_delayed(message):
        return message.topic, DELAYED_TOPIC
    return (message.topic,)


def due_ms_of(message: Message, now_ms: int) -> int:
    """Return when a delayed message is due, by the wall clock; 0: at once.

    Raises:
        InvalidArgument: Its time, or its delay, is none, or is too far off.
    """
    at, delay = message.deliver_at, message.delay_s
    if at is not None and delay is not None:
        raise InvalidArgument(
            f"deliver_at = {shown(at)} and delay_s = {shown(delay)} exclude one another; give one"
        )
    if delay is not None:
        seconds = _number("delay_s", delay)
        if not 0 <= seconds <= limits.DELAY_S_MAX:
            raise InvalidArgument(
                f"delay_s = {shown(delay)} is outside [0, {limits.DELAY_S_MAX}], 40 days"
            )
        return now_ms + math.ceil(seconds * 1_000) if seconds else 0
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise InvalidArgument(
                f"deliver_at = {at} has no time zone; give datetime.now(UTC) + timedelta(...)"
            )
        due_s = at.timestamp()
    else:
        due_s = _number("deliver_at", at)
    if due_s * 1_000 <= now_ms:
        return 0
    if due_s > now_ms / 1_000 + limits.DELAY_S_MAX:
        raise InvalidArgument(
            f"deliver_at = {shown(at)} is {due_s - now_ms / 1_000:.0f} s ahead; at most "
            f"{limits.DELAY_S_MAX} s, 40 days, are kept"
        )
    return math.ceil(due_s * 1_000)


def _number(name: str, given: object) -> float:
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    try:
        seconds = float(given) if is_number else math.inf  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        seconds = math.inf
    if math.isfinite(seconds):
        return seconds
    raise InvalidArgument(f"{name} = {shown(given)} is no finite number of seconds")


def waits_in(to: TopicPartition, delay_ms: int, partitions: int) -> int:
    """Return the partition in which a message for ``to`` waits for so long, of so many.

    Example: of eight partitions, 0 and 4 have delays of up to ten minutes, 3 and 7 the longest.
    """
    lengths = len(_LENGTHS_MS) + 1
    if partitions < lengths:
        return key_partition(str(to), partitions)
    length = sum(delay_ms > each for each in _LENGTHS_MS)
    return length + lengths * key_partition(str(to), partitions // lengths)
