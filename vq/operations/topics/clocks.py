"""Partitions whose append times lie ahead of the clock, and how they get true ones again.

Loop-bound functions on a ``ClusterClient``. Append times never fall along a log, so what is stored
after the clock was set right gets the time of what was stored before. A new log of the same broker
group begins with true times: a move of a partition to the group that has it (``placements``).
"""

from collections.abc import Collection

from vq.client.cluster import ClusterClient
from vq.coordination.topics import topics
from vq.operations.brokers.brokers import broker_status
from vq.operations.partitions.placements import Move, need_master


async def plan_new_logs(
    cluster: ClusterClient, topic: str, partitions: Collection[int] = ()
) -> list[Move]:
    """Return the moves that give partitions new logs, of those whose times lie ahead.

    Args:
        cluster: Where.
        topic: The topic.
        partitions: Which are looked at; empty: all that take messages.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        NotMaster: A group has no master.
        VqError: It does not answer.
    """
    view = await topics.describe_topic(cluster.coordinator, topic)
    for number in partitions:
        topics.check_partition(view, number)
    masters, ahead = {}, {}
    planned = []
    for placement in view.partitions:
        group = placement.writer_group
        if group is None or (partitions and placement.partition not in partitions):
            continue
        if group not in masters:
            masters[group] = master, _ = await need_master(cluster, group, "the")
            status = await broker_status(cluster, master.address)
            ahead[group] = {
                each["partition"]
                for each in status.raw["partitions"]
                if each["topic"] == topic and each["ahead_ms"]
            }
        if placement.partition in ahead[group]:
            master, epoch = masters[group]
            planned.append(Move(view, placement, master, master, {group: epoch}))
    return planned
