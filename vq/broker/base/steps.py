"""Reading stored blocks in steps, on a lane, with pauses in which others get the disk and the loop.

In here: where a step runs, how long it is waited for, and how long the pause behind it is. Not in
here: what a step does (``vq.store.care.walk``), and what is read.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from vq.broker.base.runner import Lane, Runner, leave, wait_at_most
from vq.clock import Clock

#: How long one step waits for an archive elsewhere.
ELSEWHERE_TIMEOUT_S: Final = 60.0


class Steps(Protocol):
    """Work in steps; see ``Walk``."""

    @property
    def read_bytes(self) -> int:
        """How many bytes were looked at."""
        ...

    @property
    def batches(self) -> int:
        """How many batches were."""
        ...

    @property
    def done(self) -> bool:
        """Whether there is no further step."""
        ...

    @property
    def waits_for(self) -> str:
        """The place, which may not answer for ever, that the next step reads from; "": none."""
        ...

    def step(self) -> object:
        """Take the next step; blocks."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class StepPace(NamedTuple):
    """How fast steps are taken.

    Attributes:
        bytes_per_s, batches_per_s: What they read, at most.
        share: A pause is at least so many times as long as the step before it.
    """

    bytes_per_s: float = math.inf
    batches_per_s: float = math.inf
    share: float = 0.0

    def pause_s(self, took_s: float, size: int, batches: int) -> float:
        """Return how long the pause is behind a step."""
        return max(size / self.bytes_per_s, batches / self.batches_per_s, self.share * took_s)


NO_PAUSES: Final = StepPace()


async def take_steps(
    steps: Steps,
    runner: Runner,
    lane: Lane,
    clock: Clock,
    pace: StepPace,
    *,
    still: Callable[[], bool],
    on_read: Callable[[int], None] = lambda size: None,
) -> None:
    """Take all steps, while ``still`` says that they are wanted, and close them.

    What lies elsewhere is read on a lane of its own, and is not waited for without an end.

    Args:
        steps: What to do.
        runner: Runs a step.
        lane: Where, of what lies here.
        clock: For the pace.
        pace: See above.
        still: See above.
        on_read: Called with the bytes that a step has read.

    Raises:
        TimeoutError: A place does not answer. The step may end one day.
    """
    place = ""
    try:
        while not steps.done and still():
            read, batches, begun_s = steps.read_bytes, steps.batches, clock.monotonic()
            place = steps.waits_for
            if place:
                step = runner.run(steps.step, Lane.ELSEWHERE, place)
                await wait_at_most(ELSEWHERE_TIMEOUT_S, step)
            else:
                await runner.run(steps.step, lane)
            read, batches = steps.read_bytes - read, steps.batches - batches
            on_read(read)
            pause_s = pace.pause_s(clock.monotonic() - begun_s, read, batches)
            if pause_s:
                await asyncio.sleep(pause_s)
    finally:  # behind a step that a cancellation left running
        if place:
            leave(runner.run(steps.close, Lane.ELSEWHERE, place))
        else:
            await runner.run(steps.close, lane)
