"""Where to read in a partition, as applications say it: an offset, a time, or one of its ends.

Pure. ``reader`` asks brokers for the offset of a time or an end, ``steering`` lets a group go on
there.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeAlias

from vq.bounds import check_whole
from vq.client.config import StartPosition
from vq.errors import InvalidArgument
from vq.model import TopicPartition, check_name
from vq.shown import shown

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Moment: TypeAlias = datetime | StartPosition | Literal["earliest", "latest"]
"""A time with its zone, or an end of what can be read: ``"earliest"`` or ``"latest"``."""

Position: TypeAlias = int | Moment
"""An offset, a time with its zone, or an end of what can be read."""


class AtTime(NamedTuple):
    """The first batch appended at a time or later; in milliseconds since 1970, not before."""

    ms: int


def check_moment(given: object) -> AtTime | StartPosition:
    """Return what a ``Moment`` says.

    Raises:
        InvalidArgument: It is something else, or a time without its zone.
    """
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidArgument(
                f"the time {given.isoformat()} has no zone; give one, as in "
                "datetime.now(timezone.utc)"
            )
        # Rounded down, as append times are: no message stored at the time or later is left out.
        return AtTime(max(0, (given - _EPOCH) // timedelta(milliseconds=1)))
    try:
        return StartPosition(given)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidArgument(
            f"{shown(given)} is no time; give a datetime with its zone, 'earliest' or 'latest'"
        ) from None


def check_position(given: object) -> int | AtTime | StartPosition:
    """Return what a ``Position`` says.

    Raises:
        InvalidArgument: It is something else.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 0:
            raise InvalidArgument(
                f"offset {shown(given)} is negative; an offset counts bytes from 0"
            )
        return given
    try:
        return check_moment(given)
    except InvalidArgument:
        if isinstance(given, datetime):
            raise
        raise InvalidArgument(
            f"{shown(given)} is no position; give an offset, a datetime with its zone, 'earliest' "
            "or 'latest'"
        ) from None


def check_where(given: object) -> TopicPartition | str:
    """Return a partition, or the name of a topic for all of its partitions.

    Raises:
        InvalidArgument: It is neither.
    """
    if isinstance(given, str):
        return check_name("topic", given)
    if isinstance(given, tuple) and len(given) == 2:
        topic, partition = given
        check_whole("partition", partition)
        return TopicPartition(check_name("topic", topic), partition)
    raise InvalidArgument(
        f"{shown(given)} is neither a topic nor a partition; give the name of a topic, or "
        "vq.TopicPartition(topic, partition)"
    )
