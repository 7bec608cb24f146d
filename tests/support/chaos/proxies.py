"""Proxies around nodes: one before each, and one from it to every ZooKeeper server.

    clients, other nodes ──▶ proxy ──▶ node ──▶ proxy ──▶ ZooKeeper

A node tells clients and other nodes the address of its proxy. This needs no rights; ``network``
needs some. Where only ZooKeeper is struck there is none before a node: a connection to a node that
is dead is refused then, and not taken by its proxy.
"""

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from support.chaos_proxy import ChaosProxy

from vq.model import Address


class Proxies:
    """The proxies of all nodes. A context manager; ``before_nodes``: one before each, too."""

    def __init__(self, *, before_nodes: bool = True) -> None:
        self._before_nodes = before_nodes
        self._nodes: dict[str, ChaosProxy] = {}
        self._zookeeper: dict[str, list[ChaosProxy]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def add(self, name: str, address: Address, zookeeper: str) -> tuple[Address, str]:
        """Put proxies around a node; return what it advertises, and its ZooKeeper servers."""
        if self._before_nodes:
            proxy = self._nodes[name] = self._stack.enter_context(ChaosProxy(address))
            address = proxy.address
        servers = self._zookeeper[name] = [
            self._stack.enter_context(ChaosProxy(Address.parse(host)))
            for host in zookeeper.split(",")
        ]
        return address, ",".join(str(each.address) for each in servers)

    def before(self, name: str) -> list[ChaosProxy]:
        """Return the proxy through which others reach a node."""
        return [self._nodes[name]]

    def to_zookeeper(self, name: str) -> list[ChaosProxy]:
        """Return the proxies through which a node reaches ZooKeeper."""
        return self._zookeeper[name]

    def all_to_zookeeper(self) -> list[ChaosProxy]:
        """Return the proxies through which all nodes reach ZooKeeper."""
        return [proxy for servers in self._zookeeper.values() for proxy in servers]

    def heal(self) -> None:
        """Let everything pass at once."""
        for proxy in (*self._nodes.values(), *self.all_to_zookeeper()):
            proxy.heal()
