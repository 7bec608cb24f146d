"""A published topic: whose turn it is, where keys go, and what happens when it is gone."""

import contextlib
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter
from support.queues import QueueHost, meter_of

from vq import limits
from vq.client.config import OnUnavailable
from vq.client.future import ANY_PARTITION, SendFuture
from vq.client.producer.queue.topic_queues import Compressor, TopicQueues
from vq.client.producer.spread.partitioner import PartitionLoad, TopicPartitions, key_partition
from vq.client.producer.spread.spread import Ring, Spread, Sticky
from vq.errors import InvalidArgument
from vq.model import Message, TopicSettings
from vq.store.records.format import COMPRESSION_LZ4


def queues_of(
    partitions: int = 4,
    writable: Sequence[int] | None = None,
    *,
    partitioner: Any = None,
    first: int = 0,
    spread: Callable[[Callable[[int], bool]], Spread] | None = None,
    policy: OnUnavailable = OnUnavailable.WAIT,
    ordered: bool = False,
) -> TopicQueues:
    host = QueueHost(
        spread=spread or (lambda _: Ring(first=first)),
        partitioner=partitioner,
        on_unavailable=policy,
        ordered=ordered,
    )
    queues = host.topic()
    update(queues, partitions, writable)
    return queues


def update(
    queues: TopicQueues, partitions: int, writable: Sequence[int] | None = None, **settings: Any
) -> None:
    able = list(range(partitions)) if writable is None else list(writable)
    queues.update(TopicSettings(partitions=partitions, **settings), partitions, able)


def turns(queues: TopicQueues, count: int) -> list[int]:
    return [queues.next_partition() for _ in range(count)]


def test_messages_without_a_key_take_turns() -> None:
    assert turns(queues_of(), 6) == [0, 1, 2, 3, 0, 1]
    assert turns(queues_of(first=6), 4) == [2, 3, 0, 1]


def test_turns_pass_partitions_without_a_master() -> None:
    assert turns(queues_of(writable=[1, 3]), 4) == [1, 3, 1, 3]
    assert turns(queues_of(writable=[]), 4) == [0, 1, 2, 3], "somewhere they must wait"


def test_what_is_appended_between_any_lines_of_a_drain_goes_to_its_partition() -> None:
    """A trace function, such as that of a debugger, gives other threads their turn at each line."""
    line, lines = 0, 1
    while line < lines:
        queues = queues_of()
        queues.appended.append(SendFuture(b"first", None, None, math.inf))
        late = SendFuture(b"late", None, None, math.inf, 3)
        drained, lines = traced(queues, late, line)
        assert drained
        queues.drain()
        assert [late] == queues.queues[3].pending, f"appended at line {line} of the drain"
        line += 1
    assert lines > 5


def traced(queues: TopicQueues, late: SendFuture, line: int) -> tuple[bool, int]:
    """Drain, and append a message to a partition at one line of it; return how many there are."""
    passed = 0

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if event == "line":
            if passed == line:
                queues.directed = True
                queues.appended.append(late)
            passed += 1
        return step

    def begin(frame: FrameType, *_: Any) -> Any:
        return step if frame.f_code is TopicQueues.drain.__code__ else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        queues.drain()
    finally:
        sys.settrace(before)
    return passed > line, passed


def keyed(key: str | None) -> Message:
    return Message("t", b"x", key=key)


def test_keys_go_where_their_hash_says_master_or_not() -> None:
    queues = queues_of(writable=[0])
    for key in ("a", "b", "c", ""):
        assert queues.partition_of(keyed(key)) == key_partition(key, 4)
    assert queues.partition_of(keyed(None)) == ANY_PARTITION


def test_keys_are_ignored_where_the_strategy_says_so() -> None:
    queues = queues_of(partitioner="round-robin")
    assert queues.partition_of(keyed("a")) == ANY_PARTITION


def test_a_message_without_a_required_key_is_refused() -> None:
    queues = queues_of(partitioner="hash")
    assert queues.partition_of(keyed("a")) == key_partition("a", 4)
    with pytest.raises(InvalidArgument, match="'hash' needs one: give it a key"):
        queues.partition_of(keyed(None))


def test_weights_decide_how_much_each_partition_gets() -> None:
    queues = queues_of()
    queues.follow_weights([2.0, 1.0, 1.0, 0.0])
    found = turns(queues, 64)
    assert [found.count(number) for number in range(4)] == [32, 16, 16, 0]
    queues.follow_weights(None)
    found = turns(queues, 64)
    assert [found.count(number) for number in range(4)] == [16] * 4


def test_weights_count_among_the_partitions_with_a_master() -> None:
    queues = queues_of(writable=[1, 2])
    queues.follow_weights([5.0, 3.0, 1.0, 5.0])
    found = turns(queues, 32)
    assert (found.count(1), found.count(2)) == (24, 8)
    queues.follow_weights([1.0, 0.0, 0.0, 1.0])
    assert turns(queues, 4) == [1, 2, 1, 2], "those with weight have no master"


def test_partitions_on_full_disks_are_passed_by_while_there_are_others() -> None:
    """Messages with a key go there all the same, and all do where every disk is full."""
    queues = queues_of(4)
    queues.pass_by(frozenset({1, 3}))
    assert set(turns(queues, 8)) == {0, 2}
    update(queues, 4, (1, 2))
    assert set(turns(queues, 8)) == {2}
    queues.follow_weights([0.1, 0.5, 0.3, 0.1])
    assert set(turns(queues, 8)) == {2}
    queues.follow_weights([0.5, 0.5, 0.0, 0.0])
    assert set(turns(queues, 8)) == {2}
    queues.pass_by(frozenset(range(4)))
    assert set(turns(queues, 64)) == {1}
    queues.pass_by(frozenset())
    queues.follow_weights(None)
    assert set(turns(queues, 8)) == {1, 2}


def test_weights_of_fewer_partitions_than_there_are_do_not_count() -> None:
    queues = queues_of(2)
    queues.follow_weights([1.0, 0.0])
    update(queues, 3)
    assert turns(queues, 3) == [0, 1, 2]


def test_partitions_are_added_and_keep_their_queues() -> None:
    queues = queues_of(2)
    before = list(queues.queues)
    update(queues, 3)
    assert queues.queues[:2] == before
    assert turns(queues, 3) == [0, 1, 2]


def test_turns_go_on_when_nothing_changed() -> None:
    queues = queues_of(3)
    assert turns(queues, 2) == [0, 1]
    update(queues, 3, max_message_bytes=10)
    assert turns(queues, 2) == [2, 0]
    assert queues.content_bytes_max == 10


def test_a_change_of_compression_is_followed() -> None:
    """Also when nothing else changed; a topic's bound may be below the threshold."""
    queues = queues_of()
    assert (queues.compressor, queues.plain_bytes_max) == (None, limits.MESSAGE_BYTES_MAX)
    for threshold, largest, plain in ((100, 1_000, 99), (100, 50, 50), (0, 50, -1)):
        update(
            queues,
            4,
            compression="lz4",
            compression_threshold=threshold,
            max_message_bytes=largest,
        )
        assert queues.compressor == Compressor(COMPRESSION_LZ4, threshold, meter_of())
        assert (queues.plain_bytes_max, queues.content_bytes_max) == (plain, largest)
    update(queues, 4)
    assert (queues.compressor, queues.plain_bytes_max) == (None, limits.MESSAGE_BYTES_MAX)


class Partitioner:
    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[tuple[Message, TopicPartitions]] = []

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        self.asked.append((message, partitions))
        return self.number


def test_a_partitioner_of_ones_own_is_told_everything() -> None:
    own = Partitioner(2)
    queues = queues_of(4, [1, 2], partitioner=own)
    assert queues.partition_of(keyed("k")) == 2
    assert queues.partition_of(keyed(None)) == 2
    seen = TopicPartitions("t", 4, (1, 2))
    assert own.asked == [(keyed("k"), seen), (keyed(None), seen)]


def test_a_partitioner_of_ones_own_sees_the_load() -> None:
    own = Partitioner(2)
    queues = queues_of(2, partitioner=own)
    loads = (PartitionLoad(broker="b1"), PartitionLoad(broker="b2"))
    queues.follow_loads(loads[:1])
    seen = [TopicPartitions("t", 2, (0, 1))]  # not the loads of fewer partitions than there are
    with pytest.raises(InvalidArgument):
        queues.partition_of(keyed("k"))
    queues.follow_loads(loads)
    update(queues, 2, [1])
    seen.append(TopicPartitions("t", 2, (1,), loads))
    with pytest.raises(InvalidArgument):
        queues.partition_of(keyed("k"))
    update(queues, 3)
    seen.append(TopicPartitions("t", 3, (0, 1, 2)))
    assert queues.partition_of(keyed("k")) == 2
    assert own.asked == [(keyed("k"), each) for each in seen]


@pytest.mark.parametrize("number", [-1, 4])
def test_a_choice_that_is_no_partition_is_refused(number: int) -> None:
    queues = queues_of(partitioner=Partitioner(number))
    with pytest.raises(InvalidArgument, match=f"partition {number} of t"):
        queues.partition_of(keyed("k"))
    with pytest.raises(InvalidArgument):
        queues.partition_of(keyed(None))


def future(number: int, partition: int = ANY_PARTITION) -> SendFuture:
    return SendFuture(b"x" * number, None, None, math.inf, partition)


@pytest.mark.parametrize("directed", [None, 5])
@pytest.mark.parametrize("writable", [[0, 1, 2, 3], [1, 3], [2]])
def test_what_was_appended_is_drained_as_turns_would(
    writable: list[int], directed: int | None
) -> None:
    """In one go or one by one: the same queue for each, in the same order."""
    by_turns, drained = queues_of(writable=writable), queues_of(writable=writable)
    futures = [future(n, 0 if n == directed else ANY_PARTITION) for n in range(11)]
    for each in futures:
        number = by_turns.next_partition() if each.partition == ANY_PARTITION else each.partition
        by_turns.queues[number].pending.append(each)
    for some in (futures[:1], futures[1:4], [], futures[4:]):
        drained.appended += some
        drained.directed = any(each.partition != ANY_PARTITION for each in some)
        drained.drain()
        assert drained.appended == []
        assert not drained.directed
    assert [queue.pending for queue in drained.queues] == [q.pending for q in by_turns.queues]


def sticky(is_waiting: Callable[[int], bool]) -> Sticky:
    return Sticky(random.Random(0), full=50, is_waiting=is_waiting)


def test_messages_that_stick_do_so_beside_one_with_a_partition() -> None:
    """A blocking send has its partition before the drain; it does not scatter the others."""
    queues = queues_of(8, spread=sticky)
    queues.appended += [future(0, queues.next_partition()), *(future(n) for n in range(1, 40))]
    queues.directed = True
    queues.drain()
    assert sorted(len(queue.pending) for queue in queues.queues) == [0] * 6 + [1, 39]


def test_blocking_sends_stick_to_the_partition_of_those_that_wait() -> None:
    queues = queues_of(8, spread=sticky)
    for _ in range(40):
        queues.appended.append(future(1, queues.next_partition()))
        queues.directed = True
    queues.drain()
    assert sorted(len(queue.pending) for queue in queues.queues) == [0] * 7 + [40]


def test_draining_goes_on_where_turns_stopped() -> None:
    queues = queues_of()
    assert turns(queues, 3) == [0, 1, 2]
    queues.appended += [future(1), future(2)]
    queues.drain()
    assert [len(queue.pending) for queue in queues.queues] == [1, 0, 0, 1]
    assert turns(queues, 1) == [1]


# Drains that meet others ------------------------------------------------------------------------
def messages(queues: TopicQueues, count: int, *partitions: int) -> list[SendFuture]:
    """Append messages; those for ``partitions`` come last, the others take turns."""
    futures = [SendFuture(b"%d" % n, None, None, 1e9) for n in range(count)]
    futures += [SendFuture(b"", None, None, 1e9, partition) for partition in partitions]
    queues.directed |= bool(partitions)
    queues.appended += futures
    return futures


def handed_out(queues: TopicQueues) -> list[SendFuture]:
    return [each for queue in queues.queues for each in queue.pending]


def test_masters_that_go_during_a_drain_cost_no_message() -> None:
    """The loop follows the routes while another thread drains."""
    queues = queues_of(4)
    ring = queues.spread
    assert isinstance(ring, Ring)

    class Looked(list[int]):
        def __len__(self) -> int:
            update(queues, 4, [0])
            return super().__len__()

    for drain in (queues.drain, queues.next_partition):
        ring._places = Looked(range(4)), True
        messages(queues, 8)
        drain()
    queues.drain()
    assert len(handed_out(queues)) == 16


def test_keys_go_by_all_partitions_or_by_those_before() -> None:
    """Never by a number between, while partitions are added."""
    host = QueueHost()
    queues = host.topic()
    update(queues, 1)
    seen: list[int] = []

    def looking() -> int:  # each new queue asks for a producer id
        seen.append(queues.partition_of(keyed("a")))
        return 7

    host.new_producer_id = looking  # type: ignore[assignment]
    update(queues, 8)
    assert seen == [0] * 7
    assert queues.partition_of(keyed("a")) == key_partition("a", 8)


@pytest.mark.parametrize("directed", [(), (3, 0, 3)])
def test_a_drain_that_is_interrupted_goes_on_where_it_ended(directed: tuple[int, ...]) -> None:
    """Ctrl-C in the main thread: every message is handed out once, in order."""
    for place in range(1_000):
        queues = queues_of(4)
        futures = messages(queues, 9, *directed)
        interrupter = Interrupter(place, "topic_queues.py")
        with contextlib.suppress(Interrupted):
            interrupter.run(queues.drain)
        later = messages(queues, 2)
        queues.drain()
        found = handed_out(queues)
        assert len(found) == len({*found}) == len(futures) + len(later), interrupter.reached
        assert (queues.appended, queues.shares, queues.directed) == ([], [], False)
        for number, queue in enumerate(queues.queues):
            assert queue.pending == [each for each in futures + later if each in queue.pending]
            assert all(each.partition in (-1, number) for each in queue.pending)
        if not interrupter.reached:
            assert place > 5
            return
    raise AssertionError


# Unavailable partitions -------------------------------------------------------------------------
def contents_of(queues: TopicQueues) -> list[list[bytes]]:
    return [[item.content for item in queue.pending] for queue in queues.queues]


def waiting_at_1(**options: Any) -> TopicQueues:
    """Partition 1 of three has become unavailable; ``k`` are directed to it, ``s`` were dealt."""
    queues = queues_of(3, **options)
    for name in (b"k1", b"s1", b"k2", b"s2"):
        future = SendFuture(name, None, None, math.inf)
        future.partition = 1 if name.startswith(b"k") else ANY_PARTITION
        queues.queues[1].pending.append(future)
    update(queues, 3, [0, 2])
    return queues


@pytest.mark.parametrize(
    ("policy", "ordered", "left", "refused"),
    [
        (OnUnavailable.WAIT, False, [[], [b"k1", b"s1", b"k2", b"s2"], []], []),
        (
            OnUnavailable.FAIL,
            False,
            [[], [b"k1", b"s1", b"k2", b"s2"], []],
            [b"k1", b"s1", b"k2", b"s2"],
        ),
        (OnUnavailable.ANY, False, [[b"k1", b"k2"], [], [b"s1", b"s2"]], []),
        (OnUnavailable.WAIT, True, [[], [b"k1", b"s1", b"k2", b"s2"], []], []),
        (
            OnUnavailable.FAIL,
            True,
            [[], [b"k1", b"s1", b"k2", b"s2"], []],
            [b"k1", b"s1", b"k2", b"s2"],
        ),
    ],
)
def test_messages_of_an_unavailable_partition_follow_the_policy(
    policy: OnUnavailable, ordered: bool, left: list[list[bytes]], refused: list[bytes]
) -> None:
    queues = waiting_at_1(policy=policy, ordered=ordered)
    found, moved = queues.set_aside(queues.queues[1])
    assert [item.content for item in found] == refused
    assert contents_of(queues) == left
    assert moved == (policy is OnUnavailable.ANY)
    assert [queue.has_diverted for queue in queues.queues] == [
        policy is OnUnavailable.ANY,
        False,
        policy is OnUnavailable.ANY,
    ]


def test_nothing_moves_while_a_partition_is_available_or_no_other_one_is() -> None:
    for able in ([0, 1, 2], []):
        queues = waiting_at_1(policy=OnUnavailable.ANY)
        update(queues, 3, able)
        assert queues.set_aside(queues.queues[1]) == ([], False)
        assert len(queues.queues[1].pending) == 4


@pytest.mark.parametrize("ordered", [False, True])
def test_messages_for_which_a_caller_waits_leave_in_any_case(ordered: bool) -> None:
    """The caller has sent nothing after them, so they lose no order; the others would."""
    queues = waiting_at_1(ordered=ordered)
    queue = queues.queues[1]
    queue.pending[1].dealt = queue.pending[3].dealt = True
    assert queues.set_aside(queue) == ([], not ordered)
    assert [len(each.pending) for each in queues.queues] == ([0, 4, 0] if ordered else [1, 2, 1])


def test_only_new_messages_are_looked_at_again() -> None:
    """A partition that waits for long with many messages costs nothing each time."""
    queues = waiting_at_1()
    queue = queues.queues[1]
    queues.set_aside(queue)
    queue.pending[0].dealt = True  # it would be seen
    assert queues.set_aside(queue) == ([], False)
    queue.pending.append(SendFuture(b"new", None, None, math.inf))
    queue.pending[-1].dealt = True
    assert queues.set_aside(queue) == ([], True)
    assert contents_of(queues)[1] == [b"k1", b"s1", b"k2", b"s2"]
    del queue.pending[1]  # a late one
    assert queues.set_aside(queue) == ([], True)
    assert contents_of(queues)[1] == [b"k2", b"s2"], "all are looked at again"


def test_a_diverted_message_goes_home_if_it_can() -> None:
    queues = waiting_at_1(policy=OnUnavailable.ANY)
    queues.set_aside(queues.queues[1])
    update(queues, 3, [1, 2])
    queues.set_aside(queues.queues[0])
    assert contents_of(queues) == [[], [b"k1", b"k2"], [b"s1", b"s2"]]


def test_an_interrupted_move_loses_no_message() -> None:
    """An exception at any place: each message is in one queue, or in the shares of the next one."""
    for place in itertools.count():
        queues = waiting_at_1(policy=OnUnavailable.ANY)
        queue = queues.queues[1]
        interrupter = Interrupter(place, "topic_queues.py", "partition_queue.py")
        with contextlib.suppress(Interrupted):
            interrupter.run(lambda queues=queues, queue=queue: queues.set_aside(queue))
        queues.drain()
        everything = [content for queue in contents_of(queues) for content in queue]
        assert sorted(everything) == [b"k1", b"k2", b"s1", b"s2"], interrupter.reached
        if not interrupter.reached:
            break
    assert place > 10


def test_weights_that_are_as_before_do_not_begin_the_ring_again() -> None:
    """The load is read every few seconds: few messages in between must be spread as well."""
    weights = [2.0, 1.0, 1.0, 1.0]
    steady, often = queues_of(), queues_of()
    steady.follow_weights(weights)
    found = []
    for _ in range(64):
        often.follow_weights(list(weights))
        found += turns(often, 1)
    assert found == turns(steady, 64)
