"""One batch to one partition, sent until the broker answers. For copies and other single batches.

A producer of an application batches and pipelines, see ``producer``. This is for callers that
decide themselves what a batch is and which stamp it has: they can send the very same batch again,
from another process, too, and the broker stores it once.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import google_crc32c

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.errors import NotMaster, OutcomeUnknown, PartitionReadOnly, SequenceStale, VqError
from vq.model import Address, ProducerStamp, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import PutRequest, PutResponse

_PAUSE: Final = Backoff(first_s=0.02, most_s=0.5)


async def put_batch(
    cluster: ClusterClient,
    partition: TopicPartition,
    stamp: ProducerStamp,
    records: Sequence[bytes],
    *,
    topic_id: str,
    deadline: float,
    resend: bool = False,
) -> int:
    """Store a batch; return the offset of its first record.

    Each try has the same stamp, so it is stored once however many get to the broker.

    Args:
        cluster: It tracks the topic.
        partition: Where to.
        stamp: No other batch has it.
        records: Encoded. Without any it begins an epoch; to store that twice does no harm, so each
            try counts as the first one.
        topic_id: Of the topic; another one of the name refuses the batch.
        deadline: Monotonic time; the last try ends then.
        resend: Somebody may have sent it before.

    Raises:
        OutcomeUnknown: A try had no answer, and a later one no better one.
        VqError: The broker refuses it, or none could be reached in time; it is certainly not
            stored by this call.
    """
    body = b"".join(records)
    request = PutRequest(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=topic_id,
        record_count=len(records),
        crc=google_crc32c.value(body),
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        sequence=stamp.sequence,
        resend=resend,
    )
    in_doubt: VqError | None = None
    tries = 0
    while True:
        tries += 1
        pause = _PAUSE.pause_s(tries)
        left = deadline - cluster.clock.monotonic()
        bound = max(0.01, min(left, cluster.config.request_timeout_s))
        try:
            address, request.epoch = _master(cluster, partition)
            answer, _ = await cluster.request(address, Command.PUT, request, body, timeout=bound)
            assert isinstance(answer, PutResponse)
            return answer.offset
        except VqError as error:
            if isinstance(error, OutcomeUnknown):
                in_doubt, request.resend = error, bool(records)
            again = isinstance(error, OutcomeUnknown) and not isinstance(error, SequenceStale)
            again = again or error.retriable or error.refresh_routes
            if not again or left <= pause:
                if in_doubt is None or in_doubt is error:
                    raise
                raise OutcomeUnknown(
                    f"{partition}: it is unknown whether a batch is stored: {in_doubt}; then: "
                    f"{error}"
                ) from error
            cluster.refresh(partition.topic, error)
        await asyncio.sleep(pause)


def _master(cluster: ClusterClient, partition: TopicPartition) -> tuple[Address, int]:
    group = cluster.routes.placement(partition).writer_group
    if group is None:
        raise PartitionReadOnly(f"{partition}: it takes no messages")
    master = cluster.routes.master(group)
    if master is None:
        raise NotMaster(f"{partition}: {group} has no master now")
    return master
