"""``vq topic``: create, list, describe, move, delete."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from vq.admin import partitions as admin
from vq.admin.brokers import broker_status
from vq.admin.partitions import Inspector, Move
from vq.cli.connect import cluster_client
from vq.cli.errors import CommandFailed
from vq.cli.options import Commands, Invocation, WholeNumber, command_options, yes_option
from vq.cli.output import Value
from vq.cli.verify import damage_text, verify
from vq.client.cluster import ClusterClient
from vq.coordination import topics
from vq.coordination.coordinator import ConnectionLost, SessionExpired
from vq.coordination.reading import TopicView, gather_all
from vq.errors import InvalidArgument, OutcomeUnknown, VqError
from vq.model import Address, FlushMode, PartitionPlacement, PartitionState, TopicSettings
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest


class ChangeUnknown(OutcomeUnknown):
    """ZooKeeper went away in the middle of a change of several steps."""

    hint = "`vq topic describe NAME` says how things stand; then run the command again if need be"


@contextlib.contextmanager
def _unknown_when_cut(what: str) -> Iterator[None]:
    """Say of a change that ZooKeeper's silence ended: perhaps done.

    Also where that silence says that nothing was sent: this holds for the last step alone.

    Raises:
        ChangeUnknown: It did.
    """
    try:
        yield
    except (ConnectionLost, SessionExpired) as error:
        raise ChangeUnknown(f"{what} may or may not have been done: {error}") from error


@click.group(cls=Commands)
def topic() -> None:
    """Create, list, describe, move and delete topics."""


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
    help="Age at which closed blocks may be deleted, or 'forever'.  [72]",
)
@click.option("--max-message-bytes", type=int, metavar="BYTES", help="At most 1048576.  [1048576]")
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
    pool: str | None,
) -> None:
    """Make a topic and place its partitions evenly on the live broker groups."""
    given = {
        "flush_interval_messages": flush_messages,
        "flush_interval_ms": flush_ms,
        "max_message_bytes": max_message_bytes,
        "pool": pool,
    }
    values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if retention_hours is not None:
        values["retention_hours"] = _hours(retention_hours)
    settings = TopicSettings(partitions=partitions, flush=FlushMode(flush), **values)

    async def work() -> TopicView:
        async with cluster_client(invocation.client_config()) as cluster:
            with _unknown_when_cut(f"creating {name}"):
                return await topics.create_topic(cluster.coordinator, name, settings)

    view = invocation.run(work())
    rows = [_placement_row(placement) for placement in view.partitions]
    if invocation.output.as_json:
        invocation.output.document({"topic": name, "id": view.id, "partitions": rows})
        return
    invocation.output.remark(f"created {name} with {len(rows)} partition(s)")
    invocation.output.table(rows, columns=("partition", "group", "state"))


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

    async def work() -> list[TopicView]:
        async with cluster_client(invocation.client_config()) as cluster:
            names = await topics.list_topics(cluster.coordinator)
            return await gather_all(
                topics.describe_topic(cluster.coordinator, name) for name in names
            )

    rows: list[dict[str, Value]] = [
        {
            "topic": view.name,
            "partitions": len(view.partitions),
            "flush": str(view.settings.flush),
            "retention": _retention(view.settings),
            "groups": ",".join(sorted({p.writer_group or "-" for p in view.partitions})),
            "id": view.id,
        }
        for view in invocation.run(work())
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

    async def work() -> tuple[TopicView, list[dict[str, Any]], _Said]:
        async with cluster_client(invocation.client_config()) as cluster:
            view = await topics.describe_topic(cluster.coordinator, name)
            inspector = Inspector(cluster)
            said = await _said(cluster, view)
            rows = [_partition_row(inspector, placement, said) for placement in view.partitions]
            return view, await gather_all(rows), said

    view, rows, said = invocation.run(work())
    settings = _settings(view)
    output = invocation.output
    if output.as_json:
        output.document({**settings, "partitions": rows})
    else:
        output.record(settings)
        output.title("")
        output.table(rows, columns=_COLUMNS)
        for row in rows:
            for each in row["damage"]:
                output.remark(damage_text(name, row["partition"], each["group"], each))
            more = (row["damaged"] or 0) - len(row["damage"])
            if more:
                output.remark(
                    f"{name}-{row['partition']}: {more} further damaged range(s); "
                    f"`vq topic verify {name}` shows all"
                )
    for text in dict.fromkeys(row["reason"] for row in rows if row["reason"]):
        output.remark(text)
    refusing = sorted(group for group, (_, refuses) in said.silent.items() if refuses)
    if refusing:
        raise CommandFailed(f"not served by group {', '.join(refusing)}, see above")


@dataclass(slots=True)
class _Said:
    """What the groups that hold parts of a topic say of it.

    Attributes:
        partitions: By group and partition.
        silent: By group, why it says nothing of a partition, and whether its broker refuses to.
    """

    partitions: dict[tuple[str, int], Any]
    silent: dict[str, tuple[str, bool]]


def _settings(view: TopicView) -> dict[str, Value]:
    settings = view.settings
    return {
        "topic": view.name,
        "id": view.id,
        "flush": str(settings.flush),
        "flush_interval_messages": settings.flush_interval_messages,
        "flush_interval_ms": settings.flush_interval_ms,
        "retention": _retention(settings),
        "max_message_bytes": settings.max_message_bytes,
        "replication": settings.replication,
        "pool": settings.pool or "common",
        "readable": settings.readable,
        "writable": settings.writable,
    }


async def _said(cluster: ClusterClient, view: TopicView) -> _Said:
    said = _Said({}, {})
    groups = sorted({span.group for each in view.partitions for span in each.spans})
    await gather_all(_ask_group(cluster, view, group, said) for group in groups)
    return said


async def _ask_group(cluster: ClusterClient, view: TopicView, group: str, said: _Said) -> None:
    """Add to ``said`` what one group says of its partitions, or why it says nothing."""
    master = await admin.master_of(cluster, group)
    if master is None:
        said.silent[group] = (f"group {group} has no running master", False)
        return
    try:
        found = (await broker_status(cluster, master.address)).raw["partitions"]
    except VqError as error:
        said.silent[group] = (f"group {group}: {type(error).__name__}: {error}", False)
        return
    for each in found:
        if each["topic"] == view.name:
            said.partitions[group, each["partition"]] = each
    for placement in view.partitions:
        held = any(span.group == group for span in placement.spans)
        if held and (group, placement.partition) not in said.partitions:
            why = await _why_silent(cluster, master.address, view.name, placement.partition)
            if why:
                said.silent[group] = (f"group {group} refuses {view.name}: {why}", True)
            return  # one stands for all


async def _why_silent(cluster: ClusterClient, address: Address, topic: str, partition: int) -> str:
    """Ask a broker for a partition that its status does not name; return why it refuses, or ""."""
    request = VerifyRequest(topic=topic, partition=partition, whole=True)
    try:
        await cluster.request(address, Command.VERIFY, request)
    except VqError as error:
        return f"{type(error).__name__}: {error}"
    return ""


async def _partition_row(
    inspector: Inspector, placement: PartitionPlacement, said: _Said
) -> dict[str, Any]:
    ends = await inspector.ends(placement)
    spans = [f"{s.group}[{s.start},{'' if s.end is None else s.end})" for s in placement.spans]
    takes_messages = placement.state is PartitionState.RW
    number = placement.partition
    writer = said.partitions.get((placement.writer_group or "", number))
    groups = dict.fromkeys(span.group for span in placement.spans)
    parts = {group: said.partitions.get((group, number), {}) for group in groups}
    damage = [
        {"group": group, **each} for group, part in parts.items() for each in part.get("damage", ())
    ]
    ranges = sum(part.get("damaged_ranges", 0) for part in parts.values())
    state = None if writer is None else writer["state"]
    silent = [said.silent[group][0] for group in groups if group in said.silent]
    if writer is not None and state in {"failed", "quarantined"}:
        silent.append(writer["reason"])
    return {
        **_placement_row(placement),
        "state": state if takes_messages else str(placement.state),
        "earliest": None if ends is None else ends.earliest,
        "latest": None if ends is None else ends.latest,
        "bytes": None if ends is None else ends.latest - ends.earliest,
        "damaged": None if not ranges and silent else ranges,
        "spans": " ".join(spans),
        "damage": damage,
        "reason": "; ".join(silent) or None,
    }


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

    async def work() -> list[dict[str, Any]]:
        async with cluster_client(invocation.client_config()) as cluster:
            moves = await admin.plan_moves(cluster, name, partitions, group)
            _show_plan(invocation, moves)
            if moves and not yes:
                _need_yes()
            return await _carry_out(cluster, moves)

    done = invocation.run(work())
    if not done:
        invocation.output.remark(f"every named partition is on {group} already")
    invocation.output.table(done, columns=("topic", "partition", "from", "to", "at_offset"))


def _show_plan(invocation: Invocation, moves: Sequence[Move]) -> None:
    for planned in moves:
        invocation.output.remark(
            f"plan: {planned.placement.topic}-{planned.placement.partition} from "
            f"{planned.source.group} ({planned.source.address}) to {planned.target.group} "
            f"({planned.target.address})"
        )


async def _carry_out(cluster: ClusterClient, moves: Sequence[Move]) -> list[dict[str, Any]]:
    """Move one after the other: an error leaves the rest as it was."""
    done = []
    for planned in moves:
        name, number = planned.placement.topic, planned.placement.partition
        with _unknown_when_cut(f"moving {name}-{number}"):
            offset = await admin.carry_out(cluster, planned)
        done.append(
            {
                "topic": name,
                "partition": number,
                "from": planned.source.group,
                "to": planned.target.group,
                "at_offset": offset,
            }
        )
    return done


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
            await _plan_delete(invocation, cluster, name)
            if yes:
                with _unknown_when_cut(f"deleting {name}"):
                    await topics.delete_topic(cluster.coordinator, name)

    invocation.run(work())
    if not yes:
        _need_yes()
    if invocation.output.as_json:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        invocation.output.document({"topic": name, "deleted": True, "time": moment})
    else:
        invocation.output.remark(f"deleted {name}; brokers remove its data in the background")


async def _plan_delete(invocation: Invocation, cluster: ClusterClient, name: str) -> None:
    view = await topics.describe_topic(cluster.coordinator, name)
    inspector = Inspector(cluster)
    ends = await asyncio.gather(*(inspector.ends(each) for each in view.partitions))
    known = [each.latest - each.earliest for each in ends if each is not None]
    size = f"{sum(known)} bytes" + ("" if len(known) == len(ends) else ", and more unknown")
    invocation.output.remark(
        f"plan: delete {name} with {len(view.partitions)} partition(s), {size}, and the progress "
        "of every consumer group on it; this cannot be undone"
    )
