"""The line of tasks that wait for space in the buffer: first come, first served.

If each message with an outcome woke all of them, n sends at once would cost n² wake-ups. So only as
many are woken as there are places, at most. Whoever leaves the line has the next ones looked at,
because it may not have used the place: it was cancelled, or its message is refused.

Many thousand tasks may wait, and the garbage collector visits the objects of all of them again and
again. So a wait has one future here, and one timer serves the whole line. A plain message waits in
the line itself: when it is its turn the line appends it, and its task sleeps until the outcome.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from vq.client.producer.intake.accumulator import Accumulator
from vq.model import Message, SendResult

#: How late a wait may end, in seconds, so that many deadlines cost one look at the line.
LATE_S: Final = 0.01

#: Ends with None once it is the task's turn, or with the outcome of the message that waited for it.
Turn = asyncio.Future[SendResult | None]
#: The deadline of a wait, its length in seconds, and the message that the line is to append.
_Wait = tuple[float, float, Message | None]


class SpaceLine:
    """Tasks of one loop; loop-bound.

    Args:
        accumulator: Has the space, and takes the messages that wait in the line.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._line: OrderedDict[Turn, _Wait] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None  # for the first deadline of the line
        self._woken = 0  # tasks that were woken and did not run since
        self._wakes_soon = False

    @property
    def waiting(self) -> bool:
        """Whether a task waits."""
        return bool(self._line)

    async def wait(self, timeout_s: float) -> None:
        """Return once there is a place; the caller must use it before it waits for anything else.

        It looks once it is in the line: another thread may give space back in between.

        Raises:
            BufferFull: There was no place for so many seconds, and at most ``LATE_S`` more.
        """
        accumulator = self._accumulator
        accumulator.end_linger()
        if accumulator.places_left > 0:
            return
        loop = asyncio.get_running_loop()
        begin = loop.time()
        was_first = False
        try:
            while True:
                turn: Turn = loop.create_future()
                self._line[turn] = (begin + timeout_s, timeout_s, None)
                if was_first:  # somebody else took the place
                    self._line.move_to_end(turn, last=False)
                try:
                    if accumulator.places_left > 0:
                        return
                    self._expire_at(begin + timeout_s, loop)
                    await turn
                    was_first = True
                finally:
                    if self._line.pop(turn, None) is None:
                        self._woken -= 1
                    self._wake_soon(loop)
        finally:
            accumulator.count_wait(loop.time() - begin)

    def join(self, message: Message, timeout_s: float) -> Turn:
        """Have a message wait in the line; return what its task awaits, and ``leave``s at the end.

        The result is the message's outcome. It is None if the task must append the message itself:
        there is a place for it then. It raises ``BufferFull`` as ``wait`` does.
        """
        self._accumulator.end_linger()
        loop = asyncio.get_running_loop()
        turn: Turn = loop.create_future()
        deadline = loop.time() + timeout_s
        self._line[turn] = (deadline, timeout_s, message)
        self._expire_at(deadline, loop)
        if self._accumulator.places_left > 0:
            self._wake_soon(loop)
        return turn

    def leave(self, turn: Turn) -> None:
        """Leave the line, if the message still waits there: its task was cancelled."""
        if self._line and self._line.pop(turn, None) is not None:
            self._wake_soon(asyncio.get_running_loop())

    def _expire_at(self, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None or deadline < self._timer.when():
            self._stop_timer()
            self._timer = loop.call_at(deadline, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits whose time is over, and look again when the next one's is."""
        self._timer = None
        now = loop.time()
        first = float("inf")
        for turn, (deadline, timeout_s, message) in self._line.items():
            if turn.done():  # its task runs soon
                continue
            if deadline > now:
                first = min(first, deadline)
                continue
            late = f"no space for a message within {timeout_s:g} s"
            turn.set_exception(self._accumulator.full(late))
            if message is not None:
                self._accumulator.count_wait(timeout_s)
        if first < float("inf"):
            self._expire_at(max(first, now + LATE_S), loop)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._line:
            self._stop_timer()
        elif not self._wakes_soon:
            self._wakes_soon = True
            loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        self._wakes_soon = False
        self.wake()

    def wake(self) -> None:
        """Append the first messages and wake the first tasks, as many as there are places."""
        accumulator, now = self._accumulator, 0.0
        while self._line and accumulator.places_left > self._woken:
            turn, (deadline, timeout_s, message) = self._line.popitem(last=False)
            if message is None:
                self._woken += 1
                if not turn.done():  # otherwise its task was cancelled, and runs soon
                    turn.set_result(None)
            elif not turn.done():
                now = now or turn.get_loop().time()
                accumulator.count_wait(now - deadline + timeout_s)
                future = accumulator.append(message, None, max(0.0, deadline - now))
                accumulator.hurry_sender()  # its task waits for the outcome
                if future is None:
                    turn.set_result(None)
                else:
                    future.end_with(turn)
        if not self._line:
            self._stop_timer()
