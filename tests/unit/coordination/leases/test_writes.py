"""Which attempt of a repeatable write gets which epoch; the nodes are tested with a cluster."""

import pytest

from vq.coordination.leases import writes
from vq.coordination.leases.writes import (
    WriteOvertaken,
    WriteTask,
    WriteTopic,
    next_attempt,
    same_ends,
)
from vq.coordination.tree.coordinator import Unreadable
from vq.errors import InvalidState
from vq.limits import PRODUCER_EPOCH_MAX


def new_id() -> int:
    return 77


def attempts(*batches: int) -> list[WriteTask]:
    """Return the values of a task's node while attempts of these batches begin."""
    found: list[WriteTask] = []
    for batch in batches:
        found.append(next_attempt(found[-1] if found else None, batch, new_id, "task 0"))
    return found


def test_epochs_of_the_example() -> None:
    """A repeated attempt leaves an epoch free, with which it stops the earlier ones."""
    found = attempts(7, 7, 7, 8, 8, 10)
    assert [(each.batch, each.first_epoch, each.epoch) for each in found] == [
        (7, 0, 0),
        (7, 0, 2),
        (7, 0, 4),
        (8, 5, 5),
        (8, 5, 7),
        (10, 8, 8),
    ]
    assert [each.is_repeated for each in found] == [False, True, True, False, True, False]
    assert {each.producer_id for each in found} == {77}


def test_an_earlier_batch_is_over() -> None:
    with pytest.raises(WriteOvertaken, match="task 0: batch 8 has begun, so batch 7 is over"):
        attempts(8, 7)


def test_a_new_batch_gets_a_new_id_long_before_epochs_end() -> None:
    late = WriteTask(batch=1, producer_id=5, first_epoch=9, epoch=writes.RENEW_EPOCH)
    assert next_attempt(late, 2, new_id, "") == WriteTask(batch=2, producer_id=77)
    again = next_attempt(late, 1, new_id, "")
    assert (again.producer_id, again.epoch) == (5, writes.RENEW_EPOCH + 2)


@pytest.mark.parametrize("left", [0, 1])
def test_attempts_of_one_batch_have_a_bound(left: int) -> None:
    last = WriteTask(batch=1, producer_id=5, epoch=PRODUCER_EPOCH_MAX - left)
    with pytest.raises(InvalidState, match="there are no more epochs"):
        next_attempt(last, 1, new_id, "task 0")
    before = WriteTask(batch=1, producer_id=5, epoch=PRODUCER_EPOCH_MAX - 2)
    assert next_attempt(before, 1, new_id, "").epoch == PRODUCER_EPOCH_MAX


def test_ends_hold_for_their_batch_and_their_topic() -> None:
    noted = WriteTopic(batch=7, topic_id="a", ends=(1, 2))
    assert same_ends(noted, 7, "a", "")
    assert not same_ends(noted, 8, "a", "")
    assert not same_ends(noted, 7, "b", "")
    assert not same_ends(None, 7, "a", "")
    with pytest.raises(WriteOvertaken, match="t: batch 7 has begun"):
        same_ends(noted, 6, "a", "t")


@pytest.mark.parametrize(
    "value",
    [
        WriteTask(batch=7, producer_id=2**63 - 1, first_epoch=12, epoch=14),
        WriteTopic(batch=7, topic_id="x", ends=(1024, 0)),
        WriteTopic(batch=0, topic_id="x", ends=()),
    ],
)
def test_values_come_back(value: WriteTask | WriteTopic) -> None:
    assert type(value).decode("p", value.encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b'{"v": 1, "batch": 7}',
        b'{"v": 1, "batch": 7, "topic_id": "x", "ends": [-1]}',
        b'{"v": 1, "batch": 7, "topic_id": "x", "ends": ["1"]}',
        b'{"v": 1, "batch": 7, "topic_id": "x", "ends": [true]}',
        b'{"v": 1, "batch": "7", "topic_id": "x", "ends": []}',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Unreadable):
        WriteTopic.decode("p", data)


def test_paths() -> None:
    assert WriteTask.path("w", 3) == "writes/w/tasks/3"
    assert WriteTopic.path("w", "t") == "writes/w/topics/t"
