"""The settings of a local queue."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from vq import limits
from vq.bounds import check_between, check_positive
from vq.errors import InvalidArgument
from vq.model import Message, check_name, choice_of
from vq.shown import shown

T = TypeVar("T")
COUNT_MAX: Final = 2**31


class WhenCrowded(enum.StrEnum):
    """What a put does while a queue has as many messages as it may have."""

    BLOCK = "block"  # it waits, at most for its time-out
    RAISE = "raise"  # it raises BufferFull at once
    DROP_OLDEST = "drop-oldest"  # in memory only: the message that waits longest is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalQueueConfig:
    """How a local queue behaves.

    Attributes:
        name: The topic of its messages. None: the last part of the directory's path if a topic may
            have that name, else ``local``, as in memory.
        capacity: So many messages that are not completed, >= 1; then puts do what ``when_full``
            says. None: as many as the disk holds; in memory 100,000.
        when_full: ``block``, ``raise``, or in memory ``drop-oldest``; see ``WhenCrowded``.
        lease_s: A message that is neither completed nor failed for so long is given to another
            taker; it may be a tenth of that later. ``extend`` begins the time anew. None: never.
        retries: So many times a message that failed is given again at once, >= 0.
        retry_s: After that, it is given again every so many seconds, without an end.
        later_max: So many delayed and failed messages wait for their times, >= 1. At this bound a
            delayed put raises BufferFull; messages that wait in line are not given until a failed
            one is completed.
        memory_items: So many messages of each priority wait in memory, >= 1, the rest on disk.
        memory_bytes: ... or so many bytes of their contents, >= 1.
        idempotency_s: How long a key of a put is remembered, also over a restart.
        idempotency_keys: ... at most so many, >= 1; the oldest ones are forgotten first.
    """

    name: str | None = None
    capacity: int | None = None
    when_full: WhenCrowded | str = WhenCrowded.BLOCK
    lease_s: float | None = 1_800.0
    retries: int = 3
    retry_s: float = 5.0
    later_max: int = 200_000
    memory_items: int = 10_000
    memory_bytes: int = 32 * limits.MIB
    idempotency_s: float = 300.0
    idempotency_keys: int = 100_000

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("topic", self.name)
        object.__setattr__(self, "when_full", choice_of(WhenCrowded, "when_full", self.when_full))
        if self.lease_s is not None:
            check_positive("lease_s", self.lease_s)
        check_positive("retry_s", self.retry_s)
        check_positive("idempotency_s", self.idempotency_s)
        if self.capacity is not None:
            check_between("capacity", self.capacity, 1, COUNT_MAX)
        check_between("retries", self.retries, 0, COUNT_MAX)
        for name in ("later_max", "memory_items", "memory_bytes", "idempotency_keys"):
            check_between(name, getattr(self, name), 1, COUNT_MAX)


def directory_of(directory: object) -> Path | None:
    """Return where a queue is; None: in memory.

    Raises:
        InvalidArgument: It is no path. An empty one is none: a variable was not set, most likely.
    """
    if directory is None:
        return None
    path = str(directory) if isinstance(directory, Path) else directory
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidArgument(
            f"directory = {shown(directory)} is no path; give a text or a pathlib.Path, or None "
            "for a queue in memory"
        )
    return Path(path)


def given_directory(directory: object) -> Path:
    """Return where a queue is that is in no memory.

    Raises:
        InvalidArgument: It is no path, or an empty one.
    """
    found = directory_of(directory)
    if found is None:
        raise InvalidArgument("directory = None; give text or a pathlib.Path")
    return found


def config_of(config: object) -> LocalQueueConfig:
    """Return settings that the application gave; None: those by default.

    Raises:
        InvalidArgument: It gave something else.
    """
    if config is None:
        return LocalQueueConfig()
    if not isinstance(config, LocalQueueConfig):
        raise InvalidArgument(f"config = {shown(config)}; give a vq.local.LocalQueueConfig")
    return config


def several(what: str, values: Iterable[T]) -> Iterable[T]:
    """Return values that the application gave.

    Raises:
        InvalidArgument: It gave one of them, or none at all.
    """
    if isinstance(values, bytes | bytearray | str | Message):
        raise InvalidArgument(f"{what} = {shown(values)} is one; give several in a list")
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"{what} = {shown(values)} is no list; give several in one")
    return values
