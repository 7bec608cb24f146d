"""``vq topic``: create, list, describe, move, delete."""

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
    compression_options,
    yes_option,
)
from vq.cli.output import Value
from vq.cli.verify import verify
from vq.errors import InvalidArgument
from vq.model import FlushMode, PartitionPlacement, TopicSettings


@click.group(cls=Commands)
def topic() -> None:
    """Create, list, describe, verify, move and delete topics."""


# create ---------------------------------------------------------------------------------------
@topic.command()
@click.argument("name")
@click.option(
    "--partitions", type=int, default=1, show_default=True, metavar="N", help="How many, 1 to 4096."
)
@click.option(
    "--flush",
    type=click.Choice([str(mode) for mode in FlushMode]),
    default="sync",
    show_default=True,
    help="Acknowledge after fdatasync, or after the write (a power cut may lose seconds).",
)
@click.option(
    "--flush-messages",
    type=int,
    metavar="N",
    help="With async: fdatasync every N messages.  [1000]",
)
@click.option("--flush-ms", type=int, metavar="MS", help="With async: and every MS.  [10000]")
@click.option(
    "--retention-hours",
    metavar="HOURS",
    help="Age at which closed blocks may be deleted, or 'forever'; stored, no broker deletes by "
    "age yet.  [72]",
)
@click.option("--max-message-bytes", type=int, metavar="BYTES", help="At most 1048576.  [1048576]")
@compression_options(
    "How producers compress messages if their own settings do not say it.", ("none", "128K")
)
@click.option(
    "--pool", metavar="NAME", help="Only broker groups of this pool; without it, those of none."
)
@command_options
def create(
    invocation: Invocation,
    name: str,
    partitions: int,
    flush: str,
    flush_messages: int | None,
    flush_ms: int | None,
    retention_hours: str | None,
    max_message_bytes: int | None,
    compression: str | None,
    compression_threshold: int | None,
    pool: str | None,
) -> None:
    """Make a topic and place its partitions evenly on the live broker groups."""
    _check_flush_options(flush, flush_messages, flush_ms)
    given = {
        "flush_interval_messages": flush_messages,
        "flush_interval_ms": flush_ms,
        "max_message_bytes": max_message_bytes,
        "compression": compression,
        "compression_threshold": compression_threshold,
        "pool": pool,
    }
    values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if retention_hours is not None:
        values["retention_hours"] = _hours(retention_hours)
    settings = TopicSettings(partitions=partitions, flush=FlushMode(flush), **values)

    async def work() -> Topic:
        async with cluster_client(invocation.client_config()) as cluster:
            return await topics.create_topic(cluster, name, settings)

    made = invocation.run(work())
    rows = [_placement_row(placement) for placement in made.partitions]
    if invocation.output.as_json:
        invocation.output.document({"topic": name, "id": made.id, "partitions": rows})
        return
    invocation.output.remark(f"created {name} with {len(rows)} partition(s)")
    if retention_hours not in {None, "forever"}:
        invocation.output.remark("--retention-hours is stored; no broker deletes by age yet")
    invocation.output.table(rows, columns=("partition", "group", "state"))


def _check_flush_options(flush: str, messages: int | None, ms: int | None) -> None:
    for option, value in (("--flush-messages", messages), ("--flush-ms", ms)):
        if value is not None and flush != FlushMode.ASYNC:
            raise InvalidArgument(
                f"{option} {value} has no effect with --flush {flush}, which flushes every append; "
                f"leave {option} out, or take --flush async"
            )


def _hours(text: str) -> int | None:
    if text == "forever":
        return None
    if not text.isdigit():
        raise InvalidArgument(f"--retention-hours {text!r} is neither a whole number nor 'forever'")
    return int(text)


def _placement_row(placement: PartitionPlacement) -> dict[str, Value]:
    return {
        "partition": placement.partition,
        "group": placement.writer_group,
        "state": str(placement.state),
    }


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
            "retention": _retention(each.settings),
            "groups": ",".join(sorted(group or "-" for group in each.open)),
            "id": each.id,
        }
        for each in invocation.run(work())
    ]
    columns = ("topic", "partitions", "flush", "retention", "groups")
    invocation.output.table(rows, columns=columns)
    if not rows:
        invocation.output.remark(f"cluster {invocation.client_config().cluster!r} has no topics")


def _retention(settings: TopicSettings) -> str:
    hours = settings.retention_hours
    return "forever" if hours is None else f"{hours} h"


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
    settings = described.settings
    return {
        "topic": described.name,
        "id": described.id,
        "flush": str(settings.flush),
        "flush_interval_messages": settings.flush_interval_messages,
        "flush_interval_ms": settings.flush_interval_ms,
        "retention": _retention(settings),
        "max_message_bytes": settings.max_message_bytes,
        "compression": settings.compression or "none",
        "compression_threshold": _threshold(settings),
        "replication": settings.replication,
        "pool": settings.pool or "common",
        "readable": settings.readable,
        "writable": settings.writable,
    }


def _threshold(settings: TopicSettings) -> int:
    given = settings.compression_threshold
    return limits.COMPRESSION_THRESHOLD_BYTES if given is None else given


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
