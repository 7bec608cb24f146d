"""Helpers for tests over the in-memory coordination twin: clients, waiting, faults."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from vq.clock import SystemClock
from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.leadership import Leadership, Leading, Standing
from vq.coordination.brokers.registry import BrokerRegistration
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.leases.slots import IdMaker
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import Address
from vq.testing.waiting import WAIT_S, until


@asynccontextmanager
async def client_of(
    ensemble: MemoryEnsemble, *, session_timeout_s: float = 4.0
) -> AsyncIterator[MemoryCoordinator]:
    """A started client that is closed at the end."""
    client = ensemble.coordinator("test", session_timeout_s=session_timeout_s)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


class LeadingBroker:
    """A registration and the leadership of its group, tied together as a broker does it.

    Attributes:
        registered: The registration that leads, None while there is none.
        standings: What it was told to be, in order.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        group: str = "b1",
        node: str = "n1",
        directory: str = "",
        accept_data_loss: bool = False,
        fitness: Fitness | None = None,
        on_change: Callable[[Leading | None], None] = lambda registered: None,
        **options: Any,
    ) -> None:
        self.registered: Leading | None = None
        self.standings: list[Standing] = []
        self._on_change = on_change
        self.leadership = Leadership(
            coordinator,
            group=group,
            node=node,
            directory=directory,
            accept_data_loss=accept_data_loss,
            fitness=fitness,
            on_change=self._stands,
        )
        options = {"address": Address("127.0.0.1", 1)} | options
        self.registration = BrokerRegistration(
            coordinator,
            SystemClock(),
            group=group,
            node=node,
            directory=directory,
            fitness=fitness,
            on_change=self._registration_changed,
            **options,
        )

    async def start(self, *, timeout_s: float = WAIT_S) -> Standing:
        """Register, then lead or follow."""
        await self.leadership.check(timeout_s=timeout_s)
        await self.registration.start(timeout_s=timeout_s)
        try:
            return await self.leadership.start(timeout_s=timeout_s)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop both."""
        await self.leadership.stop()
        await self.registration.stop()
        self.registered = None

    def _registration_changed(self, incarnation: int | None) -> None:
        self.leadership.registered(incarnation)
        if incarnation is None and self.registered is not None:
            self._leads(None)

    def _stands(self, standing: Standing) -> None:
        self.standings.append(standing)
        self._leads(standing if isinstance(standing, Leading) else None)

    def _leads(self, registered: Leading | None) -> None:
        self.registered = registered
        self._on_change(registered)


class Used(IdMaker):
    """Has made ids up to a wall time."""

    def __init__(self, used_ms: int) -> None:
        self._used_ms = used_ms

    def used_ms(self) -> int:
        """See ``IdMaker``."""
        return self._used_ms


async def expire(ensemble: MemoryEnsemble, client: MemoryCoordinator) -> None:
    """End a client's session and wait until it has its next one."""
    session = client.session_id
    ensemble.expire(client)
    await until(lambda: client.session_id != session and client.state is SessionState.CONNECTED)


def at(offset: int, member: str = "m1") -> CommittedOffset:
    """The progress of a group that has come to ``offset``."""
    return CommittedOffset(offset=offset, message_id=offset + 1, time_ms=7, member=member)


async def known(client: Coordinator, claimed: Claim) -> Claim:
    """A claim with what is committed in its partition."""
    found = (await ZooKeeperOffsets(client).known([claimed]))[claimed.partition]
    assert isinstance(found, Claim)
    return found


#: Faults of one call of a client: the request is lost, the reply is lost, the session ends.
FAULTS = ("request", "reply", "expiry", "outlive")


def strike(ensemble: MemoryEnsemble, client: MemoryCoordinator, fault: str, skip: int) -> None:
    """Arm one fault for the call after ``skip`` others."""
    if fault == "request":
        ensemble.lose_next_request(client, skip=skip)
    elif fault == "reply":
        ensemble.lose_next_reply(client, skip=skip)
    elif fault == "outlive":
        ensemble.outlive_next(client, skip=skip)
    else:
        ensemble.expire_next(client, skip=skip)


def disarm(client: MemoryCoordinator) -> bool:
    """Disarm a fault; return whether it was injected already."""
    armed = client.faults.are_armed
    client.faults.clear()
    return not armed


def deny_reading(client: Coordinator, path: str) -> None:
    """Give a node of an ensemble in memory an ACL that lets nobody read it."""
    assert isinstance(client, MemoryCoordinator)
    client.ensemble.tree.set_acl(client.full_path(path), frozenset())
