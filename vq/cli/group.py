"""``vq group``: consumer groups, their members, and how far behind they are."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from vq.admin.connect import cluster_client
from vq.admin.groups import (
    GroupDescription,
    GroupMember,
    GroupProgress,
    GroupSummary,
    describe_group,
    list_groups,
)
from vq.cli.group_reset import reset
from vq.cli.options import Commands, Invocation, command_options


@click.group(cls=Commands)
def group() -> None:
    """List, describe and reset consumer groups."""


group.add_command(reset)


# list -----------------------------------------------------------------------------------------
@group.command(name="list")
@command_options
def list_(invocation: Invocation) -> None:
    """List consumer groups with their topics and live members."""

    async def work() -> list[GroupSummary]:
        async with cluster_client(invocation.client_config()) as cluster:
            return await list_groups(cluster)

    found = invocation.run(work())
    rows = [{**asdict(each), "topics": ",".join(each.topics)} for each in found]
    columns = ("group", "topics", "members", "model", "start")
    invocation.output.table(rows, columns=columns)
    if not rows:
        config = invocation.client_config()
        invocation.output.remark(f"cluster {config.cluster!r} has no consumer groups")


# describe -------------------------------------------------------------------------------------
@group.command()
@click.argument("name")
@click.option("--no-count", is_flag=True, help="Leave out the lag in messages: faster.")
@command_options
def describe(invocation: Invocation, name: str, no_count: bool) -> None:
    """Show a group's members, and its progress in every partition.

    The lag is what lies between the committed offset and the end, in bytes and in messages. A
    partition whose owner does not go on is named with the cause, and since when.
    """

    async def work() -> GroupDescription:
        async with cluster_client(invocation.client_config()) as cluster:
            return await describe_group(cluster, name, count=not no_count)

    found = invocation.run(work())
    summary = _summary(found)
    members = [_member_row(each) for each in found.members]
    rows = [_row(each) for each in found.partitions]
    output = invocation.output
    if output.as_json:
        output.document({**summary, "members": members, "partitions": rows})
        return
    output.record(summary)
    output.title("")
    output.table(members, columns=("member", "host", "pid", "partitions"))
    output.title("")
    columns = ("topic", "partition", "owner", "committed", "end", "lag_bytes", "lag_messages")
    output.table(rows, columns=columns)
    for each in found.partitions:
        for text in _remarks(name, each):
            output.remark(text)


def _remarks(group: str, progress: GroupProgress) -> list[str]:
    """Return what a person is told of a partition in which the group does not go on."""
    partition = f"{progress.topic}-{progress.partition}"
    if progress.needs_reset:
        return [
            f"{partition}: the group was stopped at offset {progress.committed}: "
            f"{progress.stopped}; "
            f"`vq group reset {group}` sets where it goes on"
        ]
    found = []
    if progress.stopped is not None:
        found.append(
            f"{partition}: {progress.owner} does not go on at offset {progress.stopped_at} since "
            f"{_utc(progress.stopped_since_ms)}: {progress.stopped}"
        )
    if progress.beyond_end:
        found.append(
            f"{partition}: the committed offset {progress.committed} lies beyond the end "
            f"{progress.end}: messages were lost there; `vq group reset {group}` sets where the "
            "group goes on"
        )
    return found


def _utc(time_ms: int | None) -> str:
    if time_ms is None:
        return "an unknown time"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # any number may be in the tree
        return f"{time_ms} ms"


def _row(progress: GroupProgress) -> dict[str, Any]:
    return {
        **asdict(progress),
        "owner": "-" if progress.owner is None else progress.owner,
        "committed": "-" if progress.committed is None else progress.committed,
    }


def _member_row(member: GroupMember) -> dict[str, Any]:
    return {**asdict(member), "topics": list(member.topics)}


def _summary(found: GroupDescription) -> dict[str, Any]:
    return {
        "group": found.group,
        "model": found.model,
        "start": found.start,
        "topics": {topic: wanted or "all" for topic, wanted in found.topics.items()},
        "deleted_topics": list(found.deleted_topics),
        "lag_bytes": found.lag_bytes,
        "lag_messages": found.lag_messages,
    }
