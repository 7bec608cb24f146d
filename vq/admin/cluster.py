"""The cluster as ZooKeeper has it, with the status of each broker.

Loop-bound functions on a ``ClusterClient``. A broker that does not answer is listed with the
reason; its numbers are None, never 0.
"""

import asyncio
from dataclasses import dataclass, replace

from vq.admin import brokers
from vq.admin.brokers import BadPartition, Damage, broker_status
from vq.client.cluster import ClusterClient
from vq.coordination import registry
from vq.coordination.reading import gather_all
from vq.errors import VqError
from vq.model import GroupView, NodeInfo, StatusResult


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """One node of a broker group, and its status.

    Attributes:
        group: Its group, from ZooKeeper.
        node: The registered node; None: no node of the group is registered.
        epoch: Of the group's master; None before anybody led it.
        status: The broker's own answer; None: it did not answer.
        error: Why there is no answer; "" when there is one.
        in_sync: Whether the group's record names the node: it has all acknowledged messages.
        bytes_behind: What a node that copies lacks of its master's logs, as the master says; None:
            it copies nothing, or the master did not answer.
    """

    group: GroupView
    node: NodeInfo | None
    epoch: int | None
    status: StatusResult | None
    error: str = ""
    in_sync: bool = False
    bytes_behind: int | None = None

    @property
    def bad_partitions(self) -> list[BadPartition]:
        """The partitions that are neither rw nor ro there."""
        return [] if self.status is None else brokers.bad_partitions(self.status)

    @property
    def damage(self) -> list[Damage]:
        """The damaged ranges in its status: the first few of each partition."""
        return [] if self.status is None else brokers.damage(self.status)

    @property
    def damaged_ranges(self) -> int:
        """How many damaged ranges it knows, those left out included."""
        return 0 if self.status is None else brokers.damaged_ranges(self.status)

    @property
    def problems(self) -> list[str]:
        """The problems of the node as a whole."""
        return [] if self.status is None else list(self.status.raw["problems"])


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """Every broker group with its nodes, sorted by name."""

    brokers: tuple[BrokerReport, ...]

    @property
    def silent(self) -> list[BrokerReport]:
        """The brokers that do not answer, and the groups without a broker."""
        return [each for each in self.brokers if each.error]

    @property
    def failed_partitions(self) -> list[BadPartition]:
        """The partitions that take no messages until somebody repairs them."""
        return [bad for each in self.brokers for bad in each.bad_partitions if bad.failed]

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
    """Ask every registered broker for its status; one that does not answer has the reason."""
    views = await registry.groups(cluster.coordinator)
    found = await gather_all(_reports(cluster, view) for view in views)
    return ClusterStatus(tuple(report for reports in found for report in reports))


async def _reports(cluster: ClusterClient, view: GroupView) -> list[BrokerReport]:
    nodes, state = await asyncio.gather(
        registry.nodes(cluster.coordinator, view.group),
        registry.read_state(cluster.coordinator, view.group),
    )
    epoch = None if state is None else state.epoch
    if not nodes:
        return [BrokerReport(view, None, epoch, None, "no broker is registered")]
    found = await gather_all(_report(cluster, view, node, epoch) for node in nodes)
    behind = {
        each["node"]: each["bytes_behind"]
        for report in found
        if report.status is not None
        for each in report.status.raw["copies"]
    }
    return [
        replace(
            report,
            in_sync=state is not None and _name(report) in state.insync,
            bytes_behind=behind.get(_name(report)),
        )
        for report in found
    ]


def _name(report: BrokerReport) -> str:
    return "" if report.node is None else report.node.node


async def _report(
    cluster: ClusterClient, view: GroupView, node: NodeInfo, epoch: int | None
) -> BrokerReport:
    try:
        status = await broker_status(cluster, node.address)
    except VqError as error:
        return BrokerReport(view, node, epoch, None, f"{type(error).__name__}: {error}")
    return BrokerReport(view, node, epoch, status)
