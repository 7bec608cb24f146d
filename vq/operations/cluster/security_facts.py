"""Reads how a cluster takes clients, for a plan that closes it step by step.

Loop-bound functions on a ``ClusterClient``; nothing is changed. ``security_plan`` decides.
"""

from typing import Any

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.security.access import read_access
from vq.coordination.security.users import read_users
from vq.coordination.tree.reading import gather_all
from vq.errors import VqError
from vq.model import NodeInfo
from vq.operations.brokers.brokers import fields_of
from vq.operations.security.security_plan import (
    AnonymousSeen,
    MissingAccess,
    NodeSecurity,
    SecurityFacts,
    SecurityPlan,
    security_plan,
)
from vq.operations.tree.securing import identities_of, open_at_top
from vq.remoting.format import Command
from vq.remoting.ports import is_loopback
from vq.remoting.wire_pb2 import SecurityStatus, StatusRequest, StatusResponse


async def plan_security(cluster: ClusterClient) -> SecurityPlan:
    """Return where the cluster stands between plain and closed, and what the next step is.

    The brokers tell what they would refuse since they started: up to 1,000 different users and
    rights each, of which they tell the 200 most frequent ones.

    Args:
        cluster: A started client of an operator.

    Raises:
        CoordinationError: ZooKeeper cannot be asked, or this client may not read it.
    """
    nodes = await registry.all_nodes(cluster.coordinator)
    servers = [each.strip() for each in cluster.config.zookeeper.split(",")]
    identities = await identities_of(cluster)
    return security_plan(
        SecurityFacts(
            nodes=tuple(await gather_all(_security_of(cluster, each) for each in nodes)),
            users=tuple(sorted(await read_users(cluster.coordinator))),
            rules=len((await read_access(cluster.coordinator)).rules),
            identities=identities is not None,
            open_nodes=tuple(await open_at_top(cluster)),
            zookeeper_loopback=all(
                is_loopback(each.rpartition(":")[0] or each) for each in servers
            ),
        )
    )


async def _security_of(cluster: ClusterClient, node: NodeInfo) -> NodeSecurity:
    name = f"{node.group}/{node.node}"
    request = StatusRequest(with_security=True)
    try:
        answer, _ = await cluster.request(node.address, Command.STATUS, request, as_member=True)
    except VqError as error:
        return NodeSecurity(name, f"{type(error).__name__}: {error}")
    assert isinstance(answer, StatusResponse)
    if not answer.HasField("security"):
        return NodeSecurity(name, "its version does not tell how it takes clients; upgrade it")
    return _told(name, answer.security)


def _told(name: str, security: SecurityStatus) -> NodeSecurity:
    fields: dict[str, Any] = fields_of(security)
    fields["anonymous"] = tuple(AnonymousSeen(**each) for each in fields["anonymous"])
    fields["missing"] = tuple(MissingAccess(**each) for each in fields["missing"])
    fields["super_users"] = tuple(fields["super_users"])
    return NodeSecurity(name, **fields)
