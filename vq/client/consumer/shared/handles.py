"""Messages of a shared group as a member has them, and what is said of many at once. Pure."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from vq.model import Message, TopicPartition


class SettleKind(IntEnum):
    """What becomes of a message; the numbers of SETTLE."""

    ACK = 1
    RELEASE = 2
    REJECT = 3
    EXTEND = 4
    UNUSED = 5


class MessageHandle(NamedTuple):
    """A message that a member has.

    Attributes:
        source: Which partition, as a number of the member's.
        number: Of the message in its partition.
        grant: With which the member has it.
    """

    source: int
    number: int
    grant: int


class PlacedHandle(NamedTuple):
    """A message that somebody has, as anybody can name it.

    Attributes:
        partition, topic_id: Where it is.
        number, grant: See ``MessageHandle``.
    """

    partition: TopicPartition
    topic_id: str
    number: int
    grant: int


class SaidOfMessage(NamedTuple):
    """What is to become of a message.

    Attributes:
        handle: Which.
        kind: What.
        time_ms: Of a release, also one that does not count: after how long it is due. Of an
            extension: for how long.
    """

    handle: MessageHandle
    kind: SettleKind
    time_ms: int = 0


class SettledRun(NamedTuple):
    """Messages with consecutive numbers of which the same is said.

    Attributes:
        source, grant, kind, time_ms: See ``SaidOfMessage``.
        first, messages: The first number, and how many they are.
    """

    source: int
    grant: int
    kind: SettleKind
    time_ms: int
    first: int
    messages: int


def key_number(message: Message) -> int:
    """Return what is told of a message's key: equal for equal keys; 0: it has none.

    Two keys may have the same number. Then they wait for each other.
    """
    key = message.key
    if key is None:
        return 0
    if isinstance(key, str):
        encoded = b"t" + key.encode()
    else:
        encoded = b"b" + key if isinstance(key, bytes) else b"i%d" % key
    return crc32(encoded) or 1


def merged(settlings: Iterable[SaidOfMessage]) -> list[SettledRun]:
    """Return what is said of messages, each named once, as runs."""
    single = sorted(
        SettledRun(each.handle.source, each.handle.grant, each.kind, each.time_ms, number, 1)
        for each in settlings
        for number in (each.handle.number,)
    )
    runs: list[SettledRun] = []
    for run in single:
        before = runs[-1] if runs else None
        if (
            before is not None
            and before[:4] == run[:4]
            and before.first + before.messages == run.first
        ):
            runs[-1] = before._replace(messages=before.messages + 1)
        else:
            runs.append(run)
    return runs
