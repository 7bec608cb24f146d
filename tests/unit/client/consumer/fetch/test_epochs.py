"""In which epoch the batch before an offset was written: only what the answers prove."""

from vq.client.consumer.fetch.epochs import RANGES_MAX, Epochs
from vq.store.records.format import BatchHeader, encode_control


def test_an_answer_within_one_epoch_tells_it_for_every_offset_in_it() -> None:
    epochs = Epochs()
    epochs.note(0, 0, 100, 3)
    epochs.note(100, 3, 200, 3)
    epochs.note(200, 3, 300, 3)
    assert [epochs.at(offset) for offset in (99, 100, 150, 200, 300, 301)] == [0, 3, 3, 3, 3, 0]
    assert len(epochs._ranges) == 1


def test_where_in_an_answer_the_next_epoch_begins_is_not_known() -> None:
    epochs = Epochs()
    epochs.note(100, 3, 200, 3)
    epochs.note(200, 3, 300, 5)
    assert [epochs.at(offset) for offset in (200, 201, 299, 300)] == [3, 0, 0, 5]


def test_the_first_batch_of_a_log_tells_where_the_first_answer_begins() -> None:
    """Not for the begin itself: no batch is before it."""
    control = encode_control(BatchHeader(100, 300, 1, 1, master_epoch=3), 0)
    for body, begin, found in [
        (control, 100, [0, 3, 3, 3]),
        (control, 101, [0, 0, 0, 3]),
        (control[:40], 100, [0, 0, 0, 3]),
        (control[:-1] + b"!", 100, [0, 0, 0, 3]),
        (b"x" * 200, 100, [0, 0, 0, 3]),
    ]:
        epochs = Epochs()
        epochs.note(begin, 0, 400, 3, body)
        assert [epochs.at(offset) for offset in (100, 188, 399, 400)] == found
    epochs = Epochs()
    epochs.note(100, 0, 400, 5, control)
    assert [epochs.at(offset) for offset in (188, 399, 400)] == [0, 0, 5]


def test_an_answer_without_an_epoch_tells_nothing() -> None:
    epochs = Epochs()
    epochs.note(0, 0, 100, 0)
    assert epochs.at(0) == epochs.at(100) == 0


def test_what_was_read_last_counts_where_a_range_was_read_again() -> None:
    epochs = Epochs()
    epochs.note(0, 3, 100, 3)
    epochs.note(50, 5, 100, 5)
    assert [epochs.at(offset) for offset in (49, 50, 100)] == [3, 5, 5]


def test_the_oldest_ranges_are_forgotten() -> None:
    """However often masters change, memory stays the same."""
    epochs = Epochs()
    for number in range(1, RANGES_MAX + 3):
        epochs.note(number * 100, number, (number + 1) * 100, number + 1)
    assert len(epochs._ranges) == RANGES_MAX
    assert [epochs.at(offset) for offset in (300, 400)] == [0, 4]
