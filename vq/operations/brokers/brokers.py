"""The status of brokers, and which of them leads a group.

Loop-bound functions on a ``ClusterClient``.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import Message

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.errors import VqError
from vq.model import Address, NodeInfo, StatusResult
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import PingRequest, PingResponse, StatusRequest, StatusResponse

#: States in which a partition takes no messages until somebody repairs it.
FAILED_STATES: Final = frozenset({"failed", "quarantined"})
#: State of the partitions of a topic that is closed for writes.
CLOSED_STATE: Final = "closed"
#: State of the partitions of a deleted topic that can be brought back.
DELETED_STATE: Final = "deleted"
_PLAIN_STATES: Final = frozenset({"rw", "ro"})
_SOUND_STATES: Final = _PLAIN_STATES | {CLOSED_STATE, DELETED_STATE}


@dataclass(frozen=True, slots=True)
class BadPartition:
    """A partition that does not do at its broker what it should, with the broker's reason."""

    topic: str
    partition: int
    state: str
    reason: str

    @property
    def failed(self) -> bool:
        """Whether it takes no messages until somebody repairs it; else it recovers by itself."""
        return self.state in FAILED_STATES


@dataclass(frozen=True, slots=True)
class Damage:
    """Offsets ``[start, end)`` of a partition in which no batch is intact, at one node.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        group: The node's broker group.
        start: The first offset.
        end: The offset behind the last one.
        file: The block file, on the broker's machine.
        reason: What was found there.
        found_ms: When it was found, in milliseconds since 1970.
        node: The node that has it.
    """

    topic: str
    partition: int
    group: str
    start: int
    end: int
    file: str
    reason: str
    found_ms: int = 0
    node: str = ""

    def __str__(self) -> str:
        place = f"{self.group}/{self.node}" if self.node else self.group
        return (
            f"{self.topic}-{self.partition} on {place}: offsets [{self.start}, {self.end}) "
            f"are damaged in {self.file}: {self.reason}"
        )


# Asking ---------------------------------------------------------------------------------------
async def list_brokers(cluster: ClusterClient) -> list[NodeInfo]:
    """Return the registered brokers of all groups, sorted by group and node."""
    return await registry.all_nodes(cluster.coordinator)


def address_of(given: Address | str) -> Address:
    """Return an address that may be given as text, such as ``"host:9500"``."""
    return given if isinstance(given, Address) else Address.parse(given)


async def broker_status(cluster: ClusterClient, address: Address | str) -> StatusResult:
    """Ask one broker for its status.

    Raises:
        Unreachable, TimedOut: It does not answer.
    """
    address = address_of(address)
    request = StatusRequest(with_partitions=True)
    response, _ = await cluster.request(address, Command.STATUS, request)
    assert isinstance(response, StatusResponse)
    part = response
    while part.more and part.partitions:  # more than fit into one answer
        last = part.partitions[-1]
        request.after_topic, request.after_partition = last.topic, last.partition
        part, _ = await cluster.request(address, Command.STATUS, request)
        assert isinstance(part, StatusResponse)
        response.partitions.extend(part.partitions)
    return _result(address, response)


async def all_statuses(cluster: ClusterClient) -> dict[Address, StatusResult]:
    """Ask every registered broker; those that do not answer are left out."""
    nodes = await list_brokers(cluster)
    answers = await asyncio.gather(
        *(broker_status(cluster, node.address) for node in nodes), return_exceptions=True
    )
    found: dict[Address, StatusResult] = {}
    for answer in answers:
        if isinstance(answer, StatusResult):
            found[answer.address] = answer
        elif not isinstance(answer, VqError):
            raise answer
    return found


async def ping(cluster: ClusterClient, address: Address) -> tuple[float, float]:
    """Return ``(round trip in seconds, the broker's clock minus ours in seconds)``.

    The difference is known to half a round trip.

    Raises:
        VqError: No answer.
    """
    clock = cluster.clock
    await cluster.connection(address)  # the connection's own cost is not part of the round trip
    wall_ms, started = clock.wall_ms(), clock.monotonic()
    answer, _ = await cluster.request(address, Command.PING, PingRequest())
    assert isinstance(answer, PingResponse)
    trip_s = clock.monotonic() - started
    return trip_s, (answer.wall_ms - wall_ms) / 1000 - trip_s / 2


async def master_of(cluster: ClusterClient, group: str) -> NodeInfo | None:
    """Return the registered master of a group, None while it has none."""
    found = await master_and_epoch(cluster, group)
    return None if found is None else found[0]


async def master_and_epoch(cluster: ClusterClient, group: str) -> tuple[NodeInfo, int] | None:
    """Return the registered master of a group with its epoch, None while it has none."""
    state = await registry.read_state(cluster.coordinator, group)
    if state is None:
        return None
    node = await registry.read_node(cluster.coordinator, group, state.master)
    return None if node is None else (node, state.epoch)


# Reading a status -----------------------------------------------------------------------------
def bad_partitions(status: StatusResult) -> list[BadPartition]:
    """Return the partitions of a broker that are sealed, failed or quarantined."""
    return [
        BadPartition(each["topic"], each["partition"], each["state"], each["reason"])
        for each in status.raw["partitions"]
        if each["state"] not in _SOUND_STATES
    ]


def closed_topics(status: StatusResult) -> set[str]:
    """Return the topics that a broker takes no messages of because they are closed for writes."""
    return {each["topic"] for each in status.raw["partitions"] if each["state"] == CLOSED_STATE}


def deleted_topics(status: StatusResult) -> dict[str, int]:
    """Return the bytes of logs of deleted topics that can be brought back, by topic."""
    found: dict[str, int] = {}
    for each in status.raw["partitions"]:
        if each["state"] == DELETED_STATE:
            found[each["topic"]] = found.get(each["topic"], 0) + each["size_bytes"]
    return found


def damage(status: StatusResult) -> list[Damage]:
    """Return the damaged ranges in a status: the first few of each partition."""
    return [
        Damage(
            topic=part["topic"],
            partition=part["partition"],
            group=status.group,
            node=status.node,
            **each,
        )
        for part in status.raw["partitions"]
        for each in part["damage"]
    ]


def damaged_ranges(status: StatusResult) -> int:
    """Return how many damaged ranges a broker knows, those left out included."""
    return sum(part["damaged_ranges"] for part in status.raw["partitions"])


def without_plain(status: StatusResult) -> StatusResult:
    """Return a status that lists only the partitions of which the functions above tell something.

    Whoever keeps the status of many brokers keeps no partition that is written to and whole.
    """
    told = [
        each
        for each in status.raw["partitions"]
        if each["state"] not in _PLAIN_STATES or each["damaged_ranges"] or each["not_copied"]
    ]
    return replace(status, raw={**status.raw, "partitions": told})


def fields_of(message: Message) -> dict[str, Any]:
    """Return what a message of the wire says, by the names of its fields."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [fields_of(each) if isinstance(each, Message) else each for each in value]
        found[field.name] = value
    return found


def _result(address: Address, response: StatusResponse) -> StatusResult:
    raw = fields_of(response)
    del raw["more"]
    for each in raw["partitions"]:
        each["damaged_ranges"] = max(each["damaged_ranges"], len(each["damage"]))
    return StatusResult(
        address=address,
        group=response.group,
        node=response.node,
        version=response.broker_version,
        uptime_s=response.uptime_ms / 1000,
        partitions=response.partition_count,
        raw=raw,
    )
