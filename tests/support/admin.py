"""Brokers as a table of answers, over a tree in memory: for what operators ask."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from vq.client.cluster import ClusterClient
from vq.clock import ManualClock
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, Registration
from vq.errors import TimedOut
from vq.model import Address
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    AdoptResponse,
    OffsetsRequest,
    OffsetsResponse,
    PingResponse,
    SealResponse,
)

EPOCH = 3
ADDRESS = {name: Address("127.0.0.1", port) for port, name in enumerate(("b1", "b2", "b3"), 1)}


class Brokers:
    """Answers requests as the brokers of ``ends`` would; records them in order."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.clock = ManualClock()
        self.asked: list[tuple[Address, Any]] = []
        self.silent: set[Address] = set()
        self.damaged: set[Address] = set()
        self.ends: Mapping[Address, tuple[int, int]] = {}
        self.at_time: Mapping[Address, int] = {}

    async def request(self, address: Address, command: int, message: Any) -> tuple[Any, bytes]:
        self.asked.append((address, message))
        if address in self.silent:
            raise TimedOut(f"{address} is silent")
        if command == Command.PING:
            return PingResponse(), b""
        if command == Command.SEAL:
            return SealResponse(end_offset=500, producers=b"table"), b""
        if command == Command.ADOPT:
            return AdoptResponse(), b""
        assert isinstance(message, OffsetsRequest)
        earliest, latest = self.ends[address]
        exact = address not in self.damaged
        answer = OffsetsResponse(
            earliest=earliest,
            latest=latest,
            log_end_offset=latest,
            count=(message.to_offset - message.from_offset) // 100 if exact else 0,
            count_exact=exact,
            offset=self.at_time[address] if message.by_time else 0,
        )
        return answer, b""


async def register(coordinator: Coordinator, group: str, *, pool: str | None = None) -> None:
    node = Registration(host=ADDRESS[group].host, port=ADDRESS[group].port)
    await coordinator.create(BrokerGroup.path(group), BrokerGroup(pool=pool).encode(), parents=True)
    path = Registration.path(group, "n1")
    stat = await coordinator.create(path, node.encode(), ephemeral=True, parents=True)
    state = GroupState(epoch=EPOCH, master="n1", insync=("n1",), incarnations={"n1": stat.czxid})
    await coordinator.create(GroupState.path(group), state.encode())


def cluster_of(brokers: Brokers) -> ClusterClient:
    face = SimpleNamespace(
        coordinator=brokers.coordinator, clock=brokers.clock, request=brokers.request
    )
    return cast("ClusterClient", face)
