"""A batch as a request: what the header says."""

import pytest
from support.queues import QueueHost

from vq.client.future import SendFuture
from vq.client.producer.queue.batch import Batch
from vq.errors import Busy, ProtocolError
from vq.model import ProducerStamp
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import PutRequest, PutResponse
from vq.store.records.format import OFFSET_MAX


def test_the_header_says_where_what_and_under_which_master() -> None:
    queue = QueueHost().queue(3)
    queue.topic_id = "id"
    queue.epoch = 5
    batch = Batch([SendFuture(b"x", None, None, 1.0)] * 2, [1, 2], ProducerStamp(7, 1, 4))
    header = PutRequest.FromString(queue.put_header(batch))
    assert (header.topic, header.topic_id, header.partition, header.epoch) == ("t", "id", 3, 5)
    assert (header.record_count, header.crc) == (2, batch.crc)
    assert (header.producer_id, header.producer_epoch, header.sequence) == (7, 1, 4)
    assert not header.resend


def test_a_batch_that_may_be_stored_says_so_when_it_is_sent_again() -> None:
    """Not one that was refused: no copy of it is stored."""
    queue = QueueHost().queue(3)
    queue.pending.append(SendFuture(b"x", None, None, 1e9))
    batch = queue.next_to_send(0.0, lambda _: [1])
    assert batch is not None
    queue.apply_answer(batch, Busy("later"), 1.0)
    assert queue.next_to_send(9.0, lambda _: [1]) is batch
    assert not PutRequest.FromString(queue.put_header(batch)).resend
    queue.apply_answer(batch, None, 9.0)
    assert queue.next_to_send(99.0, lambda _: [1]) is batch
    assert PutRequest.FromString(queue.put_header(batch)).resend


@pytest.mark.parametrize("offset", [OFFSET_MAX, 2**63 - 1, 2**64 - 1])
def test_an_offset_that_no_partition_has_is_no_answer(offset: int) -> None:
    """The batch is sent again after a pause; before, at once and for ever."""
    queue = QueueHost().queue(3)
    future = SendFuture(b"x", None, None, 1e9)
    queue.pending.append(future)
    batch = queue.next_to_send(0.0, lambda _: [1])
    assert batch is not None
    answer = PutResponse(offset=offset).SerializeToString()
    error = queue.apply_answer(batch, Frame(Command.PUT, 0, 1, 0, answer, b""), 1.0)
    assert isinstance(error, ProtocolError)
    assert str(offset) in str(error)
    assert str(OFFSET_MAX) in str(error)
    assert queue.retry_at > 1.0
    assert not future.done()
    assert queue.next_to_send(99.0, lambda _: [1]) is batch
    assert PutRequest.FromString(queue.put_header(batch)).resend
