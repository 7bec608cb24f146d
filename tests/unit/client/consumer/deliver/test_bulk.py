"""Many messages at a time: the same as one by one, compiled or not."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.client.consumer.deliver import bulk
from vq.client.consumer.deliver.bulk import BulkQueue, python_content_bytes, python_stand_at
from vq.model import Message

WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param((python_content_bytes, python_stand_at), id="python"),
        pytest.param((bulk.content_bytes, bulk.stand_at), id="compiled"),
    ],
)
Way = tuple[Callable[[list[Message]], int], Callable[..., bool]]


def messages_of(count: int) -> list[Message]:
    return [Message("t", bytes(number), offset=number) for number in range(count)]


@WAYS
def test_the_bytes_of_contents_are_counted(way: Way) -> None:
    content_bytes, _ = way
    assert content_bytes([]) == 0
    assert content_bytes(messages_of(5)) == 10


@WAYS
def test_messages_stand_where_the_same_objects_are(way: Way) -> None:
    _, stand_at = way
    messages = messages_of(5)
    assert stand_at(messages[2:4], messages, 2)
    assert stand_at([], messages, 5)
    assert not stand_at(messages[2:4], messages, 1)
    assert not stand_at(messages[3:], messages, 4), "there are fewer"
    assert not stand_at(messages[3:], messages, 6), "nothing is there"
    assert not stand_at([messages[0]._replace()], messages, 0), "it is an equal one"


@pytest.mark.skipif(not bulk.COMPILED, reason="it was not compiled here")
@pytest.mark.parametrize(
    "arguments",
    [((), 0), ([1], 0), ([()], 0), ([("t",)], 0), ([], -1), ([], "x"), ([],), ([], 1 << 70)],
)
def test_the_compiled_count_refuses_what_is_no_list_of_messages(arguments: Any) -> None:
    from vq.client.consumer.deliver import _bulk

    with pytest.raises((TypeError, OverflowError)):
        _bulk.content_bytes(*arguments)


@pytest.mark.skipif(not bulk.COMPILED, reason="it was not compiled here")
@pytest.mark.parametrize(
    "arguments", [((), [], 0), ([], (), 0), ([], [], -1), ([], []), ([], [], "x")]
)
def test_the_compiled_comparison_refuses_what_are_no_lists(arguments: Any) -> None:
    from vq.client.consumer.deliver import _bulk

    with pytest.raises(TypeError):
        _bulk.stand_at(*arguments)


def test_what_was_taken_is_not_kept() -> None:
    queue = BulkQueue()
    queue.extend(messages_of(10))
    taken = queue.take(3)
    assert not any(each is message for each in queue._messages for message in taken)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["extend", "take", "extendleft", "append", "popleft", "clear"]),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_it_has_what_a_deque_has(steps: list[tuple[str, int]]) -> None:
    queue, reference, made = BulkQueue(), deque[Message](), 0
    for step, count in steps:
        some = [Message("t", b"x", offset=made + number) for number in range(count)]
        made += count
        if step == "take":
            count = min(count, len(reference))
            assert queue.take(count) == [reference.popleft() for _ in range(count)]
        elif step == "popleft":
            if reference:
                assert queue.popleft() is reference.popleft()
        elif step == "append":
            for each in some[:1]:
                queue.append(each)
                reference.append(each)
        elif step == "clear":
            queue.clear()
            reference.clear()
        else:
            getattr(queue, step)(some)
            getattr(reference, step)(some)
        assert list(queue) == list(reference)
        assert len(queue) == len(reference)
        assert queue.begins_with(list(reference)[:count])
        if reference:
            assert queue[len(reference) - 1] is reference[-1]
