"""Rooms: memory of a known size that is written first, by the kernel above all, and then is bytes.

``bytes`` cannot be written to, and what was written to a ``bytearray`` becomes bytes by a copy.
Compiled, there is no such copy, and the memory is not cleared before. The functions in Python are
the reference, and ``_room.c`` replaces them where a C compiler was found at installation.
"""

from collections.abc import Callable
from typing import Final

try:
    from vq.remoting import _room
except ImportError:  # nothing compiled it
    _room = None  # type: ignore[assignment]


def python_new_room(size: int, /) -> memoryview:
    """Return a view of so many new bytes, to write them; what they are before is not defined.

    Raises:
        ValueError: ``size`` is below 0.
    """
    if size < 0:
        raise ValueError(f"a room of {size} bytes, not of 0 or more")
    return memoryview(bytearray(size))


def python_contents(room: memoryview, /) -> bytes:
    """Return the bytes of a room, all of which have been written; nobody writes to it any more.

    Raises:
        TypeError: It is no room.
    """
    if not isinstance(room, memoryview) or type(room.obj) is not bytearray:
        raise TypeError(f"{room!r} is no room")
    return bytes(room.obj)


new_room: Final[Callable[[int], memoryview]] = python_new_room if _room is None else _room.new_room
contents: Final[Callable[[memoryview], bytes]] = (
    python_contents if _room is None else _room.contents
)
