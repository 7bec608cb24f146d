"""Values of topics: a topic with its phase, and what is kept of deleted ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import DELETED, GRACE, TOPICS
from vq.coordination.tree.values.value import Value, read_fields
from vq.limits import is_topic_id
from vq.model import Compression, FlushMode, TopicDeletion, TopicOrigin, TopicSettings
from vq.shown import shown

READY: Final = "ready"
CREATING: Final = "creating"
DELETING: Final = "deleting"
#: Deleted for clients, and can be brought back: brokers keep it as it is.
IN_GRACE: Final = "deleted"

#: Topics in the list of deleted ones. With the longest names it has 120 KB; a znode may have 1 MB.
DELETED_TOPICS_MAX: Final = 500

#: Times of origins are before this one, in the year 6429: a later one need not be a date.
_TIME_MS_END: Final = 1 << 47


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNode(Value):
    """``topics/<topic>``: settings, number of partitions, phase.

    The placement is in the nodes below (``Partition``). Clients see a topic only in phase
    ``ready``; creating or deleting a large one takes several steps. ``origin`` is None, and left
    out, if it is not known. ``deletion`` is there in phase ``deleted``, and only then.
    """

    _what = "topic"
    _omits = ("origin", "deletion")
    id: str
    phase: str = READY
    settings: TopicSettings
    origin: TopicOrigin | None = None
    deletion: TopicDeletion | None = None

    @staticmethod
    def path(topic: str) -> str:
        """Return the topic's path."""
        return join(TOPICS, topic)

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        settings = settings_from_json(document["settings"])
        phase = document.get("phase", READY)
        if phase not in {READY, CREATING, DELETING, IN_GRACE}:
            raise ValueError(f"phase = {phase!r}")
        deletion = _deletion(document["deletion"]) if phase == IN_GRACE else None
        _check_id(document["id"])
        origin = _origin(document.get("origin"))
        return cls(
            id=document["id"], settings=settings, phase=phase, origin=origin, deletion=deletion
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFence(Value):
    """``topics/<topic>/deleting-<id>``: the topic with this id is being removed, step by step.

    Each step checks that it is there. So whoever goes on late removes nothing of a namesake.
    """

    _what = "fence of a deletion"

    @staticmethod
    def path(topic: str, topic_id: str) -> str:
        """Return the path of the fence."""
        return join(TOPICS, topic, f"deleting-{topic_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceClock(Value):
    """``grace``: for how long brokers have watched over deleted topics, in milliseconds, together.

    It counts time that certainly passed, and never more; no wall clock has a part in it.
    """

    _what = "count of the time for deleted topics"
    counted_ms: int

    def __post_init__(self) -> None:
        if self.counted_ms < 0:
            raise ValueError(f"counted_ms = {self.counted_ms}")

    @staticmethod
    def path() -> str:
        """Return the path of the only node."""
        return GRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopics(Value):
    """``deleted``: id → name of recently deleted topics, the oldest first.

    It is written before any node of a topic is deleted. A topic that is neither in the tree nor in
    this list was not deleted: the tree may come from a backup that is older than the topic.
    """

    _what = "list of deleted topics"
    topics: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def path() -> str:
        """Return the path of the list."""
        return DELETED

    def with_topic(self, topic_id: str, name: str) -> Self:
        """Return the list with one more topic, and without the oldest ones beyond the bound."""
        others = {key: value for key, value in self.topics.items() if key != topic_id}
        kept = list({**others, topic_id: name}.items())[-DELETED_TOPICS_MAX:]
        return replace(self, topics=dict(kept))


def _check_id(value: object) -> None:
    """Reject what is not the id of a topic: names of files, and URLs, contain it."""
    if not is_topic_id(value):
        raise ValueError(f"id = {shown(value)} is not 1 to 32 characters of A-Z a-z 0-9 _ -")


def _origin(document: object) -> TopicOrigin | None:
    """Return who created a topic, None if the value does not say it: nothing depends on it."""
    if not isinstance(document, Mapping):
        return None
    match document.get("client"), document.get("host"), document.get("time_ms"):
        case str(client), str(host), int(time_ms) if 0 <= time_ms < _TIME_MS_END:
            auto = document.get("auto") is True
            return TopicOrigin(client=client, host=host, time_ms=time_ms, auto=auto)
    return None


def _deletion(document: Mapping[str, Any]) -> TopicDeletion:
    """Return who deleted a topic; a time that is wrong would have it removed too early."""
    values = read_fields(TopicDeletion, document)
    for name, value in values.items():
        if name.endswith("_ms") and not 0 <= value < _TIME_MS_END:
            raise ValueError(f"{name} = {value}")
    return TopicDeletion(**values)


def settings_to_json(settings: TopicSettings) -> dict[str, Any]:
    return {each.name: getattr(settings, each.name) for each in fields(TopicSettings)}


def settings_from_json(document: Mapping[str, Any]) -> TopicSettings:
    known = {each.name for each in fields(TopicSettings)}
    values = {k: v for k, v in document.items() if k in known}
    values["flush"] = FlushMode(values["flush"])
    if values.get("compression") is not None:
        values["compression"] = Compression(values["compression"])
    return TopicSettings(**values)
