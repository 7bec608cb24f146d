"""Topics: listed, made, changed, closed, deleted, brought back."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from starlette.responses import Response

from vq import limits
from vq.console.clusters.lags import TopicLag, TopicReaders
from vq.console.clusters.site import SiteFacts
from vq.console.pages.explain import why
from vq.console.pages.page import form, page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, checked_of, confirm, text_of, whole_of
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument
from vq.model import (
    Compression,
    FlushMode,
    PartitionState,
    Replication,
    RetentionPolicy,
    TopicSettings,
)
from vq.operations.cluster.bulk import TopicState
from vq.operations.topics.deletion import DeletedTopic
from vq.operations.topics.topics import PartitionDescription, Topic
from vq.reserved import is_reserved
from vq.shown import shown


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list, with what the last look found of its groups."""

    state: TopicState
    readers: TopicReaders

    @property
    def shown_state(self) -> StateWord:
        """How it is."""
        if self.state.error:
            return StateWord(N_("unreadable"), "bad", self.state.error)
        if self.state.phase != "ready":
            return StateWord(self.state.phase, "warn")
        if not self.state.writable:
            return StateWord(N_("closed"), "quiet")
        if not self.state.readable:
            return StateWord(N_("not readable"), "warn")
        return StateWord(N_("open"), "ok")


def rows_of(facts: SiteFacts, *, reserved: bool) -> list[TopicRow]:
    """Return the topics with their groups and the largest lag of these."""
    nobody, readers = TopicReaders((), TopicLag()), facts.readers()
    return [
        TopicRow(each, readers.get(each.topic, nobody))
        for each in facts.topics
        if reserved or not is_reserved(each.topic)
    ]


@page("/c/{cluster}/topics")
async def TOPICS(context: PageContext) -> Response:
    """List topics."""
    facts = context.site.facts

    def lag(row: TopicRow, name: str) -> Any:
        return getattr(row.readers.lag, name) if row.readers.groups else ""

    columns: list[Column[TopicRow]] = [
        Column(
            "topic",
            N_("Topic"),
            lambda each: each.state.topic,
            link=lambda each: context.path("topics", each.state.topic),
        ),
        Column("state", N_("State"), lambda each: each.shown_state, Kind.STATE),
        Column("partitions", N_("Partitions"), lambda each: each.state.partitions, Kind.COUNT),
        Column("groups", N_("Groups"), lambda each: len(each.readers.groups), Kind.COUNT),
        Column("lag_bytes", N_("Largest lag"), lambda each: lag(each, "lag_bytes"), Kind.BYTES),
        Column("lag_s", N_("Oldest unread"), lambda each: lag(each, "lag_s"), Kind.DURATION),
        Column(
            "readers", N_("Read by"), lambda each: each.readers.groups[:5], Kind.LIST, sorts=False
        ),
    ]
    reserved = context.query.get("reserved") == "1"
    found = table(
        columns,
        rows_of(facts, reserved=reserved),
        Asked.of(context.query),
        empty=N_("There is no topic yet. Create the first one."),
        searched=lambda each: each.state.topic,
    )
    deleted: list[DeletedTopic] = []
    gone = [each.topic for each in facts.topics if each.phase == "deleted"]
    if gone:
        deleted = await context.run("deleted_topics", gone)
    return context.exported(found, "topics") or context.page(
        "topics.html",
        found=found,
        reserved=reserved,
        deleted=deleted,
        look=facts.names_look,
        live=True,
        command="vq topic list",
    )


_CHOICES: Final[dict[str, Any]] = {
    "flush": FlushMode,
    "retention_policy": RetentionPolicy,
    "replication": Replication,
    "compression": Compression,
}
_HELP: Final[dict[str, str]] = {
    "partitions": N_("So many logs share its messages, and so many consumers of a group at most."),
    "flush": N_("sync: a message is on disk before it is acknowledged."),
    "flush_interval_messages": N_("With async: to disk after so many messages …"),
    "flush_interval_ms": N_("… or after so many milliseconds."),
    "max_message_bytes": N_("The largest message, before compression."),
    "compression": N_("How producers compress if they do not say it themselves."),
    "compression_threshold": N_("The least size in bytes that is compressed; empty: 128 KiB."),
    "retention_hours": N_("Older messages are deleted; empty: never."),
    "retention_bytes": N_("So much of each partition is kept; empty: all."),
    "retention_early_hours": N_(
        "Deleted before its time after so long if a disk is full; empty: never."
    ),
    "retention_policy": N_("delete, archive before that, or keep until every group has read it."),
    "archive_after_hours": N_(
        "Blocks become archives after so long; empty: 24 h with the policy archive."
    ),
    "archive_to": N_("URL of a directory for archives; empty: beside the log."),
    "pool": N_("Only broker groups of this pool hold it; empty: the common pool."),
    "replication": N_("sync: acknowledged when every copy in sync has it."),
    "min_insync": N_("So many nodes must be in sync, or messages are refused."),
    "readable": N_("Consumers may read."),
    "writable": N_("Producers may write."),
}


#: What counts where a setting has no value.
_UNSET: Final[dict[str, str]] = {
    "compression": N_("none"),
    "retention_hours": N_("forever"),
    "retention_bytes": N_("unlimited"),
    "retention_early_hours": N_("not before its time"),
    "archive_after_hours": N_("not archived"),
    "archive_to": N_("beside the log"),
    "pool": N_("common"),
}


def settings_in_effect(settings: TopicSettings) -> list[tuple[str, Any, str]]:
    """Return each setting of a topic with its value, and a word for one that is None."""
    values = {each.name: getattr(settings, each.name) for each in fields(TopicSettings)}
    values["archive_after_hours"] = settings.archived_after_hours
    if settings.compression_threshold is None:
        values["compression_threshold"] = limits.COMPRESSION_THRESHOLD_BYTES
    return [(name, value, _UNSET.get(name, "")) for name, value in values.items()]


def setting_fields(settings: TopicSettings) -> list[Field]:
    """Return the settings of a topic as fields of a form."""
    found = []
    for each in fields(TopicSettings):
        value = getattr(settings, each.name)
        kind, options = "text", []
        if each.name in _CHOICES:
            kind = "select"
            options = [(str(choice), str(choice)) for choice in _CHOICES[each.name]]
            if each.name == "compression":
                options.insert(0, ("", "–"))
        elif isinstance(value, bool):
            kind = "check"
        elif each.name not in ("archive_to", "pool"):
            kind = "number"
        shown = "" if value is None else value if isinstance(value, bool) else str(value)
        found.append(Field(each.name, each.name, kind, shown, options, _HELP[each.name], code=True))
    return found


def settings_from(sent: dict[str, str], present: TopicSettings) -> TopicSettings:
    """Return the settings that a form has.

    Raises:
        InvalidArgument: One is not valid.
    """
    changes: dict[str, Any] = {}
    for each in fields(TopicSettings):
        if isinstance(getattr(present, each.name), bool):
            changes[each.name] = checked_of(sent, each.name)
        elif each.name in _CHOICES or each.name in ("archive_to", "pool"):
            changes[each.name] = sent.get(each.name, "").strip() or None
        else:
            changes[each.name] = whole_of(sent, each.name)
    for name in ("partitions", "max_message_bytes", "min_insync", "flush_interval_messages"):
        if changes[name] is None:
            raise InvalidArgument(f"{name} is empty; give a number")
    return replace(present, **changes)


@form("/c/{cluster}/topics/create")
async def CREATE(context: PageContext) -> Response:
    """Create a topic; ``?from=TOPIC`` begins with the settings of another one."""
    source = context.query.get("from", "")
    settings = (await context.run("cluster_settings")).new_topics
    if source:
        settings = (await context.run("get_topic", source)).settings
    problem = ""
    name = context.form.get("topic", "")
    if context.posted:
        try:
            settings = settings_from(dict(context.form), settings)
            await context.run("create_topic", text_of(context.form, "topic", most=300), settings)
        except InvalidArgument as error:
            problem = str(error)
        else:
            context.say(N_("Created: %(what)s"), what=name)
            return context.go("topics", name)
    views = [each.group for each in context.site.facts.status.brokers]
    pools = sorted({each.pool for each in views if each.pool is not None})
    return context.page(
        "topic_form.html",
        400 if problem else 200,
        title=N_("Create a topic"),
        name=name,
        named=True,
        fields=setting_fields(settings),
        pools=pools,
        problem=problem,
        button=N_("Create"),
        command=shlex.join(
            ["vq", "topic", "create", name or "NAME", "--partitions", str(settings.partitions)]
        ),
    )


@form("/c/{cluster}/topics/{topic}/settings")
async def SETTINGS(context: PageContext) -> Response:
    """Change the settings of a topic; partitions may be added."""
    name = context.param("topic")
    present: Topic = await context.run("get_topic", name)
    settings, problem = present.settings, ""
    if context.posted:
        try:
            settings = settings_from(dict(context.form), settings)
            changed = {
                each.name: getattr(settings, each.name)
                for each in fields(TopicSettings)
                if getattr(settings, each.name) != getattr(present.settings, each.name)
            }
            if changed:
                await context.run("alter_topic", name, before=present.settings, **changed)
        except InvalidArgument as error:
            problem = str(error)
        else:
            if changed:
                context.say(N_("Changed: %(what)s"), what=", ".join(changed))
            else:
                context.say(N_("Nothing was changed."))
            return context.go("topics", name)
    return context.page(
        "topic_form.html",
        400 if problem else 200,
        title=name,
        name=name,
        named=False,
        fields=setting_fields(settings),
        pools=[],
        problem=problem,
        button=N_("Change"),
        command=f"vq topic alter {name} --partitions {settings.partitions}",
    )


_PARTITION_STATES: Final[Mapping[str, str]] = {
    PartitionState.RW: N_("read and write"),
    PartitionState.RO: N_("read only"),
}


def _tone_of(partition: PartitionDescription) -> str:
    if partition.state == PartitionState.RW:
        return "ok"
    return "bad" if not partition.state or partition.damaged else "warn"


#: A broker opens the partitions of a new topic within this time.
_NEW_MS: Final = 15_000


def _partition_columns(
    context: PageContext, *, new: bool = False
) -> list[Column[PartitionDescription]]:
    def ends(each: PartitionDescription, name: str) -> Any:
        return None if each.ends is None else getattr(each.ends, name)

    return [
        Column("partition", N_("Partition"), lambda each: each.placement.partition, Kind.COUNT),
        Column(
            "state",
            N_("State"),
            lambda each: (
                StateWord(N_("opening"), "quiet", "; ".join(each.reasons))
                if new and not each.state
                else StateWord(
                    _PARTITION_STATES.get(each.state or "") or each.state or N_("silent"),
                    _tone_of(each),
                    "; ".join(each.reasons),
                )
            ),
            Kind.STATE,
        ),
        Column(
            "group",
            N_("Broker group"),
            lambda each: each.placement.writer_group or None,
            link=lambda each: (
                context.path("brokers", each.placement.writer_group)
                if each.placement.writer_group
                else None
            ),
        ),
        Column("earliest", N_("First offset"), lambda each: ends(each, "earliest"), Kind.COUNT),
        Column("latest", N_("End offset"), lambda each: ends(each, "latest"), Kind.COUNT),
        Column(
            "kept",
            N_("Kept"),
            lambda each: None if each.ends is None else each.ends.latest - each.ends.earliest,
            Kind.BYTES,
        ),
        Column(
            "messages",
            N_("Messages ever"),
            lambda each: ends(each, "latest_number"),
            Kind.COUNT,
        ),
        Column("damaged", N_("Damaged ranges"), lambda each: each.damaged, Kind.COUNT),
    ]


@page("/c/{cluster}/topics/{topic}")
async def TOPIC(context: PageContext) -> Response:
    """Show a topic."""
    name = context.param("topic")
    description = await context.run("describe_topic", name)
    facts = context.site.facts
    readers = facts.readers(name).get(name)

    def members(group: str) -> int | None:
        found = facts.lags.get(group)
        return None if found is None else found.members

    def lag(group: str) -> TopicLag:
        found = facts.lags.get(group)
        return (found and found.topics.get(name)) or TopicLag()

    groups: list[Column[str]] = [
        Column(
            "group",
            N_("Group"),
            lambda each: each,
            link=lambda each: context.path("groups", each),
        ),
        Column("members", N_("Members"), members, Kind.COUNT),
        Column("lag_bytes", N_("Lag"), lambda each: lag(each).lag_bytes, Kind.BYTES),
        Column("lag_s", N_("Oldest unread"), lambda each: lag(each).lag_s, Kind.DURATION),
    ]
    origin = description.topic.origin
    now_ms = context.site.cluster.clock.wall_ms()
    new = origin is not None and now_ms - origin.time_ms < _NEW_MS
    partitions = table(
        _partition_columns(context, new=new), description.partitions, Asked.of(context.query, "p.")
    )
    read_by = table(
        groups,
        readers.groups if readers is not None else (),
        Asked.of(context.query, "g."),
        empty=N_("No consumer group reads it."),
    )
    context.site.want(read_by.rows)
    return context.exported(partitions, f"{name}-partitions") or context.page(
        "topic.html",
        topic=description.topic,
        why=why(context, "key", topic=name),
        settings=settings_in_effect(description.topic.settings),
        partitions=partitions,
        groups=read_by,
        reserved=is_reserved(name),
        look=facts.lags_look,
        live=True,
        command=f"vq topic describe {name}",
    )


@post("/c/{cluster}/topics/{topic}/act")
async def ACT(context: PageContext) -> Response:
    """Close, open, or bring back a deleted topic."""
    name = context.param("topic")
    acts = {"close": "close_topic", "open": "open_topic", "undelete": "undelete_topic"}
    act = context.form.get("act", "")
    if act == "drain":
        job = await context.start("drain_topic", name)
        return context.go("jobs", str(job.number))
    if act not in acts:
        raise InvalidArgument(f"{shown(act)} is no act on a topic")
    await context.run(acts[act], name)
    context.say(N_("Done: %(act)s %(what)s"), act=act, what=name)
    return context.go("topics", name)


@form("/c/{cluster}/topics/{topic}/delete")
async def DELETE(context: PageContext) -> Response:
    """Show what deleting a topic takes away, and do it."""
    name = context.param("topic")
    now = checked_of(context.form, "now")
    plan = await context.run("plan_delete", name, now=now)
    if context.posted:
        confirm(context.form, name)
        await context.run("delete_topic", name, now=now, before=plan)
        context.say(N_("Deleted: %(what)s"), what=name)
        return context.go("topics")
    readers = context.site.facts.readers(name).get(name)
    return context.page(
        "topic_delete.html",
        plan=plan,
        name=name,
        readers=readers.groups if readers is not None else (),
        command=f"vq topic delete {name}",
    )
