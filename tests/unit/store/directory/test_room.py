"""Which data directory a new log goes to."""

import pytest

from vq.store.directory.room import Room, roomiest

GB = 10**9


@pytest.mark.parametrize(
    ("rooms", "index"),
    [
        ([Room(5, 3)], 0),
        ([Room(500 * GB, 1), Room(950 * GB, 7), Room(1_000 * GB, 8)], 1),  # the example
        ([Room(100, 0), Room(100, 0)], 0),
        ([Room(100, 1), Room(100, 0)], 1),
        ([Room(100, 9), Room(89, 0)], 0),
        ([Room(100, 9), Room(90, 0)], 1),
        ([Room(100, 0, takes=False), Room(1, 5)], 1),
        ([Room(1, 0, takes=False), Room(5, 3, takes=False)], 1),
        ([Room(0, 2), Room(0, 1)], 1),
    ],
)
def test_a_new_log_goes_where_there_is_room(rooms: list[Room], index: int) -> None:
    assert roomiest(rooms) == index


def test_partitions_that_are_made_at_once_are_spread() -> None:
    counts = [0, 0, 0]
    for _ in range(30):
        counts[roomiest([Room(100, each) for each in counts])] += 1
    assert counts == [10, 10, 10]
