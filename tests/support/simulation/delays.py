"""Delayed messages under faults: clients that send and cancel some, and what must hold at the end.

Each acknowledged message is delivered once, unless it was cancelled; then never. Nobody gets one
before its time. Clocks must not be set wrong in such a run: a broker goes by its own.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping

from support.simulation.history import Event
from support.simulation.judge import Stored
from support.simulation.run import SendersUnderFaults
from support.simulation.world import TOPIC, ClientHost, Program

from vq import aio
from vq.client.config import ProducerConfig
from vq.errors import OutcomeUnknown, VqError
from vq.model import Cancellation, Message

DELAYS_S = (0.05, 0.5, 2.0, 5.0, 12.0)
#: Two clients cannot send more often than this without the run taking long.
_PAUSE_S = 0.4


async def delay(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Send delayed messages until the host stops, and cancel some; record every outcome."""
    history = host.world.history
    producer = await factory.create_producer(
        ProducerConfig(send_timeout_s=rng.choice((0.7, 3.0, 12.0)))
    )
    number = 0
    while not host.stopping:
        value, delay_s = f"{name}/{number}", rng.choice(DELAYS_S)
        number += 1
        history.add("delay", name, value, delay_s)
        try:
            result = await producer.send(Message(TOPIC, value.encode() + b"|", delay_s=delay_s))
        except VqError as error:
            kind = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            history.add(kind, name, value, type(error).__name__)
            await asyncio.sleep(0.2)
            continue
        history.add("ok", name, value, "waits", result.offset, result.id)
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, delay_s))
            history.add("cancel", name, value, "asked")
            try:
                outcome = await producer.cancel(result, 5.0)
            except VqError as error:
                history.add("cancel", name, value, type(error).__name__)
            else:
                history.add("cancel", name, value, outcome.name)
        await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))


def acknowledged(events: Iterable[Event]) -> set[str]:
    """Return the messages that wait, or have waited, and were never to be cancelled."""
    found = {event[3] for event in events if event[1] == "ok"}
    return found - {event[3] for event in events if event[1] == "cancel"}


def judge_delays(events: Iterable[Event], stored: Iterable[str]) -> list[str]:
    """Return what is wrong.

    Args:
        events: Of the run.
        stored: The values of all messages in the final logs.
    """
    events, count = list(events), Counter(stored)
    wrong = [f"delayed: {value} is stored {n} times" for value, n in count.items() if n > 1]
    wrong += [f"delayed: {value} is lost" for value in acknowledged(events) if not count[value]]
    for event in events:
        if event[1] != "cancel":
            continue
        value, outcome = event[3], event[4]
        if outcome == Cancellation.CANCELLED.name and count[value]:
            wrong.append(f"delayed: {value} was cancelled and is stored")
        if outcome == Cancellation.DELIVERED.name and not count[value]:
            wrong.append(f"delayed: {value} counts as delivered and is lost")
    due = {event[3]: event[0] + event[4] for event in events if event[1] == "delay"}
    wrong += [
        f"delayed: {event[6]} came {due[event[6]] - event[0]:.3f} s early"
        for event in events
        if event[1] == "read" and event[0] < due[event[6]]
    ]
    return sorted(wrong)


class Delays(SendersUnderFaults):
    """Two clients delay messages while faults strike."""

    prefix = "d"

    def sends(self) -> Program:
        """See ``SendersUnderFaults``."""
        return delay

    async def settle(self) -> None:
        """See ``SendersUnderFaults``."""
        await self.until("what waits to be delivered", self._all_came)
        await asyncio.sleep(max(DELAYS_S))  # what was cancelled, or comes twice, would come now

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``."""
        stored = [each.value for messages in log.values() for each in messages]
        return judge_delays(self.world.history.events, stored)

    def _all_came(self) -> bool:
        events = self.world.history.events
        return acknowledged(events) <= {event[6] for event in events if event[1] == "read"}
