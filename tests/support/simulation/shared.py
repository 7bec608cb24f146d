"""Members of a shared group: they say of each message what comes to their minds, and note it.

    got     member, call, partition, offset, value, attempts, lease    a listener got a message
    says    member, call, what, seconds                                it is about to say so of it
    said    member, call, outcome                                      what it was told

``judge_shared`` says what must hold. Every so often a message is poison: its listeners always fail.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from support.shared_judge import (
    CHECKS,
    NOTHING_LOST,
    Call,
    Said,
    SharedEvidence,
    judge_shared,
)
from support.simulation.history import Event, History
from support.simulation.workload import leave, value_of
from support.simulation.world import POOL, ClientHost

from vq import aio
from vq.client.config import ConsumerConfig, ReadFrom
from vq.errors import LeaseLost, VqError

#: Short, so that a few workers come to an end with what was sent, although some are late.
LEASES_S: Final = (1.0, 2.0, 3.0)
#: Few enough that some messages are given up, and enough that most are not.
MAX_DELIVERIES: Final = 4
#: One message of so many is poison.
_POISON_EVERY: Final = 19


class Poison(OSError):
    """A listener cannot handle its message, as always."""


def is_poison(value: str) -> bool:
    """Whether the listeners of the message with this value always fail."""
    return int(value.rpartition("/")[2]) % _POISON_EVERY == 7


class _Listening:
    """One call of a listener."""

    def __init__(self, history: History, who: str, call: str, message: Any) -> None:
        self._history = history
        self._who = who
        self._call = call
        self._message = message
        self.is_settled = False

    def note(self, what: str, seconds: float = 0.0) -> None:
        """Note what it says without being told anything."""
        self._history.add("says", self._who, self._call, what, seconds)

    async def say(self, what: str, how: Awaitable[Any], seconds: float = 0.0) -> bool:
        """Say something of the message; return whether it is still with this member."""
        self.note(what, seconds)
        self.is_settled = self.is_settled or what != "extend"
        try:
            await how
        except LeaseLost:
            outcome = "lost"
        except VqError:
            outcome = "unknown"
        else:
            outcome = "ok"
        self._history.add("said", self._who, self._call, outcome)
        return outcome == "ok"

    async def extend(self, seconds: float) -> bool:
        return await self.say("extend", self._message.extend(seconds), seconds)

    async def ack(self) -> bool:
        return await self.say("ack", self._message.ack())

    async def nack(self, seconds: float) -> bool:
        return await self.say("nack", self._message.nack(seconds), seconds)

    async def reject(self) -> bool:
        return await self.say("reject", self._message.reject())


def _at_once(rng: random.Random, lease_s: float) -> Callable[[_Listening], Awaitable[Any]]:
    async def handle(listening: _Listening) -> None:
        await asyncio.sleep(rng.expovariate(1 / (0.05 * lease_s)))
        await listening.ack()

    return handle


def _returns(rng: random.Random, lease_s: float) -> Callable[[_Listening], Awaitable[Any]]:
    async def handle(_: _Listening) -> None:
        await asyncio.sleep(rng.expovariate(1 / (0.05 * lease_s)))

    return handle


def _gives_back(rng: random.Random, lease_s: float) -> Callable[[_Listening], Awaitable[Any]]:
    async def handle(listening: _Listening) -> None:
        await listening.nack(rng.choice((0.0, 0.3, lease_s)))

    return handle


def _gives_up(_: random.Random, __: float) -> Callable[[_Listening], Awaitable[Any]]:
    async def handle(listening: _Listening) -> None:
        await listening.reject()

    return handle


def _goes_on(rng: random.Random, lease_s: float) -> Callable[[_Listening], Awaitable[Any]]:
    """It extends the lease, the second time in the last moment."""

    async def handle(listening: _Listening) -> None:
        if await listening.extend(lease_s):
            await asyncio.sleep(lease_s * rng.choice((0.5, 0.99, 0.999)))
            if await listening.extend(lease_s):
                await asyncio.sleep(lease_s * rng.random())
                await listening.ack()

    return handle


def _is_late(rng: random.Random, lease_s: float) -> Callable[[_Listening], Awaitable[Any]]:
    """It says what it has to say when its time is nearly over, or is over."""

    async def handle(listening: _Listening) -> None:
        await asyncio.sleep(lease_s * rng.uniform(0.9, 1.5))
        await (listening.ack() if rng.random() < 0.7 else listening.extend(lease_s))

    return handle


_MINDS: Final = (*[_at_once] * 9, _returns, _returns, _gives_back, _gives_up, _goes_on, _is_late)


async def share(
    host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
) -> None:
    """Be a member of the shared group until the host stops."""
    history = host.world.history
    lease_s = rng.choice(LEASES_S)
    read_from = ReadFrom.MASTER
    if host.world.copies:
        read_from = rng.choice((ReadFrom.MASTER, ReadFrom.ANY))
    consumer = await factory.create_consumer(
        ConsumerConfig(
            group=POOL,
            model="shared",
            mode="keyed" if host.world.size.keyed else "concurrent",
            member_id=name.replace("#", "-"),
            workers=rng.choice((8, 16)),
            lease_s=lease_s,
            max_deliveries=MAX_DELIVERIES,
            retry_backoff=(0.1, 0.4),
            commit_interval_s=rng.choice((0.3, 1.0, 5.0)),
            audit_interval_s=10.0,
            read_from=read_from,
        )
    )
    calls = 0

    async def listener(message: Any) -> None:
        nonlocal calls
        calls += 1
        call, value = f"{name}:{calls}", value_of(message)
        place = f"{message.topic}-{message.partition}", message.offset
        history.add("got", consumer.member, call, *place, value, message.attempts, lease_s)
        listening = _Listening(history, consumer.member, call, message)
        try:
            if is_poison(value):
                raise Poison(value)
            await rng.choice(_MINDS)(rng, lease_s)(listening)
            if not listening.is_settled:
                listening.note("return")
        except BaseException:
            listening.note("raise")
            raise

    for topic in host.world.topics:
        consumer.subscribe(topic, listener=listener)
    await consumer.start()
    await leave(host, name, consumer)


def calls_in(events: Iterable[Event]) -> list[Call]:
    """Return what the listeners of all members got and said."""
    calls: dict[str, Call] = {}
    for time, kind, who, *rest in events:
        if kind == "got":
            call, _, _, value, attempts, lease_s = rest
            calls[call] = Call(value, who, time, attempts, lease_s)
        elif kind == "says":
            call, what, seconds = rest
            calls[call].said.append(Said(what, time, seconds))
        elif kind == "said":
            said = calls[rest[0]].said[-1]
            said.told, said.outcome = time, rest[1]
    return list(calls.values())


def judge_members(
    events: Sequence[Event],
    log: Mapping[str, Sequence[tuple[int, str]]],
    letters: Mapping[str, Sequence[int]],
    queues: Sequence[Sequence[str]] = (),
) -> list[str]:
    """Return what is wrong.

    Args:
        events: Of the run.
        log: By partition: offsets and values of all messages in the end.
        letters, queues: See ``SharedEvidence``.
    """
    kept = {value for messages in log.values() for _, value in messages}
    owed = frozenset(event[3] for event in events if event[1] == "ok" and event[3] in kept)
    lows: list[tuple[float, Sequence[str]]] = []
    reached: dict[str, int] = {}
    for time, kind, _, *rest in events:
        if kind == "low":
            partition, low = rest
            before = reached.get(partition, 0)
            stored = log.get(partition, ())
            lows.append((time, [value for offset, value in stored if before <= offset < low]))
            reached[partition] = max(before, low)
    poison = frozenset(filter(is_poison, owed))
    # An unclean election may take what the journal knew, and dead letters.
    lossy = any(event[1] == "loss" and event[3] == "unclean" for event in events)
    return judge_shared(
        SharedEvidence(
            calls=calls_in(events),
            owed=owed - poison if lossy else owed,
            poison=poison,
            letters=letters,
            max_deliveries=MAX_DELIVERIES,
            lows=lows,
            take_overs=[event[0] for event in events if _begins_again(event)],
            queues=queues,
        ),
        NOTHING_LOST if lossy else CHECKS,
    )


def queues_of(
    events: Iterable[Event], log: Mapping[str, Sequence[tuple[int, str]]]
) -> list[list[str]]:
    """Return the messages of each key of each partition, in their order."""
    keys = {event[3]: event[4] for event in events if event[1] == "send"}
    queues: dict[tuple[str, str], list[str]] = {}
    for partition, stored in log.items():
        for _, value in sorted(stored):
            if (key := keys[value]) is not None:
                queues.setdefault((partition, key), []).append(value)
    return list(queues.values())


def _begins_again(event: Event) -> bool:
    """Whether another node leads a journal from now on, or may lead it soon."""
    if event[1] == "lead":
        return event[4] > 1  # in the first epoch there was nothing yet
    return event[1] == "fault" and "move" in event[2]
