"""The accumulator counts every byte of its space, whichever way a message comes in."""

from collections.abc import Callable
from typing import Any

import pytest
from support.queues import queues_of
from support.threads import in_thread, spawn

from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.intake.stages import Stages, encode_head
from vq.client.producer.queue.batch import Ended
from vq.clock import ManualClock
from vq.errors import BufferFull, NotPublished, NotSent, UnknownTopic
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until


def accumulator_of(wake: Callable[[], None] = lambda: None, **settings: Any) -> Accumulator:
    config = ProducerConfig(**settings)
    made = Accumulator(config, ManualClock(monotonic=1_000.0), wake, stages=Stages(config))
    made.open(queues_of())
    return made


def test_every_way_in_counts_the_same_and_all_comes_back() -> None:
    made = accumulator_of()
    plain = made.append(Message("t", b"xy"), None, None)
    assert plain is not None
    others = [
        made.append_any(Message("t", b"xy")),
        made.append_any(Message("t", b"xy", key="k")),
        made.append_any(Message("t", b"xy", tag="new", headers={"a": "b"})),
        made.append_any(Message("t", bytearray(b"xy"))),  # type: ignore[arg-type]
    ]
    used = sum(each.size + MESSAGE_OVERHEAD_BYTES for each in [plain, *others])
    assert made.appender.space == made.config.buffer_bytes - used
    made.give_back(Ended(5, plain.size + sum(each.size for each in others)))
    assert made.appender.space == made.config.buffer_bytes


def test_every_way_in_counts_against_the_bound_in_messages() -> None:
    made = accumulator_of(buffer_messages=3, when_full="raise")
    assert made.append(Message("t", b"x"), None, None)
    made.append_any(Message("t", b"x", key="k"))
    made.append_waited(Message("t", b"x"), None)
    assert not made.has_space()
    assert made.append(Message("t", b"x"), None, None) is None
    with pytest.raises(BufferFull, match=r"3 messages use \d+ bytes; buffer_messages is 3, "):
        made.append_any(Message("t", b"x"))
    made.give_back(Ended(1, 1))
    assert made.append(Message("t", b"x"), None, None)


def test_without_a_bound_in_messages_the_bytes_count_first() -> None:
    made = accumulator_of(
        buffer_bytes=MESSAGE_BYTES_MAX + MESSAGE_OVERHEAD_BYTES, when_full="raise"
    )
    while made.append(Message("t", b""), None, None):
        pass
    assert made.appender.space <= 0
    assert made.appender.places >= 0


@pytest.mark.parametrize("bound", [{"buffer_messages": 2}, {}])
def test_a_send_that_waits_for_its_outcome_waits_for_space_too(bound: dict[str, int]) -> None:
    """Also with ``when_full="raise"``: its thread has nothing else to do."""
    made = accumulator_of(when_full="raise", **bound)
    size = made.config.buffer_bytes - 2 * MESSAGE_OVERHEAD_BYTES
    made.appender.use(size, 2)
    with in_thread(lambda: made.append_waited(Message("t", b"x"), 30.0)) as waiting:
        block_until(lambda: made.waiting_threads)
        with pytest.raises(BufferFull):
            made.append_any(Message("t", b"x"))
        made.give_back(Ended(2, size))
        assert waiting.result(WAIT_S)


def test_messages_keep_their_order_whichever_way_they_come() -> None:
    """Those with a key stand where they came among those that take turns."""
    made = accumulator_of()
    order = [
        made.append_any(Message("t", b"%d" % n, key="k" if n % 3 else None)) for n in range(10)
    ]
    made.drain()
    for queue in made.queues():
        assert [each for each in order if each in queue.pending] == queue.pending
    (keyed,) = {each.partition for each in order if each.partition >= 0}
    assert all(each in made.queues()[keyed].pending for each in order if each.partition >= 0)
    assert sum(each in made.queues()[keyed].pending for each in order if each.partition < 0)
    turns = [next(q.partition.partition for q in made.queues() if order[n] in q.pending)
             for n in (0, 3, 6, 9)]  # fmt: skip
    assert turns == [0, 1, 0, 1]


def test_others_can_count_on_a_wake_that_is_interrupted() -> None:
    """They saw that the sender was about to be told, and told it nothing."""
    wakes: list[None] = []

    def wake() -> None:
        wakes.append(None)
        if len(wakes) == 1:
            raise KeyboardInterrupt

    made = accumulator_of(wake)
    with pytest.raises(KeyboardInterrupt):
        made.wake_sender()
    assert len(wakes) == 2


def test_a_tag_of_a_derived_type_is_not_remembered() -> None:
    """It may be equal to another tag, and stand for other bytes."""

    class Liar(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return hash("a")

    made = accumulator_of()
    for tag in (Liar("b"), "a", Liar("c")):
        future = made.append_any(Message("t", b"x", tag=tag))
        assert future.head == encode_head(str.encode(tag), None)


def test_what_is_late_is_taken_out_under_the_lock() -> None:
    """A thread that leads takes messages at the same time: none is sent that was given up."""
    made = accumulator_of()
    queue, future = made.append_waited(Message("t", b"x"), 5.0)
    future.leads = True
    made.drain()
    free: list[bool] = []

    class Now(float):
        def __ge__(self, deadline: float) -> bool:
            free.append(spawn(lambda: made.lock.acquire(blocking=False)).result(WAIT_S))
            return True

    future.deadline = 0.0
    made.drop_late(queue, Now(1_010.0))
    assert free == [False]
    assert isinstance(future.outcome, NotSent)
    assert queue.pending == []


def test_a_message_whose_topic_is_made_again_while_it_waits_for_space_is_refused() -> None:
    """The queues that it was for are closed: nobody would tell its outcome."""
    made = accumulator_of()
    every_byte = made.config.buffer_bytes
    made.appender.use(every_byte, 0)
    with in_thread(lambda: made.append_any(Message("t", b"x"), None, 30.0)) as waiting:
        block_until(lambda: made.waiting_threads)
        made.remove(made.topics["t"], UnknownTopic("gone"))
        made.open(queues_of())
        made.give_back(Ended(0, every_byte))
        assert isinstance(waiting.exception(WAIT_S), NotPublished)
    assert made.appender.space == every_byte


def test_a_thread_that_waits_claims_the_queue_of_its_message() -> None:
    wakes: list[None] = []
    made = accumulator_of(lambda: wakes.append(None))
    queue, future = made.append_waited(Message("t", b"x"), 5)
    assert queue is made.queues()[future.partition]
    assert future.deadline == 1_005.0
    future.leads = True
    assert made.claim(queue, future) == [future]
    assert not made.enter(queue), "the sender leaves it alone"
    other, meanwhile = made.append_waited(Message("t", b"x"), None)
    assert other is not queue
    meanwhile.partition = queue.partition.partition
    assert made.claim(queue, meanwhile) is None, "and so does another thread"
    assert wakes == [], "whoever leads passes the lead"
    made.leave(queue, future)
    assert queue.pending[0] is future, "it was not sent"
    assert wakes == [None], "so the sender has something to do"


@pytest.mark.parametrize("before", ["pending", "in flight", "sender", "closed", "gone"])
def test_a_claim_never_overtakes(before: str) -> None:
    wakes: list[None] = []
    made = accumulator_of(lambda: wakes.append(None))
    first = made.append_any(Message("t", b"1", key="k"))
    made.awake = False
    wakes.clear()
    made.drain()
    queue = made.queues()[first.partition]
    if before == "in flight":
        queue.next_to_send(0.0, lambda count: list(range(count)))
    elif before != "pending":
        queue.pending.clear()
    if before == "sender":
        assert made.enter(queue)
    _, future = made.append_waited(Message("t", b"2", key="k"), None)
    if before == "closed":
        queue.closed = UnknownTopic("gone")
    elif before == "gone":
        made.remove(made.topics["t"], UnknownTopic("gone"))
    future.leads = True
    assert made.claim(queue, future) is None
    assert future in queue.pending
    assert wakes == [None], "the sender carries it"


def test_a_thread_that_goes_away_leaves_its_message_to_the_sender() -> None:
    wakes: list[None] = []
    made = accumulator_of(lambda: wakes.append(None))
    queue, future = made.append_waited(Message("t", b"2", key="k"), None)
    future.leads = True
    assert made.claim(queue, future) == [future]
    made.hand_to_sender(queue, future)
    assert wakes == [None]
    assert made.enter(queue), "nobody else has it"


def test_a_buffer_for_one_message_holds_one() -> None:
    """A wait for space ends when half of the places are free: here that is one, not none."""
    made = accumulator_of(buffer_messages=1, when_full="raise")
    made.append_any(Message("t", b"x"))
    with pytest.raises(BufferFull, match="buffer_messages is 1,"):
        made.append_any(Message("t", b"x"))
    assert len(made.topics["t"].appended) == 1
