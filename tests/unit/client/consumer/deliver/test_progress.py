"""What is committed, and where a member goes on in a partition that it lost and claimed again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.client.consumer.deliver.progress import Handled, Progress, Window, go_on_at
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import Message, TopicPartition

OURS = CommittedOffset(offset=100, message_id=1, time_ms=5, member="a")
TRIED = CommittedOffset(offset=200, message_id=2, time_ms=9, member="a")
LOST = Claim("g", "a", TopicPartition("t", 0), 3, OURS, 7)
HANDLED = Progress(300, 3)
KEPT = Handled(LOST, (TRIED, replace(TRIED, time_ms=11)), HANDLED)
SOUGHT = Progress(50)


@pytest.mark.parametrize(
    ("found", "version", "kept", "goes_on_at"),
    [
        pytest.param(OURS, 7, KEPT, HANDLED, id="nobody committed"),
        pytest.param(TRIED, 8, KEPT, HANDLED, id="a commit was written, its answer lost"),
        pytest.param(
            replace(TRIED, time_ms=11), 9, KEPT, HANDLED, id="two were written, both answers lost"
        ),
        pytest.param(OURS, 7, None, Progress(100, 1), id="nothing is kept"),
        pytest.param(OURS, 9, KEPT, Progress(100, 1), id="reset to the same value"),
        pytest.param(replace(OURS, epoch=4), 9, KEPT, Progress(100, 1, 4), id="epoch"),
        pytest.param(OURS, 0, KEPT, Progress(100, 1), id="the node was made anew"),
        pytest.param(replace(OURS, member="b"), 8, KEPT, Progress(100, 1), id="a successor"),
        pytest.param(replace(TRIED, time_ms=10), 8, KEPT, Progress(200, 2), id="our namesake"),
        pytest.param(TRIED, 7, KEPT, Progress(200, 2), id="a commit that we tried and another"),
        pytest.param(
            replace(OURS, offset=400, member="b"), 8, KEPT, Progress(400, 1), id="beyond ours"
        ),
        pytest.param(OURS, 7, Handled(LOST, (), SOUGHT), SOUGHT, id="sought back"),
        pytest.param(
            replace(OURS, member="b"), 8, Handled(LOST, (), SOUGHT), Progress(100, 1), id="sought"
        ),
    ],
)
def test_a_member_goes_on_behind_what_it_handled_unless_somebody_else_committed(
    found: CommittedOffset, version: int, kept: Handled | None, goes_on_at: Progress
) -> None:
    claim = replace(LOST, generation=5, committed=found, offset_version=version)
    assert go_on_at(claim, found, kept) == goes_on_at


def test_a_group_that_was_stopped_stays_where_it_was_stopped() -> None:
    """The kept place has nothing to say about it."""
    stopped = replace(OURS, stopped="lost messages")
    kept = Handled(replace(LOST, committed=stopped), (), HANDLED)
    claim = replace(LOST, committed=stopped)
    assert go_on_at(claim, stopped, kept) == Progress(100, 1)


def test_the_first_commit_of_all_may_have_lost_its_answer() -> None:
    first = replace(LOST, committed=None, offset_version=None)
    claim = replace(LOST, committed=TRIED, offset_version=0)
    assert go_on_at(claim, TRIED, Handled(first, (TRIED,), HANDLED)) == HANDLED


# The window --------------------------------------------------------------------------------------
def messages(begin: int, sizes: list[int]) -> list[Message]:
    """Messages one behind the other; the id of each is its offset and one."""
    found = []
    for size in sizes:
        found.append(
            Message("t", b"", offset=begin, next_offset=begin + size, id=begin + 1, partition=0)
        )
        begin += size
    return found


def place_of(unfinished: set[int], known: list[Message], end: int) -> Progress:
    """Where the lowest unfinished message is: said in another way than the window does."""
    position = min(unfinished, default=end)
    before = [each for each in known if each.next_offset <= position]
    return Progress(position, before[-1].id if before else None)


@given(st.data())
def test_what_is_committed_never_passes_an_unfinished_message_and_never_falls(data) -> None:
    """Whatever the order in which messages are finished: many at a time, one by one, or mixed."""
    window, known, end = Window(7), list[Message](), 7
    assert window.place() == Progress(7)
    last = -1
    for _ in range(data.draw(st.integers(1, 4))):
        at_hand = messages(end, data.draw(st.lists(st.integers(1, 9), max_size=12)))
        known += at_hand
        end = at_hand[-1].next_offset if at_hand else end
        window.open(at_hand)
        unfinished = {each.offset for each in at_hand}
        order = data.draw(st.permutations(range(len(at_hand))))
        if data.draw(st.booleans()):  # one by one, until the listener raises or is stopped
            count = data.draw(st.integers(0, len(at_hand)))
            for number, message in enumerate(window.turn()):
                assert message == at_hand[number]
                assert window.place() == place_of(unfinished, known, end)
                if number == count:
                    break
                unfinished.discard(message.offset)
            window.end_turn(is_finished=count == len(at_hand))
            order = [index for index in order if index >= count]
        for index in order:
            window.finish(index)
            unfinished.discard(at_hand[index].offset)
            place = window.place()
            assert place == place_of(unfinished, known, end)
            assert place.position >= last
            last = place.position
        assert (window.finished, window.finished_ever) == (len(at_hand), len(known))
        end += data.draw(st.integers(0, 5))  # control records, filtered messages
        window.pass_to(end)
        assert window.place() == place_of(set(), known, end)


def test_a_range_is_finished_at_once() -> None:
    window = Window(0)
    window.open(messages(0, [10] * 6))
    window.finish(3, 2)
    assert window.place() == Progress(0)
    window.finish(0, 3)
    assert window.place() == Progress(50, 41)
    assert [each.offset for each in window.turn()] == [50]


def test_what_was_not_finished_comes_again_in_the_next_turn() -> None:
    window = Window(0)
    window.open(messages(0, [10] * 3))
    first = window.turn()
    assert [next(first).offset, next(first).offset] == [0, 10]
    window.end_turn(is_finished=False)
    assert window.place() == Progress(10, 1)
    assert [each.offset for each in window.turn(1)] == [10]
    window.end_turn(is_finished=True)
    assert window.place() == Progress(20, 11)
