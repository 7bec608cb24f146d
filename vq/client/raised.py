"""Exceptions of the application's code: keeping them without their local variables."""

import contextlib
import inspect
from typing import Final

_MAY_GO_ON: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
#: How many chained exceptions to visit.
_CHAIN_MAX: Final = 100


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
