"""What a group sees of this node: its registration, its claim to lead, and whether it has damage.

In here: that registration and leadership know of each other, and both of damage and of a loss of
power. Not in here: what an epoch changes on this node (``mastership``), what damage leads to
(``soundness``), and who may lead (``coordination.brokers.insync``).
"""

import random
from collections.abc import Iterator
from typing import Any

from vq.broker.base.config import BrokerConfig
from vq.broker.base.facts import Facts, gauge
from vq.broker.replication.doubt import Doubt
from vq.broker.replication.fitness import NodeFitness
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.soundness import Soundness
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.coordination.brokers.leadership import Leadership
from vq.coordination.brokers.registry import BrokerRegistration
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import CoordinationError
from vq.log_lines import get_logger
from vq.model import Address
from vq.version import __version__

logger = get_logger(__name__)


class Presence:
    """One node in its group. ``begin`` once, then ``end``; loop-bound.

    Args:
        config: Its settings.
        coordinator: Started before ``begin``.
        clock: For the times of changes.
        rng: For back-off.
        directory: Identity of the main data directory.
        role: What the node is in the group.
        soundness: Whether it has damage.
        doubt: What a loss of power may have taken.
        fitness: What it says of itself.
        mastership: Takes how this node stands in its group.

    Attributes:
        registration: None until the node has begun to register.
    """

    def __init__(
        self,
        config: BrokerConfig,
        coordinator: Coordinator,
        clock: Clock,
        rng: random.Random,
        *,
        directory: str,
        role: Role,
        soundness: Soundness,
        doubt: Doubt,
        fitness: NodeFitness,
        mastership: Mastership,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._clock = clock
        self._rng = rng
        self._directory = directory
        self._role = role
        self._soundness = soundness
        self._doubt = doubt
        self._fitness = fitness
        self._leadership = Leadership(
            coordinator,
            group=config.group,
            node=config.node,
            directory=directory,
            accept_data_loss=config.accept_data_loss,
            fitness=fitness,
            rng=rng,
            on_change=mastership.stands,
        )
        self.registration: BrokerRegistration | None = None
        soundness.changed.listen(self._tell_damage)

    @property
    def is_registered(self) -> bool:
        """Whether the group knows this process now."""
        return self.registration is not None and self.registration.incarnation is not None

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Presence].of(
            self,
            gauge(
                "vq_registered",
                "1 while this process is registered in ZooKeeper, else 0.",
                lambda presence: presence.is_registered,
            ),
        )

    async def check(self) -> None:
        """Return if this node may lead its group, or follow in it.

        Raises:
            CoordinationError: ZooKeeper cannot be reached, or this node may not lead its group.
        """
        await self._leadership.check()

    async def begin(self, address: Address, *, metrics_port: int, pid: int) -> None:
        """Register this node as one that serves at ``address``; have it lead, or follow.

        Raises:
            CoordinationError: ZooKeeper cannot be reached, or this node may not lead its group.
        """
        config = self._config
        self.registration = BrokerRegistration(
            self._coordinator,
            self._clock,
            group=config.group,
            node=config.node,
            address=address,
            metrics_port=metrics_port,
            version=__version__,
            directory=self._directory,
            pool=config.pool,
            labels=config.labels,
            pid=pid,
            rack=config.rack,
            fitness=self._fitness,
            rng=self._rng,
            on_change=self._registration_changed,
        )
        await self.registration.start()
        await self._leadership.start()

    async def end(self) -> None:
        """Claim the group no more and take the registration back, as far as there are any."""
        await self._leadership.stop()
        if self.registration is not None:
            await self.registration.stop()

    def _tell_damage(self) -> None:
        """Have registration and leadership look at what has changed, and the next start know it.

        Of damage, and of a full disk.
        """
        assert self.registration is not None
        if self._soundness.damaged:
            self._doubt.begin_now()
        elif self._role.epoch:
            self._fitness.is_in_sync()
        self.registration.wake()
        self._leadership.wake()

    async def register_anew(self) -> None:
        """Give this node a new incarnation.

        Raises:
            CoordinationError: It is not registered yet, or ZooKeeper cannot be reached.
        """
        if self.registration is None:
            raise CoordinationError("this node is not registered yet")
        await self.registration.renew()

    def _registration_changed(self, incarnation: int | None) -> None:
        self._leadership.registered(incarnation)
        if incarnation is None:
            # Whether to go on acting is the lease's decision, not that of a lost session.
            logger.warning("registration lost, messages are taken while the lease allows it")
