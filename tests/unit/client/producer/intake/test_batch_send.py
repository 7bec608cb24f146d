"""A call of ``send_batch``: every message has its own outcome, in the order of the call."""

import pickle
from typing import Any

import pytest
from support.queues import QueueHost, ring
from support.threads import in_thread

from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.intake.batch_send import BatchSend
from vq.client.producer.intake.stages import Stages
from vq.client.producer.queue.batch import Ended
from vq.client.producer.spread.partitioner import key_partition
from vq.clock import ManualClock
from vq.errors import (
    BatchFailed,
    BufferFull,
    InvalidArgument,
    MessageTooLarge,
    NotPublished,
    NotSent,
    TimedOut,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message, SendResult, TopicSettings
from vq.testing.waiting import WAIT_S, block_until

DEADLINE = 1_030.0


class CountedLock:
    """A reentrant lock that counts how often it is taken."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.taken = 0

    def __enter__(self) -> None:
        self.taken += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


class Bench:
    """An accumulator with the topics ``t`` and ``u`` of three partitions each."""

    def __init__(self, **settings: Any) -> None:
        self.config = ProducerConfig(**settings)
        self.wakes: list[None] = []
        self.accumulator = Accumulator(
            self.config,
            ManualClock(monotonic=1_000.0),
            lambda: self.wakes.append(None),
            stages=Stages(self.config),
        )
        for topic in ("t", "u"):
            queues = QueueHost(self.config, spread=ring).topic(topic)
            queues.update(TopicSettings(max_message_bytes=100), 3, [0, 1, 2])
            self.accumulator.open(queues)

    def batch(self, *messages: Any) -> BatchSend:
        return BatchSend(self.accumulator, self.config, messages, DEADLINE)

    def pending(self, topic: str = "t") -> list[list[bytes]]:
        self.accumulator.drain()
        queues = self.accumulator.topics[topic].queues
        return [[future.content for future in queue.pending] for queue in queues]


def append_all(batch: BatchSend) -> None:
    for topic in batch.topics:
        while not batch.append(topic, block=False):
            pass


def numbered(count: int, **fields: Any) -> list[Message]:
    return [Message("t", b"%d" % n, **fields) for n in range(count)]


def test_messages_without_a_key_go_to_one_partition() -> None:
    """So they make as few batches as possible; the next call takes the next partition."""
    bench = Bench()
    for _ in range(2):
        append_all(bench.batch(*numbered(10)))
    ten = [b"%d" % n for n in range(10)]
    assert bench.pending() == [ten, ten, []]


def test_messages_with_a_key_go_where_it_says_in_the_order_of_the_call() -> None:
    bench = Bench()
    messages = [Message("t", b"%d" % n, key=str(n % 5)) for n in range(50)]
    append_all(bench.batch(*messages))
    for partition, contents in enumerate(bench.pending()):
        assert contents == [
            each.content for each in messages if key_partition(each.key, 3) == partition
        ]


def test_a_call_may_have_messages_of_several_topics() -> None:
    bench = Bench()
    batch = bench.batch(Message("u", b"1"), Message("t", b"2"), Message("u", b"3"))
    assert sorted(batch.topics) == ["t", "u"]
    append_all(batch)
    assert bench.pending("t") == [[b"2"], [], []]
    assert bench.pending("u") == [[b"1", b"3"], [], []]
    assert [future.content for future in batch.accepted()] == [b"1", b"2", b"3"]


def test_the_lock_is_taken_once_for_a_chunk() -> None:
    bench = Bench()
    lock: Any = CountedLock(bench.accumulator.lock)
    bench.accumulator.lock = lock
    append_all(bench.batch(*numbered(4_000)))
    assert lock.taken <= 6
    assert len(bench.wakes) == 1


def test_a_call_may_have_more_messages_than_the_buffer() -> None:
    """It appends what there is space for, and goes on when there is space again."""
    bench = Bench(buffer_messages=4)
    batch = bench.batch(*numbered(10))
    assert not batch.append("t", block=False)
    assert len(batch.accepted()) == 4
    with pytest.raises(BufferFull):
        batch.append("t", block=False)
    sent: list[bytes] = []
    with in_thread(lambda: append_rest(batch)) as waiting:
        while len(sent) < 10:
            block_until(lambda: bench.accumulator.topics["t"].appended or waiting.done())
            taken = bench.pending()[0]
            sent += taken
            del bench.accumulator.topics["t"].queues[0].pending[: len(taken)]
            bench.accumulator.give_back(Ended(len(taken), sum(map(len, taken))))
        waiting.result(WAIT_S)
    assert sent == [b"%d" % n for n in range(10)]
    assert bench.accumulator.appender.places == 4


def append_rest(batch: BatchSend) -> None:
    while not batch.append("t", block=True):
        pass


def test_the_bytes_of_a_chunk_are_those_of_a_batch() -> None:
    """What stages make of the messages is not kept for the whole call at once."""
    bench = Bench(batch_bytes=100)
    batch = bench.batch(*[Message("t", b"x" * 40) for _ in range(7)])
    counts = []
    while not batch.append("t", block=False):
        counts.append(len(batch.accepted()))
    assert counts == [3, 6]
    assert len(batch.accepted()) == 7


def test_a_message_that_cannot_be_accepted_does_not_stop_the_others() -> None:
    bench = Bench()
    wrong: list[Any] = [Message("t", b"x" * 101), b"none", Message([], b"x"), Message("t", 5)]  # type: ignore[arg-type]
    batch = bench.batch(Message("t", b"1"), *wrong, Message("t", b"2"))
    append_all(batch)
    first, second = batch.accepted()
    assert (first.content, second.content) == (b"1", b"2")
    first.succeed(SendResult(0, 88, 1))
    second.fail(TimedOut("no answer"))
    with pytest.raises(BatchFailed) as failed:
        batch.results()
    outcomes = failed.value.outcomes
    assert [type(each) for each in outcomes] == [
        SendResult, MessageTooLarge, InvalidArgument, InvalidArgument, InvalidArgument, TimedOut
    ]  # fmt: skip
    assert (failed.value.stored, failed.value.refused, failed.value.unknown) == (
        [0], [1, 2, 3, 4], [5]
    )  # fmt: skip


def test_a_refused_topic_has_its_error_in_every_message_that_was_not_accepted() -> None:
    bench = Bench(buffer_messages=2)
    batch = bench.batch(*numbered(3), Message("u", b"u"), Message("nowhere", b"x"))
    assert not batch.append("t", block=False)
    batch.refuse("t", BufferFull("full"))
    bench.accumulator.give_back(Ended(2, 2))
    assert batch.append("u", block=False)
    with pytest.raises(NotPublished):
        batch.append("nowhere", block=False)
    batch.refuse("nowhere", NotSent("no routes"))
    for future in batch.accepted():
        future.succeed(SendResult(0, 88, 1))
    with pytest.raises(BatchFailed, match="of 5 messages 3 are stored, 2 refused, 0 unknown") as it:
        batch.results()
    assert it.value.refused == [2, 4]
    assert isinstance(it.value.__cause__, BufferFull)
    again = pickle.loads(pickle.dumps(it.value))
    assert (again.stored, str(again)) == (it.value.stored, str(it.value))


def test_a_topic_that_is_made_again_meanwhile_takes_no_message_of_the_call() -> None:
    bench = Bench(buffer_messages=1)
    batch = bench.batch(*numbered(2))
    batch.append("t", block=False)
    bench.accumulator.remove(bench.accumulator.topics["t"], NotSent("gone"))
    bench.accumulator.give_back(Ended(1, 1))
    with pytest.raises(NotPublished):
        batch.append("t", block=False)


def test_an_empty_call_has_no_results() -> None:
    batch = Bench().batch()
    assert batch.topics == []
    assert batch.results() == []


def test_all_messages_are_read_before_the_first_one_is_sent() -> None:
    """An iterable that raises sends nothing."""
    bench = Bench()

    def messages() -> Any:
        yield Message("t", b"1")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        BatchSend(bench.accumulator, bench.config, messages(), DEADLINE)
    assert bench.pending() == [[], [], []]


def test_the_hint_of_a_failed_batch_tells_three_outcomes_apart() -> None:
    """A refused message may be sent again, corrected, or neither; an unknown one may be stored."""
    error = BatchFailed([SendResult(0, 0, 1), NotSent("no"), TimedOut("late")])
    for word in ("again", "`retriable`", "correct", "unknown ones may be stored"):
        assert word in error.hint


def test_a_call_keeps_to_the_bytes_of_the_buffer_with_all_its_objects() -> None:
    buffer_bytes = MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES
    bench = Bench(buffer_bytes=buffer_bytes)
    batch = bench.batch(*[Message("t", b"x" * 100)] * 1_800)
    assert batch.append("t", block=False) is False
    each = 100 + MESSAGE_OVERHEAD_BYTES
    assert len(batch.accepted()) == -(-buffer_bytes // each), "only the last one goes beyond"


def test_the_last_message_of_a_partition_tells_whether_the_next_one_may_follow() -> None:
    """The first one may be stored, and a later one may have failed."""
    bench = Bench(ordered=True, batch_records=1)
    batch = bench.batch(*(Message("t", content, key="k") for content in (b"0", b"1", b"2")))
    batch.append("t", block=False)
    batch.append("t", block=False)
    first, second = batch.accepted()
    first.succeed(SendResult(0, 0, 1))
    second.fail(NotSent("late"))
    assert batch.append("t", block=False)
    with pytest.raises(BatchFailed) as failed:
        batch.results()
    assert "an earlier message of this call failed" in str(failed.value.outcomes[2])
    assert len(bench.accumulator.topics["t"].appended) == 2


def test_a_failure_in_one_topic_keeps_no_other_topic_from_going_on() -> None:
    bench = Bench(ordered=True, batch_records=1)
    batch = bench.batch(Message("t", b"0", key="k"), Message("u", b"1", key="k"))
    assert batch.append("t", block=False)
    batch.accepted()[0].fail(NotSent("late"))
    assert batch.append("u", block=False)
    assert len(batch.accepted()) == 2


def test_behind_a_refused_topic_the_next_one_has_its_own_queues() -> None:
    bench = Bench(batch_records=1)
    batch = bench.batch(Message("t", b"0"), Message("t", b"1"), Message("u", b"2"))
    batch.append("t", block=False)
    bench.accumulator.remove(bench.accumulator.topics["t"], NotSent("gone"))
    with pytest.raises(NotPublished) as refused:
        batch.append("t", block=False)
    batch.refuse("t", refused.value)
    assert batch.append("u", block=False)
    assert [each.content for each in bench.accumulator.topics["u"].appended] == [b"2"]
