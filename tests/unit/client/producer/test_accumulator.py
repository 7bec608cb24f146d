"""Both appenders take and leave the same, and the accumulator counts every byte of its space."""

import functools
import gc
import itertools
import math
import threading
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from support.threads import in_thread, spawn
from support.waiting import WAIT_S, block_until

from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import LoopSendFuture, SendFuture
from vq.client.producer import accumulator
from vq.client.producer.accumulator import (
    Accumulator,
    Appender,
    PythonAppender,
    make_appender,
)
from vq.client.producer.batch import Ended
from vq.client.producer.compressor import compressor_of
from vq.client.producer.head import encode_head
from vq.client.producer.metrics import Meter
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Keys
from vq.client.producer.spread import Ring
from vq.client.producer.stages import Stages
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import BufferFull, NotPublished, NotSent, UnknownTopic
from vq.limits import MESSAGE_BYTES_MAX, TIMEOUT_S_MAX
from vq.model import Message, TopicSettings

CONTENT_BYTES_MAX = 100
SPACE = 10_000
PLACES = 1_000_000
TAG_HEAD = (1, b"\0\0\0\1a")
needs_compiled = pytest.mark.skipif(
    not accumulator.COMPILED, reason="it was not compiled here (no C compiler)"
)
MAKERS = [
    pytest.param(PythonAppender, id="python"),
    pytest.param(make_appender, id="compiled", marks=needs_compiled),
]


def queues_of(topic: str = "t", **options: Any) -> TopicQueues:
    """A topic of two partitions."""
    queues = TopicQueues(
        topic,
        "id",
        lambda partition: PartitionQueue(
            partition,
            lambda: 7,
            ProducerConfig(),
            lambda _: None,
            Meter(lambda: 0.0).topic("t"),
        ),
        keys=Keys.DIRECT,
        spread=lambda _: Ring(first=0),
        **options,
    )
    queues.update(TopicSettings(max_message_bytes=CONTENT_BYTES_MAX), 2, [0, 1])
    return queues


class Bench:
    """An appender with one topic, ``t``, a clock that says 1000, and a count of wakes."""

    def __init__(self, make: Callable[..., Appender]) -> None:
        self.now: Any = 1_000.0
        self.wakes = 0
        self.on_wake: Callable[[], object] = lambda: None
        self.lock = threading.Lock()
        self.appender = make(
            self.lock, lambda: self.now, 60.0, self._wake, {"a": TAG_HEAD}, SPACE, PLACES
        )
        self.queues = self.appender.topics["t"] = queues_of()

    @property
    def items(self) -> list[SendFuture]:
        return self.queues.appended

    def _wake(self) -> None:
        self.on_wake()
        self.wakes += 1
        self.appender.awake = True

    def append(self, message: Any, callback: Any = None, timeout: Any = None) -> SendFuture | None:
        return self.appender.append(message, callback, timeout)


@pytest.fixture(params=MAKERS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param)


def fields(future: SendFuture) -> dict[str, Any]:
    return {name: getattr(future, name, None) for name in SendFuture.__slots__}


# What is taken --------------------------------------------------------------------------------
@pytest.mark.parametrize(("tag", "head"), [(None, None), ("a", TAG_HEAD)])
def test_a_plain_message_is_appended_to_its_topic(bench: Bench, tag: str | None, head: Any) -> None:
    """Its future is the one that ``SendFuture(...)`` makes, with the configured time-out."""
    future = bench.append(Message("t", b"x", tag), print)
    assert future is not None
    assert fields(future) == fields(SendFuture(b"x", head, print, 1_060.0, appended_at=1_000.0))
    assert bench.items == [future]
    assert not future.done()


def test_a_tag_counts_towards_the_size_of_a_message(bench: Bench) -> None:
    tagged, plain = bench.append(Message("t", b"xy", "a")), bench.append(Message("t", b"xy"))
    assert tagged is not None
    assert plain is not None
    assert (tagged.size, plain.size) == (2 + len(TAG_HEAD[1]), 2)


@pytest.mark.parametrize(
    ("timeout", "deadline"),
    [
        (None, 1_060.0),
        (0.5, 1_000.5),
        (2, 1_002.0),
        (0, 1_000.0),
        (TIMEOUT_S_MAX, TIMEOUT_S_MAX + 1_000.0),
    ],
)
def test_a_send_may_have_its_own_time_out(bench: Bench, timeout: Any, deadline: float) -> None:
    future = bench.append(Message("t", b"x"), None, timeout)
    assert future is not None
    assert future.deadline == deadline


def test_the_loop_is_woken_once_until_it_slept_again(bench: Bench) -> None:
    bench.append(Message("t", b"1"))
    bench.append(Message("t", b"2"))
    assert bench.wakes == 1
    bench.appender.awake = False
    bench.append(Message("t", b"3"))
    assert bench.wakes == 2


def test_a_loop_that_falls_asleep_during_an_append_is_woken(bench: Bench) -> None:
    """The clock is Python code: another thread may run meanwhile, as the sender that drains."""
    awake: list[bool] = []

    def clock() -> float:
        appender.awake = False
        return 0.0

    make = type(bench.appender)
    make_one = PythonAppender if make is PythonAppender else make_appender
    appender = make_one(bench.lock, clock, 1.0, lambda: awake.append(True), {}, SPACE, PLACES)
    appender.topics["t"] = queues_of()
    appender.awake = True
    assert appender.append(Message("t", b"x"), None, None) is not None
    assert awake == [True]


def test_nothing_is_appended_once_the_space_is_used_up(bench: Bench) -> None:
    """Each message counts with its payload, its head and what is around it; one may go beyond."""
    bench.appender.use(SPACE - 2 * (MESSAGE_OVERHEAD_BYTES + 10) - 1, 0)
    assert all(bench.append(Message("t", b"0123456789")) for _ in range(3))
    assert bench.appender.space == 1 - MESSAGE_OVERHEAD_BYTES - 10
    assert bench.append(Message("t", b"x")) is None
    assert len(bench.items) == 3
    bench.appender.use(-20, -2)
    before = bench.appender.space
    tagged = bench.append(Message("t", b"x", "a"))
    assert tagged is not None
    assert before - bench.appender.space == tagged.size + MESSAGE_OVERHEAD_BYTES


def test_no_space_is_none(bench: Bench) -> None:
    bench.appender.use(SPACE, 0)
    assert bench.appender.space == 0
    assert bench.append(Message("t", b"x")) is None


def test_nothing_is_appended_once_every_place_is_taken(bench: Bench) -> None:
    """However small the messages are; a message with an outcome makes a place free."""
    bench.appender.use(0, PLACES - 2)
    bench.appender.use(-(PLACES - 2) * MESSAGE_OVERHEAD_BYTES, 0)
    assert bench.append(Message("t", b""))
    assert bench.append(Message("t", b""))
    assert bench.appender.places == 0
    assert bench.append(Message("t", b"")) is None
    bench.appender.use(0, -1)
    assert bench.append(Message("t", b""))


def test_the_topic_says_what_it_takes(bench: Bench) -> None:
    assert bench.append(Message("t", b"x" * CONTENT_BYTES_MAX)) is not None
    assert bench.append(Message("t", b"x" * (CONTENT_BYTES_MAX + 1))) is None
    bench.queues.plain_bytes_max = 1
    assert bench.append(Message("t", b"xx")) is None


def test_a_message_that_may_be_compressed_is_left_to_the_producer(bench: Bench) -> None:
    """The threshold is the first size that is left; the same topic may refuse even the empty."""
    for threshold in (2, 0):
        settings = TopicSettings(compression="zstd", compression_threshold=threshold)
        queues = queues_of(compressor_of=functools.partial(compressor_of, ProducerConfig()))
        queues.update(settings, 2, [0, 1])
        bench.appender.topics["t"] = queues
        taken = [bench.append(Message("t", b"x" * size)) is not None for size in range(4)]
        assert taken == [size < threshold for size in range(4)]


def test_a_closed_appender_takes_nothing(bench: Bench) -> None:
    bench.appender.closed = True
    assert bench.append(Message("t", b"x")) is None
    assert bench.items == []


# What is left ---------------------------------------------------------------------------------
class OtherMessage(Message):
    """What a user may have derived."""


class Text(str):
    """Text that may look different whenever it is looked at."""


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", key="k"),
        Message("t", b"x", headers={"h": "1"}),
        Message("t", b"x", tag="never seen"),
        Message("t", b"x", tag=Text("a")),
        Message("t", b"x", tag=[]),  # type: ignore[arg-type]
        Message("t", bytearray(b"x")),  # type: ignore[arg-type]
        Message("t", "x"),  # type: ignore[arg-type]
        Message("t", b"x", partition=0),
        Message("t", b"x", partition="0"),  # type: ignore[arg-type]
        Message("unknown", b"x"),
        Message(Text("t"), b"x"),
        Message([], b"x"),  # type: ignore[arg-type]
        OtherMessage("t", b"x"),
        ("t", b"x", None, None, None),
        b"x",
        None,
    ],
    ids=repr,
)
def test_what_is_not_plain_is_left_to_the_producer(bench: Bench, message: Any) -> None:
    assert bench.append(message) is None
    assert bench.items == []
    assert bench.wakes == 0


def test_a_received_message_is_plain(bench: Bench) -> None:
    """Its place is not where it goes."""
    assert bench.append(Message("t", b"x", None, None, None, 3, 88, 120, 7)) is not None


@pytest.mark.parametrize("field", ["appended", "plain_bytes_max"])
@pytest.mark.parametrize("value", [None, (), "1"], ids=repr)
@needs_compiled
def test_a_topic_of_another_shape_takes_nothing(field: str, value: Any) -> None:
    """The compiled appender reads slots by position; whatever stands there, it holds."""
    bench = Bench(make_appender)
    setattr(bench.queues, field, value)
    assert bench.append(Message("t", b"x")) is None
    delattr(bench.queues, field)
    assert bench.append(Message("t", b"x")) is None
    topics: Any = bench.appender.topics
    topics["t"] = ([], 10)
    assert bench.append(Message("t", b"x")) is None


@pytest.mark.parametrize(
    "timeout",
    ["1", b"", [], (), True, Fraction(1), math.nan, math.inf, -math.inf, -1, -0.5, 10**400,
     -(10**400), math.nextafter(TIMEOUT_S_MAX, math.inf)],
    ids=repr,
)  # fmt: skip
def test_an_odd_time_out_is_left_to_the_producer(bench: Bench, timeout: Any) -> None:
    """Which says what is wrong with it, or what it counts as."""
    assert bench.append(Message("t", b"x"), None, timeout) is None
    assert bench.items == []


def test_a_future_may_be_of_a_derived_type(bench: Bench) -> None:
    make = type(bench.appender)
    arguments: list[Any] = [
        bench.lock,
        lambda: 0.0,
        1.0,
        lambda: None,
        {},
        SPACE,
        PLACES,
        LoopSendFuture,
    ]
    appender = (PythonAppender if make is PythonAppender else make_appender)(*arguments)
    appender.topics["t"] = queues_of()
    future = appender.append(Message("t", b"x"), print, 2)
    assert type(future) is LoopSendFuture
    assert fields(future) == fields(LoopSendFuture(b"x", None, print, 2.0))


def test_a_clock_that_fails_is_told(bench: Bench) -> None:
    bench.now = "late"
    with pytest.raises(TypeError):
        bench.append(Message("t", b"x"))
    assert bench.items == []


def test_a_loop_that_cannot_be_woken_is_told(bench: Bench) -> None:
    """As calling into a closed loop is; the message is appended all the same."""
    bench.on_wake = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        bench.append(Message("t", b"x"))
    assert len(bench.items) == 1


def test_a_wake_that_is_interrupted_is_made_again(bench: Bench) -> None:
    """A signal handler raised in it: the message was appended, and nobody else may come."""
    calls: list[None] = []

    def once() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise KeyboardInterrupt

    bench.on_wake = once
    with pytest.raises(KeyboardInterrupt):
        bench.append(Message("t", b"x"))
    assert bench.wakes == 1
    assert bench.appender.awake


# Topics that go ---------------------------------------------------------------------------------
@pytest.mark.parametrize("round_", range(5))
def test_nothing_is_lost_when_a_topic_goes(bench: Bench, round_: int) -> None:
    """What ``append`` said it took is found by whoever takes the topic away and drains it."""
    bench.appender.use(-(1 << 40), 0)
    message = Message("t", b"x")

    def send() -> int:
        for count in itertools.count():
            if bench.append(message) is None:
                return count
        raise AssertionError

    threads = [spawn(send) for _ in range(4)]
    block_until(lambda: len(bench.items) >= 2_000)
    with bench.lock:
        bench.appender.topics.clear()
        bench.queues.drain()
    found = sum(len(queue.pending) for queue in bench.queues.queues)
    assert sum(thread.result(WAIT_S) for thread in threads) == found
    assert bench.items == []
    counted = SPACE + (1 << 40) - bench.appender.space
    assert counted == found * (1 + MESSAGE_OVERHEAD_BYTES)


# The compiled type ------------------------------------------------------------------------------
@needs_compiled
def test_an_appender_that_is_part_of_a_cycle_is_collected() -> None:
    """A producer holds its appender, which holds the producer's method that wakes the loop."""

    class Owner:
        def __init__(self) -> None:
            self.appender = make_appender(
                threading.Lock(), lambda: 0.0, 1.0, self.wake, {}, SPACE, PLACES
            )
            self.appender.topics["t"] = queues_of()

        def wake(self) -> None: ...

    seen = weakref.ref(Owner())
    gc.collect()
    assert seen() is None


@needs_compiled
def test_an_appender_is_made_of_fitting_parts_only() -> None:
    from vq.client.producer import _accumulator

    good: list[Any] = [Message, SendFuture, TopicQueues, lambda: 0.0, 1.0, print, {}, 10, 10, 1]
    assert _accumulator.Appender(*good).topics == {}
    for place, wrong in [
        (0, int), (0, 1), (1, Message), (1, 1), (2, SendFuture), (4, "1"), (6, []), (7, "1"),
        (8, "1"), (9, None),
    ]:  # fmt: skip
        with pytest.raises((TypeError, AttributeError)):
            _accumulator.Appender(*good[:place], wrong, *good[place + 1 :])
    for arguments in ([], good[:-1], [*good, 1]):
        with pytest.raises(TypeError):
            _accumulator.Appender(*arguments)
    with pytest.raises(TypeError, match="keyword"):
        _accumulator.Appender(*good, more=1)  # type: ignore[call-arg]
    made = _accumulator.Appender(*good)
    with pytest.raises(TypeError):
        made.append(Message("t", b"x"))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        made.use("1", 1)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        made.topics = {}  # type: ignore[misc]


# The accumulator --------------------------------------------------------------------------------
def accumulator_of(**settings: Any) -> Accumulator:
    made = Accumulator(ProducerConfig(**settings), lambda: 1_000.0, lambda: None, stages=Stages())
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
    assert made._appender.space == made._config.buffer_bytes - used
    made.give_back(Ended(5, plain.size + sum(each.size for each in others)))
    assert made._appender.space == made._config.buffer_bytes


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
    assert made._appender.space <= 0
    assert made._appender.places >= 0


@pytest.mark.parametrize("bound", [{"buffer_messages": 2}, {}])
def test_a_send_that_waits_for_its_outcome_waits_for_space_too(bound: dict[str, int]) -> None:
    """Also with ``when_full="raise"``: its thread has nothing else to do."""
    made = accumulator_of(when_full="raise", **bound)
    size = made._config.buffer_bytes - 2 * MESSAGE_OVERHEAD_BYTES
    made._appender.use(size, 2)
    with in_thread(lambda: made.append_waited(Message("t", b"x"), 30.0)) as waiting:
        block_until(lambda: made._waiting)
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

    made = Accumulator(ProducerConfig(), lambda: 1_000.0, wake, stages=Stages())
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

    class Deadline(float):
        def __le__(self, now: float) -> bool:
            free.append(spawn(lambda: made.lock.acquire(blocking=False)).result(WAIT_S))
            return True

    future.deadline = Deadline(0.0)
    made.drop_late(queue, 1_010.0)
    assert free == [False]
    assert isinstance(future.outcome, NotSent)
    assert queue.pending == []


def test_a_message_whose_topic_is_made_again_while_it_waits_for_space_is_refused() -> None:
    """The queues that it was for are closed: nobody would tell its outcome."""
    made = accumulator_of()
    every_byte = made._config.buffer_bytes
    made._appender.use(every_byte, 0)
    with in_thread(lambda: made.append_any(Message("t", b"x"), None, 30.0)) as waiting:
        block_until(lambda: made._waiting)
        made.remove(made.topics["t"], UnknownTopic("gone"))
        made.open(queues_of())
        made.give_back(Ended(0, every_byte))
        assert isinstance(waiting.exception(WAIT_S), NotPublished)
    assert made._appender.space == every_byte


def test_a_thread_that_waits_claims_the_queue_of_its_message() -> None:
    wakes: list[None] = []
    made = Accumulator(
        ProducerConfig(), lambda: 1_000.0, lambda: wakes.append(None), stages=Stages()
    )
    made.open(queues_of())
    queue, future = made.append_waited(Message("t", b"x"), 5)
    assert queue is made.queues()[future.partition]
    assert future.deadline == 1_005.0
    future.leads = True
    assert made.claim(queue, future)
    assert made.take(queue) == [future]
    assert not made.enter(queue), "the sender leaves it alone"
    other, meanwhile = made.append_waited(Message("t", b"x"), None)
    assert other is not queue
    meanwhile.partition = queue.partition.partition
    assert not made.claim(queue, meanwhile), "and so does another thread"
    assert wakes == [], "whoever leads passes the lead"
    made.leave(queue, future)
    assert queue.pending[0] is future, "it was not sent"
    assert wakes == [None], "so the sender has something to do"


@pytest.mark.parametrize("before", ["pending", "in flight", "sender", "closed", "gone"])
def test_a_claim_never_overtakes(before: str) -> None:
    wakes: list[None] = []
    made = Accumulator(
        ProducerConfig(), lambda: 1_000.0, lambda: wakes.append(None), stages=Stages()
    )
    made.open(queues_of())
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
    assert not made.claim(queue, future)
    assert future in queue.pending
    assert wakes == [None], "the sender carries it"


def test_a_thread_that_goes_away_leaves_its_message_to_the_sender() -> None:
    wakes: list[None] = []
    made = Accumulator(
        ProducerConfig(), lambda: 1_000.0, lambda: wakes.append(None), stages=Stages()
    )
    made.open(queues_of())
    queue, future = made.append_waited(Message("t", b"2", key="k"), None)
    future.leads = True
    assert made.claim(queue, future)
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
