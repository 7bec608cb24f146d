"""How much a look may cost in a second."""

import asyncio
from typing import Final

from vq.clock import Clock

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
        self._read_s = 1 / reads_per_s
        self._request_s = 1 / requests_per_s
        self._free_at: dict[str, float] = {}  # "": ZooKeeper; else a broker group

    async def reads(self, count: int) -> None:
        """Wait until so many znodes may be read."""
        await self._wait("", count * self._read_s)

    async def request(self, group: str) -> None:
        """Wait until the master of a broker group may be asked."""
        await self._wait(group, self._request_s)

    async def _wait(self, whom: str, cost_s: float) -> None:
        now = self._clock.monotonic()
        free_at = self._free_at.get(whom, now)
        self._free_at[whom] = max(free_at, now) + cost_s
        if free_at > now:
            await asyncio.sleep(free_at - now)
