"""A batch as a PUT request, and what an answer to it means for its queue."""

from vq.client.batch import Batch
from vq.client.partition_queue import PartitionQueue
from vq.errors import OutcomeUnknown, VqError
from vq.model import TopicPartition
from vq.remoting import messages
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest, PutResponse


def put_header(where: TopicPartition, batch: Batch) -> bytes:
    """Return the header of the PUT that carries ``batch``; its body is ``batch.body``."""
    stamp = batch.stamp
    return PutRequest(
        topic=where.topic,
        partition=where.partition,
        record_count=len(batch.items),
        crc=batch.crc,
        producer_id=stamp.producer_id,
        producer_epoch=stamp.producer_epoch,
        sequence=stamp.sequence,
    ).SerializeToString()


def settle(queue: PartitionQueue, batch: Batch, frame: Frame | None, now: float) -> VqError | None:
    """Tell the queue what an answer (None: the connection ended first) means; return its error."""
    if frame is None:
        queue.on_unanswered([batch], now)
        return None
    if frame.status == 0:
        queue.on_stored(batch, PutResponse.FromString(frame.header).offset)
        return None
    error = messages.decode_error(frame.status, frame.header, frame.flags)
    if isinstance(error, OutcomeUnknown):
        queue.on_unanswered([batch], now)
    else:
        queue.on_refused(batch, error, now)
    return error
