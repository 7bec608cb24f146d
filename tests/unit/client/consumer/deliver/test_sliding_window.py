"""A window whose messages are finished in any order: what is committed, and its bounds."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.deliver.sliding_window import SlidingWindow
from vq.model import Message


def messages_of(sizes: list[int], begin: int = 0) -> list[Message]:
    """Messages whose contents have these sizes; a record is three bytes longer."""
    found = []
    for number, size in enumerate(sizes, 1):
        end = begin + size + 3
        found.append(Message("t", bytes(size), offset=begin, next_offset=end, id=number))
        begin = end
    return found


def test_the_place_is_that_of_the_lowest_unfinished_message() -> None:
    window = SlidingWindow(0, 10, 100)
    messages = messages_of([1, 1, 1])
    assert window.admit(messages) == 3
    window.finish([messages[2]])
    assert window.place == Progress(0)
    window.finish([messages[0]])
    assert window.place == Progress(messages[1].offset, 1)
    window.finish([messages[1]])
    assert window.place == Progress(messages[2].next_offset, 3)
    assert (len(window), window.finished_ever) == (0, 3)


def test_what_has_no_message_is_passed_once_all_before_it_is_finished() -> None:
    window = SlidingWindow(0, 10, 100)
    messages = messages_of([1])
    window.pass_to(5)
    assert window.place == Progress(5)
    messages = messages_of([1], begin=5)
    window.admit(messages)
    window.pass_to(50)
    assert (window.place, window.end) == (Progress(5), 50)
    window.finish(messages)
    assert window.place == Progress(50, 1)


def test_it_is_full_at_one_of_its_bounds() -> None:
    by_number, by_bytes = SlidingWindow(0, 2, 100), SlidingWindow(0, 10, 5)
    messages = messages_of([3, 3, 3])
    assert by_number.admit(messages) == 2
    assert by_bytes.admit(messages) == 2, "the one that reaches the bound is the last"
    for window in (by_number, by_bytes):
        assert not window.has_room
        assert window.admit(messages, 2) == 2
        window.finish([messages[1]])
        assert not window.has_room, "what is finished behind an unfinished one is in it still"
        window.finish([messages[0]])
        window.most_ever += window.finished_ever  # these are committed
        assert window.has_room
        assert window.admit(messages, 2) == 3


@pytest.mark.parametrize("foreign", [-1, 1_000, 10, 4])
def test_a_result_for_a_message_that_it_does_not_have_changes_nothing(foreign: int) -> None:
    """One of an earlier lifetime of the partition, behind or before what is here."""
    window = SlidingWindow(10, 10, 100)
    window.finish([Message("t", b"", offset=foreign)])
    messages = messages_of([1, 1], begin=10)
    window.admit(messages)
    window.finish([Message("t", b"", offset=foreign if foreign != 10 else 1_000)])
    assert (window.place, len(window)) == (Progress(10), 2)


@dataclass
class Model:
    """The same in other words: all messages, and which of them are finished."""

    admitted: list[Message] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)

    def unfinished(self) -> list[Message]:
        return [each for each in self.admitted if each.offset not in self.finished]

    def span(self) -> list[Message]:
        if not self.unfinished():
            return []
        return self.admitted[self.admitted.index(self.unfinished()[0]) :]


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), max_size=40),
    most=st.integers(1, 8),
    most_bytes=st.integers(1, 30),
    data=st.data(),
)
def test_in_any_order_nothing_unfinished_is_passed_and_the_bounds_hold(
    sizes: list[int], most: int, most_bytes: int, data: st.DataObject
) -> None:
    """Two lifetimes: what is finished under the first one, late, says nothing to the second."""
    messages = messages_of(sizes)
    late: list[Message] = []
    for _ in range(2):
        window, model, at = SlidingWindow(0, most, most_bytes), Model(), 0
        committed = 0
        place = window.place.position
        while at < len(messages) or model.unfinished():
            if late and data.draw(st.booleans()):
                others = [each for each in late if each.offset >= window.end]
                window.finish(others)  # a foreign result for what is not here yet
            committed = data.draw(st.integers(committed, window.finished_ever))
            if not model.unfinished():
                committed = window.finished_ever
            window.most_ever = most + committed
            had_room = window.has_room
            behind = window.admit(messages, at)
            assert (behind > at) == (had_room and at < len(messages))
            model.admitted += messages[at:behind]
            at = behind
            span = model.span()
            assert len(window) == len(span)
            assert len(model.admitted) - committed <= most
            assert sum(len(each.content) for each in span[:-1]) < most_bytes
            some = data.draw(st.lists(st.sampled_from(model.unfinished()), max_size=4))
            some = some or model.unfinished()[:1]
            window.finish(some)
            model.finished |= {each.offset for each in some}
            lowest = min((each.offset for each in model.unfinished()), default=window.end)
            assert window.place.position == lowest >= place
            place = lowest
            done = [each.id for each in model.admitted if each.offset < lowest]
            assert window.place.message_id == (done[-1] if done else None)
            assert window.finished_ever == len(done)
            behind_it = [each for each in model.span() if each.offset in model.finished]
            assert window.ahead() == tuple((each.offset, each.id) for each in behind_it)
        late = messages
