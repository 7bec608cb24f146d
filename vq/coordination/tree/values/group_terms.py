"""Terms of a consumer group's contract: its choices, and what follows a failed message.

In here: values and their checks. Not in here: the contract that holds them (``consumers``), and
what a member does by them (``vq.client.consumer``).
"""

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from vq.errors import InvalidArgument
from vq.model import choice_of
from vq.reserved import Purpose, topic_of
from vq.shown import shown

#: Most tries of a listener for one delivery of a message.
MAX_ATTEMPTS_MAX: Final = 1_000
#: Most pauses in a schedule, and the longest one: 40 days.
PAUSES_MAX: Final = 64
PAUSE_S_MAX: Final = 40 * 86_400.0
#: The delays of copies in a retry topic, as in RocketMQ: 10 s to 2 h.
RETRY_SCHEDULE: Final = (
    *(10.0, 30.0),
    *(60.0 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
#: The strategy of a group that names none; see ``strategies``.
STICKY: Final = "sticky"
#: Where a group has its offsets unless another store is named; and any store: the next member's.
ZOOKEEPER: Final = "zookeeper"
ANY_STORE: Final = "any"


class GroupModel(enum.StrEnum):
    """Which members of a group get a message."""

    CLUSTERING = "clustering"  # one member
    BROADCASTING = "broadcasting"  # every member
    SHARED = "shared"  # one member, which acknowledges it by itself

    @property
    def claims(self) -> bool:
        """Whether each partition is one member's at a time."""
        return self is GroupModel.CLUSTERING


class WorkingMode(enum.StrEnum):
    """Which messages of a partition a member works on at the same time."""

    ORDERLY = "orderly"  # one at a time
    KEYED = "keyed"  # several, but one of each key
    CONCURRENT = "concurrent"  # several


class Ordering(enum.StrEnum):
    """Whether ``orderly`` and ``keyed`` must keep the order of messages after a failure, too."""

    STRICT = "strict"  # a failed message never comes after later ones
    RELAXED = "relaxed"  # it may: the retry topic is allowed


class OnFailure(enum.StrEnum):
    """What follows when a message has failed ``max_attempts`` times."""

    HOLD = "hold"  # its partition, or only its key, waits and goes on trying
    RETRY_TOPIC = "retry-topic"  # a copy goes to the group's retry topic
    DEAD_LETTER = "dead-letter"  # a copy goes to the group's dead-letter topic
    SKIP = "skip"  # it is noted in the member's file of failed messages
    STOP = "stop"  # the member stops there


class OnBadRecord(enum.StrEnum):
    """What follows when no node has a record that can be read, or its content is not decoded."""

    STOP = "stop"  # the group stops there until a reset
    SKIP = "skip"  # it is passed over, counted and logged
    DEAD_LETTER = "dead-letter"  # its bytes go to the group's dead-letter topic


#: What the reason of a group begins with that was stopped at a bad record.
BAD_RECORD: Final = "on_bad_record = 'stop'"


def check_model(model: str, on_failure: str | None, what: str = "on_failure") -> None:
    """Check that what follows a failed message makes sense where every member gets every message.

    Raises:
        InvalidArgument: It does not.
    """
    is_of_failures = what != "on_bad_record"
    never = (OnFailure.RETRY_TOPIC, OnFailure.STOP)
    if model == GroupModel.SHARED and is_of_failures and on_failure in never:
        raise InvalidArgument(
            f"{what} = {str(on_failure)!r} does not go with model = 'shared': a message that fails "
            "is delivered again by itself, to any member, and the others go on; give "
            "'dead-letter', 'skip' or 'hold'"
        )
    copies = (OnFailure.RETRY_TOPIC, OnFailure.DEAD_LETTER)
    if model == GroupModel.BROADCASTING and on_failure in copies:
        raise InvalidArgument(
            f"{what} = {str(on_failure)!r} does not go with model = 'broadcasting': each "
            "member would copy the message for the whole group. Give another one, such as 'skip' "
            "or 'stop'; or a clustering group of its own for each reader"
        )


def check_order(mode: str, order: str, on_failure: str) -> None:
    """Refuse a retry topic where it breaks a promise.

    Raises:
        InvalidArgument: The mode keeps an order, and ``order`` is ``strict``.
    """
    is_strict = mode != WorkingMode.CONCURRENT and order == Ordering.STRICT
    if is_strict and on_failure == OnFailure.RETRY_TOPIC:
        raise InvalidArgument(
            f"on_failure = 'retry-topic' breaks the order that mode = {str(mode)!r} "
            "promises: a copy comes after later messages; give order = 'relaxed', or "
            "on_failure = 'hold'"
        )


def usual_on_failure(mode: str, model: str) -> OnFailure:
    """Return what follows the last try in a new group that does not say it."""
    if model == GroupModel.SHARED:
        return OnFailure.DEAD_LETTER
    retries = mode == WorkingMode.CONCURRENT and model == GroupModel.CLUSTERING
    return OnFailure.RETRY_TOPIC if retries else OnFailure.HOLD


def check_topics(group: str, on_failure: str | None) -> None:
    """Refuse a group whose name is too long for the topics that its failed messages go to.

    ``on_failure`` may be a choice of ``OnBadRecord``, too; None: nothing is chosen.

    Raises:
        InvalidArgument: It is.
    """
    if on_failure == OnFailure.RETRY_TOPIC:
        topic_of(Purpose.RETRY, group)
    if on_failure in {OnFailure.RETRY_TOPIC, OnFailure.DEAD_LETTER}:
        topic_of(Purpose.DEAD_LETTERS, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What the members of a group do with a message whose listener fails.

    Attributes:
        on_failure: What follows the last try, see ``OnFailure``.
        max_attempts: Tries of the listener in one delivery, the first included, 1 to 1,000.
        retry_backoff_s: The pauses in seconds between these tries, before jitter; the last one
            repeats.
        retry_topic_s: The delays in seconds of the copies in the retry topic. After the last one
            the message becomes a dead letter.
        on_bad_record: What follows a record that nobody can read, see ``OnBadRecord``.
    """

    on_failure: str = OnFailure.HOLD
    max_attempts: int = 3
    retry_backoff_s: tuple[float, ...] = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0)
    retry_topic_s: tuple[float, ...] = RETRY_SCHEDULE
    on_bad_record: str = OnBadRecord.STOP

    def __post_init__(self) -> None:
        for name, kind in (("on_failure", OnFailure), ("on_bad_record", OnBadRecord)):
            object.__setattr__(self, name, choice_of(kind, name, getattr(self, name)))
        tries = self.max_attempts
        if type(tries) is not int or not 1 <= tries <= MAX_ATTEMPTS_MAX:
            raise InvalidArgument(
                f"max_attempts = {shown(tries)} is not a whole number in [1, {MAX_ATTEMPTS_MAX}]"
            )
        for name in ("retry_backoff_s", "retry_topic_s"):
            object.__setattr__(self, name, check_pauses(name, getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """Return what the contract stores."""
        return {
            "on_failure": str(self.on_failure),
            "max_attempts": self.max_attempts,
            "retry_backoff_s": list(self.retry_backoff_s),
            "retry_topic_s": list(self.retry_topic_s),
            "on_bad_record": str(self.on_bad_record),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return what ``to_json`` stored; fields of a newer vq are ignored."""
        names = ("on_failure", "max_attempts", "retry_backoff_s", "retry_topic_s")
        on_bad_record = document.get("on_bad_record", OnBadRecord.STOP)  # of an earlier vq: none
        return cls(on_bad_record=on_bad_record, **{name: document[name] for name in names})


def check_pauses(name: str, given: object) -> tuple[float, ...]:
    """Return pauses in seconds, checked.

    Raises:
        InvalidArgument: They are none, or too many, or one is too long.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidArgument(f"{name} = {shown(given)}; give the pauses in seconds, as (1, 5, 30)")
    pauses = tuple(given)
    for each in pauses:
        is_number = isinstance(each, int | float) and not isinstance(each, bool)
        if not is_number or not math.isfinite(each) or not 0 < each <= PAUSE_S_MAX:
            raise InvalidArgument(
                f"{name} has {shown(each)}; give numbers of seconds in (0, {PAUSE_S_MAX:.0f}]"
            )
    if not 1 <= len(pauses) <= PAUSES_MAX:
        raise InvalidArgument(f"{name} has {len(pauses)} pauses; give 1 to {PAUSES_MAX}")
    return tuple(float(each) for each in pauses)
