"""What the application's code raised: shown, and kept for as long as somebody may ask for it."""

import contextlib
import inspect
from typing import Final

_SHOWN_MAX: Final = 500  # characters of an exception in a log line
_MAY_GO_ON: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: Exceptions behind one another whose frames are looked at.
_CHAIN_MAX: Final = 100


def shown(error: BaseException) -> str:
    """Return an exception as text, whatever its own ``__repr__`` does."""
    try:
        text = repr(error)
        return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    except BaseException:  # noqa: BLE001 - the user's code raises anything
        return f"{type(error).__name__} (its repr raises, too)"


def forget_locals(error: BaseException) -> None:
    """Keep where an exception was raised, but not the local variables there.

    The frames of a traceback, and of the functions that called them, hold every message that was
    at hand. Log the exception before this. Frames that still run, or may go on, stay as they are.
    """
    chain: list[BaseException] = [error]
    for each in chain:
        trace = each.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if not frame.f_code.co_flags & _MAY_GO_ON:
                with contextlib.suppress(RuntimeError):
                    frame.clear()
            trace = trace.tb_next
        for behind in (each.__cause__, each.__context__):
            known = any(behind is other for other in chain)
            if behind is not None and not known and len(chain) < _CHAIN_MAX:
                chain.append(behind)
