"""``vq cluster``: the brokers as ZooKeeper knows them and as they answer themselves."""

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from vq.admin.brokers import broker_status
from vq.cli.connect import cluster_client
from vq.cli.errors import CommandFailed
from vq.cli.options import Commands, Invocation, command_options
from vq.cli.output import bytes_text
from vq.cli.verify import damage_text
from vq.client.cluster import ClusterClient
from vq.coordination import registry
from vq.coordination.reading import gather_all
from vq.errors import VqError
from vq.model import GroupView, NodeInfo, StatusResult


@click.group(cls=Commands)
def cluster() -> None:
    """Look at the brokers of the cluster."""


@cluster.command()
@command_options
def status(invocation: Invocation) -> None:
    """Show every broker group with its nodes, and what each broker says of itself.

    Exit code 1 when a group has no master, a registered broker does not answer or tells of a
    problem, or a partition is failed, quarantined or damaged.
    """

    async def work() -> list[dict[str, Any]]:
        async with cluster_client(invocation.client_config()) as client:
            views = await registry.groups(client.coordinator)
            found = await gather_all(_group_rows(client, view) for view in views)
            return [row for rows in found for row in rows]

    rows = invocation.run(work())
    columns = ("group", "node", "address", "role", "epoch", "partitions", "disk_free", "answers")
    invocation.output.table(rows, columns=columns)  # as many as fit into 80 characters
    if not rows:
        config = invocation.client_config()
        invocation.output.remark(
            f"no broker has ever registered in cluster {config.cluster!r} at {config.zookeeper}: "
            "start one with `vq broker`, or name another --cluster or --zookeeper"
        )
    broken = [
        f"{each['topic']}-{each['partition']} is {each['state']}: {each['reason']}"
        for row in rows
        for each in row["bad_partitions"]
        if each["state"] in {"failed", "quarantined"}
    ]
    for text in broken:
        invocation.output.remark(text)
    problems = [f"{row['group']}/{row['node']}: {each}" for row in rows for each in row["problems"]]
    for text in problems:
        invocation.output.remark(text)
    damaged = [each for row in rows for each in row["damage"]]
    for each in damaged:
        invocation.output.remark(damage_text(each["topic"], each["partition"], each["group"], each))
    ranges = sum(row["damaged_ranges"] for row in rows)
    if ranges > len(damaged):
        invocation.output.remark(
            f"{ranges - len(damaged)} further damaged range(s) are not shown here; "
            "`vq topic verify NAME` shows all of a topic"
        )
    bad = [row for row in rows if row["answers"] != "yes"]
    if bad:
        raise CommandFailed(f"{len(bad)} of {len(rows)} broker(s) are not well, see 'answers'")
    if broken:
        raise CommandFailed(f"{len(broken)} partition(s) take no messages, see above")
    if ranges:
        raise CommandFailed(
            f"{ranges} range(s) of offsets are damaged, see above; docs/operations.md "
            "(Damage in a partition) says what to do"
        )
    if problems:
        raise CommandFailed(f"brokers tell of {len(problems)} problem(s), see above")


async def _group_rows(client: ClusterClient, view: GroupView) -> list[dict[str, Any]]:
    nodes, state = await asyncio.gather(
        registry.nodes(client.coordinator, view.group),
        registry.read_state(client.coordinator, view.group),
    )
    epoch = None if state is None else state.epoch
    if not nodes:
        return [_row(view, None, None, "no broker is registered", epoch)]
    answers = await asyncio.gather(*(_ask(client, node) for node in nodes))
    return [
        _row(view, node, answer if isinstance(answer, StatusResult) else None, _said(answer), epoch)
        for node, answer in zip(nodes, answers, strict=True)
    ]


async def _ask(client: ClusterClient, node: NodeInfo) -> StatusResult | VqError:
    try:
        return await broker_status(client, node.address)
    except VqError as error:
        return error


def _said(answer: StatusResult | VqError) -> str:
    return "yes" if isinstance(answer, StatusResult) else f"{type(answer).__name__}: {answer}"


def _row(
    view: GroupView,
    node: NodeInfo | None,
    answer: StatusResult | None,
    said: str,
    epoch: int | None,
) -> dict[str, Any]:
    raw = {} if answer is None else answer.raw
    free = raw.get("disk_bytes_free")
    role = None if answer is None else ("master" if raw.get("master") else "slave")
    return {
        "group": view.group,
        "node": None if node is None else node.node,
        "address": None if node is None else str(node.address),
        "role": role,
        "epoch": epoch,
        "partitions": view.partitions,
        "connections": raw.get("connections"),
        "messages_in": raw.get("messages_in"),
        "disk_free": bytes_text(free),
        "uptime_s": None if answer is None else round(answer.uptime_s),
        "answers": said,
        "pool": view.pool,
        "labels": dict(view.labels),
        "draining": view.draining,
        "version": None if answer is None else answer.version,
        "bytes_in": raw.get("bytes_in"),
        "bytes_out": raw.get("bytes_out"),
        "flushes": raw.get("flushes"),
        "disk_bytes_free": free,
        "disk_bytes_total": raw.get("disk_bytes_total"),
        "problems": list(raw.get("problems", ())),
        "bad_partitions": _not_rw(raw.get("partitions", ())),
        "damaged_ranges": sum(part["damaged_ranges"] for part in raw.get("partitions", ())),
        "damage": [
            {"topic": part["topic"], "partition": part["partition"], "group": view.group, **each}
            for part in raw.get("partitions", ())
            for each in part["damage"]
        ],
    }


def _not_rw(partitions: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the partitions that do not take appends, with the reason the broker gives."""
    return [
        {key: each[key] for key in ("topic", "partition", "state", "reason")}
        for each in partitions
        if each["state"] not in {"rw", "ro"}
    ]
