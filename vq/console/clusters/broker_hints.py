"""Hints that something happened to a broker group, so that it is looked at before its turn."""

import asyncio
from collections.abc import Container
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.tree.coordinator import WatchEvent
from vq.coordination.tree.paths import BROKERS
from vq.model import Address
from vq.operations.cluster.cluster import ClusterStatus

#: Hints that come within this time are one: a master that ends changes two nodes.
_GATHERED_S: Final = 0.1


class BrokerHints:
    """Broker groups of which something was heard since they were looked at. Loop-bound.

    ZooKeeper's watches tell that a node registered, is gone, or leads. A connection that ends tells
    that a process ended, before its session does. Both are hints only: a look tells what is so.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._groups: set[str] = set()
        self._heard = asyncio.Event()
        self._connected: dict[Address, str] = {}  # the groups of those that answered
        cluster.on_change(self._connections_changed)

    def watch(self, event: WatchEvent) -> None:
        """Take a watch of ZooKeeper, on the list of groups or on a node below one."""
        if event.path == BROKERS:
            self._heard.set()  # whoever waits lists the groups
        elif event.path.startswith(f"{BROKERS}/"):
            self._hear(event.path.removeprefix(f"{BROKERS}/").partition("/")[0])

    def looked(self, status: ClusterStatus, groups: Container[str] | None = None) -> None:
        """Remember who answered a look at some groups; None: at all groups."""
        self._connected = {
            address: group
            for address, group in self._connected.items()
            if groups is not None and group not in groups
        } | {
            each.node.address: each.group.group
            for each in status.brokers
            if each.node is not None and each.status is not None
        }
        self._connections_changed()  # one may have ended since it answered

    async def heard(self) -> set[str]:
        """Wait for a hint; return the groups that it is about, none if it is about the list."""
        await self._heard.wait()
        await asyncio.sleep(_GATHERED_S)
        self._heard.clear()
        found, self._groups = self._groups, set()
        return found

    def _connections_changed(self) -> None:
        live = self._cluster.connections.live
        for address in [each for each in self._connected if live(each) is None]:
            self._hear(self._connected.pop(address))

    def _hear(self, group: str) -> None:
        self._groups.add(group)
        self._heard.set()
