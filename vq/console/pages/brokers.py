"""Broker groups and their nodes: roles, lag of copies, load, disks; drain, switch, remove."""

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from vq.console.clusters.measured import BUSY, BYTES_IN, DISK_USED
from vq.console.clusters.site import SiteFacts
from vq.console.pages.explain import why
from vq.console.pages.page import form, page, post
from vq.console.web.context import PageContext
from vq.console.web.forms import confirm
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import InvalidArgument
from vq.model import COMMON_POOL
from vq.operations.brokers.disks import DiskState
from vq.operations.cluster.cluster import BrokerReport
from vq.shown import shown


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node in the list."""

    report: BrokerReport
    load: BrokerLoad | None

    @property
    def state(self) -> StateWord:
        """How it is."""
        report = self.report
        if report.error:
            return StateWord(N_("silent"), "bad", report.error)
        if report.bad_partitions:
            return StateWord(N_("damaged"), "bad")
        if not report.in_sync:
            return StateWord(N_("catching up"), "warn")
        if report.group.draining or report.name in report.group.drained:
            return StateWord(N_("draining"), "warn")
        return StateWord(N_("good"), "ok")

    @property
    def free(self) -> int | None:
        """Free bytes of its fullest disk."""
        known = [each.bytes_free for each in self.report.disks if each.bytes_free is not None]
        return min(known, default=None)


def rows_of(facts: SiteFacts) -> list[NodeRow]:
    """Return the nodes with their loads."""
    return [
        NodeRow(each, facts.loads.get((each.group.group, each.name)))
        for each in facts.status.brokers
    ]


def _columns(context: PageContext) -> list[Column[NodeRow]]:
    return [
        Column(
            "group",
            N_("Group"),
            lambda each: each.report.group.group,
            link=lambda each: context.path("brokers", each.report.group.group),
        ),
        Column("node", N_("Node"), lambda each: each.report.name or None),
        Column("state", N_("State"), lambda each: each.state, Kind.STATE),
        Column("role", N_("Role"), lambda each: each.report.role, Kind.TEXT),
        Column("pool", N_("Pool"), lambda each: each.report.group.pool or COMMON_POOL),
        Column(
            "address",
            N_("Address"),
            lambda each: None if each.report.node is None else str(each.report.node.address),
            Kind.CODE,
        ),
        Column(
            "lag_bytes",
            N_("Copy behind"),
            lambda each: 0 if each.report.role == "master" else each.report.lag_bytes,
            Kind.BYTES,
        ),
        Column(
            "bytes_in",
            N_("Bytes in"),
            lambda each: None if each.load is None else each.load.bytes_per_s,
            Kind.RATE,
        ),
        Column(
            "messages_in",
            N_("Messages in"),
            lambda each: None if each.load is None else each.load.messages_per_s,
            Kind.PER_S,
        ),
        Column(
            "busy",
            N_("Busy"),
            lambda each: None if each.load is None else each.load.busy,
            Kind.PERCENT,
        ),
        Column(
            "stored",
            N_("Stored"),
            lambda each: None if each.load is None else each.load.stored_bytes,
            Kind.BYTES,
        ),
        Column(
            "free",
            N_("Free"),
            lambda each: each.free,
            Kind.BYTES,
            link=lambda each: why(
                context, "disk", node=f"{each.report.group.group}/{each.report.name}".rstrip("/")
            ),
        ),
        Column(
            "partitions",
            N_("Partitions"),
            lambda each: None if each.report.status is None else each.report.status.partitions,
            Kind.COUNT,
        ),
        Column(
            "version",
            N_("Version"),
            lambda each: None if each.report.status is None else each.report.status.version,
        ),
    ]


@page("/c/{cluster}/brokers")
async def BROKERS(context: PageContext) -> Response:
    """List all nodes."""
    found = table(
        _columns(context),
        rows_of(context.site.facts),
        Asked.of(context.query),
        empty=N_("No broker has registered. Start one with: vq broker"),
        searched=lambda each: f"{each.report.group.group} {each.report.name}",
    )
    return context.exported(found, "brokers") or context.page(
        "brokers.html",
        found=found,
        look=context.site.facts.brokers_look,
        live=True,
        command="vq cluster status",
    )


def _reports(context: PageContext, group: str) -> list[NodeRow]:
    found = [each for each in rows_of(context.site.facts) if each.report.group.group == group]
    if not found:
        raise InvalidArgument(f"there is no broker group {shown(group)}")
    return found


_DISKS: list[Column[tuple[str, DiskState]]] = [
    Column("node", N_("Node"), lambda each: each[0]),
    Column("directory", N_("Directory"), lambda each: each[1].directory, Kind.CODE),
    Column(
        "level",
        N_("State"),
        lambda each: StateWord(
            each[1].level,
            {"ok": "ok", "warn": "warn", "relieve": "warn"}.get(each[1].level, "bad"),
        ),
        Kind.STATE,
    ),
    Column("free", N_("Free"), lambda each: each[1].bytes_free, Kind.BYTES),
    Column("total", N_("Size"), lambda each: each[1].bytes_total, Kind.BYTES),
    Column(
        "growth", N_("Growth in an hour"), lambda each: each[1].growth_bytes_per_hour, Kind.BYTES
    ),
    Column(
        "full_in",
        N_("Full in"),
        lambda each: None if each[1].full_in_hours is None else each[1].full_in_hours * 3600,
        Kind.DURATION,
    ),
]


@page("/c/{cluster}/brokers/{group}")
async def GROUP(context: PageContext) -> Response:
    """Show a broker group."""
    group = context.param("group")
    rows = _reports(context, group)
    disks = [(each.report.name, disk) for each in rows for disk in each.report.disks]
    return context.page(
        "broker_group.html",
        group=rows[0].report.group,
        epoch=rows[0].report.epoch,
        rows=rows,
        found=table(_columns(context)[1:], rows, Asked()),
        disks=table(_DISKS, disks, Asked(), empty=N_("No node tells of its disks now.")),
        unsafe=[each for each in context.site.facts.status.unsafe if each.group == group],
        byte_series=[f"{BYTES_IN} {group}"],
        busy_series=[f"{BUSY} {group}/{each.report.name}" for each in rows],
        disk_series=[f"{DISK_USED} {group}/{each.report.name}" for each in rows],
        why_disk=why(context, "disk", node=group),
        look=context.site.facts.brokers_look,
        live=True,
        command="vq cluster status",
    )


#: What can be done to a group or a node: the operation, and whether a name must be typed.
_ACTS = {
    "drain": ("drain_group", "drain_node"),
    "undrain": ("undrain_group", "undrain_node"),
    "switch": ("switch_master", "switch_master"),
}


@post("/c/{cluster}/brokers/{group}/act")
async def ACT(context: PageContext) -> Response:
    """Drain, undrain or switch."""
    group, node = context.param("group"), context.form.get("node", "")
    act = context.form.get("act", "")
    if act not in _ACTS:
        raise InvalidArgument(f"{shown(act)} is no act on brokers")
    name = _ACTS[act][1 if node else 0]
    arguments = (group, node) if node else (group,)
    result: Any = await context.run(name, *arguments)
    del result
    context.say(N_("Done: %(act)s %(what)s"), act=act, what=f"{group}/{node}" if node else group)
    return context.go("brokers", group)


@form("/c/{cluster}/brokers/{group}/remove")
async def REMOVE(context: PageContext) -> Response:
    """Show what removing a group or node would lose, and do it."""
    group = context.param("group")
    node = context.form.get("node") or context.query.get("node", "")
    what = f"{group}/{node}" if node else group
    plan = await context.run("plan_removal", group, node)
    if context.posted:
        confirm(context.form, what)
        accept = context.form.get("accept") == "on"
        await context.run("remove_broker", group, node, accept_data_loss=accept, before=plan)
        context.say(N_("Removed: %(what)s"), what=what)
        return context.go("brokers")
    return context.page(
        "broker_remove.html",
        plan=plan,
        what=what,
        group=group,
        node=node,
        command=f"vq broker remove {group}" + (f" --node {node}" if node else ""),
    )
