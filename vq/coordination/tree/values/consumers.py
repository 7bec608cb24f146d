"""Values below ``consumers``: a group, its members, and what it has for each partition."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import CONSUMERS
from vq.coordination.tree.values.group_terms import (
    STICKY,
    ZOOKEEPER,
    FailurePolicy,
    GroupModel,
    Ordering,
    WorkingMode,
    check_model,
    check_order,
)
from vq.coordination.tree.values.value import FORMAT_VERSION, Value, read_fields
from vq.errors import InvalidArgument
from vq.limits import EPOCH_MAX
from vq.message_filter import Filter
from vq.model import check_name, choice_of
from vq.topic_pattern import check_pattern, matches, matching

#: Messages behind an offset that a commit names as handled, too.
AHEAD_MAX: Final = 200
#: There, in place of an id: a record that nobody can read, and that was passed over. No message has
#: this id.
BAD_RECORD_ID: Final = 0
#: Claims of a partition that its assignment remembers.
HISTORY_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """The version of a contract that a group rolls to, and until when both are let in.

    ``topics`` has the filters that differ.
    """

    until_ms: int
    mode: str
    order: str
    strategy: str
    topics: Mapping[str, Filter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup(Value):
    """``consumers/<group>``: the contract of all members; the first member creates it.

    ``model``, ``mode`` and ``order`` are choices of ``group_terms``; ``strategy`` names how the
    partitions are shared out. ``start`` is ``earliest`` or ``latest``: where the group begins in a
    partition without a committed offset. ``topics`` maps each topic to its filter, and ``patterns``
    each pattern of names; a topic of ``topics`` is never one of a pattern. ``failure`` says
    what follows a failed message; it may change while members run. ``offset_store`` is
    ``zookeeper``, the identity of another store that has the offsets, or ``any``: that of the next
    member. ``roll``: members of another
    version are let in, too, until its time is over; then that version is the contract.
    ``by_stream``: a stream
    that is no member writes the group's progress; left out when members do. The next member, or the
    next commit of a stream, sets it anew.

    A term that has its default is left out. With another one the value has version 2: a vq that
    does not know the terms must not join.
    """

    _what = "consumer group"
    _newest = 2
    _omits = (
        *("mode", "order", "strategy", "offset_store", "patterns", "failure", "roll"),
        "by_stream",  # an earlier vq knows it
    )
    model: str = GroupModel.CLUSTERING
    start: str = "earliest"
    topics: Mapping[str, Filter] = field(default_factory=dict)
    mode: str = WorkingMode.ORDERLY
    order: str = Ordering.STRICT
    strategy: str = STICKY
    offset_store: str = ZOOKEEPER
    patterns: Mapping[str, Filter] = field(default_factory=dict)
    failure: FailurePolicy = field(default_factory=FailurePolicy)
    roll: Roll | None = None
    by_stream: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("model", GroupModel), ("mode", WorkingMode), ("order", Ordering)):
            object.__setattr__(self, name, choice_of(kind, name, getattr(self, name)))
        check_name("strategy", self.strategy)
        for pattern in self.patterns:
            check_pattern(pattern)
        if self.start not in {"earliest", "latest"}:
            raise InvalidArgument(f"start {self.start!r} is not 'earliest' or 'latest'")
        check_model(self.model, self.failure.on_failure)
        check_model(self.model, self.failure.on_bad_record, "on_bad_record")
        check_order(self.mode, self.order, self.failure.on_failure)
        self.rolled()  # what it rolls to must fit together with the rest, too

    def _version(self) -> int:
        terms = self._to_json().keys() - {"model", "start", "topics", "by_stream"}
        return self._newest if terms else FORMAT_VERSION

    def filter_of(self, topic: str) -> Filter | None:
        """Return the filter of a topic, by name or pattern; None: the group does not read it."""
        pattern = matching(self.patterns, topic)
        return self.topics.get(topic, None if pattern is None else self.patterns[pattern])

    def among(self, names: Iterable[str]) -> Self:
        """Return the contract with those of ``names`` as topics, too, that a pattern matches."""
        if not self.patterns:
            return self
        found = {name: wanted for name in names if (wanted := self.filter_of(name)) is not None}
        return replace(self, topics={**self.topics, **found})

    def rolled(self) -> Self:
        """Return the contract at the end of its roll; itself without one."""
        if self.roll is None:
            return self
        return replace(
            self,
            mode=self.roll.mode,
            order=self.roll.order,
            strategy=self.roll.strategy,
            topics={**self.topics, **self.roll.topics},
            roll=None,
        )

    @staticmethod
    def path(group: str) -> str:
        """Return the group's path."""
        return join(CONSUMERS, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Value):
    """``consumers/<group>/members/<member>``: a consumer process.

    ``topics`` are those it subscribes to by name, ``patterns`` the others. ``rack`` is where it
    runs, for the strategy ``rack``. What is empty of these two is left out. The node
    ``members/<member>~`` keeps the place of a member while it restarts: it has ``kept_topics`` in
    place of ``topics``, and once the member was closed ``kept_s``, for how long that is.
    """

    _what = "group member"
    _omits = ("rack", "patterns", "kept_topics", "kept_s")
    host: str = ""
    pid: int = 0
    topics: tuple[str, ...] = ()
    since_ms: int = 0
    nonce: str = ""
    rack: str = ""
    patterns: tuple[str, ...] = ()
    kept_topics: tuple[str, ...] = ()
    kept_s: float = 0.0

    def reads(self, topic: str) -> bool:
        """Whether it subscribes to a topic, by name or by pattern."""
        return topic in self.topics or any(matches(each, topic) for each in self.patterns)

    @staticmethod
    def parent(group: str) -> str:
        """Return the path that holds the group's members."""
        return join(CONSUMERS, group, "members")

    @classmethod
    def path(cls, group: str, member: str) -> str:
        """Return the member's path."""
        return join(cls.parent(group), member)


class PartitionOfGroup(Value):
    """Base of the values that a consumer group has for each partition."""

    _folder: ClassVar[str]

    @classmethod
    def parent(cls, group: str, topic: str) -> str:
        """Return the path that holds one node for each partition of the topic."""
        return join(CONSUMERS, group, cls._folder, topic)

    @classmethod
    def path(cls, group: str, topic: str, partition: int) -> str:
        """Return the partition's path."""
        return join(cls.parent(group, topic), str(partition))


class ClaimReason(enum.StrEnum):
    """Why a member claimed a partition."""

    FIRST = "first"  # nobody had it before
    BALANCE = "balance"  # the shares changed; the member that had it is still there
    LEFT = "left"  # the member that had it left, or its session ended
    AGAIN = "again"  # the same member claims it anew, as after the loss of its session
    RESET = "reset"  # the progress of the group was set


@dataclass(frozen=True, slots=True, kw_only=True)
class PastClaim:
    """A claim as an assignment remembers it; ``reason`` is a ``ClaimReason``, or a later one."""

    member: str
    generation: int
    time_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(PartitionOfGroup):
    """``consumers/<group>/assignment/<topic>/<n>``: the last claim. Persistent: it is the fence.

    ``generation`` is the version of the znode with this value. ``member`` is "" before the first
    claim and after a reset. ``history`` has the last claims, the oldest first, at most
    ``HISTORY_MAX``; left out when it is empty.
    """

    _what = "assignment"
    _omits = ("history",)
    _folder = "assignment"
    member: str = ""
    generation: int = 0
    history: tuple[PastClaim, ...] = ()

    @classmethod
    def member_in(cls, path: str, data: bytes) -> str:
        """Return the member alone, of the bytes stored at ``path``: a third of what decoding costs.

        Raises:
            Unreadable: See ``decode``; the other fields are not checked.
        """
        member = cls._document(path, data).get("member", "")
        if type(member) is not str:
            raise cls._unreadable(path, data, TypeError(f"member = {member!r} is not str"))
        return member


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner(PartitionOfGroup):
    """``consumers/<group>/owners/<topic>/<n>``: the member that consumes it now.

    ``stopped`` is the error that stops the member, ``stopped_at`` the offset and
    ``stopped_since_ms`` the time. All three are left out while the member goes on. If it is a
    listener that failed too often: ``held`` is the number of messages that it failed for; of the
    first one of them there are ``message_id``, ``attempts``, and ``next_try_ms``.
    """

    _what = "owner"
    _folder = "owners"
    member: str
    generation: int = 0
    stopped: str = ""
    stopped_at: int | None = None
    stopped_since_ms: int = 0
    held: int = 0
    message_id: int | None = None
    attempts: int = 0
    next_try_ms: int | None = None

    def _to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"member": self.member, "generation": self.generation}
        if self.stopped:
            values["stopped"] = self.stopped
            values["stopped_at"] = self.stopped_at
            values["stopped_since_ms"] = self.stopped_since_ms
        if self.held:
            values["held"] = self.held
            values["message_id"] = self.message_id
            values["attempts"] = self.attempts
            values["next_try_ms"] = self.next_try_ms
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset(PartitionOfGroup):
    """``consumers/<group>/offsets/<topic>/<n>``: all messages before ``offset`` are handled.

    ``message_id`` is the id of the last handled message; None, and left out, if there is none or it
    is not known. ``epoch`` is that of the batch before the offset; 0, and left out, if it is not
    known. They and ``topic_id`` identify the place, because another topic or another log may have
    the same offset. ``stopped`` says why the group does not go on from here. ``copied``: another
    store has the group's offsets, and this one may be behind it. An empty ``topic_id`` or
    ``stopped`` is left out, and ``copied`` where it is false. ``ahead`` has the offset and the id
    of messages behind ``offset`` that are handled, too, the first ``AHEAD_MAX`` of them, and of bad
    records that were passed over (``BAD_RECORD_ID``); left out if there are none.
    """

    _what = "offset"
    _omits = ("message_id", "epoch", "topic_id", "stopped", "ahead", "copied")
    _folder = "offsets"
    offset: int
    message_id: int | None = None
    epoch: int = 0
    time_ms: int = 0
    member: str = ""
    topic_id: str = ""
    stopped: str = ""
    ahead: tuple[tuple[int, int], ...] = ()
    copied: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"epoch = {self.epoch} is outside [0, {EPOCH_MAX}]")

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        # No message has the id 0; an earlier vq wrote it for an unknown one.
        return cls(
            **{**read_fields(cls, document), "message_id": document.get("message_id") or None}
        )
