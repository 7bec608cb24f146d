"""What a process has in hand is seen by its parent."""

import os
import threading
from collections.abc import Iterator

import pytest

from vq.model import Message
from vq.reserved import DeliveryFailure, MessageOrigin, headers_of_copy
from vq.worker.in_hand import Slots, key_of, make_file


@pytest.fixture
def both() -> Iterator[tuple[Slots, Slots]]:
    """The slots of a process, and its parent's."""
    descriptor = make_file(2)
    made = Slots(descriptor, 2), Slots(descriptor, 2)
    os.close(descriptor)
    yield made
    for each in made:
        each.close()


def message(offset: int, topic: str = "t") -> Message:
    return Message(topic, b"x", partition=3, offset=offset, id=offset + 1)


def test_a_message_is_in_hand_from_its_begin_to_its_end(both: tuple[Slots, Slots]) -> None:
    process, parent = both
    assert parent.in_hand() == []
    process.begin(message(7, "t" * 200))
    (found,) = parent.in_hand()
    assert found.key == key_of(message(7, "t" * 200))
    assert found.begun_s > 0
    process.end(failed=False)
    assert parent.in_hand() == []
    process.begin(message(8))
    process.end(failed=True)
    assert parent.counts() == (1, 1)


def test_each_thread_has_a_slot_of_its_own(both: tuple[Slots, Slots]) -> None:
    process, parent = both
    held, go = threading.Barrier(3), threading.Event()

    def work(offset: int) -> None:
        process.begin(message(offset))
        held.wait(20)
        go.wait(20)
        process.end(failed=False)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (1, 2)]
    for each in threads:
        each.start()
    held.wait(20)
    assert {each.key.offset for each in parent.in_hand()} == {1, 2}
    with pytest.raises(IndexError):
        process.begin(message(3))
    go.set()
    for each in threads:
        each.join()
    assert (parent.in_hand(), parent.counts()) == ([], (2, 0))


def test_the_key_tells_deliveries_of_one_message_apart() -> None:
    origin, failure = MessageOrigin("t", 3, 7), DeliveryFailure(4, 1, "no")
    again = message(7)._replace(headers=headers_of_copy(origin, failure))
    assert key_of(again) == key_of(message(7))._replace(earlier=4)
