"""Rooms for what is received, compiled; ``vq.remoting.room`` has the twin in Python."""

def new_room(size: int, /) -> memoryview:
    """See ``room.python_new_room``."""

def contents(room: memoryview, /) -> bytes:
    """See ``room.python_contents``."""
