"""Delayed messages and transactions in a cluster that loses messages, and their journals with them.

An operator has nodes lead that lack messages: of a partition, of the journal that delivers there,
or of both. Then the one knows more than the other of what was delivered. What is sent once that is
over is judged as if nothing had been lost; what was sent before is not.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from support.simulation.copies import UNCLEAN
from support.simulation.delays import DELAYS_S, Delays, judge_delays
from support.simulation.history import Event
from support.simulation.judge import Stored
from support.simulation.nemesis import Nemesis
from support.simulation.run import Report, SendersUnderFaults, execute
from support.simulation.transactions import Transactions, judge_transactions
from support.simulation.world import Size

#: So long after the last fault nodes may still come back, and be made to lead.
SETTLED_S: Final = 10.0
#: So long clients send from then on.
_SENT_S: Final = 15.0


class _Lossy(SendersUnderFaults):
    """Clients that go on for a while once all is well."""

    since = 0.0

    async def strike(self, nemesis: Nemesis) -> None:
        """See ``Simulation.strike``."""
        await super().strike(nemesis)
        await nemesis.heal()
        await asyncio.sleep(SETTLED_S)
        self.world.history.add("note", "judge", "from now on nothing may be lost")
        self.since = self.world.history.events[-1][0]
        await asyncio.sleep(_SENT_S)

    async def settle(self) -> None:
        """See ``SendersUnderFaults``."""
        await asyncio.sleep(max(DELAYS_S) + 20.0)  # what was refused is sent again every 5 s

    def late(self, begins: str, column: int) -> tuple[list[Event], set[str]]:
        """Return the events of what was begun since, and what that is.

        Args:
            begins: The kind of the event that begins it.
            column: Where events name it.
        """
        events = self.world.history.events
        early = {event[column] for event in events if event[1] == begins and event[0] < self.since}
        late = {event[column] for event in events if event[1] == begins} - early
        self.effects["late"] = len(late)
        return [each for each in events if each[column : column + 1] and each[column] in late], late


def _values(log: Mapping[str, Iterable[Stored]]) -> dict[str, list[str]]:
    return {name: [each.value for each in found] for name, found in log.items()}


class LossyDelays(_Lossy, Delays):
    """Clients that send delayed messages."""

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``."""
        events, late = self.late("delay", 3)
        stored = [value for found in _values(log).values() for value in found if value in late]
        return judge_delays(events, stored)


class LossyTransactions(_Lossy, Transactions):
    """Clients that make transactions."""

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``."""
        events, late = self.late("add", 3)
        stored = {
            name: [each for each in found if each.rpartition("/")[0] in late]
            for name, found in _values(log).items()
        }
        return judge_transactions(events, stored)


def play_lossy(
    seed: int, kind: type[LossyDelays] | type[LossyTransactions], seconds: float = 25.0
) -> Report:
    """Run one seed of a kind of clients."""
    size = Size(brokers=1 + seed // 2 % 2, partitions=3, copies=1 + seed % 2)
    kinds = (UNCLEAN, "kill broker", "hand over") if seed % 3 else (UNCLEAN,)
    return execute(
        lambda loop: kind(loop, seed, seconds=seconds, size=size, kinds=kinds, tell=None)
    )
