"""A batch's bytes are those of the reference encoder, and each message's place is told."""

import google_crc32c
import pytest

from vq.client.future import SendFuture
from vq.client.producer.intake.stages import encode_head
from vq.client.producer.queue.batch import Batch
from vq.errors import Busy, TimedOut
from vq.model import ProducerStamp, SendResult
from vq.store.records.record import Properties, decode_records, encode_properties, encode_record

MESSAGES: list[tuple[bytes, bytes | None, bytes | None]] = [
    (b"plain", None, None),
    (b"", None, None),
    (b"tagged", b"t", None),
    (b"tagged", "ü".encode(), None),
    (b"", b"t" * 255, None),
    (b"keyed", None, encode_properties(Properties(key="k"))),
    (b"both" * 1000, b"t", encode_properties(Properties(key="k", headers={"a": "b"}))),
]


def future(content: bytes, tag: bytes | None = None, properties: bytes | None = None,
           deadline: float = 1e9) -> SendFuture:  # fmt: skip
    return SendFuture(content, encode_head(tag, properties), None, deadline)


def test_records_are_those_of_the_reference() -> None:
    items = [future(*each) for each in MESSAGES]
    batch = Batch(items, list(range(1, len(items) + 1)), ProducerStamp(1, 0, 0))
    expected = [
        encode_record(number, content, tag, properties)
        for number, (content, tag, properties) in enumerate(MESSAGES, 1)
    ]
    assert batch.body == b"".join(expected)
    assert batch.sizes == [len(each) for each in expected]


def test_a_batch_knows_its_sum_its_sizes_and_its_earliest_deadline() -> None:
    items = [future(b"1", deadline=9.0), future(b"22", deadline=5.0), future(b"333", deadline=7.0)]
    batch = Batch(items, [7, 8, 9], ProducerStamp(1, 2, 3))
    assert batch.crc == google_crc32c.value(batch.body)
    assert (batch.count, batch.size, batch.deadline) == (3, 6, 5.0)
    assert [record.id for record in decode_records(batch.body, 0)] == [7, 8, 9]


def test_places_follow_from_the_first_one() -> None:
    items = [future(*each) for each in MESSAGES]
    batch = Batch(items[:], list(range(len(items))), ProducerStamp(1, 0, 0))
    batch.resolve(4, 1_000)
    offsets = [record.offset for record in decode_records(batch.body, 1_000)]
    assert [item.result(0) for item in items] == [
        SendResult(4, offset, number) for number, offset in enumerate(offsets)
    ]


@pytest.mark.parametrize("drop", [True, False])
def test_late_messages_leave_and_the_others_stay(drop: bool) -> None:
    items = [future(b"1", deadline=9.0), future(b"22", deadline=5.0), future(b"333", deadline=7.0)]
    batch = Batch(items[:], [7, 8, 9], ProducerStamp(1, 0, 0))
    before = batch.body
    rest = batch.without_late(5.0, drop=drop)
    assert rest.gone == [items[1]]
    assert batch.count == 3, "it only decides"
    for _ in range(2):
        batch.keep(rest)
    assert not items[1].done(), "telling it is the caller's"
    assert (batch.count, batch.size, batch.deadline) == (2, 4, 7.0)
    assert (batch.body == before) is not drop
    items[1].fail(TimedOut())
    rest = batch.without_late(7.0, drop=True)
    batch.keep(rest)
    assert rest.gone == [items[2]]
    assert [record.payload for record in decode_records(batch.body, 0)] == [b"1"]
    assert batch.crc == google_crc32c.value(batch.body)
    batch.resolve(0, 88)
    assert items[0].result(0) == SendResult(0, 88, 7)
    assert isinstance(items[1].exception(0), TimedOut)


def test_a_batch_that_fails_tells_those_who_still_wait() -> None:
    items = [future(b"1", deadline=9.0), future(b"2", deadline=5.0)]
    batch = Batch(items, [1, 2], ProducerStamp(1, 0, 0))
    rest = batch.without_late(6.0, drop=False)
    batch.keep(rest)
    rest.gone[0].fail(TimedOut())
    batch.fail(Busy())
    assert isinstance(items[0].exception(0), Busy)
    assert isinstance(items[1].exception(0), TimedOut)
    again = Batch([future(b"3")], [3], ProducerStamp(1, 0, 1))
    again.fail(Busy())
    assert again.done
