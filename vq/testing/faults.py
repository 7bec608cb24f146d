"""What goes wrong on order in a cluster in memory. Loop-bound."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import google_crc32c

from vq.aio.factory import MessageFactory
from vq.bounds import check_between, check_within
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, MessageFactoryConfig
from vq.coordination.brokers.registry import read_state
from vq.coordination.tree.memory import MemoryCoordinator
from vq.errors import InvalidArgument, InvalidState, NotMaster
from vq.operations.brokers.brokers import master_and_epoch
from vq.operations.brokers.switching import switch_master
from vq.operations.partitions.placements import partitions_of
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest
from vq.shown import shown
from vq.store.disk.memory_names import FixedChance
from vq.store.records.format import COMPRESSION_ZLIB
from vq.store.records.record import encode_record
from vq.testing.loop import clock_of_loop
from vq.testing.machines import CLUSTER, Machines, host_of
from vq.testing.network import TappedNetwork
from vq.testing.waiting import until

#: What a request of each kind is called here.
_COMMANDS: Final = {"send": Command.PUT, "fetch": Command.FETCH, "get": Command.GET}
#: What takes longer does not come.
_WAIT_S: Final = 60.0
#: So many requests or answers of a client may be lost by one call.
_LOST_MAX: Final = 1_000_000


@dataclass(slots=True)
class _Lost:
    """A request or an answer that is to get lost."""

    client: str
    command: Command
    is_request: bool
    left: int


class Faults:
    """Faults of one cluster; ``Cluster.faults`` has it. Names are those of ``Cluster.factory``.

    Each lasts until it is undone, or until the cluster ends.
    """

    def __init__(
        self,
        machines: Machines,
        network: TappedNetwork,
        session_of: Callable[[str], MemoryCoordinator],
    ) -> None:
        self._machines = machines
        self._network = network
        self._session_of = session_of
        self._lost: list[_Lost] = []
        self._numbers = itertools.count(1)
        network.tap = self._hears

    # Requests and answers ------------------------------------------------------------------------
    def lose_answer(self, client: str, what: str = "send", *, times: int = 1) -> None:
        """Have brokers carry out the next requests, and lose the answers and the connection.

        The client cannot know what became of them: a producer sends again, and brokers notice that
        they have the batch already.

        Args:
            client: Name of the factory.
            what: ``send``, ``fetch`` or ``get``.
            times: So many answers, one after the other.
        """
        self._lose(client, what, times, is_request=False)

    def lose_request(self, client: str, what: str = "send", *, times: int = 1) -> None:
        """Have the next requests and their connection get lost on the way to the broker."""
        self._lose(client, what, times, is_request=True)

    def _lose(self, client: str, what: str, times: int, *, is_request: bool) -> None:
        self._session_of(client)
        if what not in _COMMANDS:
            raise InvalidArgument(f"{shown(what)} is not one of {', '.join(_COMMANDS)}")
        check_between("times", times, 1, _LOST_MAX)
        self._lost.append(_Lost(client, _COMMANDS[what], is_request, times))

    def _hears(self, source: str, target: str, is_request: bool, frame: Frame) -> bool:
        client = source if is_request else target
        for each in self._lost:
            wanted = each.client, each.command, each.is_request
            if each.left and wanted == (client, frame.command, is_request):
                each.left -= 1
                loop = asyncio.get_running_loop()
                loop.call_soon(self._network.reset_connections, client)
                return False
        return True

    # Links ---------------------------------------------------------------------------------------
    def cut(self, client: str) -> None:
        """Hold back all bytes between a client and brokers, until ``heal``; nobody is told."""
        self._session_of(client)
        for host in self._machines.nodes:
            self._network.cut(client, host)

    def heal(self) -> None:
        """End all cuts, and slowness."""
        self._network.heal()
        self._network.latency_s = 0.0

    def slow(self, seconds: float) -> None:
        """Have all that hosts send arrive so many seconds later, until ``heal``."""
        check_within("seconds", seconds, 0, _WAIT_S)
        self._network.latency_s = seconds

    def stop_zookeeper(self) -> None:
        """Have ZooKeeper answer nobody, until ``start_zookeeper``."""
        self._machines.ensemble.stop()

    def start_zookeeper(self) -> None:
        """Have ZooKeeper answer again."""
        self._machines.ensemble.start()

    # Clients -------------------------------------------------------------------------------------
    def expire(self, client: str) -> None:
        """End a client's session with ZooKeeper: its members lose their partitions, and come back.

        What they handled since their last commit is delivered again.
        """
        self._machines.ensemble.expire(self._session_of(client))

    def crash(self, client: str) -> None:
        """Have nothing that a client sends arrive any more, and end its session, as ``kill -9``.

        Members of its groups take its partitions, and get what it had not committed. Its listeners
        are in this process, so what runs in them goes on until they return.
        """
        session = self._session_of(client)
        self.cut(client)
        self._network.reset_connections(client)
        self._machines.ensemble.crash(session)
        self._machines.ensemble.end_session(session.session_id)

    @asynccontextmanager
    async def other_member(self, group: str, *topics: str) -> AsyncIterator[None]:
        """Have another member join a group, and leave it at the end of the block.

        It takes its share of the partitions, and handles nothing: what it was given comes to the
        others when it leaves.
        """
        async with self._operator() as cluster:
            factory = MessageFactory.on_cluster(cluster)
            consumer = await factory.create_consumer(ConsumerConfig(group=group))
            for topic in topics:
                consumer.subscribe(topic)
            async with asyncio.timeout(_WAIT_S), consumer:
                await consumer.start()
                await until(consumer.assignment, timeout_s=_WAIT_S)
                yield

    # Brokers -------------------------------------------------------------------------------------
    async def change_master(self, group: str = "b1") -> str:
        """Have another node lead a group, as `vq broker switch` does; return its name.

        Raises:
            HandOverFailed: No other node is in sync.
        """
        async with self._operator() as cluster:
            return (await switch_master(cluster, group)).target

    async def kill_broker(self, group: str = "b1", node: str | None = None) -> str:
        """End a broker as a power cut does: what was not flushed is gone. Return the node's name.

        Args:
            group, node: Which; None: the one that leads.
        """
        host, name = await self._place(group, node)
        machines = self._machines
        after = machines.disks[host].crash(FixedChance(keep=False))
        self._network.kill(host)
        coordinator = machines.coordinators[host]
        machines.ensemble.crash(coordinator)
        machines.ensemble.end_session(coordinator.session_id)
        dead = machines.nodes.pop(host)
        machines.disks[host] = after
        await dead.stop()
        return name

    async def start_broker(self, group: str, node: str) -> None:
        """Start a broker again on the disk that it had."""
        host = host_of(group, node)
        if host not in self._machines.disks or host in self._machines.nodes:
            raise InvalidState(f"broker {group}/{node} was not killed")
        await self._machines.start(group, node)

    async def fill_disk(self, group: str = "b1", node: str | None = None) -> None:
        """Have a broker's disk be full, until ``free_disk``: sends to it are refused, or go on
        elsewhere."""
        host, _ = await self._place(group, node)
        disk = self._machines.disks[host]
        disk.capacity_bytes = disk.used_bytes() + 1

    def free_disk(self) -> None:
        """Have room on all disks again."""
        for disk in self._machines.disks.values():
            disk.capacity_bytes = None

    async def poison(self, topic: str, partition: int = 0) -> None:
        """Store a message that no client can decode, as a faulty producer of another make would.

        What a consumer does with it is its ``on_bad_record``.
        """
        record = encode_record(next(self._numbers), b"not zlib", None, None, COMPRESSION_ZLIB)
        async with self._operator() as cluster:
            placements = await partitions_of(cluster, topic)
            check_between("partition", partition, 0, len(placements) - 1)
            placement = placements[partition]
            group = placement.writer_group
            assert group is not None
            found = await master_and_epoch(cluster, group)
            if found is None:
                raise NotMaster(f"broker group {group} has no master now")
            request = PutRequest(
                topic=topic,
                partition=partition,
                record_count=1,
                crc=google_crc32c.value(record),
            )
            await cluster.request(found[0].address, Command.PUT, request, record)

    # Inside --------------------------------------------------------------------------------------
    async def _place(self, group: str, node: str | None) -> tuple[str, str]:
        """Return host and node of a broker that runs."""
        if node is None:
            async with self._machines.admin() as coordinator:
                state = await read_state(coordinator, group)
            if state is None:
                raise InvalidArgument(f"there is no broker group {shown(group)}")
            node = state.master
        host = host_of(group, node)
        if host not in self._machines.nodes:
            known = ", ".join(sorted(self._machines.nodes))
            raise InvalidArgument(f"broker {group}/{node} does not run; running are {known}")
        return host, node

    @asynccontextmanager
    async def _operator(self) -> AsyncIterator[ClusterClient]:
        """Provide a client that no fault strikes."""
        machines = self._machines
        name = f"operator-{next(self._numbers)}"
        cluster = ClusterClient(
            MessageFactoryConfig(cluster=CLUSTER, client_id=name),
            coordinator=machines.session(),
            network=self._network.at(name),
            clock=clock_of_loop(),
            rng=random.Random(name),  # nosec B311
            operator=True,
        )
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.close()

    def end(self) -> None:
        """Undo all faults. For vq only."""
        self._lost.clear()
        self.heal()
        self.free_disk()
        if not self._machines.ensemble.running:
            self._machines.ensemble.start()
