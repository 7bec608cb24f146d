"""``vq cluster``: the brokers as ZooKeeper knows them and as they answer themselves."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import click

from vq import limits
from vq.cli.base.completion import broker_group_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, as_text, having, maybe, record, shows, some
from vq.cli.base.options import Commands, Invocation, WholeNumber, command_options, option
from vq.cli.base.output import Output
from vq.cli.brokers.diverged import diverged
from vq.cli.brokers.last_resorts import raise_epoch_command, replace_secret_command, unclean
from vq.cli.brokers.scrub import scrub
from vq.cli.cluster.definitions import export, import_
from vq.cli.topics.topic_settings import (
    SETTINGS,
    remark_retention,
    remark_threshold,
    show_settings,
    topic_options,
    with_options,
)
from vq.cli.topics.verify import DAMAGE_WORDS
from vq.client.cluster import ClusterClient
from vq.coordination.tree.values.cluster import DEFAULTS, DELETE_GRACE_HOURS_MAX, ClusterSettings
from vq.errors import InvalidArgument
from vq.model import StatusResult
from vq.operations.base.sizes import bytes_text, duration_text
from vq.operations.brokers.brokers import Damage
from vq.operations.brokers.disks import DiskState
from vq.operations.brokers.safety import Unsafe
from vq.operations.brokers.switching import switch_master
from vq.operations.cluster.cluster import BrokerReport, ClusterStatus, cluster_status
from vq.operations.cluster.settings import change_settings, read_settings

#: Facts that a node tells, as they are.
_COUNTS: Final = (
    *("connections", "messages_in", "bytes_in", "bytes_out", "flushes"),
    *("disk_bytes_free", "disk_bytes_total"),
)


def _uptime_s(answer: StatusResult) -> int:
    return round(answer.uptime_s)


def _in_sync(report: BrokerReport) -> bool | None:
    return report.in_sync if report.name else None


def _answers(report: BrokerReport) -> bool:
    return not report.error


def _drained(report: BrokerReport) -> bool | None:
    return None if report.node is None else report.node.node in report.group.drained


def _disks(report: BrokerReport) -> list[DiskState] | None:
    return None if report.status is None else report.disks


def _damaged_ranges(report: BrokerReport) -> int | None:
    return None if report.status is None else report.damaged_ranges


_REPORT: Final = Shape(
    BrokerReport,
    "group=group.group node=name? host=node.address.host pid=node.pid? address=node.address "
    "rack=node.rack? metrics_port=node.metrics_port? role in_sync= lag_bytes lag_s epoch "
    "partitions=group.partitions uptime_s=status answers= error? pool=group.pool "
    "labels=group.labels draining=group.draining drained= version=status.version disks= problems "
    "bad_partitions damaged_ranges= damage",
    address=as_text,
    in_sync=_in_sync,
    uptime_s=_uptime_s,
    answers=_answers,
    drained=_drained,
    disks=_disks,
    damaged_ranges=_damaged_ranges,
    damage=Shape(Damage, f"topic partition {DAMAGE_WORDS}"),
)
_UNSAFE: Final = Shape(Unsafe, "kind text topics wrong")
_NODE: Final = having(_REPORT, **dict.fromkeys(_COUNTS, maybe(int)), unsafe=some(_UNSAFE))

#: Topics named as closed for writes; further ones are counted.
_CLOSED_TOLD_MAX: Final = 10


@click.group(cls=Commands)
def cluster() -> None:
    """Look at the brokers of the cluster, switch masters, change settings; definitions."""


@cluster.command()
@shows(some(_NODE))
@command_options
def status(invocation: Invocation) -> None:
    """Show every broker group with its nodes, and what is unsafe.

    `lag` is what a node lacks of the logs that it copies: bytes, and the age of the oldest message.

    Exit code 1 if a group has no master, a broker does not answer or reports a problem, a partition
    is failed, quarantined or damaged, or something is unsafe: a node is not in sync, was so and
    does not run, or cannot copy a partition; topics refuse messages since too few nodes are in
    sync. Topics that may lose acknowledged messages, and kept messages of `vq cluster diverged`,
    are remarks.
    """

    found = invocation.call(cluster_status)
    output = invocation.output
    rows = [row_of(each, found) for each in found.brokers]
    if not output.document(rows):
        show_brokers(output, rows, found)
    for each in found.brokers:
        if each.error and output.to_terminal:
            output.remark(_silence_text(each))
    if not found.brokers:
        config = invocation.client_config()
        output.remark(
            f"no broker has ever registered in cluster {config.cluster!r} at {config.zookeeper}: "
            "start one with `vq broker`, or name another --cluster or --zookeeper"
        )
    for danger in found.unsafe:
        output.remark(danger.text)
    for text in _drained_texts(found):
        output.remark(text)
    if found.closed_topics:
        output.remark(_closed_text(found.closed_topics))
    for bad in found.failed_partitions:
        output.remark(f"{bad.topic}-{bad.partition} is {bad.state}: {bad.reason}")
    for each in found.brokers:
        for disk in each.disks:
            if disk.needs_attention:
                output.remark(f"{each.group.group}/{each.name}: {disk}")
    for problem in found.problems:
        output.remark(problem)
    for damage in found.damage:
        output.remark(str(damage))
    if found.damaged_ranges > len(found.damage):
        output.remark(
            f"{found.damaged_ranges - len(found.damage)} further damaged range(s) are not shown "
            "here; `vq topic verify NAME` shows all of a topic"
        )
    _fail_unless_well(found)


def show_brokers(output: Output, rows: list[dict[str, Any]], found: ClusterStatus) -> None:
    """Print the table for people; its columns fit into 80 characters unless something drains."""
    shown = []
    for row, report in zip(rows, found.brokers, strict=True):
        answers = "yes" if row["answers"] else "no" if output.to_terminal else row["error"]
        shown.append(
            {**row, "lag": _lag_text(row), "answers": answers, "draining": _draining_text(report)}
        )
    drains = "draining " if any(row["draining"] for row in shown) else ""
    columns = f"group node address role {drains}epoch in_sync lag answers"
    output.table(shown, columns=columns, optional="lag draining")


def _draining_text(report: BrokerReport) -> str | None:
    """Say what is drained: the node, its group, or both; None: neither."""
    group = report.group
    parts = ["group"] * group.draining + ["node"] * (report.name in group.drained)
    return " and ".join(parts) or None


def _lag_text(row: dict[str, Any]) -> str | None:
    if row["lag_bytes"] is None:
        return None if row["role"] == "master" else "unknown"
    if not row["lag_bytes"]:
        return "0 B"
    return f"{bytes_text(row['lag_bytes'])}, {duration_text(row['lag_s'])}"


@cluster.command()
@click.argument("group", shell_complete=broker_group_names)
@option("--to NODE as node", "The new master.  [any in sync]", default="")
@shows(record(group=str, source=str, target=str, epoch=int))
@command_options
def switch(invocation: Invocation, group: str, node: str) -> None:
    """Have another node lead a broker group, without a failed send.

    The master holds new messages for a moment, waits until the other node has everything, and
    hands over. If that one is not in sync, or does not take over in time, the master goes on: the
    command says so and ends with 1.
    """

    found = invocation.call(switch_master, group, node)
    if found.source == found.target:
        invocation.output.remark(f"{found.target} leads {group} already")
    invocation.output.record(asdict(found))


@cluster.command()
@option("--auto-create", "Whether producers may create topics that are missing.", ["on", "off"])
@option(
    "--delete-grace-hours HOURS",
    "How long a topic can be brought back that is deleted from now on; 0: not at all.",
    WholeNumber(min=0, max=DELETE_GRACE_HOURS_MAX),
)
@topic_options(partitions_max=limits.AUTO_CREATE_PARTITIONS_MAX, defaults=False)
@shows(record(delete_grace_s=int, auto_create=bool, partitions=int, **SETTINGS.fields))
@command_options
def settings(
    invocation: Invocation,
    auto_create: str | None,
    delete_grace_hours: int | None,
    **options: Any,
) -> None:
    """Show the settings of the cluster, or change those that are given.

    With auto-create on, a producer that publishes a missing topic, or sends to it, creates it. The
    other options are the settings of such topics; an option that is not given keeps its value,
    also while auto-create is off. Topics that exist already keep their settings.

    --retention-hours, --retention-policy, --archive-after-hours and --archive-to are also the
    defaults of `vq topic create`, whether auto-create is on or off.

    `vq topic list --json` and `vq topic describe` show which topics producers have created.
    """
    is_given = any(value is not None for value in options.values())
    given = {name for name, value in options.items() if value is not None}
    if auto_create == "off" and given - DEFAULTS:
        raise click.UsageError("--auto-create off takes no settings of topics")

    def change(before: ClusterSettings) -> ClusterSettings:
        if delete_grace_hours is not None:
            before = replace(before, delete_grace_hours=delete_grace_hours)
        if auto_create is None and not is_given:
            return before
        if not before.may_create and auto_create is None and given - DEFAULTS:
            raise InvalidArgument("auto-create is off; give --auto-create on with its settings")
        on = before.may_create if auto_create is None else auto_create == "on"
        new_topics = with_options(before.new_topics, options)
        return replace(before, may_create=on, new_topics=new_topics)

    async def work(client: ClusterClient) -> ClusterSettings:
        if auto_create is None and delete_grace_hours is None and not is_given:
            return await read_settings(client)
        return await change_settings(client, change)

    found = invocation.call(work)
    remark_retention(invocation.output, options, found.new_topics)
    remark_threshold(invocation.output, options, found.new_topics)
    on: bool | str = found.may_create
    if not invocation.output.as_json:
        on = "on" if on else "off"
    grace: dict[str, Any] = {"delete_grace_hours": found.delete_grace_hours}
    if invocation.output.as_json:
        grace = {"delete_grace_s": found.delete_grace_hours * 3_600}
    values = {**grace, "auto_create": on, "partitions": found.new_topics.partitions}
    show_settings(invocation.output, values, found.new_topics)


cluster.add_command(diverged)
cluster.add_command(export)
cluster.add_command(import_)
cluster.add_command(raise_epoch_command)
cluster.add_command(replace_secret_command)
cluster.add_command(scrub)
cluster.add_command(unclean)


def _fail_unless_well(found: ClusterStatus) -> None:
    """Raise for the first kind of problem found.

    Raises:
        CommandFailed: There is a problem.
    """
    if found.silent:
        raise CommandFailed(
            f"{len(found.silent)} of {len(found.brokers)} broker(s) do not work, see 'answers'"
        )
    if found.failed_partitions:
        raise CommandFailed(
            f"{len(found.failed_partitions)} partition(s) take no messages, see above"
        )
    if found.damaged_ranges:
        raise CommandFailed(
            f"{found.damaged_ranges} range(s) of offsets are damaged, see above; "
            "docs/howto/repair-damage.md says what to do"
        )
    if found.problems:
        raise CommandFailed(f"brokers report {len(found.problems)} problem(s), see above")
    wrong = [each for each in found.unsafe if each.wrong]
    if wrong:
        raise CommandFailed(f"{len(wrong)} thing(s) are unsafe, see above")


def _silence_text(report: BrokerReport) -> str:
    name = report.group.group + (f"/{report.name}" if report.name else "")
    return f"{name} does not answer: {report.error}"


def _drained_texts(found: ClusterStatus) -> list[str]:
    """Return which groups and nodes are drained, each once."""
    texts: dict[str, None] = {}
    for group in (each.group for each in found.brokers):
        if group.draining:
            texts[f"{group.group} is drained: no new partitions are placed on it"] = None
        for node in group.drained:
            texts[f"{group.group}/{node} is drained: it leads only if no other node can"] = None
    return list(texts)


def _closed_text(names: Sequence[str]) -> str:
    """Say which topics are closed for writes: the first few."""
    more = len(names) - _CLOSED_TOLD_MAX
    told = ", ".join(names[:_CLOSED_TOLD_MAX]) + f" and {more} more" * (more > 0)
    return f"closed for writes: {told}; `vq topic open NAME` opens a topic"


def row_of(report: BrokerReport, found: ClusterStatus) -> dict[str, Any]:
    raw = {} if report.status is None else report.status.raw
    group = report.group.group
    first = next(each for each in found.brokers if each.group.group == group)
    nodes = {report.name, "" if report is first else report.name}
    return {
        **_REPORT(report),
        **{name: raw.get(name) for name in _COUNTS},
        "unsafe": [
            _UNSAFE(each) for each in found.unsafe if each.group == group and each.node in nodes
        ],
    }
