"""The line of tasks that wait for space in the buffer: first come, first served.

If each message with an outcome woke all of them, n sends at once would cost n² wake-ups. So only as
many are woken as there are places, at most. Whoever leaves the line has the next ones looked at,
because it may not have used the place: it was cancelled, or its message is refused.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from vq.errors import BufferFull


class SpaceLine:
    """Tasks of one loop; loop-bound.

    Args:
        count_places: Returns how many messages could be appended now, at most.
        waited: Called with the seconds of each wait that has ended.
        full: Returns the error of a wait that ended without a place.
    """

    def __init__(
        self,
        count_places: Callable[[], int],
        *,
        waited: Callable[[float], None],
        full: Callable[[str], BufferFull],
    ) -> None:
        self._count_places = count_places
        self._waited = waited
        self._full = full
        self._line: OrderedDict[asyncio.Future[None], None] = OrderedDict()
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
            BufferFull: There was no place for so many seconds.
        """
        if self._count_places() > 0:
            return
        loop = asyncio.get_running_loop()
        begin = loop.time()
        was_first = False
        try:
            while True:
                turn: asyncio.Future[None] = loop.create_future()
                self._line[turn] = None
                if was_first:  # somebody else took the place
                    self._line.move_to_end(turn, last=False)
                timer = None
                try:
                    if self._count_places() > 0:
                        return
                    # Not ``asyncio.timeout``: many tasks wait at once, and its objects are five.
                    timer = loop.call_at(begin + timeout_s, _expire, turn)
                    await turn
                    was_first = True
                finally:
                    if timer is not None:
                        timer.cancel()
                    if self._line.pop(turn, self) is self:
                        self._woken -= 1
                    self._wake_soon(loop)
        except TimeoutError:
            raise self._full(f"no space for a message within {timeout_s:g} s") from None
        finally:
            self._waited(loop.time() - begin)

    def _wake_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._line and not self._wakes_soon:
            self._wakes_soon = True
            loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        self._wakes_soon = False
        self.wake()

    def wake(self) -> None:
        """Wake the first tasks, as many as there are places."""
        left = self._count_places() - self._woken
        while left > 0 and self._line:
            turn, _ = self._line.popitem(last=False)
            self._woken += 1
            left -= 1
            if not turn.done():  # otherwise its task was cancelled, and runs soon
                turn.set_result(None)


def _expire(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
