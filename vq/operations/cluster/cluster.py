"""The cluster as ZooKeeper has it, with the status of each broker.

Loop-bound functions on a ``ClusterClient``. A broker that does not answer is listed with the
reason; its numbers are None, never 0.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import group_views, registry
from vq.coordination.tree.coordinator import Unreadable, Watch
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.brokers import GroupState
from vq.errors import VqError
from vq.model import GroupView, NodeInfo, StatusResult
from vq.operations.brokers import brokers
from vq.operations.brokers.brokers import BadPartition, Damage, broker_status
from vq.operations.brokers.disks import DiskState, disk_states
from vq.operations.brokers.safety import NodeFacts, Unsafe, unsafe
from vq.operations.cluster.checks import Finding


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """One node of a broker group, and its status.

    Attributes:
        group: Its group, from ZooKeeper.
        node: The registered node; None: it is not registered, or no node of the group is.
        epoch: Of the group's master; None before anybody led it.
        status: The broker's own answer; None: it did not answer.
        error: Why there is no answer; "" when there is one.
        name: The node's name; "": the group has no node.
        role: "master" or "slave", as the node says, or as the group's record does if it does not
            answer; None: the group has no node.
        in_sync: Whether the group's record names the node: it has all acknowledged messages.
        lag_bytes: What a node that copies lacks of its master's logs, as the master says; None: it
            copies nothing, or the master did not answer.
        lag_s: Age of the oldest message that it lacks, in seconds; None like ``lag_bytes``.
    """

    group: GroupView
    node: NodeInfo | None
    epoch: int | None
    status: StatusResult | None
    error: str = ""
    name: str = ""
    role: str | None = None
    in_sync: bool = False
    lag_bytes: int | None = None
    lag_s: float | None = None

    @property
    def bad_partitions(self) -> list[BadPartition]:
        """The partitions that are sealed, failed or quarantined there."""
        return [] if self.status is None else brokers.bad_partitions(self.status)

    @property
    def closed_topics(self) -> set[str]:
        """The topics of its partitions that are closed for writes."""
        return set() if self.status is None else brokers.closed_topics(self.status)

    @property
    def damage(self) -> list[Damage]:
        """The damaged ranges in its status: the first few of each partition."""
        return [] if self.status is None else brokers.damage(self.status)

    @property
    def deleted_topics(self) -> dict[str, int]:
        """The bytes of deleted topics there that can be brought back, by topic."""
        return {} if self.status is None else brokers.deleted_topics(self.status)

    @property
    def damaged_ranges(self) -> int:
        """How many damaged ranges it knows, those left out included."""
        return 0 if self.status is None else brokers.damaged_ranges(self.status)

    @property
    def disks(self) -> list[DiskState]:
        """The disks of its data directories; none of a broker of before there was word of them."""
        return [] if self.status is None else disk_states(self.status)

    @property
    def problems(self) -> list[str]:
        """The problems of the node as a whole."""
        return [] if self.status is None else list(self.status.raw["problems"])


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Every broker group with its nodes, sorted by name.

    Attributes:
        brokers: The nodes that are registered, or in sync.
        unsafe: What is unsafe, by group.
    """

    brokers: tuple[BrokerReport, ...]
    unsafe: tuple[Unsafe, ...] = ()

    def with_groups(self, groups: Collection[str], newer: "ClusterStatus") -> "ClusterStatus":
        """Return this status with what ``newer`` has of some groups, and nothing else of them."""
        kept = [each for each in self.brokers if each.group.group not in groups]
        known = [each for each in self.unsafe if each.group not in groups]
        return ClusterStatus(
            tuple(sorted([*kept, *newer.brokers], key=lambda each: (each.group.group, each.name))),
            tuple(sorted([*known, *newer.unsafe], key=lambda each: each.group)),
        )

    def without_plain(self) -> "ClusterStatus":
        """Return this status with only those partitions of which its properties tell something."""
        kept = (
            each
            if each.status is None
            else replace(each, status=brokers.without_plain(each.status))
            for each in self.brokers
        )
        return replace(self, brokers=tuple(kept))

    @property
    def silent(self) -> list[BrokerReport]:
        """The brokers that do not answer, and the groups without a broker."""
        return [each for each in self.brokers if each.error]

    @property
    def failed_partitions(self) -> list[BadPartition]:
        """The partitions that take no messages until somebody repairs them."""
        return [bad for each in self.brokers for bad in each.bad_partitions if bad.failed]

    @property
    def closed_topics(self) -> list[str]:
        """The topics that brokers say are closed for writes, sorted."""
        return sorted({topic for each in self.brokers for topic in each.closed_topics})

    @property
    def damage(self) -> list[Damage]:
        """The damaged ranges that brokers report: the first few of each partition."""
        return [damage for each in self.brokers for damage in each.damage]

    @property
    def damaged_ranges(self) -> int:
        """How many damaged ranges brokers know, those left out included."""
        return sum(each.damaged_ranges for each in self.brokers)

    @property
    def problems(self) -> list[str]:
        """The problems of brokers as a whole, each with its name."""
        return [
            f"{each.group.group}/{each.node.node}: {problem}"
            for each in self.brokers
            if each.node is not None
            for problem in each.problems
        ]


async def cluster_status(cluster: ClusterClient) -> ClusterStatus:
    """Ask every registered broker for its status; a silent one is told with the reason."""
    return await status_of_groups(cluster)


async def status_of_groups(
    cluster: ClusterClient, groups: Sequence[str] | None = None, *, watch: Watch | None = None
) -> ClusterStatus:
    """Ask the brokers of some groups for their status; None: of all groups.

    ``watch`` fires when a node of one of them registers or goes, or its record changes.
    """
    views = await group_views.groups(cluster.coordinator, groups)
    found = await gather_all(_readable_reports(cluster, view, watch) for view in views)
    return ClusterStatus(
        tuple(report for reports, _ in found for report in reports),
        tuple(each for _, unsafe_there in found for each in unsafe_there),
    )


async def _readable_reports(
    cluster: ClusterClient, view: GroupView, watch: Watch | None
) -> tuple[list[BrokerReport], tuple[Unsafe, ...]]:
    try:
        return await _reports(cluster, view, watch)
    except Unreadable as error:  # the other groups have nothing to do with it
        return [BrokerReport(view, None, None, None, str(error))], ()


async def _reports(
    cluster: ClusterClient, view: GroupView, watch: Watch | None
) -> tuple[list[BrokerReport], tuple[Unsafe, ...]]:
    nodes, state, audit = await asyncio.gather(
        registry.nodes(cluster.coordinator, view.group, watch=watch),
        registry.read_state(cluster.coordinator, view.group, watch=watch),
        registry.read_unclean(cluster.coordinator, view.group),
    )
    epoch = None if state is None else state.epoch
    found = await gather_all(_report(cluster, view, node, epoch) for node in nodes)
    insync = () if state is None else state.insync
    there = {node.node for node in nodes}
    found += [
        BrokerReport(view, None, epoch, None, "it is not registered", name=name)
        for name in insync
        if name not in there and there
    ]
    if not found:
        report = BrokerReport(view, None, epoch, None, "no broker is registered")
        return [report], unsafe(view.group, state, {}, audit.elections)
    found = _with_roles(found, state)
    facts = {
        each.name: NodeFacts(
            each.lag_bytes, each.lag_s, None if each.status is None else each.status.raw
        )
        for each in found
        if each.node is not None
    }
    return sorted(found, key=lambda each: each.name), unsafe(
        view.group, state, facts, audit.elections
    )


def _with_roles(reports: list[BrokerReport], state: GroupState | None) -> list[BrokerReport]:
    """Return the reports with what the group's record and its master say of the nodes."""
    copies = {
        each["node"]: each
        for report in reports
        if report.status is not None
        for each in report.status.raw["copies"]
    }
    found = []
    for report in reports:
        leads = state is not None and state.master == report.name
        if report.status is not None:
            leads = report.status.raw["master"]
        copy = copies.get(report.name)
        found.append(
            replace(
                report,
                role="master" if leads else "slave",
                in_sync=state is not None and report.name in state.insync,
                lag_bytes=None if copy is None else copy["bytes_behind"],
                lag_s=None if copy is None else copy["ms_behind"] / 1000,
            )
        )
    return found


async def _report(
    cluster: ClusterClient, view: GroupView, node: NodeInfo, epoch: int | None
) -> BrokerReport:
    try:
        status = await broker_status(cluster, node.address)
    except VqError as error:
        text = f"{type(error).__name__}: {error}"
        return BrokerReport(view, node, epoch, None, text, name=node.node)
    return BrokerReport(view, node, epoch, status, name=node.node)


async def check_brokers(cluster: ClusterClient) -> list[Finding]:
    """Check every broker as ``vq doctor`` does: answers, clocks, versions, damage."""
    from vq.operations.cluster import doctor  # an application that does not ask need not load it

    return list(await doctor.check_brokers(cluster))
