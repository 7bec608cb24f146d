"""Rooms: written first, bytes then; the compiled twin and the one in Python."""

import sys
from collections.abc import Callable

import pytest

from vq.remoting import room

TWINS = [
    pytest.param(room.python_new_room, room.python_contents, id="python"),
    pytest.param(
        room.new_room,
        room.contents,
        id="compiled",
        marks=pytest.mark.skipif(
            room.new_room is room.python_new_room, reason="nothing compiled it"
        ),
    ),
]
twins = pytest.mark.parametrize(("new_room", "contents"), TWINS)
NewRoom = Callable[[int], memoryview]
Contents = Callable[[memoryview], bytes]


@twins
@pytest.mark.parametrize("size", [0, 1, 2, 1_000, 1 << 20])
def test_what_was_written_is_bytes(size: int, new_room: NewRoom, contents: Contents) -> None:
    """All of it, from a view of a part, too; it stays when the views are gone."""
    made = new_room(size)
    assert (len(made), made.readonly, made.format, made.contiguous) == (size, False, "B", True)
    expected = bytes(at % 251 for at in range(size))
    made[: size // 2] = expected[: size // 2]
    rest = made[size // 2 :]
    rest[:] = expected[size // 2 :]
    got = contents(rest)
    del made, rest
    assert type(got) is bytes
    assert got == expected
    assert hash(got) == hash(expected)


@twins
def test_rooms_come_and_go(new_room: NewRoom, contents: Contents) -> None:
    """Nothing of a room that was dropped is left, and nothing of one whose bytes were taken."""
    before = sys.getallocatedblocks()
    for _ in range(1_000):
        new_room(1_000)
        taken = new_room(100)
        taken[:] = b"x" * 100
        assert len(contents(taken)) == 100
    del taken
    assert sys.getallocatedblocks() - before < 100


@twins
def test_what_is_no_room_is_refused(new_room: NewRoom, contents: Contents) -> None:
    """With the value in the error."""
    with pytest.raises(ValueError, match="a room of -1 bytes, not of 0 or more"):
        new_room(-1)
    with pytest.raises(TypeError):
        new_room("1")  # type: ignore[arg-type]
    for strange in (b"bytes", None, memoryview(b"bytes")):
        with pytest.raises(TypeError, match="is no room"):
            contents(strange)  # type: ignore[arg-type]
