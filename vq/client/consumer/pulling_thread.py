"""Which thread may call ``get_many``: the messages of its last call are with one at a time."""

import threading

from vq.errors import InvalidState


def check_one_thread(owner: threading.Thread | None, me: threading.Thread) -> None:
    """Return if a thread may call: nobody has messages, or it has, or who had them has ended.

    Raises:
        InvalidState: Another thread has messages, or waits for some.
    """
    if owner is not None and owner is not me and owner.is_alive():
        raise InvalidState(
            f"thread {owner.name!r} has messages of get_many or waits for some, and {me.name!r} "
            "asks for more; hand the messages of one thread to others, or make several consumers"
        )
