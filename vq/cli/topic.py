"""``vq topic``: create, alter, list, describe, move, delete."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from vq import limits
from vq.admin import placements, topics
from vq.admin.brokers import Damage
from vq.admin.connect import cluster_client
from vq.admin.placements import Move, Moved
from vq.admin.topics import (
    Deletion,
    PartitionDescription,
    Topic,
    TopicDescription,
    TopicSummary,
)
from vq.cli.errors import CommandFailed
from vq.cli.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    yes_option,
)
from vq.cli.output import Value
from vq.cli.topic_settings import (
    remark_retention,
    remark_threshold,
    shown_retention,
    shown_settings,
    topic_options,
    with_options,
)
from vq.cli.verify import verify
from vq.model import PartitionPlacement, TopicOrigin, TopicSettings


@click.group(cls=Commands)
def topic() -> None:
    """Create, alter, list, describe, verify, move and delete topics."""


# create ---------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@topic_options(partitions_max=limits.PARTITIONS_PER_TOPIC_MAX, defaults=True)
@command_options
def create(invocation: Invocation, name: str, **options: Any) -> None:
    """Make a topic and place its partitions evenly on the live broker groups."""
    settings = with_options(TopicSettings(), options)

    async def work() -> Topic:
        async with cluster_client(invocation.client_config()) as cluster:
            return await topics.create_topic(cluster, name, settings)

    made = invocation.run(work())
    rows = [_placement_row(placement) for placement in made.partitions]
    if invocation.output.as_json:
        invocation.output.document({"topic": name, "id": made.id, "partitions": rows})
        return
    invocation.output.remark(f"created {name} with {len(rows)} partition(s)")
    remark_retention(invocation.output, options)
    remark_threshold(invocation.output, options, settings)
    invocation.output.table(rows, columns=("partition", "group", "state"))


def _placement_row(placement: PartitionPlacement) -> dict[str, Value]:
    return {
        "partition": placement.partition,
        "group": placement.writer_group,
        "state": str(placement.state),
    }


# alter ----------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@topic_options(partitions_max=None, defaults=False)
@command_options
def alter(invocation: Invocation, name: str, **options: Any) -> None:
    """Change settings of a topic; one that is not given keeps its value.

    Brokers take them within seconds. Messages that are stored stay as they are.
    """
    if all(value is None for value in options.values()):
        raise click.UsageError("name at least one setting")

    async def work() -> Topic:
        async with cluster_client(invocation.client_config()) as cluster:
            return await topics.alter_topic(
                cluster,
                name,
                lambda before: with_options(before, options),
                partitions=options["partitions"],
            )

    settings = invocation.run(work()).settings
    remark_retention(invocation.output, options)
    remark_threshold(invocation.output, options, settings)
    invocation.output.record({"topic": name, **shown_settings(settings)})


# list -----------------------------------------------------------------------------------------
@topic.command(name="list")
@command_options
def list_(invocation: Invocation) -> None:
    """List topics with their settings."""

    async def work() -> list[TopicSummary]:
        async with cluster_client(invocation.client_config()) as cluster:
            return await topics.list_topics(cluster)

    rows: list[dict[str, Value]] = [
        {
            "topic": each.name,
            "partitions": each.settings.partitions,
            "flush": str(each.settings.flush),
            "retention": shown_retention(each.settings),
            "groups": ",".join(sorted(group or "-" for group in each.open)),
            "id": each.id,
            **_shown_origin(each.origin),
        }
        for each in invocation.run(work())
    ]
    columns = ("topic", "partitions", "flush", "retention", "groups")
    invocation.output.table(rows, columns=columns)
    if not rows:
        invocation.output.remark(f"cluster {invocation.client_config().cluster!r} has no topics")


# describe -------------------------------------------------------------------------------------
_COLUMNS = ("partition", "group", "state", "earliest", "latest", "bytes", "damaged", "spans")


@topic.command()
@click.argument("name")
@command_options
def describe(invocation: Invocation, name: str) -> None:
    """Show a topic: settings, and each partition with its place, state and offsets.

    The state is what the broker says that takes its messages: rw, ro, sealed, failed, quarantined.
    Damage is what brokers have met or `vq topic verify` has found.

    Exit code 1 when a broker that answers refuses to serve a partition of it.
    """

    async def work() -> TopicDescription:
        async with cluster_client(invocation.client_config()) as cluster:
            return await topics.describe_topic(cluster, name)

    found = invocation.run(work())
    settings = _settings(found.topic)
    rows = [_partition_row(each) for each in found.partitions]
    output = invocation.output
    if output.as_json:
        output.document({**settings, "partitions": rows})
    else:
        output.record(settings)
        output.title("")
        output.table(rows, columns=_COLUMNS)
        for each in found.partitions:
            for damage in each.damage:
                output.remark(str(damage))
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


def _settings(described: Topic) -> dict[str, Value]:
    return {
        "topic": described.name,
        "id": described.id,
        **_shown_origin(described.origin),
        **shown_settings(described.settings),
    }


def _shown_origin(origin: TopicOrigin | None) -> dict[str, Value]:
    if origin is None:
        return dict.fromkeys(("created", "created_by", "auto_created"))
    moment = datetime.fromtimestamp(origin.time_ms / 1000, UTC)
    return {
        "created": moment.isoformat(timespec="milliseconds"),
        "created_by": f"{origin.client} on {origin.host}",
        "auto_created": origin.auto,
    }


def _partition_row(described: PartitionDescription) -> dict[str, Any]:
    placement, ends = described.placement, described.ends
    spans = [f"{s.group}[{s.start},{'' if s.end is None else s.end})" for s in placement.spans]
    return {
        **_placement_row(placement),
        "state": described.state,
        "earliest": None if ends is None else ends.earliest,
        "latest": None if ends is None else ends.latest,
        "bytes": None if ends is None else ends.latest - ends.earliest,
        "damaged": described.damaged,
        "spans": " ".join(spans),
        "damage": [_range(each) for each in described.damage],
        "reason": "; ".join(described.reasons) or None,
    }


def _range(damage: Damage) -> dict[str, Any]:
    """Return a damaged range without what its row says."""
    fields = asdict(damage)
    return {name: fields[name] for name in fields if name not in {"topic", "partition"}}


# move -----------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@click.option(
    "--partition",
    "partitions",
    type=WholeNumber(min=0),
    multiple=True,
    required=True,
    metavar="N",
    help="Which one; may be given several times.",
)
@click.option("--to", "group", required=True, metavar="GROUP", help="Group that takes over.")
@yes_option
@command_options
def move(
    invocation: Invocation, name: str, partitions: Sequence[int], group: str, yes: bool
) -> None:
    """Let another broker group take the appends of partitions; copies nothing.

    What is there stays readable where it was written. Producers and consumers follow by themselves.
    """

    async def work() -> list[Moved]:
        async with cluster_client(invocation.client_config()) as cluster:
            moves = await placements.plan_moves(cluster, name, partitions, group)
            _show_plan(invocation, moves)
            if moves and not yes:
                _need_yes()
            return await placements.move_all(cluster, moves)

    done = invocation.run(work())
    if not done:
        invocation.output.remark(f"every named partition is on {group} already")
    rows = [_moved_row(each) for each in done]
    invocation.output.table(rows, columns=("topic", "partition", "from", "to", "at_offset"))


def _show_plan(invocation: Invocation, moves: Sequence[Move]) -> None:
    for planned in moves:
        invocation.output.remark(
            f"plan: {planned.placement.topic}-{planned.placement.partition} from "
            f"{planned.source.group} ({planned.source.address}) to {planned.target.group} "
            f"({planned.target.address})"
        )


def _moved_row(moved: Moved) -> dict[str, Any]:
    return {
        "topic": moved.topic,
        "partition": moved.partition,
        "from": moved.source,
        "to": moved.target,
        "at_offset": moved.offset,
    }


def _need_yes() -> None:
    raise CommandFailed("nothing was changed; add --yes to do it")


topic.add_command(verify)


# delete ---------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@yes_option
@command_options
def delete(invocation: Invocation, name: str, yes: bool) -> None:
    """Delete a topic: its messages and every group's progress on it."""

    async def work() -> None:
        async with cluster_client(invocation.client_config()) as cluster:
            _show_deletion(invocation, await topics.plan_delete(cluster, name))
            if yes:
                await topics.delete_topic(cluster, name)

    invocation.run(work())
    if not yes:
        _need_yes()
    if invocation.output.as_json:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        invocation.output.document({"topic": name, "deleted": True, "time": moment})
    else:
        invocation.output.remark(f"deleted {name}; brokers remove its data in the background")


def _show_deletion(invocation: Invocation, planned: Deletion) -> None:
    size = f"{planned.bytes} bytes" + ("" if planned.exact else ", and more unknown")
    invocation.output.remark(
        f"plan: delete {planned.topic} with {planned.partitions} partition(s), {size}, and the "
        "progress of every consumer group on it; this cannot be undone"
    )
