"""SIGTERM and SIGHUP end a command as ctrl-C does: it tidies up, and then it ends.

Without a handler SIGTERM ends Python at once (a consumer does not commit, a temporary cluster is
left behind), and a process with id 1, as in a container, never even gets it.

A long-running command that handles these signals itself (``vq broker``, ``vq standalone``) replaces
the handlers.
"""

import signal
from types import FrameType
from typing import Final

#: What a shell makes of a process that a signal ended.
EXIT_OF_SIGNAL: Final = 128

_last = int(signal.SIGINT)


def install() -> None:
    """Handle SIGTERM and SIGHUP from now on; call it in the main thread.

    SIGHUP stays ignored where it is (``nohup``).
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)


def exit_code() -> int:
    """Return the exit code of a command that was interrupted: 130, or 143 for SIGTERM."""
    return EXIT_OF_SIGNAL + _last


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what ctrl-C would do here and now; a running event loop has its own idea of that."""
    global _last
    _last = number
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:  # ctrl-C is ignored, as in a job that a script started in the background
        raise KeyboardInterrupt
