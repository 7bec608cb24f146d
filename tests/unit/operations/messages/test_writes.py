"""Which batches of a log earlier attempts of a task have written."""

import pytest

from vq.errors import CorruptData
from vq.model import ProducerIdentity
from vq.operations.messages.writes import WriteAttempt, is_of, whole_batches
from vq.store.records.format import CONTROL_BYTES, BatchHeader, encode_control

ATTEMPT = WriteAttempt("w", 7, 0, ProducerIdentity(5, 14), 12)


def header(start: int, size: int = 0, *, producer: int = 5, epoch: int = 12) -> BatchHeader:
    return BatchHeader(
        start, CONTROL_BYTES + size, 0, 0, producer_id=producer, producer_epoch=epoch
    )


def test_whole_batches_end_where_one_is_cut_off() -> None:
    first, second = header(100, 3), header(100 + CONTROL_BYTES + 3, 4)
    data = encode_control(first, 0) + b"abc" + encode_control(second, 0) + b"defg"
    assert [each.start_offset for each in whole_batches(data, 100)] == [100, 191]
    for cut in (1, 4, 5, len(data) - 100):
        assert [each.start_offset for each in whole_batches(data[:-cut], 100)] == [100]
    assert whole_batches(data[:90], 100) == []
    assert whole_batches(b"", 100) == []


def test_bytes_that_are_no_batch_or_lie_elsewhere_are_damage() -> None:
    data = encode_control(header(100), 0)
    with pytest.raises(CorruptData):
        whole_batches(data, 101)
    with pytest.raises(CorruptData):
        whole_batches(bytes(CONTROL_BYTES), 0)


@pytest.mark.parametrize(
    ("producer", "epoch", "wanted"),
    [(5, 11, False), (5, 12, True), (5, 13, True), (5, 14, False), (6, 12, False)],
)
def test_batches_of_the_task_since_its_first_attempt_count(
    producer: int, epoch: int, wanted: bool
) -> None:
    assert is_of(header(0, producer=producer, epoch=epoch), ATTEMPT) is wanted
