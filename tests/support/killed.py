"""Runs a program that kills itself with SIGKILL where a function begins or ends.

    python -m support.killed POINT MODULE ARGUMENT...

POINT is ``module:function:before:n`` or ``module:function:after:n``: at the n-th call of the
function (``Class.method``; a coroutine function, too), before it does anything or once it has
returned. MODULE is run as ``python -m MODULE`` would.
"""

import functools
import importlib
import inspect
import itertools
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any


def arm(point: str) -> None:
    """Have this process die at a point."""
    module, name, when, times = point.split(":")
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for each in outer:
        owner = getattr(owner, each)
    setattr(owner, last, _dying(getattr(owner, last), when, int(times)))


def _dying(function: Callable[..., Any], when: str, times: int) -> Callable[..., Any]:
    calls = itertools.count(1)

    def die(number: int, at: str) -> None:
        if when == at and number == times:
            os.kill(os.getpid(), signal.SIGKILL)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*given: Any, **named: Any) -> Any:
            number = next(calls)
            die(number, "before")
            found = await function(*given, **named)
            die(number, "after")
            return found

        return waited

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        number = next(calls)
        die(number, "before")
        found = function(*given, **named)
        die(number, "after")
        return found

    return called


if __name__ == "__main__":
    _, point, program, *arguments = sys.argv
    arm(point)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
