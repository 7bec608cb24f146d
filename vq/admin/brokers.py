"""Questions to the cluster that need no producer and no consumer."""

import asyncio
from collections.abc import Iterable

from vq.client.cluster import ClusterClient
from vq.coordination import registry
from vq.errors import VqError
from vq.model import Address, PartitionPlacement, StatusResult
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import (
    DamagedRange,
    StatusRequest,
    StatusResponse,
)


async def partitions_of(cluster: ClusterClient, topic: str) -> list[PartitionPlacement]:
    """Return where the partitions of a topic live, in rising order.

    Raises:
        UnknownTopic: There is no such topic.
    """
    return list((await cluster.track(topic)).partitions(topic))


async def broker_status(
    cluster: ClusterClient, address: Address, *, with_partitions: bool = True
) -> StatusResult:
    """Ask one broker for its status.

    Raises:
        Unreachable, TimedOut: It does not answer.
    """
    request = StatusRequest(with_partitions=with_partitions)
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


async def cluster_status(cluster: ClusterClient) -> dict[Address, StatusResult]:
    """Ask every registered broker; those that do not answer are left out."""
    nodes = await registry.all_nodes(cluster.coordinator)
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


def _ranges(damage: Iterable[DamagedRange]) -> list[dict[str, int | str]]:
    return [
        {field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields}
        for each in damage
    ]


def _result(address: Address, response: StatusResponse) -> StatusResult:
    raw = {
        field.name: getattr(response, field.name)
        for field in StatusResponse.DESCRIPTOR.fields
        if field.name not in {"partitions", "more"}
    }
    raw["problems"] = list(response.problems)
    raw["partitions"] = [
        {
            **{field.name: getattr(each, field.name) for field in each.DESCRIPTOR.fields},
            "damage": _ranges(each.damage),
            "damaged_ranges": max(each.damaged_ranges, len(each.damage)),
        }
        for each in response.partitions
    ]
    return StatusResult(
        address=address,
        group=response.group,
        node=response.node,
        version=response.broker_version,
        uptime_s=response.uptime_ms / 1000,
        partitions=response.partition_count,
        raw=raw,
    )
