"""The one who breaks things: which faults strike, when, and how all that lasts ends.

``kinds`` has the faults and draws a handful of them (a different hand for every seed finds more
than all of them always); one strikes every few seconds, and they overlap. ``heal`` ends all that
lasts. Every fault is noted in the history with its target and its duration, for the judge.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from support.simulation.world import ClientHost, Host, World

from vq.client.cluster import ClusterClient
from vq.coordination.tree.memory import MemoryCoordinator
from vq.operations.partitions import placements as admin
from vq.remoting.wire_pb2 import SealResponse
from vq.testing.loop import generator

Fault = Callable[["Nemesis"], Coroutine[Any, Any, None]]
PAUSES_BETWEEN_S = (0.6, 2.0, 4.0)
#: Faults that take what was acknowledged without being flushed.
TAKE_UNFLUSHED = frozenset({"power cut", "failing disk", "black-out"})


class Nemesis:
    """The one who breaks things, with a hand of faults."""

    def __init__(
        self,
        world: World,
        *,
        members: list[ClientHost],
        producers: list[ClientHost],
        operator: ClusterClient,
        kinds: tuple[str, ...],
        faults: "Mapping[str, Fault]",
    ) -> None:
        self.world = world
        self._faults = faults
        self.rng = generator(world.seed, "nemesis")
        self.members = members
        self.producers = producers
        self.operator = operator
        self.kinds = kinds
        self._pause_s = self.rng.choice(PAUSES_BETWEEN_S)
        self.struck: dict[str, int] = {}
        self.effects: dict[str, int] = {}  # of kinds that count what they did
        self._running: list[asyncio.Task[None]] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self.ensemble_is_up = True
        self.elections: set[str] = set()  # groups whose next master an operator is choosing
        #: The plan of the last mover of a partition to a group, and the answer to its SEAL.
        self.earlier_moves: dict[tuple[str, int, str], tuple[admin.Move, SealResponse]] = {}

    async def run(self, seconds: float) -> None:
        """Strike again and again for ``seconds``."""
        loop = self.world.loop
        end = loop.time() + seconds
        while self.kinds:
            await asyncio.sleep(self.rng.expovariate(1 / self._pause_s))
            if loop.time() >= end:
                break
            kind = self.rng.choice(self.kinds)
            self._running.append(loop.create_task(self._faults[kind](self)))

    async def heal(self) -> None:
        """End all faults, and start all processes again."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        world = self.world
        world.network.heal()
        world.place_hangs = False
        if not self.ensemble_is_up:
            self.ensemble_is_up = True
            world.ensemble.start()
        for host in world.hosts:
            host.down_until = 0.0
            if host.paused:
                host.resume()
            if host.alive and host.coordinator is not None:
                _give_back(world, host.coordinator)
        for broker in world.machines:
            broker.fill(None)
            broker.disk.capacity_bytes = None
            broker.disk.forget_faults()
            broker.flush_s = 0.000_5
            if broker.disk_was_hurt and broker.alive:
                broker.kill()
        self.note("healed", "all")

    # Helpers ------------------------------------------------------------------------------------
    def note(self, kind: str, target: str, seconds: float = 0.0) -> None:
        """Tell history."""
        self.world.history.add("fault", kind, target, round(seconds, 3))
        self.struck[kind] = self.struck.get(kind, 0) + 1

    def had_effect(self, kind: str, count: int = 1) -> None:
        """Count what a fault of this kind did to something."""
        self.effects[kind] = self.effects.get(kind, 0) + count

    def supervise(self, host: Host) -> None:
        """Keep the process of a new host running until the end, also once all is healed."""
        self._supervisors.append(self.world.loop.create_task(host.keep_running()))

    def seconds(self, least: float, most: float) -> float:
        """Return a duration; short ones are likelier."""
        return least + (most - least) * self.rng.random() ** 2

    def pick(self, hosts: list[Any]) -> Any:
        """Return one of the hosts that run now, or None."""
        running = [host for host in hosts if host.alive and not host.paused]
        return self.rng.choice(running) if running else None

    @property
    def is_alone(self) -> bool:
        """Whether the fault that asks is the only one that lasts."""
        me = asyncio.current_task()
        return all(task.done() or task is me for task in self._running)

    @property
    def anybody(self) -> list[Host]:
        """The hosts that a fault may hit."""
        return [*self.world.machines, *self.members, *self.producers]


def _give_back(world: World, coordinator: MemoryCoordinator) -> None:
    """Undo what lasts in one host's way to ZooKeeper."""
    faults = coordinator.faults
    faults.lose_reply = faults.lose_request = faults.expire_request = 0
    if coordinator.held is not None:
        world.ensemble.release_events(coordinator)
    if coordinator.cut:
        world.ensemble.reconnect(coordinator)
