"""Clients that consume, transform and produce under faults: each input has one output.

Inputs and outputs are in one topic, told apart by their tags. Clients read the inputs as a group,
and send an output for each in the transaction that commits its offset. They crash, lose their
sessions and their partitions; and the brokers, whose journals have the transactions, crash, too.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from support.simulation.judge import Stored
from support.simulation.run import Report, SendersUnderFaults, execute
from support.simulation.workload import value_of
from support.simulation.world import TOPIC, ClientHost, Program, Size

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ProducerConfig
from vq.errors import NotSent, OutcomeUnknown, VqError
from vq.model import Message

INPUT, OUTPUT, GROUP = "input", "output", "transform"
#: So many are there before anything strikes.
INPUTS = 240
_PAUSE_S = 0.25
_BROKERS = ("kill broker", "pause", "reset", "lost reply", "expire", "client dies", "leave")
_COPIES = ("kill broker", "hand over", "cut", "expire", "lost request", "client dies", "blink")
#: How clients consume, and what strikes: groups of one node, and one with a node that copies.
ROWS: dict[str, tuple[dict[str, Any] | None, Size, tuple[str, ...]]] = {
    "asked": (None, Size(brokers=2, partitions=4, producers=3, members=0), _BROKERS),
    "asked, copies": (None, Size(1, partitions=4, producers=3, members=0, copies=1), _COPIES),
    "orderly": ({}, Size(brokers=2, partitions=4, producers=3, members=0), _BROKERS),
    "concurrent": (
        {"mode": "concurrent", "workers": 4, "batch_size": 2},
        Size(1, partitions=3, producers=3, members=0, copies=1),
        _COPIES,
    ),
}


async def _at_once(messages: Sequence[Message]) -> Sequence[Message]:
    return messages


class Transformer:
    """One client."""

    def __init__(
        self, host: ClientHost, name: str, producer: aio.MessageProducer, rng: random.Random
    ) -> None:
        self.host = host
        self.name = name
        self.producer = producer
        self.rng = rng
        self.consumer: aio.MessageConsumer
        self.last: aio.Transaction

    async def transform(self, given: Any) -> None:
        """Produce what follows from messages that a listener gets, in one transaction."""
        messages = given if isinstance(given, list) else [given]
        await self._transform(lambda: _at_once(messages))

    async def ask(self) -> None:
        """Ask for messages, and produce what follows, until all inputs are committed."""
        while not await self.is_over():
            most = self.rng.randrange(1, 7)
            try:
                await self._transform(lambda n=most: self.consumer.get_many(n, timeout=1.0))
            except OutcomeUnknown:
                await self.settle(self.last)
            except VqError:
                await asyncio.sleep(0.2)

    async def _transform(self, take: Callable[[], Awaitable[Sequence[Message]]]) -> None:
        history, rng = self.host.world.history, self.rng
        try:
            async with self.producer.transaction() as self.last:
                messages = await take()
                await self.producer.send_offsets(self.consumer)
                for message in messages:
                    where = f"{message.topic}-{message.partition}"
                    value, end = value_of(message), message.next_offset
                    history.add("read", self.name, where, message.offset, end, value)
                await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
                for message in messages:
                    output = message.content.replace(b"|", b"'|")
                    key = rng.randrange(8)
                    await self.producer.send(Message(TOPIC, output, tag=OUTPUT, key=key))
                if rng.random() < 0.1:
                    raise NotSent("so it goes")
            if messages:
                history.add("ok", self.name, len(messages))
        except VqError as error:
            kind = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            history.add(kind, self.name, type(error).__name__)
            raise

    async def settle(self, transaction: aio.Transaction) -> None:
        """Commit a transaction in doubt again, until it is known what became of it."""
        while True:
            await asyncio.sleep(0.5)
            try:
                await transaction.commit(3.0)
            except OutcomeUnknown:
                continue
            except VqError:
                pass
            return

    async def is_over(self) -> bool:
        """Whether the client is to end, and all inputs are committed."""
        if not self.host.stopping:
            return False
        try:
            committed = await self.consumer.get_offset(TOPIC)
        except VqError:
            return False
        ends = [event[3:5] for event in self.host.world.history.of("input")]
        found = {str(partition): offset for partition, offset in committed.items()}
        return all(found.get(partition, 0) >= end for partition, end in ends)


def transforming(settings: dict[str, Any] | None) -> Program:
    """Return a client that asks for messages; or, with settings, one that has a listener."""

    async def program(
        host: ClientHost, name: str, factory: aio.MessageFactory, rng: random.Random
    ) -> None:
        producer = await factory.create_producer(
            ProducerConfig(
                send_timeout_s=rng.choice((0.7, 3.0, 12.0)),
                transaction_timeout_s=rng.choice((2.0, 10.0, 60.0)),
                transactional_id=name.replace("#", "-") if rng.random() < 0.3 else None,
            )
        )
        client = Transformer(host, name, producer, rng)
        client.consumer = await factory.create_consumer(
            ConsumerConfig(
                group=GROUP,
                member_id=name.replace("#", "-"),
                commit_interval_s=rng.choice((0.3, 1.0, 5.0)),
                max_wait_s=1.0,
                audit_interval_s=10.0,
                retry_backoff=(0.1, 1.0),
                on_failure="hold",  # copies are no part of a transaction
                **(settings or {}),
            )
        )
        listener = None if settings is None else client.transform
        client.consumer.subscribe(TOPIC, 2_000, listener, message_filter=INPUT)
        if listener is None:
            await client.ask()
            return
        await client.consumer.start()
        while not await client.is_over():
            await asyncio.sleep(1.0)

    return program


class Transforming(SendersUnderFaults):
    """Clients transform while faults strike."""

    prefix = "t"
    settings: dict[str, Any] | None = None

    def sends(self) -> Program:
        """See ``SendersUnderFaults``."""
        return transforming(self.settings)

    async def create_topic(self, operator: ClusterClient) -> None:
        """Make the topic, with the inputs in it."""
        await super().create_topic(operator)
        await self._operator_process.spawn(self._send_inputs(operator))

    async def _send_inputs(self, operator: ClusterClient) -> None:
        producer = await aio.MessageFactory.on_cluster(operator).create_producer()
        for number in range(INPUTS):
            message = Message(TOPIC, b"%d|" % number, tag=INPUT, key=number)
            result = await producer.send(message)
            where = f"{TOPIC}-{result.partition}"
            self.world.history.add("input", "operator", where, result.offset + 1)
        await producer.close()

    async def settle(self) -> None:
        """See ``SendersUnderFaults``."""
        await asyncio.sleep(80.0)  # what is prepared is rolled back by then

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``."""
        broken = [" ".join(event[2:]) for event in self.world.history.of("broken")]
        return broken + judge_outputs([each.value for found in log.values() for each in found])


def judge_outputs(values: Sequence[str]) -> list[str]:
    """Return what is wrong with all that is stored."""
    outputs = Counter(value[:-1] for value in values if value.endswith("'"))
    wrong = [f"transform: input {n} has {outputs[n]} outputs" for n in outputs if outputs[n] > 1]
    inputs = {value for value in values if not value.endswith("'")}
    wrong += [f"transform: input {number} has no output" for number in inputs - outputs.keys()]
    return sorted(wrong)


def play(seed: int, which: str, seconds: float = 20.0) -> Report:
    """Run one seed of a row."""
    settings, size, kinds = ROWS[which]

    def make(loop: Any) -> Transforming:
        made = Transforming(loop, seed, seconds=seconds, size=size, kinds=kinds, tell=None)
        made.settings = settings
        return made

    return execute(make)
