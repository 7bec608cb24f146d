"""Transactions under faults: clients that commit, roll back, repeat and fence, and what must hold.

Of a transaction all messages are stored or none, each once; those of one partition in their order,
and with no other between them. What ``commit`` returned for is stored, what was refused or rolled
back is not, and nothing is read before its commit was asked for.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from support.simulation.history import Event
from support.simulation.judge import Stored
from support.simulation.run import Report, SendersUnderFaults, execute
from support.simulation.world import TOPIC, ClientHost, Program, Size

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig
from vq.errors import OutcomeUnknown, VqError
from vq.model import Message
from vq.reserved import TRANSACTIONS_TOPIC

_PAUSE_S = 0.3
#: What strikes: groups of one node, and one with a node that copies.
ROWS: dict[str, tuple[Size, tuple[str, ...]]] = {
    "one node": (Size(brokers=2, partitions=3), ("kill broker", "pause", "reset", "lost reply")),
    "copies": (
        Size(brokers=1, partitions=3, copies=1),
        ("kill broker", "hand over", "cut", "expire", "lost reply"),
    ),
    "moves": (Size(brokers=2, partitions=3), ("move", "sleepy mover", "kill broker", "lost reply")),
    "disks": (
        Size(brokers=2, partitions=3),
        ("full disk", "failing disk", "slow disk", "power cut", "client dies"),
    ),
}


async def transact(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Make transactions until the host stops; record every outcome."""
    history = host.world.history
    producer = await factory.create_producer(
        ProducerConfig(
            send_timeout_s=rng.choice((0.7, 3.0, 12.0)),
            transactional_id=f"id-{name}".replace("#", "-") if rng.random() < 0.5 else None,
        )
    )
    count = 0
    while not host.stopping:
        which, count = f"{name}/{count}", count + 1
        try:
            transaction = await producer.begin_transaction()
            for index in range(rng.randrange(1, 6)):
                value = f"{which}/{index}"
                key = None if rng.random() < 0.3 else f"k{rng.randrange(4)}"
                history.add("add", name, which, value)
                await producer.send(Message(TOPIC, value.encode() + b"|", key=key))
            if rng.random() < 0.2:
                history.add("back", name, which)
                await transaction.rollback()
                continue
            if rng.random() < 0.3:
                await transaction.prepare()
            history.add("asked", name, which)
            try:
                await transaction.commit()
            except OutcomeUnknown:
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.random() * 2)
                    await transaction.commit(5.0)
                else:
                    raise
            history.add("ok", name, which)
        except VqError as error:
            kind = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            history.add(kind, name, which, type(error).__name__)
            if transaction.is_open:
                await transaction.rollback()
            await asyncio.sleep(0.2)
        await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))


def judge_transactions(
    events: Iterable[Event], stored: Mapping[str, Sequence[str]], *, at_end: bool = True
) -> list[str]:
    """Return what is wrong.

    Args:
        events: Of the run.
        stored: By partition: the values of all messages in the final log, in their order.
        at_end: All that was decided is stored by now.
    """
    events = list(events)
    added: dict[str, list[str]] = defaultdict(list)
    ends: dict[str, str] = {}
    for event in events:
        if event[1] == "add":
            added[event[3]].append(event[4])
        elif event[1] in ("ok", "refused", "unknown", "back"):
            ends[event[3]] = event[1]
    count = Counter(value for values in stored.values() for value in values)
    wrong = [f"transactions: {value} is stored {n} times" for value, n in count.items() if n > 1]
    for which, values in added.items():
        found = sum(count[value] > 0 for value in values)
        end = ends.get(which, "unknown")
        if 0 < found < len(values) and at_end:
            wrong.append(f"transactions: {found} of {len(values)} messages of {which} are stored")
        if end == "ok" and not found:
            wrong.append(f"transactions: {which} was committed and is lost")
        if end in ("refused", "back") and found:
            wrong.append(f"transactions: {which} is not committed ({end}) and is stored")
    for partition, values in stored.items():
        places: dict[str, list[int]] = defaultdict(list)
        for place, value in enumerate(values):
            places[value.rpartition("/")[0]].append(place)
        for which, at in places.items():
            part = [values[place] for place in at]
            if at[-1] - at[0] >= len(at) or part != sorted(part):
                wrong.append(f"transactions: {which} is not in one piece in {partition}: {part}")
    asked = {event[3]: event[0] for event in events if event[1] == "asked" and len(event) == 4}
    for event in events:
        if event[1] == "read":
            which = event[6].rpartition("/")[0]
            if which not in asked or event[0] < asked[which]:
                wrong.append(f"transactions: {event[6]} was read before its commit")
    return sorted(wrong)


class Transactions(SendersUnderFaults):
    """Clients make transactions while faults strike."""

    prefix = "t"

    async def create_topic(self, operator: ClusterClient) -> None:
        """See ``Simulation.create_topic``."""
        await super().create_topic(operator)
        self.world.journals.append(TRANSACTIONS_TOPIC)

    def sends(self) -> Program:
        """See ``SendersUnderFaults``."""
        return transact

    async def settle(self) -> None:
        """See ``SendersUnderFaults``."""
        await asyncio.sleep(20.0)  # what is decided is delivered by then, and what comes twice

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``."""
        stored = {name: [each.value for each in found] for name, found in log.items()}
        return judge_transactions(self.world.history.events, stored)


def play(seed: int, which: str, seconds: float = 20.0) -> Report:
    """Run one seed of a row."""
    size, kinds = ROWS[which]
    return execute(
        lambda loop: Transactions(loop, seed, seconds=seconds, size=size, kinds=kinds, tell=None)
    )
