"""A tree of a large cluster, and brokers that answer for it: for figures on many of everything.

The tree is made through any coordinator, of the twin in memory or of a real ZooKeeper::

    size = TreeSize()                      200 brokers, 2,000 topics, 20,000 partitions,
                                           10,000 consumer groups: 318,000 znodes
    made = await grow(coordinator, size)   the coordinator owns the ephemeral nodes: keep it open
    brokers = await answer(network, made)  they tell where partitions end, and take no messages
    …
    await brokers.close()

Everything follows from ``TreeSize.seed``. A few partitions are busy and most are not (Pareto), and
the groups got them without a look at that, so loads are skewed. Positions move with the clock that
``answer`` is given. A test makes a smaller tree: ``TreeSize(groups=4, topics=10, …)``.
"""

import asyncio
import bisect
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from support.broker import MemoryCluster

from vq.clock import Clock, SystemClock
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    NODE_BYTES_MAX,
    Coordinator,
    Create,
    NodeExists,
    parent_of,
)
from vq.coordination.tree.paths import BROKERS, CONSUMERS, TOPICS
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.partitions import Partition, PlacementChanges
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import NotMaster, VqError
from vq.limits import ID_SEQUENCE_BITS, ID_SLOT_BITS
from vq.message_filter import Filter
from vq.model import ID_EPOCH_MS, Address, Span, TopicPartition, TopicSettings
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import Closing, Request, ServerConnection
from vq.remoting.format import COMMANDS
from vq.remoting.hello import ServerIdentity
from vq.remoting.transport import Listener, Network
from vq.store.records.format import RECORD_HEADER

#: Most bytes of paths and values in one ``multi``; the coordinator's bound, some to spare.
_STEP_BYTES: Final = NODE_BYTES_MAX * 3 // 4
_PARTITIONS_PER_ANSWER: Final = 300
_DISK_BYTES: Final = 2 << 40
_MESSAGE_BYTES: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSize:
    """How large the tree is.

    Attributes:
        groups: Broker groups, ``b000`` and so on.
        nodes: Of each group: a master, and nodes in sync that copy it.
        topics: ``topic-0000`` and so on; they share the partitions out evenly.
        partitions: Of all topics together.
        consumer_groups: ``readers-00000`` and so on; each reads one topic.
        readers_of_first: So many of them read the first topic; the others share out the rest.
        member_of_each: Every so many consumer groups have a member, which owns all its partitions.
        pools: Pools of broker groups and topics; 1: all are in the common pool.
        bytes_per_s: What all partitions get together.
        busy_shape: Of the Pareto distribution of their shares: the smaller, the more uneven.
        host, first_port: Where brokers are registered: one host for all with a port for each, or
            with ``host = ""`` a host of its own for each (``b000-n1``) and the same port.
        seed: Of all that is drawn.
    """

    groups: int = 200
    nodes: int = 1
    topics: int = 2_000
    partitions: int = 20_000
    consumer_groups: int = 10_000
    readers_of_first: int = 1
    member_of_each: int = 4
    pools: int = 1
    bytes_per_s: float = 400e6
    busy_shape: float = 1.5
    host: str = ""
    first_port: int = 9_500
    seed: int = 17


@dataclass(frozen=True, slots=True)
class LargePartition:
    """A partition of the tree: where it is, what it stores, and what it gets in a second."""

    group: str
    stored_bytes: int
    bytes_per_s: float


@dataclass(slots=True)
class LargeTree:
    """What was made.

    Attributes:
        size: As it was asked for.
        partitions: All of them.
        addresses: Of each node of a group.
        nodes_made: How many znodes.
    """

    size: TreeSize
    partitions: dict[TopicPartition, LargePartition] = field(default_factory=dict)
    addresses: dict[tuple[str, str], Address] = field(default_factory=dict)
    nodes_made: int = 0

    @property
    def groups(self) -> list[str]:
        """The names of the broker groups."""
        return sorted({group for group, _ in self.addresses})

    @property
    def topics(self) -> Counter[str]:
        """The number of partitions of each topic."""
        return Counter(each.topic for each in self.partitions)

    def bytes_per_s(self) -> dict[str, float]:
        """Return what each broker group gets in a second."""
        found = dict.fromkeys(self.groups, 0.0)
        for each in self.partitions.values():
            found[each.group] += each.bytes_per_s
        return found


async def grow(coordinator: Coordinator, size: TreeSize | None = None) -> LargeTree:
    """Make a tree through a started coordinator, which owns its ephemeral nodes."""
    made = drawn(size or TreeSize())
    for path in (BROKERS, TOPICS, CONSUMERS):
        with suppress(NodeExists):
            await coordinator.create(path)
    step: list[Create] = []
    step_bytes = 0
    for create in _creations(made):
        length = len(create.path) + len(create.data)
        if len(step) == MULTI_OPERATIONS_MAX or step_bytes + length > _STEP_BYTES:
            await coordinator.multi(step)
            step, step_bytes = [], 0
        step.append(create)
        step_bytes += length
        made.nodes_made += 1
    if step:
        await coordinator.multi(step)
    return made


def drawn(size: TreeSize) -> LargeTree:
    """Return a tree as it will be made; nothing is made."""
    made, rng = LargeTree(size), random.Random(size.seed)
    for number in range(size.groups):
        for node in range(size.nodes):
            group, name = f"b{number:03}", f"n{node + 1}"
            port = size.first_port + number * size.nodes + node if size.host else size.first_port
            made.addresses[group, name] = Address(size.host or f"{group}-{name}", port)
    shares = [rng.paretovariate(size.busy_shape) for _ in range(size.partitions)]
    per_share = size.bytes_per_s / sum(shares)
    placed = iter(shares)
    for topic in range(size.topics):
        count = size.partitions // size.topics + (topic < size.partitions % size.topics)
        pool = [n for n in range(size.groups) if n % size.pools == topic % size.pools]
        first = rng.randrange(len(pool))
        for number in range(count):
            group = f"b{pool[(first + number) % len(pool)]:03}"
            rate = next(placed) * per_share
            key = TopicPartition(f"topic-{topic:04}", number)
            made.partitions[key] = LargePartition(group, round(rate * 86_400), rate)
    return made


# Nodes of the tree ----------------------------------------------------------------------------
def _creations(made: LargeTree) -> Iterator[Create]:
    yield from _broker_nodes(made)
    yield from _topic_nodes(made)
    yield from _consumer_nodes(made)


def _pool(size: TreeSize, number: int) -> str | None:
    return None if number % size.pools == 0 else f"pool-{number % size.pools}"


def _broker_nodes(made: LargeTree) -> Iterator[Create]:
    size, rates = made.size, made.bytes_per_s()
    opened = Counter(each.group for each in made.partitions.values())
    stored: Counter[str] = Counter()
    for each in made.partitions.values():
        stored[each.group] += each.stored_bytes
    names = [f"n{node + 1}" for node in range(size.nodes)]
    for number, group in enumerate(made.groups):
        state = GroupState(
            epoch=1,
            master=names[0],
            insync=tuple(names),
            incarnations=dict.fromkeys(names, 1),
        )
        yield Create(BrokerGroup.path(group), BrokerGroup(pool=_pool(size, number)).encode())
        yield Create(GroupState.path(group), state.encode())
        yield Create(OpenPartitions.path(group), OpenPartitions(open=opened[group]).encode())
        yield Create(Registration.parent(group))
        yield Create(parent_of(BrokerLoad.path(group, "n1")))
        for name in names:
            host, port = made.addresses[group, name]
            broker = Registration(host=host, port=port, rack=f"rack-{number % 3}", version="0")
            load = BrokerLoad(
                disk_bytes_free=_DISK_BYTES - stored[group],
                disk_bytes_total=_DISK_BYTES,
                stored_bytes=stored[group],
                messages_per_s=rates[group] / _MESSAGE_BYTES,
                bytes_per_s=rates[group],
                busy=min(1.0, rates[group] / 100e6),
                flush_ms=0.2,
                partitions=opened[group],
            )
            yield Create(Registration.path(group, name), broker.encode(), ephemeral=True)
            yield Create(BrokerLoad.path(group, name), load.encode(), ephemeral=True)


def _topic_nodes(made: LargeTree) -> Iterator[Create]:
    opened: dict[str, Counter[str]] = {topic: Counter() for topic in made.topics}
    for (topic, _), each in made.partitions.items():
        opened[topic][each.group] += 1
    for number, (topic, count) in enumerate(made.topics.items()):
        settings = TopicSettings(partitions=count, pool=_pool(made.size, number))
        node = TopicNode(id=f"{number:016x}", settings=settings)
        yield Create(TopicNode.path(topic), node.encode())
        changes = PlacementChanges(open=opened[topic])
        yield Create(PlacementChanges.path(topic), changes.encode())
        for partition in range(count):
            group = made.partitions[TopicPartition(topic, partition)].group
            value = Partition(spans=(Span(group, 0),))
            yield Create(Partition.path(topic, partition), value.encode())


def _consumer_nodes(made: LargeTree) -> Iterator[Create]:
    """Yield groups, each with one topic and its progress; some have a member that owns all."""
    size, rng = made.size, random.Random(made.size.seed + 1)
    topics = list(made.topics.items())
    for number in range(size.consumer_groups):
        group = f"readers-{number:05}"
        others = len(topics) - 1
        first = number < size.readers_of_first or not others
        topic, count = topics[0 if first else 1 + number % others]
        contract = ConsumerGroup(topics={topic: Filter()})
        yield Create(ConsumerGroup.path(group), contract.encode())
        member = f"m{number}" if number % size.member_of_each == 0 else ""
        yield Create(Member.parent(group))
        folders = (CommittedOffset, Owner, Assignment) if member else (CommittedOffset, Assignment)
        for folder in folders:
            parent = folder.parent(group, topic)
            yield Create(parent_of(parent))
            yield Create(parent)
        if member:
            joined = Member(host="client", pid=1, topics=(topic,))
            yield Create(Member.path(group, member), joined.encode(), ephemeral=True)
        claim, owner = Assignment(member=member).encode(), Owner(member=member).encode()
        for partition in range(count):
            stored = made.partitions[TopicPartition(topic, partition)].stored_bytes
            done = CommittedOffset(offset=round(stored * rng.random()), member=member)
            yield Create(CommittedOffset.path(group, topic, partition), done.encode())
            yield Create(Assignment.path(group, topic, partition), claim)
            if member:
                yield Create(Owner.path(group, topic, partition), owner, ephemeral=True)


# Brokers that answer --------------------------------------------------------------------------
class LargeBrokers:
    """The brokers of a tree: they answer PING, STATUS, OFFSETS and GET, and refuse all else.

    Attributes:
        silent: Groups whose brokers give no answer; a test adds to it.
        answered: Requests by command.
        epochs: Of the master of each group; a test may change them.
        rates: Bytes in a second by partition, as in the tree; a test may change them.
    """

    def __init__(self, made: LargeTree, clock: Clock | None = None) -> None:
        self.made = made
        self.clock = clock or SystemClock()
        self.silent: set[str] = set()
        self.epochs = dict.fromkeys(made.groups, 1)
        self.answered: Counter[str] = Counter()
        self.rates = {key: each.bytes_per_s for key, each in made.partitions.items()}
        self._begun_s, self._begun_ms = self.clock.monotonic(), self.clock.wall_ms()
        self._listeners: dict[Address, Listener] = {}
        self.transports: dict[str, set[asyncio.WriteTransport]] = {}
        self.held: dict[str, list[TopicPartition]] = {group: [] for group in made.groups}
        for key, each in sorted(made.partitions.items()):
            self.held[each.group].append(key)

    async def start(self, network: Network | Mapping[str, Network]) -> None:
        """Listen at the addresses of the tree; ``network``: of all hosts, or of each."""
        for (group, node), address in self.made.addresses.items():
            of = network[address.host] if isinstance(network, Mapping) else network
            identity = ServerIdentity(cluster="test", group=group, node=node)
            serve = partial(_Answering, self, identity)
            self._listeners[address] = await of.listen(address, serve)

    async def close(self) -> None:
        """Stop listening."""
        for each in self._listeners.values():
            each.close()
        for each in self._listeners.values():
            await each.wait_closed()

    def kill(self, group: str) -> None:
        """End the nodes of a group: connections are cut, and new ones refused."""
        for (name, _), address in self.made.addresses.items():
            if name == group:
                self._listeners[address].close()
        for each in self.transports.pop(group, set()):
            each.abort()

    def status(self, group: str, node: str, request: wire.StatusRequest) -> wire.StatusResponse:
        """Return what a node answers."""
        answer = wire.StatusResponse(
            cluster="test",
            group=group,
            node=node,
            broker_version="0",
            epoch=self.epochs[group],
            master=node == "n1",
            partition_count=len(self.held[group]),
            uptime_ms=self._passed_ms(),
        )
        answer.disks.add(
            directory="/data",
            bytes_free=_DISK_BYTES // 2,
            bytes_total=_DISK_BYTES,
            level="ok",
            growth_known=True,
            growth_bytes_per_hour=1 << 30,
            file_system="fs",
        )
        if request.with_partitions:
            keys = self.held[group]
            first = 0
            if request.after_topic:
                after = TopicPartition(request.after_topic, request.after_partition)
                first = bisect.bisect_right(keys, after)
            for key in keys[first : first + _PARTITIONS_PER_ANSWER]:
                end = self.end_of(key)
                answer.partitions.add(
                    topic=key.topic,
                    partition=key.partition,
                    log_end_offset=end,
                    high_watermark=end,
                    state="rw",
                    size_bytes=end,
                    min_insync=1,
                    next_number=end // _MESSAGE_BYTES,
                    number_known=True,
                )
            answer.more = first + _PARTITIONS_PER_ANSWER < len(keys)
        return answer

    def offsets(self, request: wire.OffsetsRequest) -> wire.OffsetsResponse:
        """Return the ends of a partition, and the number of the message at an offset."""
        end = self.end_of(TopicPartition(request.topic, request.partition))
        return wire.OffsetsResponse(
            latest=end,
            log_end_offset=end,
            offset=end // 2,
            count=request.to_offset // _MESSAGE_BYTES - request.from_offset // _MESSAGE_BYTES,
            count_exact=True,
            latest_number=end // _MESSAGE_BYTES,
            latest_number_known=True,
            number=request.number_offset // _MESSAGE_BYTES,
            number_known=request.number,
        )

    def first_of(self, request: wire.GetRequest) -> bytes:
        """Return the head of a message at an offset, sent an hour before there was anything."""
        del request
        message_id = (self._begun_ms - 3_600_000 - ID_EPOCH_MS) << (ID_SLOT_BITS + ID_SEQUENCE_BITS)
        return RECORD_HEADER.pack(_MESSAGE_BYTES, bytes(4), message_id, 0)

    def end_of(self, key: TopicPartition) -> int:
        """Return where a partition ends now."""
        return round(
            self.made.partitions[key].stored_bytes + self.rates[key] * self._passed_ms() / 1_000
        )

    def _passed_ms(self) -> int:
        return round((self.clock.monotonic() - self._begun_s) * 1_000)


async def answer(
    network: Network | Mapping[str, Network], made: LargeTree, clock: Clock | None = None
) -> LargeBrokers:
    """Return brokers that listen at the addresses of a tree; close them."""
    brokers = LargeBrokers(made, clock)
    await brokers.start(network)
    return brokers


class _Answering(asyncio.Protocol):
    """One connection to a broker that answers."""

    def __init__(self, brokers: LargeBrokers, identity: ServerIdentity) -> None:
        self._brokers = brokers
        self._identity = identity
        self._connection = ServerConnection(identity)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._brokers.transports.setdefault(self._identity.group, set()).add(transport)

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Closing):
                self._send(self._connection.data_to_send())
                self._transport.close()
                return
        self._send(self._connection.data_to_send())

    def connection_lost(self, error: Exception | None) -> None:
        self._brokers.transports.get(self._identity.group, set()).discard(self._transport)
        self._connection.ended()

    def _answer(self, request: Request) -> None:
        brokers, message = self._brokers, request.message
        group, command = self._identity.group, COMMANDS[request.request_id.command].name
        brokers.answered[command] += 1
        if group in brokers.silent:
            return
        answer: wire.PingResponse | wire.StatusResponse | wire.OffsetsResponse | wire.GetResponse
        body = b""
        try:
            if isinstance(message, wire.PingRequest):
                answer = wire.PingResponse(wall_ms=brokers.clock.wall_ms())
            elif isinstance(message, wire.StatusRequest):
                answer = brokers.status(group, self._identity.node, message)
            elif isinstance(message, wire.OffsetsRequest):
                answer = brokers.offsets(message)
            elif isinstance(message, wire.GetRequest):
                answer, body = wire.GetResponse(), brokers.first_of(message)
            else:
                raise NotMaster(f"a broker of a large tree does not do {command}")
        except VqError as error:
            self._send(self._connection.reply_error(request.request_id, error))
            return
        self._send(self._connection.reply(request.request_id, answer, body))

    def _send(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if buffers:
            self._transport.writelines(buffers)


@asynccontextmanager
async def large_cluster(
    size: TreeSize,
) -> AsyncIterator[tuple[MemoryCluster, LargeTree, LargeBrokers]]:
    """Provide a cluster in memory of this size, and the brokers that answer for it."""
    cluster = MemoryCluster()
    owner = cluster.ensemble.coordinator("test", session_timeout_s=3600.0)
    await owner.start()
    made = await grow(owner, size)
    brokers = await answer(cluster.network, made, cluster.ensemble.clock)
    try:
        yield cluster, made, brokers
    finally:
        await brokers.close()
        await owner.close()
