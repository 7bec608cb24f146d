"""Users, rules and quotas of clusters in memory."""

from typing import Any

import pytest
from support.broker import Client, MemoryCluster

from vq.broker.connections.broker_session import BrokerSession
from vq.broker.node import BrokerNode
from vq.coordination.security.access import change_access, read_access
from vq.coordination.security.quotas import change_quotas
from vq.remoting.membership import Principal
from vq.security.quotas import Quota, Quotas
from vq.security.rules import AccessRule, AccessRules
from vq.testing.waiting import until


def believe_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers take the client id ``user.NAME`` or ``user.NAME.ROLE`` for a proof of that."""
    real: Any = BrokerSession.principal

    def principal(self: BrokerSession) -> Principal:
        found: Principal = real.fget(self)
        kind, *names = self.client_id.split(".")
        if found.proved or kind != "user":
            return found
        return Principal("", "", proved=False, user=names[0], roles=frozenset(names[1:]))

    monkeypatch.setattr(BrokerSession, "principal", property(principal))


async def allow(cluster: MemoryCluster, *rules: str) -> None:
    """Have just these rules hold at all nodes."""
    wanted = AccessRules(map(AccessRule.parse, rules))
    async with cluster.admin() as coordinator:
        await change_access(coordinator, lambda _: wanted)
        version = (await read_access(coordinator)).version
    for node in cluster.nodes.values():
        await until(lambda node=node: node.parts.rules.version == version)


async def limit(cluster: MemoryCluster, *quotas: str) -> None:
    """Have just these quotas hold at all nodes."""
    wanted = Quotas(map(Quota.parse, quotas))
    async with cluster.admin() as coordinator:
        await change_quotas(coordinator, lambda _: wanted)
    for node in cluster.nodes.values():
        await until(lambda node=node: node.parts.quotas.current == wanted)


async def connect_as(
    cluster: MemoryCluster, node: BrokerNode, name: str = "", host: str = "client"
) -> Client:
    """Return a connection of ``NAME`` or ``NAME.ROLE`` from a host; "": of nobody."""
    client_id = f"user.{name}" if name else "test"
    return await Client.connect(cluster.network.at(host), node.address, client_id)
