"""Ctrl-C at a chosen place: an exception that a signal handler raises between two instructions.

CPython calls signal handlers when a function begins, when a call has returned and when a loop
turns: these are the places. A thread other than the main one is interrupted here, by its trace
function, one instruction later. Where another handler of exceptions holds there, the place is left
out: the real exception would meet the handler of the call.
"""

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_PLACES = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


class Interrupted(BaseException):
    """Stands for ``KeyboardInterrupt``, which would end a loop that meets it in a task."""


class Interrupter:
    """Raises ``Interrupted`` at one place of the code that a thread runs.

    Args:
        place: Which one, counted from 0 in the order in which they are passed.
        inside: Parts of file names; other files are passed by.

    Attributes:
        reached: Whether there was such a place.
    """

    def __init__(self, place: int, *inside: str) -> None:
        self.reached = ""
        self._left = place
        self._inside = inside
        self._codes: dict[CodeType, dict[int, tuple[str, int]]] = {}
        self._last: dict[FrameType, tuple[str, int]] = {}

    def run(self, work: Callable[[], T]) -> T:
        """Do some work in this thread, and interrupt it once."""
        # Python 3.12 gives instructions only if some frame asked before the trace function was set.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._begin)
        try:
            return work()
        finally:
            sys.settrace(None)
            self._last.clear()

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in self._inside):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        frame.f_trace = self._step  # Python 3.13 gives instructions only to a frame that has it now
        if frame.f_code not in self._codes:
            self._codes[frame.f_code] = instructions(frame.f_code)
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            here = self._codes[frame.f_code][frame.f_lasti]
            name, handler = self._last.get(frame, ("RESUME", here[1]))
            self._last[frame] = here
            if name in _PLACES and handler == here[1]:
                self._left -= 1
                if self._left < 0 and not self.reached:
                    self.reached = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    self.handle()
        return self._step

    def handle(self) -> None:
        """Do what the handler does."""
        raise Interrupted


def instructions(code: CodeType) -> dict[int, tuple[str, int]]:
    """Return the instructions of a function: offset → name and where its exceptions go, or -1."""
    handlers = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return {
        each.offset: (
            each.opname,
            next((h.target for h in handlers if h.start <= each.offset < h.end), -1),
        )
        for each in dis.get_instructions(code)
    }
