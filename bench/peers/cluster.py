"""A peer of three nodes, each message stored on at least two: how to start it, and its works."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.peers.peer import Server, Values

NODES: Final = 3
#: The names of what the works send to.
ONE: Final = "one"
BULK: Final = "bulk"
STRUCK: Final = "struck"


@dataclass(frozen=True, slots=True)
class Nodes:
    """Three started nodes.

    Attributes:
        ports: For clients, one for each node.
        servers: Their processes.
        leader: Makes what has this name, if it is not there; returns the number of the node that
            leads it.
        values: What works need beside their port.
    """

    ports: list[int]
    servers: list[Server]
    leader: Callable[[str], int]
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterPeer:
    """One other system with three nodes.

    Attributes:
        name: For the table.
        durability: ``FSYNC`` or ``PAGE_CACHE``: what an acknowledgement means on each node.
        acknowledged_by: The nodes that have stored a message when it is acknowledged.
        flushed: When they flush it.
        detection: The setting after which a dead leader is replaced.
        client: The Python client's distribution and how it is used.
        check: Raises ``Missing`` where server or client are not there; returns the version.
        running: Starts the nodes under a directory.
        works: Work functions by name, for the client process.
        one_by_one, pipelined, consume: Names of works; they take the port of a leader.
        keep_sending, read_back: Names of works; they take the ports of all nodes.
        messages: The number of messages that a round sends pipelined.
        only_struck: Only the kill is measured: a second setting of ``detection``.
    """

    name: str
    durability: str
    acknowledged_by: str
    flushed: str
    detection: str
    client: str
    check: Callable[[], str]
    running: Callable[[Path], AbstractContextManager[Nodes]]
    works: Mapping[str, Callable[..., dict[str, Any]]]
    one_by_one: str
    pipelined: str
    consume: str
    keep_sending: str
    read_back: str
    messages: int = 50_000
    only_struck: bool = False
