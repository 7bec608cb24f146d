"""One batch to one partition, sent until the broker answers. For copies and other single batches.

A producer of an application batches and pipelines, see ``producer``. This is for callers that
decide themselves what a batch is and which stamp it has: they can send the very same batch again,
from another process, too, and the broker stores it once.
"""

from collections.abc import Sequence

import google_crc32c

from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.model import ProducerStamp, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import PutRequest, PutResponse


async def put_batch(
    cluster: ClusterClient,
    partition: TopicPartition,
    stamp: ProducerStamp,
    records: Sequence[bytes],
    *,
    topic_id: str,
    deadline: float,
    resend: bool = False,
    messages: int | None = None,
    transaction: int = 0,
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
        messages: How many they are, if ``records`` has several in one piece.
        transaction: The number of the transaction that it is; 0: none.

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
        record_count=len(records) if messages is None else messages,
        crc=google_crc32c.value(body),
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        sequence=stamp.sequence,
        resend=resend,
        transaction_id=transaction,
    )

    def unanswered() -> None:
        request.resend = bool(records)

    answer = await ask_master(
        cluster,
        partition,
        Command.PUT,
        request,
        body,
        deadline=deadline,
        what="whether a batch is stored",
        unanswered=unanswered,
    )
    assert isinstance(answer, PutResponse)
    return answer.offset
