"""``vq topic``: create, alter, list, describe, move, delete; ``close`` and others are beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import click

from vq import limits
from vq.cli.base.completion import broker_group_names, topic_names
from vq.cli.base.errors import CommandFailed, check_readable
from vq.cli.base.json_schema import Shape, having, record, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    flag,
    option,
    partitions_option,
    yes_option,
)
from vq.cli.base.output import Value
from vq.cli.base.text import utc
from vq.cli.topics.moves import MOVES_SCHEMA, RANGE, show_moves
from vq.cli.topics.topic_closing import close, drain, open_
from vq.cli.topics.topic_deleting import DELETED, delete, show_deleted, undelete
from vq.cli.topics.topic_settings import (
    SETTINGS,
    remark_retention,
    remark_threshold,
    retention_s,
    settings_among,
    show_settings,
    shown_retention,
    shown_settings,
    topic_options,
    with_options,
)
from vq.cli.topics.verify import DAMAGE, verify
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.model import PartitionPlacement, Span, TopicOrigin, TopicSettings, check_name
from vq.operations.cluster.settings import read_settings
from vq.operations.partitions import placements
from vq.operations.partitions.offsets import PartitionEnds
from vq.operations.partitions.placements import Move, Moved
from vq.operations.topics import topics
from vq.operations.topics.begins import NewBegin, begin_anew
from vq.operations.topics.clocks import plan_new_logs
from vq.operations.topics.topics import (
    HeldBack,
    PartitionDescription,
    Topic,
    TopicSummary,
)

_ORIGIN: Final = "created_s=origin.time_ms created_by=origin auto_created=origin.auto"
_CREATED_BY: Final = Shape(TopicOrigin, "client host")
_PLACEMENT: Final = Shape(PartitionPlacement, "partition group=writer_group state")


@click.group(cls=Commands)
def topic() -> None:
    """Create, alter, list, describe, verify, move, close, drain, delete and undelete topics."""


# create ---------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@topic_options(partitions_max=limits.PARTITIONS_PER_TOPIC_MAX, defaults=True)
@flag("--if-not-exists", "Leave a topic of this name as it is, without an error.")
@shows(record(topic=str, id=str, created=bool, partitions=some(_PLACEMENT)))
@command_options
def create(invocation: Invocation, name: str, if_not_exists: bool, **options: Any) -> None:
    """Make a topic and place its partitions evenly on the live broker groups."""
    check_name("topic", name)  # what cannot be is refused before anything else
    settings_among(ClusterSettings(), options)

    async def work(cluster: ClusterClient) -> tuple[Topic, bool, TopicSettings]:
        wanted = settings_among(await read_settings(cluster), options)
        if if_not_exists:
            return *await topics.ensure_topic(cluster, name, wanted), wanted
        return await topics.create_topic(cluster, name, wanted), True, wanted

    made, is_new, settings = invocation.call(work)
    rows = [_PLACEMENT(each) for each in made.partitions]
    if not is_new:
        invocation.output.remark(_exists_text(made, settings))
    if invocation.output.as_json:
        document = {"topic": name, "id": made.id, "created": is_new, "partitions": rows}
        invocation.output.document(document)
        return
    if is_new:
        invocation.output.remark(f"created {name} with {len(rows)} partition(s)")
    remark_retention(invocation.output, options, settings)
    remark_threshold(invocation.output, options, settings)
    invocation.output.table(rows, columns="partition group state")


def _exists_text(found: Topic, wanted: TopicSettings) -> str:
    """Say that a topic is there already, and in which settings it is not as wanted."""
    present, asked = asdict(found.settings), asdict(wanted)
    differs = [f"{name} = {present[name]}" for name in asked if present[name] != asked[name]]
    other = f", with other settings: {', '.join(differs)}" if differs else ""
    return f"{found.name} exists already and was left as it is{other}"


# alter ----------------------------------------------------------------------------------------
@topic.command()
@click.argument("name", shell_complete=topic_names)
@topic_options(partitions_max=limits.PARTITIONS_PER_TOPIC_MAX, defaults=False)
@shows(record(topic=str, partitions=int, **SETTINGS.fields))
@command_options
def alter(invocation: Invocation, name: str, partitions: int | None, **options: Any) -> None:
    """Change settings of a topic; one that is not given keeps its value.

    Brokers take them within seconds. Messages that are stored stay as they are. The number of
    partitions can only grow. Keys go to other partitions then: messages of one key keep their
    order only among those sent before, and among those sent after.
    """
    if partitions is None and all(value is None for value in options.values()):
        raise click.UsageError("name at least one setting")

    settings = invocation.call(
        topics.change_topic,
        name,
        lambda before: with_options(before, options),
        partitions=partitions,
    ).settings
    remark_retention(invocation.output, options, settings)
    remark_threshold(invocation.output, options, settings)
    values: dict[str, Value] = {"topic": name, "partitions": settings.partitions}
    show_settings(invocation.output, values, settings)


# list -----------------------------------------------------------------------------------------
_LIST_COLUMNS = "topic partitions flush replication retention writes broker_groups"


def _open_groups(counts: Mapping[str, int]) -> list[str]:
    return sorted(group for group in counts if group)


def _closed_partitions(counts: Mapping[str, int]) -> int:
    return counts.get("", 0)


_SUMMARY: Final = Shape(
    TopicSummary,
    "topic=name id partitions=settings.partitions flush=settings.flush "
    "replication=settings.replication min_insync=settings.min_insync retention_s=settings "
    f"writable=settings.writable broker_groups=open closed_partitions=open {_ORIGIN}",
    retention_s=retention_s,
    broker_groups=_open_groups,
    closed_partitions=_closed_partitions,
    created_by=_CREATED_BY,
)


@topic.command(name="list")
@flag("--deleted", "The topics that `vq topic undelete` brings back.")
@flag("--reserved", "Also topics that vq made for itself, as for dead letters.")
@shows(some(_SUMMARY), deleted=some(DELETED))
@command_options
def list_(invocation: Invocation, deleted: bool, reserved: bool) -> None:
    """List topics with their settings, or those that are deleted and can be brought back.

    With --deleted, reserved topics are always among them. The column `replication` also has the
    least number of nodes in sync (min_insync).
    Exit code 1 when a topic cannot be read in ZooKeeper and is left out.
    """
    if deleted:
        show_deleted(invocation)
        return

    found, unreadable = invocation.call(topics.readable_topics, reserved=reserved)
    _show_list(invocation, found)
    check_readable("topic", unreadable)


def _show_list(invocation: Invocation, found: Sequence[TopicSummary]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "topic": each.name,
            "partitions": each.settings.partitions,
            "flush": str(each.settings.flush),
            "replication": f"{each.settings.replication}, min {each.settings.min_insync}",
            "retention": shown_retention(each.settings),
            "writes": "open" if each.settings.writable else "closed",
            "broker_groups": ",".join(sorted(group or "-" for group in each.open)),
        }
        for each in found
    ]
    if invocation.output.document(_SUMMARY.all(found)):
        return
    invocation.output.table(rows, columns=_LIST_COLUMNS)
    if not rows:
        invocation.output.remark(f"cluster {invocation.client_config().cluster!r} has no topics")


# describe -------------------------------------------------------------------------------------
_COLUMNS = "partition group state earliest latest bytes damaged ranges"


def _size(ends: PartitionEnds) -> int:
    return ends.latest - ends.earliest


HELD: Final = Shape(HeldBack, "by start bytes=size_bytes since_s")
_PARTITION: Final = Shape(
    PartitionDescription,
    "partition=placement.partition group=placement.writer_group state earliest=ends.earliest "
    "latest=ends.latest bytes=ends damaged ranges=placement.spans damage reasons held",
    bytes=_size,
    ranges=RANGE,
    damage=DAMAGE,
    held=HELD,
)
_TOPIC: Final = Shape(Topic, f"topic=name id {_ORIGIN}", created_by=_CREATED_BY)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@shows(having(_TOPIC, **SETTINGS.fields, partitions=some(_PARTITION)))
@command_options
def describe(invocation: Invocation, name: str) -> None:
    """Show a topic: settings, and each partition with its place, state and offsets.

    The state is what the broker says that takes its messages: rw, ro, closed, sealed, failed,
    quarantined.
    Damage is what brokers have met or `vq topic verify` has found.

    Exit code 1 when a broker that answers refuses to serve a partition of it.
    """

    found = invocation.call(topics.describe_topic, name)
    rows = [_partition_row(each) for each in found.partitions]
    output = invocation.output
    if output.as_json:
        settings = SETTINGS(found.topic.settings)
        partitions = _PARTITION.all(found.partitions)
        output.document({**_TOPIC(found.topic), **settings, "partitions": partitions})
    else:
        output.record(settings_rows(found.topic))
        output.title("")
        output.table(rows, columns=_COLUMNS)
        for each in found.partitions:
            for damage in each.damage:
                output.remark(str(damage))
            if each.held is not None:
                output.remark(held_text(name, each.placement.partition, each.held))
            more = (each.damaged or 0) - len(each.damage)
            if more:
                output.remark(
                    f"{name}-{each.placement.partition}: {more} further damaged range(s); "
                    f"`vq topic verify {name}` shows all"
                )
    for text in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        output.remark(text)
    if found.refusing:
        raise CommandFailed(f"not served by group {', '.join(found.refusing)}, see above")


def held_text(name: str, partition: int, held: HeldBack) -> str:
    """Say what is kept of a partition only because somebody needs it."""
    since = ""
    if held.since_ms is not None:
        since = f", since {utc(held.since_ms)}"
    why = (
        f"{held.by} has not read it"
        if held.by.startswith("group ")
        else f"{held.by} reads the topic yet"
    )
    return (
        f"{name}-{partition}: {held.size_bytes} bytes from offset {held.start} on are kept beyond "
        f"the retention{since}: {why}"
    )


def settings_rows(described: Topic) -> dict[str, Value]:
    return {
        "topic": described.name,
        "id": described.id,
        **_shown_origin(described.origin),
        **shown_settings(described.settings),
    }


def _shown_origin(origin: TopicOrigin | None) -> dict[str, Value]:
    if origin is None:
        return dict.fromkeys(("created", "created_by", "auto_created"))
    return {
        "created": utc(origin.time_ms),
        "created_by": f"{origin.client} on {origin.host}",
        "auto_created": origin.auto,
    }


def _partition_row(described: PartitionDescription) -> dict[str, Any]:
    return {
        **_PARTITION(described),
        "ranges": ", ".join(_span_text(each) for each in described.placement.spans),
        "reason": "; ".join(described.reasons) or None,
    }


def _span_text(span: Span) -> str:
    """Say which offsets a broker group holds."""
    if span.end is None:
        return f"{span.group} from {span.start}"
    return f"{span.group} from {span.start} to {span.end}"


# move -----------------------------------------------------------------------------------------
@topic.command()
@click.argument("name", shell_complete=topic_names)
@partitions_option("Which one; may be given several times.", required=True)
@option(
    "--to GROUP as group",
    "Group that takes over.",
    required=True,
    shell_complete=broker_group_names,
)
@yes_option
@shows(record(done=bool, moves=MOVES_SCHEMA))
@command_options
def move(
    invocation: Invocation, name: str, partitions: Sequence[int], group: str, yes: bool
) -> None:
    """Let another broker group take the appends of partitions; copies nothing.

    What is there stays readable where it was written. Producers and consumers follow by themselves.
    """

    async def work(cluster: ClusterClient) -> tuple[list[Move], list[Moved]]:
        moves = await placements.plan_moves(cluster, name, partitions, group)
        return moves, await placements.move_all(cluster, moves) if yes else []

    planned, done = invocation.call(work)
    if not planned:
        invocation.output.remark(f"every named partition is on {group} already")
    show_moves(invocation, planned, done if yes else None)


# heal-clock -----------------------------------------------------------------------------------
@topic.command(name="heal-clock")
@click.argument("name", shell_complete=topic_names)
@partitions_option("Look at this one only; may be given several times.")
@yes_option
@shows(record(done=bool, moves=MOVES_SCHEMA))
@command_options
def heal_clock(invocation: Invocation, name: str, partitions: Sequence[int], yes: bool) -> None:
    """Give partitions true append times again after a clock was ahead; copies nothing.

    Append times never fall along a log. So messages that are stored after a clock was set right get
    the time of what was stored before, until it has come. This has the broker group of each such
    partition begin a new log, as in a move. What is there stays readable, with its times, and
    counts at most as old as what follows it. Set the clocks right first: a partition counts whose
    times lie more than an hour ahead of the clock of its broker.
    """

    async def work(cluster: ClusterClient) -> tuple[list[Move], list[Moved]]:
        moves = await plan_new_logs(cluster, name, partitions)
        return moves, await placements.move_all(cluster, moves) if yes else []

    planned, done = invocation.call(work)
    if not planned:
        invocation.output.remark("no append times lie ahead of the clocks of the brokers")
    show_moves(invocation, planned, done if yes else None)


_BEGIN: Final = Shape(NewBegin, given_up=RANGE)


# begin ----------------------------------------------------------------------------------------
@topic.command()
@click.argument("name", shell_complete=topic_names)
@option("--partition N", "Which partition.", WholeNumber(min=0), required=True)
@option(
    "--at OFFSET as offset",
    "Where it begins: beyond every offset that it ever had.",
    WholeNumber(min=1),
    required=True,
)
@yes_option
@shows(record(done=bool, **_BEGIN.fields))
@command_options
def begin(invocation: Invocation, name: str, *, partition: int, offset: int, yes: bool) -> None:
    """Have a partition whose log is lost begin anew, at an offset that was never used.

    What was stored before is given up. Stop the brokers of its group first, and move the
    partition's directory away on each. Then run this, start the brokers, and set every consumer
    group that reads the topic to the new begin: `vq group reset GROUP --to-earliest`.

    The command refuses offsets that are known to be used. Nobody knows where a lost log ended:
    choose one far beyond, such as 1000000000000.
    """

    found = invocation.call(begin_anew, name, partition, offset, do=yes)
    invocation.output.remark(_begin_text(found))
    invocation.output.document({"done": yes, **_BEGIN(found)})
    if not yes:
        invocation.only_planned()


def _begin_text(found: NewBegin) -> str:
    ranges = ", ".join(
        f"[{each.start}, {'its end' if each.end is None else each.end}) on {each.group}"
        for each in found.given_up
    )
    committed = "no group has committed an offset there"
    if found.committed is not None:
        committed = f"groups have committed offsets up to {found.committed}"
    return (
        f"{found.topic}-{found.partition} begins at {found.offset} on {found.group}; given up: "
        f"{ranges}; {committed}. No message may ever have had an offset beyond {found.offset}: "
        "readers would take another one for it"
    )


topic.add_command(verify)
topic.add_command(close)
topic.add_command(open_)
topic.add_command(drain)
topic.add_command(delete)
topic.add_command(undelete)
