"""A producer's line in one partition, case by case; the property test plays random histories."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter

from vq import errors
from vq.client.config import ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer import partition_queue, stamps
from vq.client.producer.batch import Batch, is_diverted
from vq.client.producer.head import encode_head
from vq.client.producer.metrics import Meter
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.puts import apply_answer
from vq.model import SendResult, TopicPartition
from vq.store.record import Properties, decode_records, encode_properties

BACKOFF_S = 0.5


class Line:
    """A queue, its time, and what it told whoever counts the buffer."""

    def __init__(self, **settings: int | float) -> None:
        bounds: dict[str, Any] = {"retry_backoff_s": BACKOFF_S, "retry_backoff_max_s": 2}
        config = ProducerConfig(**{"batch_records": 2, **bounds, **settings})
        self.now = 100.0
        self.ended: list[tuple[int, int]] = []
        self.meter = Meter(lambda: self.now).topic("t")
        self.queue = PartitionQueue(
            TopicPartition("t", 3),
            itertools.count(7).__next__,
            config,
            lambda ended: self.ended.append((ended.count, ended.size)),
            self.meter,
        )
        self._ids = itertools.count(1)

    def submit(self, *contents: bytes, within: float = 30.0) -> list[SendFuture]:
        futures = [
            SendFuture(content, None, None, self.now + within, appended_at=self.now)
            for content in contents
        ]
        self.queue.pending += futures
        return futures

    def send(self) -> list[Batch]:
        def take_ids(count: int) -> list[int]:
            return list(itertools.islice(self._ids, count))

        return list(iter(lambda: self.queue.next_to_send(self.now, take_ids), None))

    @property
    def idle(self) -> bool:
        return not (self.queue.pending or self.queue.in_flight or self.queue.owner)

    def refuse(self, batch: Batch, error: errors.VqError) -> None:
        self.queue.on_refused(batch, error, self.now)

    def answer(self, batch: Batch, error: errors.VqError) -> None:
        apply_answer(self.queue, batch, error, self.now)

    def cut(self, *batches: Batch) -> None:
        self.queue.on_unanswered(batches, self.now)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.queue.on_tick(self.now)


def numbers(batches: list[Batch]) -> list[tuple[int, int]]:
    """Epoch and sequence of batches."""
    return [(batch.stamp.producer_epoch, batch.stamp.sequence) for batch in batches]


def contents(batch: Batch) -> list[bytes]:
    return [record.payload for record in decode_records(batch.body, 0)]


def outcomes(futures: list[SendFuture]) -> list[str]:
    return [
        type(each.outcome).__name__ if each.outcome is not None else "pending" for each in futures
    ]


# What is sent -----------------------------------------------------------------------------------
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


# What is stored ---------------------------------------------------------------------------------
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


# Numbers that run out ---------------------------------------------------------------------------
def ids_of(batches: list[Batch]) -> list[int]:
    return [batch.stamp.producer_id for batch in batches]


def test_a_refused_batch_with_nothing_behind_it_costs_no_epoch() -> None:
    """Its number is used again, so refusals may go on for ever."""
    line = Line(batch_records=1)
    for _ in range(100):
        line.submit(b"no")
        (batch,) = line.send()
        assert numbers([batch]) == [(0, 0)]
        line.refuse(batch, errors.PermissionRefused("no"))
    line.submit(b"yes")
    (batch,) = line.send()
    line.queue.on_stored(batch, 88)
    line.submit(b"no")
    (batch,) = line.send()
    assert numbers([batch]) == [(0, 1)]
    line.refuse(batch, errors.PermissionRefused("no"))
    assert line.idle


def test_numbers_are_not_used_again_while_a_copy_without_an_answer_may_come() -> None:
    """Of a batch that waits for its resend: its first copy may be late on the connection cut."""
    line = Line(batch_records=1)
    late = line.submit(b"1", within=1.0)
    line.submit(b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy("later"))
    line.cut(second)
    line.later(1.5)
    assert outcomes(late) == ["Busy"]
    assert numbers([second]) == [(1, 0)]


def test_a_refused_batch_that_may_be_stored_all_the_same_costs_an_epoch() -> None:
    """Its copy must not meet the number of another batch."""
    line = Line(batch_records=1)
    line.submit(b"1")
    (batch,) = line.send()
    line.cut(batch)
    line.now += BACKOFF_S
    assert line.send() == [batch]
    line.refuse(batch, errors.PermissionRefused("no"))
    line.submit(b"2")
    line.now += BACKOFF_S
    assert numbers(line.send()) == [(1, 0)]


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs 0 to 6; from 3 on a new producer id is due."""
    monkeypatch.setattr(stamps, "PRODUCER_EPOCH_MAX", 6)
    monkeypatch.setattr(stamps, "RENEW_EPOCH", 3)


def doubt(line: Line) -> None:
    """One message more leaves the line although it may be stored."""
    line.submit(b"perhaps")
    line.now += 10
    (batch,) = line.send()
    line.cut(batch)
    line.now += 10
    assert line.send() == [batch]
    line.refuse(batch, errors.PermissionRefused("no"))


@pytest.mark.usefixtures("few_epochs")
def test_a_new_producer_id_is_taken_once_the_line_is_empty_and_its_copies_are_shut_out() -> None:
    line = Line(batch_records=1)
    for _ in range(3):
        doubt(line)
    line.submit(b"1", b"2", b"3")
    line.now += 10
    (first,) = line.send()
    assert (ids_of([first]), numbers([first])) == ([7], [(3, 0)]), "shuts out the copies before"
    assert line.send() == [], "the line becomes empty first"
    line.queue.on_stored(first, 88)
    second, third = line.send()
    assert ids_of([second, third]) == [8, 8]
    assert numbers([second, third]) == [(0, 0), (0, 1)]


@pytest.mark.usefixtures("few_epochs")
def test_a_cut_keeps_a_batch_under_its_producer_id() -> None:
    """Perhaps it is stored: under another one it would be stored twice."""
    line = Line(batch_records=1)
    for _ in range(3):
        doubt(line)
    for expected in ((7, 3), (8, 0)):
        line.submit(b"x")
        line.now += 10
        (batch,) = line.send()
        stamp = batch.stamp
        assert stamp[:2] == expected
        for _ in range(3):
            line.cut(batch)
            line.now += 10
            assert line.send() == [batch]
            assert batch.stamp == stamp
        line.queue.on_stored(batch, 88)


@pytest.mark.usefixtures("few_epochs")
def test_the_last_epoch_is_never_passed() -> None:
    """Not even when nothing is ever stored."""
    line = Line(batch_records=1)
    stamps = []
    for _ in range(20):
        doubt(line)
        line.submit(b"x")
        line.now += 10
        (batch,) = line.send()
        stamps.append(batch.stamp[:2])
        line.refuse(batch, errors.PermissionRefused("no"))
    assert max(epoch for _, epoch in stamps) == 6
    assert stamps == sorted(set(stamps))


# Cuts -------------------------------------------------------------------------------------------
def test_after_a_cut_everything_goes_out_again_in_order_with_the_same_stamps() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    batches = line.send()
    line.cut(*batches)
    assert line.send() == [], "it waits a moment first"
    line.now += BACKOFF_S
    assert line.send() == batches
    assert numbers(batches) == [(0, 0), (0, 1)]


def test_pauses_double_up_to_their_bound_and_begin_anew_after_a_success() -> None:
    line = Line()
    pauses = []
    line.submit(b"1")
    (batch,) = line.send()
    for _ in range(4):
        line.cut(batch)
        pauses.append(line.queue.retry_at - line.now)
        line.now = line.queue.retry_at
        assert line.send() == [batch]
    assert pauses == [0.5, 1.0, 2.0, 2.0]
    line.queue.on_stored(batch, 88)
    line.submit(b"2")
    (batch,) = line.send()
    line.cut(batch)
    assert line.queue.retry_at - line.now == BACKOFF_S


# Refusals ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "error", [errors.Busy(), errors.NotMaster(), errors.DiskFull(), errors.UnknownTopic()]
)
def test_what_may_pass_later_is_sent_again_with_its_stamp(error: errors.VqError) -> None:
    line = Line()
    sent = line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, error)
    assert outcomes(sent) == ["pending"]
    line.now += BACKOFF_S
    assert line.send() == [batch]
    assert numbers([batch]) == [(0, 0)]


def test_a_final_refusal_is_told_and_the_rest_goes_on_under_the_next_epoch() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.refuse(first, errors.MessageTooLarge("too large"))
    assert outcomes(sent) == ["MessageTooLarge", "pending", "pending"]
    assert not second.sent, "it cannot be stored as it was sent: one is missing before it"
    assert line.send() == [second, third]
    assert numbers([second, third]) == [(1, 0), (1, 1)]


def test_a_final_refusal_waits_for_its_elders() -> None:
    """Until they are settled nothing passes the hole."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.refuse(second, errors.PermissionRefused("no"))
    line.refuse(third, errors.SequenceGap())
    assert outcomes(sent) == ["pending", "pending", "pending"]
    line.now += BACKOFF_S
    assert line.send() == []
    line.queue.on_stored(first, 88)
    assert outcomes(sent) == ["SendResult", "PermissionRefused", "pending"]
    assert line.send() == [third]
    assert numbers([third]) == [(0, 1)], "both were refused, so no copy is under way"


def test_a_gap_behind_an_elder_without_an_answer_waits_for_it() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy())
    line.refuse(second, errors.SequenceGap())
    line.now = line.queue.retry_at
    assert line.send() == [first, second]
    assert numbers([first, second]) == [(0, 0), (0, 1)]


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    line = Line(batch_records=1)
    line.submit(b"1", b"2")
    batches = line.send()
    line.refuse(batches[0], errors.UnknownProducer())
    assert line.send() == batches
    assert numbers(batches) == [(1, 0), (1, 1)]


def test_a_broker_that_forgets_the_producer_each_time_is_not_asked_without_pause() -> None:
    line = Line()
    line.submit(b"1")
    (batch,) = line.send()
    line.refuse(batch, errors.UnknownProducer())
    pauses = []
    for _ in range(3):
        assert line.send() == [batch]
        line.refuse(batch, errors.UnknownProducer())
        pauses.append(line.queue.retry_at - line.now)
        line.now = line.queue.retry_at
    assert pauses == [0.5, 1.0, 2.0]


def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_outcome_unknown() -> None:
    """The first attempt may be stored; so may be those behind it that were sent then."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2", b"3")
    first, second, third = line.send()
    line.cut(first, second)
    line.queue.on_refused(third, errors.Busy(), line.now)
    line.now = line.queue.retry_at
    line.send()
    line.refuse(first, errors.InvalidRequest("by a broker of another mind"))
    assert outcomes(sent) == ["TimedOut", "TimedOut", "TimedOut"]
    assert isinstance(sent[0].exception(0), errors.OutcomeUnknown)
    later = line.submit(b"4")
    assert numbers(line.send()) == [(1, 0)]
    assert outcomes(later) == ["pending"]


def test_a_batch_too_old_to_be_told_is_unknown_and_not_sent_again() -> None:
    """Also when the answer came to its first attempt; those that were sent behind it leave, too."""
    line = Line(batch_records=1)
    sent = line.submit(b"1", b"2")
    first, _ = line.send()
    line.answer(first, errors.SequenceStale("too old"))
    assert outcomes(sent) == ["SequenceStale", "TimedOut"]
    assert isinstance(sent[0].exception(0), errors.OutcomeUnknown)
    line.later(1.0)
    assert line.send() == []
    later = line.submit(b"3")
    assert numbers(line.send()) == [(1, 0)]
    assert outcomes(later) == ["pending"]


# Deadlines --------------------------------------------------------------------------------------
def test_what_was_never_sent_is_refused_at_its_deadline() -> None:
    line = Line()
    sent = line.submit(b"1", b"22", within=3.0)
    line.later(2.9)
    assert outcomes(sent) == ["pending", "pending"]
    line.later(0.1)
    assert outcomes(sent) == ["NotSent", "NotSent"]
    assert line.ended[-1] == (2, 3)
    assert line.idle


def test_what_waits_behind_a_refusal_is_told_why() -> None:
    """A full disk refuses the batch in front; those behind it never reach the broker."""
    line = Line(batch_records=1, window=1)
    first, behind = line.submit(b"1", within=3.0), line.submit(b"2", within=3.0)
    line.refuse(line.send()[0], errors.DiskFull("95 % full"))
    line.later(3.0)
    assert outcomes(first + behind) == ["DiskFull", "DiskFull"]
    assert "95 % full" in str(behind[0].exception(0))
    later = line.submit(b"3")
    [batch] = line.send()
    line.queue.on_stored(batch, 88)
    assert outcomes(later) != ["DiskFull"]
    late = line.submit(b"4", within=1.0)
    line.later(1.0)
    assert outcomes(late) == ["NotSent"], "the broker takes messages again"


def test_a_short_deadline_behind_long_ones_is_kept() -> None:
    """A blocking send of 3 s is told after 3 s, whatever waits before it."""
    line = Line()
    before = line.submit(b"1", within=30)
    short = line.submit(b"2", within=3)
    after = line.submit(b"3", within=30)
    line.later(3.0)
    assert outcomes(before + short + after) == ["pending", "NotSent", "pending"]
    assert contents(line.send()[0]) == [b"1", b"3"]


def test_a_long_line_is_looked_through_once_a_second() -> None:
    line = Line()
    line.submit(*[b"x"] * 3_000, within=30)
    line.later(0.0)
    short = line.submit(b"2", within=0.1)
    line.later(0.5)
    assert outcomes(short) == ["pending"]
    line.later(0.6)
    assert outcomes(short) == ["NotSent"]


def test_without_an_answer_the_outcome_is_unknown_and_the_place_is_kept() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", within=3) + line.submit(b"2")
    first, second = line.send()
    line.later(3.0)
    assert outcomes(sent) == ["TimedOut", "pending"]
    line.cut(first, second)
    line.now = line.queue.retry_at
    assert line.send() == [first, second], "a hole would put the second in doubt"
    line.queue.on_stored(first, 88)
    line.queue.on_stored(second, 200)
    assert outcomes(sent) == ["TimedOut", "SendResult"]
    assert line.ended == [(1, 1), (1, 1)]


def test_a_batch_refused_until_its_deadline_is_told_why_and_never_stored() -> None:
    line = Line(batch_records=1)
    sent = line.submit(b"1", within=3) + line.submit(b"2")
    first, second = line.send()
    line.refuse(first, errors.DiskFull("full"))
    line.refuse(second, errors.SequenceGap())
    line.later(3.0)
    assert outcomes(sent) == ["DiskFull", "pending"]
    line.now = max(line.now, line.queue.retry_at)
    assert line.send() == [second]
    assert numbers([second]) == [(0, 0)]


def test_in_a_batch_under_way_each_message_keeps_its_own_deadline() -> None:
    line = Line()
    short = line.submit(b"short", within=3)
    long = line.submit(b"long", within=30)
    (batch,) = line.send()
    line.later(3.0)
    assert outcomes(short + long) == ["TimedOut", "pending"]
    assert line.ended == [(1, 5)]
    line.later(0.1)
    assert contents(batch) == [b"short", b"long"], "the bytes are those that were sent"
    line.queue.on_stored(batch, 88)
    assert long[0].result(0).offset == 88 + 25
    assert outcomes(short) == ["TimedOut"]
    assert line.ended == [(1, 5), (1, 4)]


def test_in_a_batch_that_nobody_took_each_message_keeps_its_own_deadline() -> None:
    """What is told as refused must not be stored with the others later."""
    line = Line(batch_records=3)
    short = line.submit(b"short", within=3)
    long = line.submit(b"long", b"longer", within=30)
    (batch,) = line.send()
    line.refuse(batch, errors.Busy("later"))
    line.later(3.0)
    assert outcomes(short + long) == ["Busy", "pending", "pending"]
    assert line.send() == [batch]
    assert (contents(batch), numbers([batch])) == ([b"long", b"longer"], [(0, 0)])
    assert batch.ids == [2, 3]
    line.queue.on_stored(batch, 88)
    assert long[0].result(0) == SendResult(3, 88, 2)
    assert line.ended == [(1, 5), (2, 10)]


def test_messages_given_up_in_doubt_are_not_sent_anew_with_their_batch() -> None:
    """First one is given up on the wire; later the batch turns out to be stored nowhere."""
    line = Line(batch_records=3)
    first = line.submit(b"1", within=3)
    second = line.submit(b"2", within=5)
    third = line.submit(b"3", within=30)
    (batch,) = line.send()
    line.later(3.0)
    line.refuse(batch, errors.UnknownProducer())
    assert numbers([batch]) == [(1, 0)]
    assert not batch.sent
    line.later(2.0)
    assert outcomes(first + second + third) == ["TimedOut", "NotSent", "pending"]
    assert contents(batch) == [b"3"]
    assert line.send() == [batch]
    line.queue.close(errors.InvalidState("closed"))
    assert outcomes(third) == ["TimedOut"]
    assert line.ended == [(1, 1), (1, 1), (1, 1), (0, 0)]


# Stale answers, ends ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answer",
    [
        lambda line, batch: line.queue.on_stored(batch, 88),
        lambda line, batch: line.refuse(batch, errors.Busy()),
        lambda line, batch: line.refuse(batch, errors.MessageTooLarge()),
        lambda line, batch: line.refuse(batch, errors.SequenceGap()),
        lambda line, batch: line.cut(batch),
    ],
)
def test_answers_after_the_end_change_nothing(answer: Callable[[Line, Batch], None]) -> None:
    line = Line()
    sent = line.submit(b"1") + line.submit(b"2")
    (batch,) = line.send()
    waiting = line.submit(b"3")
    line.queue.close(errors.UnknownTopic("deleted"))
    assert outcomes(sent + waiting) == ["TimedOut", "TimedOut", "UnknownTopic"]
    told = list(line.ended)
    answer(line, batch)
    assert line.ended == told
    assert not line.queue.in_flight


# Blocking senders -------------------------------------------------------------------------------
def waited(line: Line, content: bytes = b"x") -> BlockingSendFuture:
    future = BlockingSendFuture(content, None, None, line.now + 30)
    future.partition = line.queue.partition.partition
    future.leads = True
    line.queue.pending.append(future)
    return future


def test_a_thread_leads_only_where_nothing_else_comes_before_its_message() -> None:
    line = Line()
    line.submit(b"1")
    future = waited(line)
    assert not line.queue.claim(future), "a message that is not its thread's stands before it"
    (batch,) = line.send()
    later = waited(line)
    assert not line.queue.claim(later), "a batch is in flight"
    line.queue.on_stored(batch, 88)
    line.queue.owner = "sender"
    assert not line.queue.claim(later), "the sender is at it"
    line.queue.owner = None
    line.queue.closed = errors.UnknownTopic("deleted")
    assert not line.queue.claim(later), "nothing is sent any more"
    line.queue.closed = None
    assert line.queue.claim(later)
    assert line.queue.claim(later), "again: it leads already"
    assert not line.queue.enter(), "the sender leaves it alone"
    assert not line.queue.claim(waited(line)), "one leads at a time"


def test_the_thread_that_leads_takes_what_blocking_senders_wait_for() -> None:
    """Messages with callbacks end the batch: their outcome is told on the loop."""
    line = Line()
    first, second = waited(line), waited(line)
    line.submit(b"not waited for")
    third = waited(line)
    assert line.queue.claim(second), "those before it are waited for, too"
    assert line.queue.take() == [first, second]
    assert line.queue.shared
    assert line.queue.without_outcome() == [first, second, *line.queue.pending]
    assert line.queue.pending[-1] is third
    line.queue.on_stored(line.queue.batch_of([first, second], [1, 2]), 88)
    assert line.queue.leave(), "the sender has something to do"
    assert line.queue.owner is None


def test_the_lead_goes_on_to_the_thread_that_stands_first() -> None:
    line = Line()
    first, second, third = (waited(line) for _ in range(3))
    assert line.queue.claim(first)
    line.queue.pending = [first]
    assert line.queue.take() == [first]
    assert not line.queue.shared
    line.queue.pending += [second, third]
    line.queue.on_stored(line.queue.batch_of([first], [1]), 88)
    assert not line.queue.leave(), "the sender has nothing to do"
    assert line.queue.owner is second
    assert second.sleep(0), "it was roused"
    assert not third.sleep(0)
    assert line.queue.claim(second)
    assert line.queue.take() == [second, third]


def test_the_sender_gives_the_lead_back_where_only_threads_wait() -> None:
    line = Line()
    (waits,) = [waited(line)]
    assert not line.queue.enter()
    assert line.queue.owner is waits
    line.queue.owner = None
    waits.leads = False  # its thread went away, or could not send it
    assert line.queue.enter()


def test_what_was_claimed_and_not_sent_stands_first_and_is_the_senders() -> None:
    line = Line()
    first = waited(line)
    assert line.queue.claim(first)
    assert line.queue.take() == [first]
    later = line.submit(b"2", b"3")
    assert line.queue.without_outcome() == [first, *later]
    assert line.queue.leave()
    assert line.queue.pending == [first, *later]
    assert not line.queue.claim(first)
    assert line.queue.enter()


def test_a_claimed_message_that_has_its_outcome_leaves_nothing() -> None:
    line = Line()
    first = waited(line)
    assert line.queue.claim(first)
    line.queue.on_stored(line.queue.batch_of(line.queue.take(), [9]), 88)
    assert not line.queue.leave()
    assert line.queue.without_outcome() == []


def test_what_a_blocking_sender_could_not_settle_the_loop_sends_again() -> None:
    line = Line()
    assert line.queue.claim(waited(line))
    batch = line.queue.batch_of(line.queue.take(), [9])
    assert (batch.sent, batch.attempts, numbers([batch])) == (True, 1, [(0, 0)])
    line.cut(batch)
    assert line.queue.leave()
    line.now += BACKOFF_S
    assert line.send() == [batch]
    assert (batch.attempts, numbers([batch])) == (2, [(0, 0)])


def test_what_its_thread_left_without_an_answer_is_sent_again() -> None:
    """A signal handler raised before the answer was applied."""
    line = Line()
    assert line.queue.claim(waited(line))
    batch = line.queue.batch_of(line.queue.take(), [9])
    assert line.queue.leave()
    assert (batch.sent, batch.unknown) == (False, True)
    assert line.send() == [batch]


def test_the_sender_takes_the_queue_of_a_thread_that_has_gone() -> None:
    line = Line()
    first, second = waited(line), waited(line)
    assert line.queue.claim(first)
    assert line.queue.take() == [first, second]
    assert not line.queue.enter()
    first.leads = False
    assert line.queue.enter()
    assert line.queue.pending == [first, second]


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


# Unavailable partitions -------------------------------------------------------------------------
def test_batches_that_are_certainly_not_stored_are_taken_apart() -> None:
    line = Line(batch_records=2, window=5)
    futures = line.submit(b"1", b"2", b"3", b"4", b"5", b"6")
    first, second, third = line.send()
    line.cut(first)
    line.refuse(second, errors.Busy("later"))
    line.refuse(third, errors.Busy("later"))
    line.submit(b"7")
    line.queue.take_apart()
    assert [item.content for item in line.queue.pending] == [b"3", b"4", b"5", b"6", b"7"]
    assert list(line.queue.in_flight) == [first], "it may be stored"
    line.now += 10
    again = line.send()
    assert [contents(batch) for batch in again] == [
        [b"1", b"2"],
        [b"3", b"4"],
        [b"5", b"6"],
        [b"7"],
    ]
    assert numbers(again) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert outcomes(futures) == ["pending"] * 6
    for batch in again:
        line.queue.on_stored(batch, 0)
    found = line.meter.read()
    assert (found.messages_stored, found.bytes_stored) == (7, 7), "each message counts once"
    assert (found.batches_stored, found.mean_batch_messages) == (4, 7 / 4)


def test_a_batch_in_front_of_one_that_may_be_stored_stays() -> None:
    line = Line(batch_records=1, window=5)
    line.submit(b"1", b"2")
    first, second = line.send()
    line.refuse(first, errors.Busy("later"))
    line.queue.take_apart()
    assert list(line.queue.in_flight) == [first, second]


def test_refused_messages_leave_and_others_stay() -> None:
    line = Line()
    one, two, three = line.submit(b"1", b"2", b"3")
    line.queue.refuse([one, three], errors.PartitionUnavailable("away"))
    assert line.queue.pending == [two]
    assert outcomes([one, three]) == ["PartitionUnavailable"] * 2
    assert outcomes([two]) == ["pending"]
    assert line.ended == [(2, 2)]


def test_a_message_of_another_partition_is_told_that_it_was_diverted() -> None:
    line = Line(batch_records=10)
    own, spread, diverted = line.submit(b"1", b"2", b"3")
    own.partition, diverted.partition = 3, 1
    blocking = waited(line)
    blocking.partition, blocking.dealt = 1, True
    line.queue.has_diverted = True
    (batch,) = line.send()
    assert not line.queue.has_diverted, "none is pending"
    line.queue.on_stored(batch, 88)
    results = [future.result(0) for future in (own, spread, diverted, blocking)]
    assert [result.diverted for result in results] == [False, False, True, False]
    assert [result.partition for result in results] == [3] * 4


def test_each_message_is_looked_at_once_while_diverted_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a look at all that wait, each batch would cost as much as the whole line."""
    looks: list[SendFuture] = []

    def counted(item: SendFuture, partition: int) -> bool:
        looks.append(item)
        return is_diverted(item, partition)

    monkeypatch.setattr(partition_queue, "is_diverted", counted)
    line = Line(batch_records=10, window=1)
    *_, diverted = futures = line.submit(*[b"x"] * 500)
    diverted.partition = 1
    line.queue.has_diverted = True
    while batches := line.send():
        line.queue.on_stored(batches[0], 88)
    assert diverted.result(0).diverted
    assert len(looks) == len(futures)


def test_a_message_is_told_that_it_was_diverted_wherever_its_sending_is_interrupted() -> None:
    for place in itertools.count():
        line = Line()
        (diverted,) = line.submit(b"1")
        diverted.partition = 1
        line.queue.has_diverted = True
        interrupter = Interrupter(place, "partition_queue.py")
        with contextlib.suppress(Interrupted):
            interrupter.run(line.send)
        line.send()
        (batch,) = line.queue.in_flight
        line.queue.on_stored(batch, 88)
        assert diverted.result(0).diverted, interrupter.reached
        if not interrupter.reached:
            break
    assert place > 10


def test_a_batch_of_a_thread_does_not_hide_what_the_sender_diverts_meanwhile() -> None:
    """The sender marks the queue, and then moves messages to it: the batch may be made between."""
    line = Line()
    blocking = waited(line)
    assert line.queue.claim(blocking)
    items = line.queue.take()
    line.queue.has_diverted = True
    line.queue.batch_of(items, [1])
    (diverted,) = line.submit(b"1")
    diverted.partition = 1
    line.queue.leave()
    batches = [*line.queue.in_flight]
    line.queue.on_stored(batches[0], 88)
    (batch,) = line.send()
    line.queue.on_stored(batch, 90)
    assert diverted.result(0).diverted


# Ordered ----------------------------------------------------------------------------------------
def test_ordered_what_is_behind_a_refused_batch_is_refused_too() -> None:
    line = Line(batch_records=1, window=5, ordered=True)
    futures = line.submit(b"1", b"2", b"3", b"4", b"5", b"6")
    first, second, *_ = line.send()
    line.refuse(second, errors.MessageTooLarge("no"))
    assert outcomes(futures) == ["pending"] * 6, "what is before it has no outcome yet"
    line.queue.on_stored(first, 88)
    assert outcomes(futures) == ["SendResult", "MessageTooLarge", *["NotSent"] * 4]
    assert "an earlier message" in str(futures[2].outcome)
    assert line.idle
    line.submit(b"7")
    (batch,) = line.send()
    assert numbers([batch]) == [(1, 0)], "copies of the others may still come to the broker"


def test_ordered_what_was_sent_behind_an_unknown_one_is_unknown() -> None:
    line = Line(batch_records=1, window=2, ordered=True)
    futures = line.submit(b"1", within=1.0) + line.submit(b"2", b"3")
    line.send()
    line.later(1.0)
    assert outcomes(futures) == ["TimedOut", "TimedOut", "NotSent"]
    assert len(line.queue.in_flight) == 2, "the broker may still store them"


def test_ordered_a_late_message_takes_along_only_what_is_behind_it() -> None:
    line = Line(batch_records=4, ordered=True)
    futures = line.submit(b"1") + line.submit(b"2", within=1.0) + line.submit(b"3")
    (batch,) = line.send()
    line.refuse(batch, errors.Busy("later"))
    futures += line.submit(b"4")
    line.later(1.0)
    assert outcomes(futures) == ["pending", "Busy", "NotSent", "NotSent"]
    line.now += 10
    (again,) = line.send()
    assert contents(again) == [b"1"]
    assert again.count == 1
    line.queue.on_stored(again, 88)
    assert line.idle
    assert sum(count for count, _ in line.ended) == 4


def test_ordered_late_pending_messages_take_along_what_is_behind_them() -> None:
    line = Line(ordered=True)
    futures = line.submit(b"1") + line.submit(b"2", within=1.0) + line.submit(b"3")
    line.later(1.0)
    assert outcomes(futures) == ["pending", "NotSent", "NotSent"]
    assert "deadline" in str(futures[1].outcome)
    assert "an earlier message" in str(futures[2].outcome)


def test_a_thread_does_not_lead_where_its_message_was_moved_to() -> None:
    line = Line()
    future = waited(line)
    future.partition = 1
    line.queue.owner = "sender"
    assert line.queue.leave(), "the sender has work here"
    assert line.queue.owner is None


def test_what_is_closed_says_why_and_not_that_its_deadline_has_passed() -> None:
    """A factory that is shut down ends messages long before their deadlines."""
    line = Line(batch_records=1)
    sent, refused = line.submit(b"1", b"2")
    batches = line.send()
    (waiting,) = line.submit(b"3")
    line.refuse(batches[1], errors.Busy())
    line.queue.close(errors.NotSent("the factory is shut down"))
    why = "the factory is shut down"
    expected = f"t-3: sent, and perhaps stored; no answer came before the end: {why}"
    assert (type(sent.outcome), str(sent.outcome)) == (errors.TimedOut, expected)
    assert outcomes([refused, waiting]) == ["Busy", "NotSent"]
    assert str(waiting.outcome) == why


class Racing(list[SendFuture]):
    """Pending messages to which another thread appends one just after they were copied."""

    def __init__(self, items: list[SendFuture], new: SendFuture) -> None:
        super().__init__(items)
        self._new = [new]

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if self._new:
            self.append(self._new.pop())
        return found


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_that_comes_while_late_ones_are_taken_out_stays(ordered: bool) -> None:
    line = Line(ordered=ordered)
    late = line.submit(b"late", within=1.0)
    new = SendFuture(b"new", None, None, line.now + 30)
    line.queue.pending = Racing(line.queue.pending, new)
    line.queue.take_late(line.now + 2)
    assert line.queue.failing is not None
    assert line.queue.failing.items == late
    assert line.queue.pending == [new]


def test_a_blocking_send_whose_batch_is_taken_apart_is_sent_by_the_loop() -> None:
    line = Line()
    future = waited(line)
    (batch,) = line.send()
    future.leads = True
    line.refuse(batch, errors.Busy("later"))
    line.queue.take_apart()
    assert line.queue.pending == [future]
    assert not future.leads
