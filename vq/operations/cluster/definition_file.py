"""Definitions of a cluster as values, and as the JSON document that people keep. Pure.

    {
      "format": "vq definitions", "v": 1, "cluster": "default", "time_s": 1764403200.0,
      "settings": {"auto_create": {"enabled": false, "partitions": 1, …}, "delete_grace_hours": 72},
      "broker_groups": [{"group": "b1", "pool": null, "labels": {"rack": "r1"}}],
      "topics": [{"topic": "orders", "settings": {"partitions": 4, "flush": "sync", …}}],
      "groups": [{"group": "shop", "start": "earliest", "topics": {"orders": ""},
                  "terms": {"model": "clustering", …}, "offsets": [{"topic": "orders", …}]}]
    }

A section that is left out says nothing: what the cluster has stays. Names of settings are those of
``vq.TopicSettings``; one that is left out has its default. The filter "" lets all messages through.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.coordination.tree.values.topics import settings_from_json, settings_to_json
from vq.errors import InvalidArgument, VqError
from vq.model import TopicSettings, check_name, check_pool
from vq.operations.groups.making import ExportedOffset, GroupExport
from vq.operations.groups.terms import GroupTerms, terms_of
from vq.shown import shown

FORMAT: Final = "vq definitions"
FORMAT_VERSION: Final = 1
_TERMS: Final = ("model", "mode", "order", "strategy", "offset_store")
_SECTIONS: Final = ("settings", "broker_groups", "topics", "groups")
_HEAD: Final = ("format", "v", "cluster", "time_s")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DefinedBrokers:
    """What an operator says of a broker group: its pool (None: the common one), its labels."""

    group: str
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DefinedTopic:
    """A topic with its settings, and so with its number of partitions."""

    topic: str
    settings: TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What defines a cluster; None: nothing is said of it.

    Attributes:
        cluster: The name of the cluster that they are of.
        time_ms: When they were exported, in milliseconds since 1970.
        settings: Of the cluster.
        broker_groups: By name.
        topics: By name, without vq's own.
        groups: Groups of consumers, by name; with offsets only if somebody asked for them.
    """

    cluster: str = ""
    time_ms: int = 0
    settings: ClusterSettings | None = None
    broker_groups: tuple[DefinedBrokers, ...] | None = None
    topics: tuple[DefinedTopic, ...] | None = None
    groups: tuple[GroupExport, ...] | None = None


# Writing ----------------------------------------------------------------------------------------
def definitions_json(found: Definitions) -> dict[str, Any]:
    """Return definitions as a JSON document."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "v": FORMAT_VERSION,
        "cluster": found.cluster,
        "time_s": found.time_ms / 1000,
    }
    if found.settings is not None:
        document["settings"] = {
            "auto_create": {
                "enabled": found.settings.may_create,
                **settings_to_json(found.settings.new_topics),
            },
            "delete_grace_hours": found.settings.delete_grace_hours,
        }
    if found.broker_groups is not None:
        document["broker_groups"] = [
            {"group": each.group, "pool": each.pool, "labels": dict(sorted(each.labels.items()))}
            for each in found.broker_groups
        ]
    if found.topics is not None:
        document["topics"] = [
            {"topic": each.topic, "settings": settings_to_json(each.settings)}
            for each in found.topics
        ]
    if found.groups is not None:
        document["groups"] = [_group_json(each) for each in found.groups]
    return document


def _group_json(group: GroupExport) -> dict[str, Any]:
    terms = group.terms
    document: dict[str, Any] = {
        "group": group.group,
        "start": group.start,
        "topics": dict(sorted(group.topics.items())),
        "terms": {
            **{name: getattr(terms, name) for name in _TERMS},
            "failure": terms.failure.to_json(),
        },
    }
    if group.offsets:
        document["offsets"] = [
            {name: value for name, value in asdict(each).items() if value is not None}
            for each in group.offsets
        ]
    return document


# Reading ----------------------------------------------------------------------------------------
def definitions_from(document: object) -> Definitions:
    """Return the definitions of a JSON document.

    Raises:
        InvalidArgument: It is none, or of a later version; or something in it has a name or a value
            that means nothing: the text says where.
    """
    head = _object(document, "the document")
    if head.get("format") != FORMAT:
        raise InvalidArgument(
            f"format = {shown(head.get('format'))} is not {FORMAT!r}: these are no definitions, as "
            "`vq cluster export` writes them"
        )
    if head.get("v") != FORMAT_VERSION:
        raise InvalidArgument(
            f"the definitions have format v{shown(head.get('v'))}, this vq reads "
            f"v{FORMAT_VERSION}; upgrade vq here"
        )
    _known(head, (*_HEAD, *_SECTIONS), "the document")
    time_s = head.get("time_s", 0)
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not 0 <= time_s < 1e15:
        raise InvalidArgument(f"time_s = {shown(time_s)} is no number of seconds since 1970")
    time_ms = int(time_s * 1000)
    return Definitions(
        cluster=str(head.get("cluster", "")),
        time_ms=time_ms,
        settings=_in(head, "settings", _settings_from),
        broker_groups=_in(
            head, "broker_groups", lambda given: _each(given, "broker_groups", _brokers)
        ),
        topics=_in(head, "topics", lambda given: _each(given, "topics", _topic)),
        groups=_in(
            head,
            "groups",
            lambda given: _each(given, "groups", lambda each, where: _group(each, where, time_ms)),
        ),
    )


def _in(head: Mapping[str, Any], section: str, read: Callable[[Any], T]) -> T | None:
    return read(head[section]) if section in head else None


def _settings_from(given: object) -> ClusterSettings:
    document = _object(given, "settings")
    _known(document, ("auto_create", "delete_grace_hours"), "settings")
    defaults = ClusterSettings()
    may_create, new_topics = defaults.may_create, defaults.new_topics
    if "auto_create" in document:
        auto = _object(document["auto_create"], "settings.auto_create")
        may_create = auto.get("enabled", False)
        if type(may_create) is not bool:
            raise InvalidArgument(
                f"settings.auto_create.enabled = {shown(may_create)} is not true or false"
            )
        others = {name: value for name, value in auto.items() if name != "enabled"}
        new_topics = _topic_settings(others, "settings.auto_create")
    return _made(
        "settings",
        lambda: ClusterSettings(
            may_create=may_create,
            new_topics=new_topics,
            delete_grace_hours=document.get("delete_grace_hours", defaults.delete_grace_hours),
        ),
    )


def _brokers(given: object, where: str) -> DefinedBrokers:
    document = _object(given, where)
    _known(document, ("group", "pool", "labels"), where)
    labels = _object(document.get("labels", {}), f"{where}.labels")
    for name, value in labels.items():
        if not isinstance(value, str):
            raise InvalidArgument(f"{where}.labels.{name} = {shown(value)} is no text")
    return _made(
        where,
        lambda: DefinedBrokers(
            check_name("group", _needed(document, "group", where)),
            check_pool(document.get("pool")),
            dict(labels),
        ),
    )


def _topic(given: object, where: str) -> DefinedTopic:
    document = _object(given, where)
    _known(document, ("topic", "settings"), where)
    settings = _topic_settings(
        _object(document.get("settings", {}), f"{where}.settings"), f"{where}.settings"
    )
    name = _made(where, lambda: check_name("topic", _needed(document, "topic", where)))
    return DefinedTopic(name, settings)


def _topic_settings(document: Mapping[str, Any], where: str) -> TopicSettings:
    _known(document, tuple(each.name for each in fields(TopicSettings)), where)
    return _made(where, lambda: settings_from_json({"flush": "sync", **document}))


def _group(given: object, where: str, time_ms: int) -> GroupExport:
    document = _object(given, where)
    _known(document, ("group", "start", "topics", "terms", "offsets"), where)
    topics = _object(document.get("topics", {}), f"{where}.topics")
    for name, text in topics.items():
        if not isinstance(text, str):
            raise InvalidArgument(f"{where}.topics.{name} = {shown(text)} is no filter; give text")
    offsets = document.get("offsets", [])
    return GroupExport(
        group=_made(where, lambda: check_name("group", _needed(document, "group", where))),
        time_ms=time_ms,
        start=document.get("start", "earliest"),
        topics=dict(topics),
        offsets=_each(offsets, f"{where}.offsets", _offset),
        terms=_terms(_object(document.get("terms", {}), f"{where}.terms"), f"{where}.terms"),
    )


def _offset(given: object, where: str) -> ExportedOffset:
    document = _object(given, where)
    _known(document, tuple(each.name for each in fields(ExportedOffset)), where)

    def made() -> ExportedOffset:
        ahead = tuple((offset, number) for offset, number in document.get("ahead", ()))
        return ExportedOffset(**{**document, "ahead": ahead})

    return _made(where, made)


def _terms(document: Mapping[str, Any], where: str) -> GroupTerms:
    _known(document, (*_TERMS, "failure"), where)
    usual = terms_of(ConsumerGroup())
    given = {name: document.get(name, getattr(usual, name)) for name in _TERMS}
    failure = usual.failure
    if "failure" in document:
        stated = _object(document["failure"], f"{where}.failure")
        _known(stated, tuple(failure.to_json()), f"{where}.failure")
        failure = _made(
            f"{where}.failure", lambda: FailurePolicy.from_json({**failure.to_json(), **stated})
        )
    return GroupTerms(**given, failure=failure)


def _each(given: object, where: str, read: Callable[[object, str], T]) -> tuple[T, ...]:
    if not isinstance(given, list):
        raise InvalidArgument(f"{where} = {shown(given)} is no list")
    found = tuple(read(each, f"{where}[{at}]") for at, each in enumerate(given))
    names = [getattr(each, "group", None) or getattr(each, "topic", None) for each in found]
    twice = sorted({name for name in names if names.count(name) > 1 and name is not None})
    if twice and not where.endswith("offsets"):
        raise InvalidArgument(f"{where} has {twice[0]!r} twice")
    return found


def _object(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidArgument(f"{where} = {shown(given)} is no object with names and values")
    return given


def _known(document: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for name in document:
        if name not in names:
            raise InvalidArgument(
                f"{where} has {shown(name)}, which this vq does not know; known: {', '.join(names)}"
            )


def _needed(document: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in document:
        raise InvalidArgument(f"{where} has no {name!r}")
    return document[name]


def _made(where: str, make: Callable[[], T]) -> T:
    """Return what a function makes; its error says where the value stands."""
    try:
        return make()
    except (VqError, ValueError, TypeError, KeyError) as error:
        text = error.message if isinstance(error, VqError) else f"{error!r}"
        raise InvalidArgument(f"{where}: {text.removeprefix(f'{where}: ')}") from error
