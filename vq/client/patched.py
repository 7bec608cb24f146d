"""Refuses a process whose threads or sockets a library of green threads has replaced.

vq runs an event loop in a thread of its own, and threads for ZooKeeper and listeners. gevent and
eventlet replace threads, locks and sockets by their own: what waits for such a thread blocks the
one real thread, and waits for ever.
"""

import sys
from typing import Final

from vq.errors import InvalidState

_NEEDED: Final = ("thread", "socket", "select", "queue")


def check_not_patched() -> None:
    """Raise if gevent or eventlet has replaced what vq needs in this process.

    Raises:
        InvalidState: It has, so ``open`` would never return, or nothing would arrive.
    """
    patched: list[str] = []
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None:
        patched = [name for name in _NEEDED if gevent.is_module_patched(name)]
    if patched:
        library, call = "gevent", "gevent.monkey.patch_all()"
    elif eventlet is not None:
        patched = [name for name in _NEEDED if eventlet.is_monkey_patched(name)]
        library, call = "eventlet", "eventlet.monkey_patch()"
    if patched:
        raise InvalidState(
            f"{library} has replaced {', '.join(patched)} in this process ({call}); vq does not "
            "work with it: it needs real threads and sockets",
            hint=f"use vq in a process without {library}, such as a gthread worker of gunicorn or "
            "the prefork pool of Celery",
        )
