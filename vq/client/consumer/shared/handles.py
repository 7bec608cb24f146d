"""Messages of a shared group as a member has them, and what is said of many at once. Pure."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from vq.model import TopicPartition

__all__ = [
    "MessageHandle",
    "PlacedHandle",
    "SaidOfMessage",
    "SettleKind",
    "SettledRun",
    "merged",
]


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
        time_ms: Of a release: after how long it is due. Of an extension: for how long.
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
