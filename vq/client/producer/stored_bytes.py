"""How many bytes each partition of a topic has at its broker, asked with OFFSETS."""

import asyncio
import itertools
from collections import defaultdict
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.topics.routes import Master
from vq.errors import VqError
from vq.model import PartitionPlacement, Span
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import OffsetsRequest, OffsetsResponse

#: Requests that one broker is sent at once; a small part of what it takes on one connection.
AT_ONCE_MAX: Final = 64


async def read_stored(cluster: ClusterClient, topic: str) -> dict[int, int]:
    """Return the bytes of the open span of each partition, without those that are not known.

    Bytes of earlier spans lie on other brokers, so they do not count. It costs one small request
    for each partition, at most ``AT_ONCE_MAX`` at a time for each broker. A broker that answers no
    request of such a step is not asked for the rest.
    """
    routes = cluster.routes
    view = routes.topics.get(topic)
    if view is None:
        return {}
    by_master: defaultdict[Master, list[PartitionPlacement]] = defaultdict(list)
    for placement in view.partitions:
        master = routes.masters.get(placement.writer_group or "")
        if master is not None:
            by_master[master].append(placement)
    asked = [_ask_all(cluster, master, view.id, each) for master, each in by_master.items()]
    found: dict[int, int] = {}
    for answers in await asyncio.gather(*asked):
        found.update(answers)
    return found


async def _ask_all(
    cluster: ClusterClient, master: Master, topic_id: str, placements: list[PartitionPlacement]
) -> dict[int, int]:
    found: dict[int, int] = {}
    rest = iter(placements)
    while step := list(itertools.islice(rest, AT_ONCE_MAX)):
        sizes = await asyncio.gather(*(_ask(cluster, master, topic_id, each) for each in step))
        known = {
            placement.partition: size
            for placement, size in zip(step, sizes, strict=True)
            if size is not None
        }
        if not known:
            break
        found.update(known)
    return found


async def _ask(
    cluster: ClusterClient, master: Master, topic_id: str, placement: PartitionPlacement
) -> int | None:
    request = OffsetsRequest(
        topic=placement.topic,
        partition=placement.partition,
        epoch=master.epoch,
        topic_id=topic_id,
    )
    try:
        answer, _ = await cluster.request(master.address, Command.OFFSETS, request)
    except VqError:
        return None
    assert isinstance(answer, OffsetsResponse)
    open_span: Span = placement.spans[-1]
    return max(0, answer.log_end_offset - max(answer.earliest, open_span.start))
