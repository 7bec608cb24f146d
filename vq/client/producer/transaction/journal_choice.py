"""Which partition of the journal decides a transaction."""

from collections.abc import Callable

from vq.client.cluster import ClusterClient
from vq.client.producer.spread.partitioner import key_partition
from vq.model import TopicPartition, Xid
from vq.reserved import TRANSACTIONS_TOPIC


async def choose_journal(
    cluster: ClusterClient,
    first: TopicPartition | None,
    xid: Xid | None,
    client: str | None,
    *,
    decides: Callable[[int], bool] | None = None,
) -> TopicPartition:
    """Return the partition of the journal in which a transaction is decided.

    A transactional id has one for ever, and so have names with the same gtrid: whoever knows
    it finds the transaction. Other transactions have one in the broker group of
    their first message, if there is one: its decision and its messages need no other group.

    Args:
        cluster: Where.
        first: The partition of its first message.
        xid: Its name in other resources.
        client: The transactional id of its producer.
        decides: Whether a partition, by its number, is one to be preferred.

    Raises:
        VqError: The topic cannot be read, or made.
    """
    routes = await cluster.track_internal(TRANSACTIONS_TOPIC)
    count = len(routes.topic(TRANSACTIONS_TOPIC).partitions)
    if xid is not None:
        return TopicPartition(TRANSACTIONS_TOPIC, key_partition(xid.gtrid, count))
    if client is not None:
        return TopicPartition(TRANSACTIONS_TOPIC, key_partition(client, count))
    numbers = [TopicPartition(TRANSACTIONS_TOPIC, each) for each in range(count)]
    led = [e for e in numbers if _group_of(cluster, e) is not None] or numbers
    near = []
    if first is not None and first.topic in routes.topics:
        group = _group_of(cluster, first)
        near = [e for e in led if group is not None and _group_of(cluster, e) == group]
    among = near or led
    if decides is not None:
        among = [each for each in among if decides(each.partition)] or among
    return among[cluster.rng.randrange(len(among))]


def _group_of(cluster: ClusterClient, partition: TopicPartition) -> str | None:
    """Return the group that takes appends of a partition now, if it has a master."""
    group = cluster.routes.placement(partition).writer_group
    return group if group is not None and cluster.routes.master(group) is not None else None
