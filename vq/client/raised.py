"""Exceptions of the application's code: their text for logs, and keeping them without locals."""

import contextlib
import inspect
from typing import Final

_SHOWN_MAX: Final = 500  # characters of an exception in a log line
_MAY_GO_ON: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: How many chained exceptions to visit.
_CHAIN_MAX: Final = 100


def shown(error: BaseException) -> str:
    """Return an exception as text, even if its ``__repr__`` raises."""
    try:
        text = repr(error)
        return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
    except BaseException:  # noqa: BLE001 - the user's code raises anything
        return f"{type(error).__name__} (its repr raises, too)"


def forget_locals(error: BaseException) -> None:
    """Clear the local variables in the traceback of an exception and of its causes.

    These variables keep messages alive for as long as the exception. Log the exception first.
    Frames that still run, or may be resumed, are not cleared.
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
