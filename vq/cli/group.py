"""``vq group``: consumer groups, their members, and how far behind they are."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from vq.admin.partitions import Inspector
from vq.cli.connect import cluster_client
from vq.cli.group_reset import reset
from vq.cli.options import Commands, Invocation, command_options
from vq.client.cluster import ClusterClient
from vq.coordination import claims, commits, groups, topics
from vq.coordination.coordinator import Coordinator
from vq.coordination.groups import MemberView, UnknownGroup
from vq.coordination.paths import CommittedOffset, ConsumerGroup, Owner
from vq.coordination.reading import TopicView, gather_all
from vq.errors import UnknownTopic
from vq.model import PartitionPlacement, TopicPartition


@click.group(cls=Commands)
def group() -> None:
    """List, describe and reset consumer groups."""


group.add_command(reset)


# list -----------------------------------------------------------------------------------------
@group.command(name="list")
@command_options
def list_(invocation: Invocation) -> None:
    """List consumer groups with their topics and live members."""

    async def work() -> list[dict[str, Any]]:
        async with cluster_client(invocation.client_config()) as cluster:
            names = await groups.list_groups(cluster.coordinator)
            return await gather_all(_list_row(cluster.coordinator, name) for name in names)

    rows = invocation.run(work())
    columns = ("group", "topics", "members", "model", "start")
    invocation.output.table(rows, columns=columns)
    if not rows:
        config = invocation.client_config()
        invocation.output.remark(f"cluster {config.cluster!r} has no consumer groups")


async def _list_row(coordinator: Coordinator, name: str) -> dict[str, Any]:
    contract = await groups.read_group(coordinator, name) or ConsumerGroup()
    return {
        "group": name,
        "topics": ",".join(sorted(contract.topics)),
        "members": len(await groups.members(coordinator, name)),
        "model": contract.model,
        "start": contract.start,
    }


# describe -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupState:
    """What the tree says of a group; a topic that is gone is missing from ``topics``.

    ``younger`` has the partitions without a committed offset that were made after the group began.
    """

    contract: ConsumerGroup
    members: Mapping[str, MemberView]
    owners: Mapping[TopicPartition, Owner]
    offsets: Mapping[TopicPartition, CommittedOffset]
    topics: Mapping[str, TopicView]
    younger: Set[TopicPartition] = frozenset()


@group.command()
@click.argument("name")
@click.option("--no-count", is_flag=True, help="Leave out the lag in messages: faster.")
@command_options
def describe(invocation: Invocation, name: str, no_count: bool) -> None:
    """Show a group's members, and its progress in every partition.

    The lag is what lies between the committed offset and the end, in bytes and in messages. A
    partition whose owner does not go on is named with the cause, and since when.
    """

    async def work() -> tuple[GroupState, list[dict[str, Any]]]:
        async with cluster_client(invocation.client_config()) as cluster:
            state = await _read(cluster, name)
            inspector = Inspector(cluster)
            rows = (
                _row(inspector, state, placement, counted=not no_count)
                for view in state.topics.values()
                for placement in view.partitions
            )
            return state, await gather_all(rows)

    state, rows = invocation.run(work())
    members = [_member_row(view, rows) for view in state.members.values()]
    summary = _summary(name, state, rows)
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
    for row in rows:
        where = f"{row['topic']}-{row['partition']}"
        if row["needs_reset"]:
            output.remark(
                f"{where}: the group was stopped at offset {row['committed']}: {row['stopped']}; "
                f"`vq group reset {name}` sets where it goes on"
            )
            continue
        if row["stopped"] is not None:
            output.remark(
                f"{row['topic']}-{row['partition']}: {row['owner']} does not go on at offset "
                f"{row['stopped_at']} since {_utc(row['stopped_since_ms'])}: {row['stopped']}"
            )
        committed, end = row["committed"], row["end"]
        if isinstance(committed, int) and end is not None and committed > end:
            output.remark(
                f"{row['topic']}-{row['partition']}: the committed offset {committed} lies beyond "
                f"the end {end}: messages were lost there; `vq group reset {name}` sets where the "
                "group goes on"
            )


async def _read(cluster: ClusterClient, name: str) -> GroupState:
    coordinator = cluster.coordinator
    contract = await groups.read_group(coordinator, name)
    if contract is None:
        raise UnknownGroup(f"there is no consumer group {name!r}")
    names = sorted(contract.topics)
    views = await gather_all(_view_or_none(coordinator, each) for each in names)
    present = {view.name: view for view in views if view is not None}
    offsets = await commits.read_offsets(coordinator, name, names)
    fresh = [
        where
        for view in present.values()
        for number in range(len(view.partitions))
        if (where := TopicPartition(view.name, number)) not in offsets
    ]
    younger = await gather_all(claims.is_younger(coordinator, name, where) for where in fresh)
    return GroupState(
        contract,
        await groups.members(coordinator, name),
        await claims.read_partitions(coordinator, Owner, name, names),
        offsets,
        present,
        {where for where, is_younger in zip(fresh, younger, strict=True) if is_younger},
    )


async def _view_or_none(coordinator: Coordinator, topic: str) -> TopicView | None:
    try:
        return await topics.describe_topic(coordinator, topic)
    except UnknownTopic:
        return None


async def _row(
    inspector: Inspector, state: GroupState, placement: PartitionPlacement, *, counted: bool
) -> dict[str, Any]:
    where = TopicPartition(placement.topic, placement.partition)
    committed = state.offsets.get(where)
    owner = state.owners.get(where)
    stopped = committed.stopped if committed is not None else ""
    ends = await inspector.ends(placement)
    begin = end = None
    if ends is not None:
        end = ends.latest
        begin = max(committed.offset, ends.earliest) if committed is not None else ends.earliest
        if committed is None and state.contract.start == "latest" and where not in state.younger:
            begin = end
    count = None
    beyond = begin is not None and end is not None and begin > end  # messages were lost
    if counted and begin is not None and end is not None and not beyond:
        count = await inspector.count(placement, begin, end) if begin < end else 0
    return {
        "topic": placement.topic,
        "partition": placement.partition,
        "owner": "-" if owner is None else owner.member,
        "committed": "-" if committed is None else committed.offset,
        "end": end,
        "lag_bytes": None if begin is None or end is None or beyond else end - begin,
        "lag_messages": count,
        "committed_ms": None if committed is None else committed.time_ms,
        "committed_by": None if committed is None else committed.member,
        "stopped": stopped or (owner.stopped if owner is not None else "") or None,
        "stopped_at": None if owner is None else owner.stopped_at,
        "stopped_since_ms": None if owner is None else owner.stopped_since_ms or None,
        "needs_reset": bool(stopped),
    }


def _utc(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # any number may be in the tree
        return f"{time_ms} ms"


def _member_row(view: MemberView, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "member": view.member,
        "host": view.value.host,
        "pid": view.value.pid,
        "partitions": sum(row["owner"] == view.member for row in rows),
        "topics": list(view.value.topics),
        "since_ms": view.value.since_ms,
    }


def _summary(name: str, state: GroupState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    gone = sorted(set(state.contract.topics) - set(state.topics))
    topics_shown = {topic: state.contract.topics[topic] or "all" for topic in state.topics}
    return {
        "group": name,
        "model": state.contract.model,
        "start": state.contract.start,
        "topics": topics_shown,
        "deleted_topics": gone,
        "lag_bytes": _total(rows, "lag_bytes"),
        "lag_messages": _total(rows, "lag_messages"),
    }


def _total(rows: list[dict[str, Any]], column: str) -> int | None:
    """Return the sum of a column; one unknown part makes it unknown."""
    values = [row[column] for row in rows]
    return None if None in values else sum(values)
