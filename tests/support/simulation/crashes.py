"""One crash at one step of one transaction, on a simulated cluster of two groups with copies.

    client ── piece, prepare, commit ──▶ coordinator ── part ──▶ participant

Each arrow is a request that makes something durable. ``before``: the victim dies when the request
arrives, so that it is not done. ``after``: it dies when the answer arrives, which nobody gets if
the victim was to get it or to give it.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final

from support.simulation.run import NotDrained, Report, Simulation, execute
from support.simulation.world import TOPIC, ClientHost, Host, Size

from vq import aio
from vq.client.config import ProducerConfig
from vq.errors import VqError
from vq.model import Message, TransactionState
from vq.operations.messages.transactions import commit_transaction, list_transactions
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import TransactRequest, TransactResponse

STEPS: Final = ("piece", "prepare", "commit", "part")
VICTIMS: Final = ("coordinator", "participant", "client")
_STATES: Final = {
    "piece": TransactionState.OPEN,
    "prepare": TransactionState.PREPARED,
    "commit": TransactionState.COMMITTED,
}
#: The victim is started again so much later: before its session is over, or long after that.
_BACK_S: Final = {"restart": 0.3, "failover": 30.0, "gone": 1e9}
_MESSAGES: Final = 24
#: An open transaction ends by its time soon if its client is gone, and not while a node is away.
_TIMEOUT_S: Final = {"client": 5.0, "coordinator": 60.0, "participant": 60.0}
_SETTLE_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Crash:
    """Who dies when.

    Attributes:
        step: What makes something durable.
        victim: Who dies.
        after: The step was done; otherwise it was not.
        then: ``restart``: it comes back at once; ``failover``: another node leads meanwhile;
            ``gone``: it never comes back.
    """

    step: str
    victim: str
    after: bool
    then: str


class CrashedTransaction(Simulation):
    """See the module.

    Attributes:
        struck: The crash has happened.
        states: What the journals say of the transaction in the end, if they know it.
        stored: How many messages of the transaction are stored in the end.
        told: What its client was told, if it lives.
    """

    def __init__(self, crash: Crash, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.crash = crash
        self.struck = False
        self.told = ""
        self.states: list[TransactionState] = []
        self.stored = 0
        self._coordinator = ""
        self.world.network.tap = self._hears

    # The crash ------------------------------------------------------------------------------------
    def _hears(self, source: str, target: str, is_request: bool, frame: Frame) -> bool:
        if self.struck or not self._is_step(source, target, is_request, frame):
            return True
        victim = self._victim(source if not is_request else target)
        if victim is None:
            return True
        self.struck = True
        self.world.history.add("note", victim.name, "dies", self.crash.step, is_request)
        victim.down_until = self.world.loop.time() + _BACK_S[self.crash.then]
        victim.kill()
        return victim.name not in (source, target)

    def _is_step(self, source: str, target: str, is_request: bool, frame: Frame) -> bool:
        crash = self.crash
        if is_request is crash.after or frame.status:
            return False
        if crash.step == "part":
            servers = {each.name for each in self.world.machines}
            return frame.command == Command.PUT and {source, target} <= servers
        if frame.command != Command.TRANSACT:
            return False
        made = TransactRequest if is_request else TransactResponse
        return made.FromString(frame.header).state == _STATES[crash.step]

    def _victim(self, server: str) -> Host | None:
        """Return who dies; ``server`` carries the request out."""
        if self.crash.victim == "client":
            return self.world.clients[0]
        group = next(each.group for each in self.world.machines if each.name == server)
        is_coordinator = self.crash.victim == "coordinator"
        if (self.crash.step == "part") is is_coordinator:  # it is the other one
            group = next(each.group for each in self.world.brokers if each.group != group)
        return self.world.master(group)

    # The run --------------------------------------------------------------------------------------
    async def _transact(
        self, host: ClientHost, _name: str, factory: aio.MessageFactory, _rng: random.Random
    ) -> None:
        timeout_s = _TIMEOUT_S[self.crash.victim]
        producer = await factory.create_producer(
            ProducerConfig(transactional_id="it", transaction_timeout_s=timeout_s)
        )
        async with producer.transaction():  # takes the id: what a predecessor has open is over
            pass
        if host.starts > 1:
            return
        transaction = await producer.begin_transaction()
        for number in range(_MESSAGES):
            await producer.send(Message(TOPIC, b"%02d|" % number + bytes(400), key=number))
        if self.crash.step != "piece":
            await transaction.prepare(60.0)
        await transaction.commit(60.0)
        self.told = "committed"

    async def main(self) -> None:
        """See ``Simulation.main``."""
        world = self.world
        operator = await self.start()
        await self.create_topic(operator)
        host = world.client("t1", self._transact)
        self._supervise(host.keep_running())
        try:
            await self.until("the crash", lambda: self.struck)
            host.wanted = self.crash.then != "gone"
            await self.until("the client to end", lambda: not host.alive or not host.wanted)
            host.wanted = False
            await asyncio.sleep(_SETTLE_S)
            await self.until("brokers to serve", lambda: all(b.serves for b in world.machines))
        except NotDrained as error:
            self.violations.append(str(error))
        await self._operator_process.spawn(self._settle(operator))
        await self._operator_process.spawn(operator.close())
        for broker in world.machines:
            await broker.stop()

    async def _settle(self, operator: object) -> None:
        found = await list_transactions(operator, ended=True)  # type: ignore[arg-type]
        mine = [
            each for each in found if each.parts or each.state is not TransactionState.COMMITTED
        ]
        self.states = [each.state for each in mine]
        for each in mine:
            if each.state is TransactionState.PREPARED:  # nobody else decides it
                try:
                    await commit_transaction(operator, each.number)  # type: ignore[arg-type]
                except VqError as error:
                    self.violations.append(f"the operator: {error}")
                await asyncio.sleep(5.0)
        log, *_ = await self._read_end(operator)  # type: ignore[arg-type]
        values = Counter(each.value for messages in log.values() for each in messages)
        self.stored = len(values)
        self.violations += [f"{value} is stored {n} times" for value, n in values.items() if n > 1]
        for partition, messages in log.items():
            if [each.value for each in messages] != sorted(each.value for each in messages):
                self.violations.append(f"{partition} is not in order")


def crash(what: Crash, seed: int = 1) -> tuple[CrashedTransaction, Report]:
    """Run one; return it, and its report."""
    made: list[CrashedTransaction] = []

    def make(loop: object) -> CrashedTransaction:
        size = Size(brokers=2, partitions=4, producers=0, members=0, copies=1)
        run = CrashedTransaction(
            what, loop=loop, seed=seed, seconds=0.0, size=size, kinds=(), tell=None
        )
        made.append(run)
        return run

    report = execute(make)
    return made[0], report
