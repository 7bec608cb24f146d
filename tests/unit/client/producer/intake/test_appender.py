"""Both appenders take and leave the same, and count every byte."""

import functools
import gc
import itertools
import math
import operator
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from support.queues import CONTENT_BYTES_MAX, queues_of
from support.threads import spawn

from vq.client.config import MESSAGE_OVERHEAD_BYTES, ProducerConfig
from vq.client.future import ANY_PARTITION, LoopSendFuture, PythonFutureFields, SendFuture
from vq.client.producer.intake import appender
from vq.client.producer.intake.appender import Appender, PythonAppender, make_appender
from vq.client.producer.intake.stages import Stages
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.clock import SystemClock
from vq.limits import TIMEOUT_S_MAX
from vq.model import Message, SendResult, TopicSettings
from vq.testing.waiting import WAIT_S, block_until

SPACE = 10_000
PLACES = 1_000_000
TAG_HEAD = (1, b"\0\0\0\1a")
needs_compiled = pytest.mark.skipif(
    not appender.COMPILED, reason="it was not compiled here (no C compiler)"
)
MAKERS = [
    pytest.param(PythonAppender, id="python"),
    pytest.param(make_appender, id="compiled", marks=needs_compiled),
]


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
    return {name: getattr(future, name, None) for name in PythonFutureFields.__slots__}


# What others have prepared ---------------------------------------------------------------------
@pytest.mark.parametrize("partition", [ANY_PARTITION, 1])
def test_a_prepared_message_is_put_into_its_topic(bench: Bench, partition: int) -> None:
    future = SendFuture(b"xy", TAG_HEAD, print, 1_060.0, partition)
    assert bench.appender.put(future, bench.queues)
    assert bench.items == [future]
    assert bench.queues.directed is (partition != ANY_PARTITION)
    assert bench.appender.space == SPACE - MESSAGE_OVERHEAD_BYTES - future.size
    assert bench.appender.places == PLACES - 1
    assert bench.wakes == 1


def test_a_message_for_any_partition_directs_no_other_one_elsewhere(bench: Bench) -> None:
    for partition in (1, ANY_PARTITION):
        assert bench.appender.put(SendFuture(b"x", None, None, 1_060.0, partition), bench.queues)
        assert bench.queues.directed


@pytest.mark.parametrize(
    "end",
    [
        lambda bench: bench.appender.use(SPACE, 0),
        lambda bench: bench.appender.use(-PLACES * MESSAGE_OVERHEAD_BYTES, PLACES),
        lambda bench: setattr(bench.appender, "closed", True),
        lambda bench: bench.appender.topics.pop("t"),
        lambda bench: bench.appender.topics.update(t=queues_of()),
    ],
    ids=["no space", "no place", "closed", "deleted", "created again"],
)
def test_a_prepared_message_needs_space_and_its_topic(
    bench: Bench, end: Callable[[Bench], object]
) -> None:
    end(bench)
    before = bench.appender.space, bench.appender.places
    assert not bench.appender.put(SendFuture(b"x", None, None, 1_060.0), bench.queues)
    assert not bench.items
    assert (bench.appender.space, bench.appender.places, bench.wakes) == (*before, 0)


def test_a_prepared_message_is_there_if_the_wake_raises(bench: Bench) -> None:
    """A signal handler raises in it: the caller learns of that, and the message is sent."""

    def interrupt() -> None:
        bench.on_wake = lambda: None
        raise KeyboardInterrupt

    bench.on_wake = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.appender.put(SendFuture(b"x", None, None, 1_060.0), bench.queues)
    assert len(bench.items) == 1
    assert bench.wakes == 1


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


def compressing(threshold: int) -> TopicQueues:
    queues = queues_of()
    settings = TopicSettings(compression="zstd", compression_threshold=threshold)
    queues.update(settings, 2, [0, 1])
    return queues


def test_a_message_that_may_be_compressed_is_left_to_the_producer() -> None:
    """By the reference. The threshold is the first size that is left; it may be 0."""
    bench = Bench(PythonAppender)
    for threshold in (2, 0):
        bench.appender.topics["t"] = compressing(threshold)
        taken = [bench.append(Message("t", b"x" * size)) is not None for size in range(4)]
        assert taken == [size < threshold for size in range(4)]


@needs_compiled
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("tag", [None, "a"])
def test_a_content_is_compressed_as_the_stages_do_it(tag: str | None, key: str | None) -> None:
    """With or without a head, smaller then or not; and it is counted once."""
    bench = Bench(make_appender)
    bench.queues = bench.appender.topics["t"] = compressing(2)
    stages = Stages(ProducerConfig())
    stages.heads.of_tags["a"] = TAG_HEAD
    for text in (b"", b"x", b"xy", b"x" * 500):
        message = Message("t", text, tag, key)
        content, head, partition = stages.prepare(message, compressing(2))
        before = bench.appender.space
        future = bench.append(message)
        assert future is not None
        expected = SendFuture(content, head, None, 1_060.0, partition, 1_000.0)
        assert fields(future) == fields(expected)
        assert before - bench.appender.space == expected.size + MESSAGE_OVERHEAD_BYTES
        prepared = bench.appender.prepare([message], [0], 1, 1_000, 7.0, bench.queues, 1)
        assert (prepared[0].content, prepared[0].head) == (content, head)
    assert bench.queues.meter.read().messages_compressed == 4
    bench.queues.content_bytes_max = 400
    assert bench.append(Message("t", b"x" * 500)) is None
    bench.queues.content_bytes_max, bench.queues.is_own = 1_000, True
    assert bench.append(Message("t", b"x" * 500)) is None
    assert bench.queues.meter.read().messages_compressed == 4


@needs_compiled
@pytest.mark.parametrize("made", [None, b"", (1,), (1.0, b""), (0, "x"), [0, b"x"]], ids=repr)
def test_a_compressor_that_makes_something_else_is_told(made: Any) -> None:
    bench = Bench(make_appender)
    bench.queues = bench.appender.topics["t"] = compressing(2)
    bench.queues.compressor = lambda _: made  # type: ignore[assignment, return-value]
    with pytest.raises(TypeError):
        bench.append(Message("t", b"xy"))
    bench.queues.compressor = lambda _: 1 // 0  # type: ignore[assignment, return-value]
    with pytest.raises(ZeroDivisionError):
        bench.append(Message("t", b"xy"))
    assert bench.items == []


@needs_compiled
@pytest.mark.parametrize("ends", ["topic", "closed"])
def test_nothing_is_appended_to_a_topic_that_goes_while_a_content_is_compressed(ends: str) -> None:
    bench = Bench(make_appender)
    bench.queues = bench.appender.topics["t"] = compressing(2)

    def compress(content: bytes) -> tuple[int, bytes]:
        if ends == "topic":
            bench.appender.topics["t"] = compressing(2)
        else:
            bench.appender.closed = True
        return 0, content

    bench.queues.compressor = compress  # type: ignore[assignment]
    assert bench.append(Message("t", b"xy")) is None
    assert bench.items == []


def test_a_closed_appender_takes_nothing(bench: Bench) -> None:
    bench.appender.closed = True
    assert bench.append(Message("t", b"x")) is None
    assert bench.items == []


# What is left ---------------------------------------------------------------------------------
class OtherMessage(Message):
    """What a user may have derived."""


class Text(str):
    """Text that may look different whenever it is looked at."""


class Number(int):
    """A number of a type of its own."""


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", key=True),
        Message("t", b"x", headers={"h": 1}),  # type: ignore[dict-item]
        Message("t", b"x", tag="never seen"),
        Message("t", b"x", key="k", tag="never seen"),
        Message("t", b"x", tag=Text("a")),
        Message("t", b"x", tag=[]),  # type: ignore[arg-type]
        Message("t", bytearray(b"x")),  # type: ignore[arg-type]
        Message("t", "x"),  # type: ignore[arg-type]
        Message("t", b"x", partition=0),
        Message("t", b"x", partition="0"),  # type: ignore[arg-type]
        Message("t", b"x", partition=0, offset=Number(-1)),
        Message("t", b"x", partition=0, offset=-1.0),  # type: ignore[arg-type]
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


# Keys and headers -------------------------------------------------------------------------------
KEYS: list[Any] = [
    None, "k", "k" * 127, "order-7", b"k", bytes(range(127)), b"\xff" * 127, 0, 1, -1, 63, 64, -65,
    1001, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63),
]  # fmt: skip
HEADERS: list[Any] = [
    None, {"h": "1"}, {"b": "1", "a": "2", "ca": "", "B": "3", "cb": "4"}, {"trace": "x" * 127},
    {"n" * 127: "v" * 127}, {"n" * 60: "v" * 63}, {"n" * 60: "v" * 64}, {"from": "a", "to": "b"},
    {f"h{n:02}": str(n) for n in range(16)}, {"_vq": "1", "vq.": "2"},
]  # fmt: skip


@needs_compiled
@pytest.mark.parametrize("tag", [None, "a"])
def test_usual_keys_and_headers_are_appended_as_the_stages_make_them(tag: Any) -> None:
    """The stages are the reference: the same head, byte by byte, and the same partition."""
    bench = Bench(make_appender)
    bench.appender.use(-(1 << 30), 0)
    stages = Stages(ProducerConfig())
    stages.heads.of_tags["a"] = TAG_HEAD
    for key, headers in itertools.product(KEYS, HEADERS):
        bench.queues.directed = False
        before = bench.appender.space
        message = Message("t", b"xy", tag, key, headers)
        content, head, partition = stages.prepare(message, bench.queues)
        future = bench.append(message, print)
        assert future is not None, (key, headers)
        expected = SendFuture(content, head, print, 1_060.0, partition, 1_000.0)
        assert fields(future) == fields(expected), (key, headers)
        assert bench.queues.directed is (key is not None)
        assert before - bench.appender.space == expected.size + MESSAGE_OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("", None), (b"", None), ("k" * 128, None), (b"k" * 128, None), ("ä", None),
        (2**63, None), (-(2**63) - 1, None), (Text("k"), None), (1.0, None), ([], None),
        (None, {}), ("k", {"": "1"}), ("k", {"ä": "1"}), ("k", {"h": "ä"}), ("k", {"h": None}),
        ("k", {Text("h"): "1"}), ("k", {"h": Text("1")}), ("k", {"_vq.origin": "1"}), ("k", []),
        ("k", {"n" * 128: "1"}), ("k", {"n": "1" * 128}), ("k", {f"{n:02}": "" for n in range(17)}),
        ("k", {"a": "1", "ab": "2"}),
        ("k", {f"{n:02}": "x" * 100 for n in range(16)}), ("k", types.MappingProxyType({"h": "1"})),
        (1, {str(n): "x" * 120 for n in range(8)} | {"last": "x" * 13}),
    ],
    ids=range(26),
)  # fmt: skip
def test_unusual_keys_and_headers_are_left_to_the_producer(
    bench: Bench, key: Any, headers: Any
) -> None:
    assert bench.append(Message("t", b"x", None, key, headers)) is None
    assert bench.items == []
    assert not bench.queues.directed


@needs_compiled
def test_a_topic_says_what_a_key_does() -> None:
    """With a strategy that ignores keys it chooses no partition; an own partitioner is asked."""
    bench = Bench(make_appender)
    bench.queues = bench.appender.topics["t"] = queues_of(partitioner="sticky")
    future = bench.append(Message("t", b"x", key="k"))
    assert future is not None
    assert future.partition == ANY_PARTITION
    assert not bench.queues.directed
    bench.queues = bench.appender.topics["t"] = queues_of(partitioner=lambda *_: 1)
    assert bench.append(Message("t", b"x", key="k")) is None
    for odd in (None, "2", 0):
        bench.queues.usual_keys = odd  # type: ignore[assignment]
        assert bench.append(Message("t", b"x", key="k")) is None
    assert bench.items == []


@needs_compiled
def test_a_known_tag_may_get_another_head_while_one_is_made_of_it() -> None:
    """Two threads that send a new tag first both note it; making a head may run a collection."""
    text = b"t" * 10_000
    heads, kept = {"a": (1, b"%b" % text)}, list[object]()
    made = make_appender(None, lambda: 0.0, 60.0, lambda: None, heads, 1 << 30, 10)  # type: ignore[arg-type]
    made.topics["t"] = queues_of()

    def note_again(phase: str, _: object) -> None:
        if phase == "start":
            heads["a"] = (1, b"%b" % text)
            kept.append(b"x" * len(text))  # takes the memory of what was freed

    message, before = Message("t", b"x", "a", "k"), gc.get_threshold()
    gc.collect()
    gc.disable()
    gc.callbacks.append(note_again)
    kept += [(number, number) for number in range(5_000)]  # no tuple is left to be used again
    try:
        gc.set_threshold(1)
        gc.enable()
        future = made.append(message, None, None)
    finally:
        gc.callbacks.remove(note_again)
        gc.set_threshold(*before)
        gc.enable()
    assert future is not None
    assert future.head is not None
    assert future.head[1].startswith(text)


# One-way messages --------------------------------------------------------------------------------
class CallbacksByTopic(dict[str, Any]):
    """It would make what it lacks, as that of a producer does; ``append_unheard`` has none made."""

    def __missing__(self, topic: str) -> Any:
        raise AssertionError(topic)


def test_a_one_way_message_gets_the_callback_of_its_topic(bench: Bench) -> None:
    callbacks = CallbacksByTopic(t=print, u=len)
    future = bench.appender.append_unheard(Message("t", b"x", key=None), callbacks, 2)
    assert future is not None
    assert fields(future) == fields(SendFuture(b"x", None, print, 1_002.0, appended_at=1_000.0))
    assert bench.items == [future]


@pytest.mark.parametrize(
    "message",
    [Message("u", b"x"), Message("v", b"x"), Message(Text("t"), b"x"), Message("t", "x"),
     Message([], b"x"), OtherMessage("t", b"x"), ("t", b"x"), None],
    ids=repr,
)  # type: ignore[arg-type]  # fmt: skip
def test_other_one_way_messages_are_left_to_the_producer(bench: Bench, message: Any) -> None:
    """Of a topic that is not published, or has no callback yet; and whatever is not plain."""
    assert bench.appender.append_unheard(message, CallbacksByTopic(t=print, u=print), None) is None
    assert bench.items == []


def test_a_received_message_is_plain(bench: Bench) -> None:
    """Its place is not where it goes: it is sent as the same content, unplaced, would be."""
    received = bench.append(Message("t", b"x", None, None, None, 3, 88, 120, 7))
    written = bench.append(Message("t", b"x"))
    assert received is not None
    assert written is not None
    assert fields(received) == fields(written)
    assert bench.items == [received, written]


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


def test_the_clock_of_the_machine_is_read_as_python_reads_it(bench: Bench) -> None:
    """The compiled appender reads it without a call; others read ``time.monotonic``."""
    make = PythonAppender if type(bench.appender) is PythonAppender else make_appender
    made = make(bench.lock, SystemClock().monotonic, 60.0, lambda: None, {}, SPACE, PLACES)
    made.topics["t"] = queues_of()
    before = time.monotonic()
    future = made.append(Message("t", b"x"), None, None)
    assert future is not None
    assert before <= future.appended_at <= time.monotonic()
    assert future.deadline == future.appended_at + 60.0


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
def test_topics_are_looked_up_as_they_are_now(bench: Bench) -> None:
    """Also if each message has the same topic as the one before, as the same object or another."""
    same = Message("t", b"x")
    former = bench.queues
    for _ in range(2):
        assert bench.append(same) is not None
    del bench.appender.topics["t"]
    assert bench.append(same) is None
    bench.appender.topics["t"] = latter = queues_of()
    bench.appender.topics["other"] = other = queues_of("other")
    for topic in ("t", "other", "".join("t"), "t"):
        assert bench.append(Message(topic, b"x")) is not None
    assert [len(each.appended) for each in (former, latter, other)] == [2, 3, 1]


@pytest.mark.parametrize("make", MAKERS)
def test_tags_are_looked_up_as_they_are_now(make: Callable[..., Appender]) -> None:
    heads: dict[str, Any] = {"a": TAG_HEAD}
    lock = threading.Lock()
    appender = make(lock, lambda: 1_000.0, 60.0, lambda: None, heads, SPACE, PLACES)
    appender.topics["t"] = queues_of()
    tagged, found = Message("t", b"x", "a"), []
    for head in (TAG_HEAD, (1, b"\0\0\0\1b"), None):
        heads["a"] = head
        if head is None:
            del heads["a"]
        for _ in range(2):
            future = appender.append(tagged, None, None)
            found.append(future and future.head)
    assert found == [TAG_HEAD] * 2 + [(1, b"\0\0\0\1b")] * 2 + [None] * 2


@pytest.mark.parametrize("make", MAKERS)
def test_the_memory_of_a_future_serves_others_of_its_kind_and_of_other_kinds(
    make: Callable[..., Appender],
) -> None:
    """More of them than memory is kept for; one with fields of its own keeps its memory."""

    class Noted(SendFuture):
        note: str  # in a dict

    class Slotted(SendFuture):
        __slots__ = ("__weakref__", "note")

    lock = threading.Lock()
    appenders = {}
    for kind in (SendFuture, LoopSendFuture, Noted, Slotted):
        appenders[kind] = make(lock, lambda: 1_000.0, 60.0, lambda: None, {}, 1 << 40, PLACES, kind)
        appenders[kind].topics["t"] = queues_of()
    message = Message("t", b"x")
    for _ in range(2):
        for kind, taking in appenders.items():
            futures = [taking.append(message, print, None) for _ in range(8_300)]
            for future in futures[:100]:
                assert future is not None
                assert type(future) is kind
                assert fields(future) == fields(
                    SendFuture(b"x", None, print, 1_060.0, appended_at=1_000.0)
                )
                if kind in (Noted, Slotted):
                    assert not hasattr(future, "note")
                    future.note = "mine"  # type: ignore[attr-defined]
                future.succeed(SendResult(0, 1, 2))
            taking.topics["t"].appended.clear()


@pytest.mark.parametrize("make", MAKERS)
def test_a_future_that_is_freed_gives_back_all_that_it_holds(make: Callable[..., Appender]) -> None:
    lock = threading.Lock()
    appender = make(lock, lambda: 1_000.0, 60.0, lambda: None, {"a": TAG_HEAD}, 1 << 40, PLACES)
    appender.topics["t"] = queues_of()
    message, outcome = Message("t", b"content", "a"), SendResult(0, 1, 2)
    held = (None, SendFuture, TAG_HEAD, message.content, outcome, print)
    before = [sys.getrefcount(each) for each in held]
    for number in range(2_000):
        future = appender.append(message, print if number % 3 == 0 else None, None)
        assert future is not None
        if number % 2:
            future.outcome = outcome
        appender.topics["t"].appended.clear()
    del future
    after = [sys.getrefcount(each) for each in held]
    assert max(map(abs, map(operator.sub, after, before))) < 100


@pytest.mark.parametrize("make", MAKERS)
def test_futures_that_callbacks_refer_to_are_freed_however_many(
    make: Callable[..., Appender],
) -> None:
    """They hang on each other, 50,000 deep."""
    lock = threading.Lock()
    appender = make(lock, lambda: 1_000.0, 60.0, lambda: None, {}, 1 << 40, PLACES)
    appender.topics["t"] = queues_of()
    last: Any = None

    def callback(_: object, result: object, error: object) -> None:
        pass

    for _ in range(50_000):
        ends = functools.partial(callback, last)
        last = appender.append(Message("t", b"x"), ends, None)
        appender.topics["t"].appended.clear()
    ended = weakref.ref(ends)
    del ends, last
    assert ended() is None


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
        made.append_unheard(Message("t", b"x"))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="dict"):
        made.append_unheard(Message("t", b"x"), print, None)  # type: ignore[arg-type]
    future = SendFuture(b"x", None, None, 0.0)
    for wrong_put in [(future,), (future, None), (None, queues_of()), (future, future)]:
        with pytest.raises(TypeError):
            made.put(*wrong_put)
    with pytest.raises(TypeError):
        made.use("1", 1)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        made.topics = {}  # type: ignore[misc]
