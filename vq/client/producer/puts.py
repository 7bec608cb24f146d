"""Makes the PUT request of a batch and applies its answer to the queue."""

from vq.client.producer.batch import Batch
from vq.client.producer.partition_queue import PartitionQueue
from vq.errors import OutcomeUnknown, ProtocolError, SequenceStale, VqError
from vq.remoting import messages
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.store.records.format import OFFSET_MAX


def put_header(queue: PartitionQueue, batch: Batch) -> bytes:
    """Return the header of the PUT that carries ``batch``; its body is ``batch.body``."""
    stamp, partition = batch.stamp, queue.partition
    return PutRequest(
        topic=partition.topic,
        partition=partition.partition,
        record_count=len(batch.items),
        crc=batch.crc,
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        sequence=stamp.sequence,
        topic_id=queue.topic_id,
        epoch=queue.epoch,
        resend=batch.unknown,
    ).SerializeToString()


def apply_answer(
    queue: PartitionQueue, batch: Batch, answer: Frame | VqError | None, now: float
) -> VqError | None:
    """Turn an answer into outcomes; return its error, None when the batch is stored.

    ``answer`` is a reply, or the error that kept the batch from being sent, or None if the broker
    did not answer.
    """
    try:
        if answer is None:
            queue.on_unanswered([batch], now)
            return None
        error = answer if isinstance(answer, VqError) else _take(queue, batch, answer)
        if isinstance(error, SequenceStale):
            queue.on_outcome_lost(batch, error)
        elif isinstance(error, OutcomeUnknown | ProtocolError):
            queue.on_unanswered([batch], now)
        elif error is not None:
            queue.on_refused(batch, error, now)
    except BaseException:  # a signal handler, or the application's logging, raised
        if batch.sent:
            queue.on_unanswered([batch], now)  # send it again
        raise
    return error


def _take(queue: PartitionQueue, batch: Batch, frame: Frame) -> VqError | None:
    """Apply a reply; return its error, None if the batch is stored."""
    try:
        response = messages.decode_reply(frame)
    except VqError as error:
        return error
    assert isinstance(response, PutResponse)
    if response.offset + len(batch.body) > OFFSET_MAX:
        return ProtocolError(
            f"{queue.partition}: the broker answers that a batch of {len(batch.body)} bytes is at "
            f"offset {response.offset}; the last one a partition can have is {OFFSET_MAX}"
        )
    queue.on_stored(batch, response.offset)
    return None
