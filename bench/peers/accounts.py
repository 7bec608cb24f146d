"""What became of numbered messages: which acknowledged ones are there, once and in order.

Pure functions; nothing is sent or received here. Contents are those of ``vq.cli.bench.workload``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from vq.cli.bench.workload import content

_STREAM_SHIFT = 40


@dataclass(frozen=True, slots=True)
class Account:
    """How messages that were read back differ from those that were acknowledged.

    Attributes:
        acknowledged: Messages that the system acknowledged.
        failed: Messages whose outcome stayed unknown: the client gave up.
        lost: Acknowledged messages that are not there.
        duplicates: Copies beyond the first one.
        disordered: Messages whose first copy comes after one with a higher number.
        altered: Messages that nobody sent.
    """

    acknowledged: int
    failed: int
    lost: int
    duplicates: int
    disordered: int
    altered: int

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    def __add__(self, other: "Account") -> "Account":
        """Return the account of both."""
        names = [field.name for field in fields(self)]
        return Account(**{name: getattr(self, name) + getattr(other, name) for name in names})


def account(
    received: Iterable[bytes], sent: Mapping[int, int], failed: Mapping[int, list[int]], size: int
) -> Account:
    """Judge messages in the order in which they were read.

    Args:
        received: The contents.
        sent: For each stream, the number of messages ``0..count-1`` that were sent.
        failed: For each stream, the numbers that were not acknowledged.
        size: Of each content.
    """
    seen: dict[int, set[int]] = {stream: set() for stream in sent}
    highest = dict.fromkeys(sent, -1)
    duplicates = disordered = altered = 0
    for each in received:
        value = int.from_bytes(each[:8], "big")
        stream, number = value >> _STREAM_SHIFT, value & ((1 << _STREAM_SHIFT) - 1)
        if number >= sent.get(stream, 0) or each != content(stream, number, size):
            altered += 1
        elif number in seen[stream]:
            duplicates += 1
        else:
            seen[stream].add(number)
            disordered += number < highest[stream]
            highest[stream] = max(highest[stream], number)
    unknown = {stream: set(failed.get(stream, ())) for stream in sent}
    return Account(
        acknowledged=sum(count - len(unknown[stream]) for stream, count in sent.items()),
        failed=sum(map(len, unknown.values())),
        lost=sum(
            len(set(range(count)) - seen[stream] - unknown[stream])
            for stream, count in sent.items()
        ),
        duplicates=duplicates,
        disordered=disordered,
        altered=altered,
    )
