"""Checking the tree, and repairing what is safe to repair.

Loop-bound functions on a ``ClusterClient``. A check changes nothing and is no snapshot: what
changes meanwhile may be found. A repair writes each node under the version at which the plan saw
it, so it changes nothing that somebody else has changed since.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    NoNode,
    NotEmpty,
    SessionExpired,
)
from vq.operations.base.acts import audited
from vq.operations.base.changes import TreeUnknown
from vq.operations.tree.findings import Severity, TreeFinding
from vq.operations.tree.tree_rules import TreeRules
from vq.operations.tree.walking import walk_tree


@dataclass(frozen=True, slots=True)
class CheckedTree:
    """What a check of the tree found.

    Attributes:
        nodes: How many nodes there are.
        errors, warnings, infos: How many findings of each severity there are.
        findings: The findings, errors first; at most 10,000 of them.
    """

    nodes: int
    errors: int
    warnings: int
    infos: int
    findings: tuple[TreeFinding, ...]

    @property
    def omitted(self) -> int:
        """How many findings are left out."""
        return self.errors + self.warnings + self.infos - len(self.findings)


@dataclass(frozen=True, slots=True)
class RepairedNode:
    """What became of a repair; ``why_not`` is empty if it is done."""

    finding: TreeFinding
    why_not: str = ""


async def check_tree(cluster: ClusterClient) -> CheckedTree:
    """Check every node of the cluster's tree in ZooKeeper; change nothing.

    Each node is read with the class of its value, and references between nodes must hold. It takes
    two reads for each node, many at a time.

    Raises:
        CoordinationError: ZooKeeper went away.
    """
    rules = TreeRules()
    async for node in walk_tree(cluster.coordinator):
        rules.feed(node)
    rules.end()
    order = list(Severity)
    return CheckedTree(
        nodes=rules.nodes,
        errors=rules.counts[Severity.ERROR],
        warnings=rules.counts[Severity.WARNING],
        infos=rules.counts[Severity.INFO],
        findings=tuple(
            sorted(rules.findings, key=lambda each: (order.index(each.severity), each.path))
        ),
    )


async def plan_repair_tree(cluster: ClusterClient) -> list[TreeFinding]:
    """Return the findings that ``repair_tree`` would repair; nothing is changed.

    Raises:
        CoordinationError: ZooKeeper went away.
    """
    found = await check_tree(cluster)
    return [each for each in found.findings if each.repair is not None]


@audited()
async def repair_tree(cluster: ClusterClient, planned: Sequence[TreeFinding]) -> list[RepairedNode]:
    """Repair what a plan says; return what became of each. Export the tree before.

    A node that has changed since the plan is left as it is, and ``why_not`` says so.

    Raises:
        TreeUnknown: ZooKeeper went away; some repairs are done. May be repeated.
    """
    done: list[RepairedNode] = []
    try:
        for finding in (each for each in planned if each.repair is not None):
            repaired = await _repair(cluster, finding)
            done.append(repaired)
    except (ConnectionLost, SessionExpired) as error:
        raise TreeUnknown(
            f"repairing the tree: {len(done)} of {len(planned)} nodes are done, and the next one "
            f"may be: {error}"
        ) from error
    return done


async def _repair(cluster: ClusterClient, finding: TreeFinding) -> RepairedNode:
    repair = finding.repair
    assert repair is not None, finding
    try:
        if repair.data is None:
            await cluster.coordinator.delete(repair.path, version=repair.version)
        else:
            await cluster.coordinator.set(repair.path, repair.data, version=repair.version)
    except NoNode:
        return RepairedNode(finding, "the node is gone")
    except (BadVersion, NotEmpty):
        return RepairedNode(finding, "the node has changed since the check; check again")
    return RepairedNode(finding)
