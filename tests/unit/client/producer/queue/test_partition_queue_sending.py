"""A partition's queue: what a batch takes, when it leaves, and what its messages are told."""

import pytest
from support.partition_line import Line, contents, numbers, outcomes

from vq import errors
from vq.client.future import SendFuture
from vq.client.producer.intake.stages import encode_head
from vq.model import SendResult
from vq.store.records.record import Properties, encode_properties


def test_messages_leave_in_order_in_batches_of_bounded_count() -> None:
    line = Line(batch_records=2, window=5)
    line.submit(b"1", b"2", b"3", b"4", b"5", b"6", b"7")
    batches = line.send()
    assert [contents(batch) for batch in batches] == [
        [b"1", b"2"],
        [b"3", b"4"],
        [b"5", b"6"],
        [b"7"],
    ]
    assert numbers(batches) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert [batch.ids for batch in batches] == [[1, 2], [3, 4], [5, 6], [7]]
    assert line.send() == []


def test_batches_are_bounded_in_bytes_and_a_larger_message_goes_alone() -> None:
    line = Line(batch_records=10, batch_bytes=100)
    line.submit(b"a" * 30, b"b" * 30, b"c" * 200, b"d" * 80)
    batches = line.send()
    line.queue.on_stored(batches[0], 88)
    assert [len(batch.items) for batch in [*batches, *line.send()]] == [2, 1, 1]


@pytest.mark.parametrize("tag", [b"t" * 255, None])
def test_what_stands_before_the_payload_counts_towards_a_batch(tag: bytes | None) -> None:
    """2 000 messages with 3 KB of headers are 6 MB: more than any broker takes in one batch."""
    line = Line(batch_records=2_000, batch_bytes=512 << 10, window=1)
    headers = encode_properties(Properties(headers={"h": "x" * 3_000}))
    head = encode_head(tag, headers)
    line.queue.pending += [SendFuture(b"x", head, None, 1e9) for _ in range(2_000)]
    sent = 0
    while batches := line.send():
        (batch,) = batches
        assert len(batch.body) <= 512 << 10
        assert len(batch.items) > 100 or not line.queue.pending
        assert batch.size == sum(item.size for item in batch.items)
        sent += len(batch.items)
        line.queue.on_stored(batch, 0)
    assert sent == 2_000
    assert sum(size for _, size in line.ended) == 2_000 * (1 + len(head[1]) if head else 0)


def test_batches_follow_the_size_of_what_is_sent() -> None:
    """Full by bytes or by records, whichever comes first; sizes may change at any time."""
    line = Line(batch_records=100, batch_bytes=2_000, window=5)
    for size, rounds, filled in ((180, 1, 10), (0, 12, 100), (980, 2, 2), (5_000, 1, 1)):
        for _ in range(rounds):
            line.submit(*[bytes(size)] * 200)
            batches = line.send()
            for batch in batches:
                line.queue.on_stored(batch, 0)
            while line.queue.pending:
                for batch in line.send():
                    batches.append(batch)
                    line.queue.on_stored(batch, 0)
        assert {len(batch.items) for batch in batches[:-1]} == {filled}, f"{size} bytes"


def test_a_further_batch_goes_out_once_it_is_half_full_in_either_way() -> None:
    """One is always under way; with large messages half a batch is few of them."""
    line = Line(batch_records=100, batch_bytes=2_000)
    line.submit(*[bytes(180)] * 20)
    assert [len(batch.items) for batch in line.send()] == [10, 10]
    line.submit(*[bytes(180)] * 4)
    assert line.send() == []
    line.submit(bytes(180))
    assert [len(batch.items) for batch in line.send()] == [5]


def test_the_window_bounds_what_is_in_flight() -> None:
    line = Line(batch_records=1, window=3)
    line.submit(*[b"%d" % n for n in range(5)])
    first = line.send()
    assert len(first) == 3
    line.queue.on_stored(first[0], 88)
    assert numbers(line.send()) == [(0, 3)]


def test_behind_a_batch_a_further_one_waits_until_it_is_worth_its_frame() -> None:
    line = Line(batch_records=10)
    line.submit(b"1")
    assert len(line.send()) == 1
    line.submit(b"2")
    assert line.send() == []
    line.submit(*[b"x"] * 4)
    assert [len(batch.items) for batch in line.send()] == [5]


def test_ids_that_cannot_be_made_cost_neither_messages_nor_numbers() -> None:
    """The clock is wrong, say: once it is right, all goes on, without a gap."""
    line = Line()
    sent = line.submit(b"1", b"2")

    def no_ids(_: int) -> list[int]:
        raise errors.InvalidArgument("the clock is wrong")

    with pytest.raises(errors.InvalidArgument):
        line.queue.next_to_send(line.now, no_ids)
    assert line.queue.pending == sent
    assert numbers(line.send()) == [(0, 0)]


def test_what_waits_can_be_refused_as_a_whole() -> None:
    line = Line(batch_records=1, window=1)
    sent = line.submit(b"1", b"22", b"333")
    line.send()
    line.queue.fail_pending(errors.NotSent("no ids"))
    assert outcomes(sent) == ["pending", "NotSent", "NotSent"]
    assert line.ended == [(2, 5)]


def test_a_stored_batch_tells_each_message_its_place() -> None:
    line = Line()
    sent = line.submit(b"1", b"22")
    (batch,) = line.send()
    line.queue.on_stored(batch, 88)
    assert [each.outcome for each in sent] == [SendResult(3, 88, 1), SendResult(3, 88 + 21, 2)]
    assert line.ended == [(2, 3)]
    assert line.idle


def test_answers_out_of_order_are_told_at_once() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2")
    first, second = line.send()
    line.queue.on_stored(second, 200)
    assert outcomes(sent) == ["pending", "SendResult"]
    assert line.queue.in_flight
    line.queue.on_stored(first, 100)
    assert line.idle


def test_nothing_new_goes_behind_a_batch_that_was_given_up() -> None:
    """Its bytes count in no buffer any more; while a broker is silent, they must not pile up."""
    line = Line(window=5)
    futures = line.submit(b"1" * 1_000)
    (batch,) = line.send()
    line.later(31)
    assert outcomes(futures) == ["TimedOut"]
    assert not any(item.content for item in batch.items), "the bytes are kept once"
    later = line.submit(b"2")
    assert line.send() == []
    line.cut(batch)
    line.later(5)
    assert line.send() == [batch], "it is settled first"
    line.queue.on_stored(batch, 88)
    (behind,) = line.send()
    line.queue.on_stored(behind, 500)
    assert outcomes(later) == ["SendResult"]
    assert line.ended == [(1, 1_000), (1, 1)]


def test_the_meter_counts_batches_resends_and_outcomes() -> None:
    line = Line()
    line.submit(b"1", b"22", b"333")
    first, second = line.send()
    line.now += 0.004
    line.queue.on_unanswered([first, second], line.now)
    line.now = line.queue.retry_at
    line.send()
    line.queue.on_stored(first, 0)
    line.queue.on_refused(second, errors.MessageTooLarge("no"), line.now)
    found = line.meter.read()
    assert (found.batches_stored, found.resends) == (1, 2)
    assert (found.messages_stored, found.bytes_stored) == (2, 3)
    assert (found.messages_unknown, found.bytes_unknown) == (1, 3)
    assert found.latency.sum_s == line.now - 100.0
