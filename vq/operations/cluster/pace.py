"""How much a look may cost in a second."""

import asyncio
from typing import Final

from vq.clock import Clock
from vq.pace import Pace

#: Znodes that are read in a second, in a two-hundredth of so many requests.
READS_PER_S: Final = 5_000
#: And requests in a second to one broker: less than a hundredth of a core there.
REQUESTS_PER_S: Final = 50


class LookPace:
    """Spreads what looks cost over time. Loop-bound; looks may share it.

    Args:
        clock: Of the client.
        reads_per_s: Znodes that are read in a second; ``math.inf``: there is no bound.
        requests_per_s: Requests in a second to one broker.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        reads_per_s: float = READS_PER_S,
        requests_per_s: float = REQUESTS_PER_S,
    ) -> None:
        self._clock = clock
        self._reads = Pace(reads_per_s)
        self._requests: dict[str, Pace] = {}  # by broker group
        self._requests_per_s = requests_per_s

    async def reads(self, count: int) -> None:
        """Wait until so many znodes may be read."""
        await self._wait(self._reads, count)

    async def request(self, group: str) -> None:
        """Wait until the master of a broker group may be asked."""
        pace = self._requests.get(group)
        if pace is None:
            pace = self._requests[group] = Pace(self._requests_per_s)
        await self._wait(pace, 1)

    async def _wait(self, pace: Pace, amount: int) -> None:
        now = self._clock.monotonic()
        pause_s = pace.pause_s(now)
        pace.spend(amount, now)
        if pause_s:
            await asyncio.sleep(pause_s)
