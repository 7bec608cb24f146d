"""The faults of a simulation: which, when, on which host, for how long.

A run draws a handful of kinds of faults (a different hand for every seed finds more than all of
them always), then lets one strike every few seconds; they overlap. ``heal`` ends all that lasts.
Every fault is noted in the history with its target and its duration, for the judge.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from support.simulation.loop import generator
from support.simulation.workload import one_of
from support.simulation.world import (
    DATA,
    FAST,
    SEAL_TIMEOUT_S,
    BrokerHost,
    ClientHost,
    Host,
    World,
)

from vq.admin import placements as admin
from vq.client.cluster import ClusterClient
from vq.coordination import topics
from vq.coordination.coordinator import SessionState
from vq.coordination.memory import MemoryCoordinator
from vq.errors import VqError
from vq.model import FlushMode, Replication
from vq.remoting.wire_pb2 import SealResponse

Fault = Callable[["Nemesis"], Coroutine[Any, Any, None]]
PAUSES_BETWEEN_S = (0.6, 2.0, 4.0)
KINDS_PER_RUN = (1, 8)
#: Longer than a seal lasts.
_LONG_SLEEP_S = SEAL_TIMEOUT_S + 0.7
#: Faults that take what was acknowledged without being flushed.
TAKE_UNFLUSHED = frozenset({"power cut", "failing disk", "black-out"})


def draw_kinds(seed: int) -> tuple[str, ...]:
    """Return the kinds of faults of a run: two runs in three have kinds that hurt together.

    A pair drawn at random is one in three hundred; those that belong together would hardly meet.
    """
    rng = generator(seed, "kinds")
    kinds = set(rng.sample(sorted(FAULTS), rng.randint(*KINDS_PER_RUN)))
    if seed % 3:
        kinds.update(COMBINATIONS[(seed - seed // 3) % len(COMBINATIONS)])
    return tuple(sorted(kinds))


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
        faults: "Mapping[str, Fault] | None" = None,
    ) -> None:
        self.world = world
        self._faults = FAULTS if faults is None else faults
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
        self._ensemble_is_up = True
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
            fault = change_replication if kind == REPLICATION else self._faults[kind]
            self._running.append(loop.create_task(fault(self)))

    async def heal(self) -> None:
        """End all faults, and start all processes again."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        world = self.world
        world.network.heal()
        if not self._ensemble_is_up:
            self._ensemble_is_up = True
            world.ensemble.start()
        for host in world.hosts:
            host.down_until = 0.0
            if host.paused:
                host.resume()
            if host.alive and host.coordinator is not None:
                _give_back(world, host.coordinator)
        for broker in world.machines:
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
    def anybody(self) -> list[Host]:
        """The hosts that a fault may hit."""
        return [*self.world.machines, *self.members, *self.producers]


def _give_back(world: World, coordinator: MemoryCoordinator) -> None:
    """Undo what lasts in one host's way to ZooKeeper."""
    coordinator.lose_reply = coordinator.lose_request = coordinator.expire_request = 0
    if coordinator.held is not None:
        world.ensemble.release_events(coordinator)
    if coordinator.cut:
        world.ensemble.reconnect(coordinator)


# Brokers --------------------------------------------------------------------------------------
async def kill_broker(nemesis: Nemesis) -> None:
    """SIGKILL: what was written stays in the page cache."""
    await _kill_broker(nemesis, "kill", power=False)


async def cut_power(nemesis: Nemesis) -> None:
    """Power cut: what was not synced is lost in part."""
    await _kill_broker(nemesis, "power cut", power=True)


async def _kill_broker(nemesis: Nemesis, kind: str, *, power: bool) -> None:
    host: BrokerHost | None = nemesis.pick(nemesis.world.machines)
    if host is not None:
        down_s = nemesis.seconds(0.1, 8)
        nemesis.note(kind, host.name, down_s)
        host.down_until = nemesis.world.loop.time() + down_s
        host.kill(power=power)


async def kill_all_brokers(nemesis: Nemesis) -> None:
    """Every broker loses power, or is killed, within a moment."""
    power = TAKE_UNFLUSHED & set(nemesis.kinds) and nemesis.rng.random() < 0.5
    for host in nemesis.world.machines:
        if host.alive and not host.paused:
            down_s = nemesis.seconds(0.1, 5)
            nemesis.note("power cut" if power else "kill", host.name, down_s)
            host.down_until = nemesis.world.loop.time() + down_s
            host.kill(power=bool(power))
            await asyncio.sleep(nemesis.rng.uniform(0, 0.1))


async def restart_broker(nemesis: Nemesis) -> None:
    """SIGTERM, and a start soon after."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is not None:
        down_s = nemesis.seconds(0.1, 3)
        nemesis.note("graceful restart", host.name, down_s)
        host.down_until = nemesis.world.loop.time() + 60
        process = host.process
        try:
            await host.stop()
        finally:
            if host.process is process:
                host.down_until = nemesis.world.loop.time() + down_s
                if host.alive:  # healed meanwhile: no more time for a graceful end
                    host.kill()


async def hand_over(nemesis: Nemesis) -> None:
    """An operator has another node lead a group; with one node in sync that is refused."""
    masters = [each for each in nemesis.world.machines if each.serves and each.node.epoch]
    host: BrokerHost | None = nemesis.pick(masters)
    if host is None:
        return
    nemesis.note("hand over", host.name)
    assert host.process is not None
    assert host.node is not None
    node = host.node

    async def run() -> str:
        try:
            return await node._hand_over.run()
        except VqError as error:
            return type(error).__name__

    task = host.process.spawn(run())
    await asyncio.wait([task], timeout=10)
    if task.done() and not task.cancelled():
        nemesis.world.history.add("note", host.name, f"hand-over: {task.result()}")


async def slow_disk(nemesis: Nemesis) -> None:
    """Every flush takes long for a while."""
    host = nemesis.rng.choice(nemesis.world.machines)
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("slow disk", host.name, lasts_s)
    host.flush_s = nemesis.seconds(0.02, 1.5)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        host.flush_s = 0.000_5


async def failing_disk(nemesis: Nemesis) -> None:
    """One write or flush fails; some time later an operator restarts the broker."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is None or host.disk_was_hurt:
        return
    kind = nemesis.rng.choice(("datasync", "datasync", "pwrite", "sync_directory", "allocate"))
    lasts_s = nemesis.seconds(0.5, 6)
    nemesis.note(f"failing {kind}", host.name, lasts_s)
    host.disk.fail(kind, error=errno.EIO, after=nemesis.rng.randrange(4))
    host.disk_was_hurt = host.disk_ever_failed = True
    await asyncio.sleep(lasts_s)
    host.disk.forget_faults()
    if host.alive and not host.paused:  # also one that was killed and met the fault at its start
        host.kill(power=nemesis.rng.random() < 0.5)


async def second_broker(nemesis: Nemesis) -> None:
    """An operator starts a broker twice; the second one must not touch the directory."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is not None:
        nemesis.note("second broker", host.name)
        host.start_second()


async def full_disk(nemesis: Nemesis) -> None:
    """The disk is full, or nearly, for a while."""
    host: BrokerHost | None = nemesis.pick(nemesis.world.machines)
    if host is None:
        return
    if nemesis.rng.random() < 0.4:
        kind = nemesis.rng.choice(("pwrite", "allocate"))
        nemesis.note(f"no room for one {kind}", host.name)
        host.disk.fail(kind, error=errno.ENOSPC, name=".block")
        return
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("full disk", host.name, lasts_s)
    if not host.disk.exists(DATA):
        return
    free, total = host.disk.free_space(DATA)
    used = total - free
    host.disk.capacity_bytes = used + nemesis.rng.choice((0, 100, 5_000, 20_000))
    try:
        await asyncio.sleep(lasts_s)
    finally:
        host.disk.capacity_bytes = None


# Network and processes ------------------------------------------------------------------------
async def cut_network(nemesis: Nemesis) -> None:
    """Two hosts do not hear each other for a while, or one does not hear the other."""
    rng, network = nemesis.rng, nemesis.world.network
    broker = rng.choice(nemesis.world.brokers).name
    other = rng.choice([*(h.name for h in nemesis.members + nemesis.producers), "operator"])
    lasts_s = nemesis.seconds(0.2, 20)
    ways = rng.choice((((broker, other),), ((other, broker),), ((broker, other), (other, broker))))
    nemesis.note("cut", " and ".join(f"{a} to {b}" for a, b in ways), lasts_s)
    for source, target in ways:
        network.cut_one_way(source, target)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        network.heal(broker, other)


async def reset_connections(nemesis: Nemesis) -> None:
    """All connections of one host are reset at once, its process lives on."""
    host: Host | None = nemesis.pick([*nemesis.members, *nemesis.producers])
    if host is not None:
        nemesis.note("reset", host.name)
        nemesis.world.network.reset_connections(host.name)


async def pause(nemesis: Nemesis) -> None:
    """SIGSTOP, and SIGCONT later; perhaps after the session has ended."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is None:
        return
    lasts_s = nemesis.seconds(0.1, 10)
    nemesis.note("pause", host.name, lasts_s)
    process = host.process
    host.pause()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        if host.process is process and host.paused:
            host.resume()


async def step_clock(nemesis: Nemesis) -> None:
    """The wall clock of a host is set, forward or back."""
    host = nemesis.rng.choice(nemesis.anybody)
    nemesis.note("clock", host.name)
    host.clock.wall_offset_ms = nemesis.rng.choice((-3_600_000, -5_000, -300, 0, 300, 3_600_000))


# Clients --------------------------------------------------------------------------------------
async def member_leaves(nemesis: Nemesis) -> None:
    """A member leaves in order, and comes back later."""
    host: ClientHost | None = nemesis.pick(nemesis.members)
    if host is None or not host.wanted or host.task is None:
        return
    away_s = nemesis.seconds(0.1, 6)
    nemesis.note("leave", host.name, away_s)
    host.wanted = False
    host.stopping = True
    try:
        await asyncio.wait([host.task], timeout=away_s)
        await asyncio.sleep(away_s)
    finally:
        host.wanted = True


async def client_dies(nemesis: Nemesis) -> None:
    """A member or producer is killed; another process takes its place later."""
    host: ClientHost | None = nemesis.pick([*nemesis.members, *nemesis.producers])
    if host is None:
        return
    down_s = nemesis.seconds(0.1, 6)
    nemesis.note("kill", host.name, down_s)
    host.down_until = nemesis.world.loop.time() + down_s
    host.kill()


# ZooKeeper ------------------------------------------------------------------------------------
async def expire_session(nemesis: Nemesis) -> None:
    """ZooKeeper ends the session of a host."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is not None and host.coordinator is not None:
        coordinator = host.coordinator
        if nemesis.world.ensemble.is_live(coordinator.session_id):
            nemesis.note("expire", host.name)
            nemesis.world.ensemble.expire(coordinator)


async def disconnect(nemesis: Nemesis) -> None:
    """A host cannot reach ZooKeeper for a while, perhaps longer than a session time-out."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is None or host.coordinator is None or host.coordinator.cut:
        return
    lasts_s = nemesis.seconds(0.05, 10)
    nemesis.note("disconnect", host.name, lasts_s)
    coordinator = host.coordinator
    nemesis.world.ensemble.disconnect(coordinator)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        if coordinator.cut and not coordinator.crashed:
            nemesis.world.ensemble.reconnect(coordinator)


async def blink(nemesis: Nemesis) -> None:
    """The connection of a host to ZooKeeper breaks once."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is None or host.coordinator is None:
        return
    if host.coordinator.state is SessionState.CONNECTED:
        nemesis.note("blink", host.name)
        nemesis.world.ensemble.blink(host.coordinator)


async def lose_reply(nemesis: Nemesis) -> None:
    """ZooKeeper applies a call, and the answer is lost."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is not None and host.coordinator is not None:
        nemesis.note("lost reply", host.name, 5)
        skip = nemesis.rng.randrange(6)
        nemesis.world.ensemble.lose_next_reply(host.coordinator, skip=skip)


async def lose_request(nemesis: Nemesis) -> None:
    """A call to ZooKeeper is lost on the way."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is not None and host.coordinator is not None:
        nemesis.note("lost request", host.name, 5)
        skip = nemesis.rng.randrange(6)
        nemesis.world.ensemble.lose_next_request(host.coordinator, skip=skip)


async def lose_watches(nemesis: Nemesis) -> None:
    """Watch events come late, or never."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is None or host.coordinator is None or host.coordinator.held is not None:
        return
    coordinator, drop = host.coordinator, nemesis.rng.random() < 0.5
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("watches lost" if drop else "watches late", host.name, lasts_s)
    nemesis.world.ensemble.hold_events(coordinator)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        nemesis.world.ensemble.release_events(coordinator, drop=drop)


async def stale_reads(nemesis: Nemesis) -> None:
    """The ZooKeeper server of a host falls behind, until the host writes or for a while."""
    host: Host | None = nemesis.pick(nemesis.anybody)
    if host is None or host.coordinator is None or host.coordinator.view is not None:
        return
    coordinator, lasts_s = host.coordinator, nemesis.seconds(0.2, 4)
    nemesis.note("stale reads", host.name, lasts_s)
    nemesis.world.ensemble.lag(coordinator)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        nemesis.world.ensemble.catch_up(coordinator)


async def flaky_zookeeper(nemesis: Nemesis) -> None:
    """For a while the calls of a host keep failing: requests, replies and sessions are lost."""
    world, rng = nemesis.world, nemesis.rng
    host: Host = rng.choice(nemesis.anybody)
    lasts_s = nemesis.seconds(0.5, 10)
    for kind in ("lost reply", "expire"):  # both excuse what they excuse
        nemesis.note(kind, host.name, lasts_s + 5)
    end = world.loop.time() + lasts_s
    while world.loop.time() < end:
        coordinator = host.coordinator
        if coordinator is not None and host.alive and not host.paused:
            ensemble = world.ensemble
            likely = (ensemble.lose_next_reply, ensemble.lose_next_request)
            ends = (ensemble.expire_next, ensemble.outlive_next)
            strike = rng.choice(ends) if rng.random() < 0.08 else rng.choice(likely)
            strike(coordinator, skip=rng.randrange(8))
        await asyncio.sleep(rng.uniform(0.005, 0.3))


async def ensemble_away(nemesis: Nemesis) -> None:
    """ZooKeeper has no quorum for a while."""
    if not nemesis._ensemble_is_up:
        return
    lasts_s = nemesis.seconds(0.2, 15)
    nemesis.note("ensemble away", "all", lasts_s)
    nemesis._ensemble_is_up = False
    nemesis.world.ensemble.stop()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        nemesis._ensemble_is_up = True
        nemesis.world.ensemble.start()


# Operators ------------------------------------------------------------------------------------
async def move_partition(nemesis: Nemesis) -> None:
    """An operator gives a partition to the other group."""
    world = nemesis.world
    topic = one_of(world.topics, nemesis.rng)
    number = nemesis.rng.randrange(world.size.partitions)
    target = nemesis.rng.choice(world.brokers).name
    try:
        moves = await admin.plan_moves(nemesis.operator, topic, [number], target)
        for planned in moves:
            slow_s = nemesis.rng.choice((0.0, nemesis.seconds(0.5, 7)))
            nemesis.note("move", f"{topic}-{number} to {target}", slow_s)
            if slow_s:  # SEAL is answered at once, ADOPT is not
                world.network.cut("operator", target)
                world.loop.call_later(slow_s, world.network.heal, "operator", target)
            offset = await admin.carry_out(nemesis.operator, planned)
            world.history.add("note", "operator", f"{topic}-{number} is on {target} from {offset}")
    except VqError as error:
        world.history.add("note", "operator", f"move of {topic}-{number}: {type(error).__name__}")


async def sleepy_mover(nemesis: Nemesis) -> None:
    """A mover sleeps, dies, or comes back at every step of a move.

    What it knows may be over by then; it goes on all the same, as a process does that was stopped
    between two requests. What an earlier mover of the partition sent may arrive only now.
    """
    world, rng, operator = nemesis.world, nemesis.rng, nemesis.operator
    topic = one_of(world.topics, rng)
    number, target = rng.randrange(world.size.partitions), rng.choice(world.brokers).name
    try:
        moves = await admin.plan_moves(operator, topic, [number], target)
        for planned in moves:
            nemesis.note("sleepy mover", f"{topic}-{number} to {target}")
            mine = planned, await admin.seal(operator, planned)
            steps = [(admin.adopt, mine), (admin.place, mine)]
            earlier = nemesis.earlier_moves.get((topic, number, target), mine)
            while rng.random() < 0.5:
                late = rng.choice((admin.adopt, admin.place)), rng.choice((mine, earlier))
                steps.insert(rng.randrange(len(steps) + 1), late)
            nemesis.earlier_moves[topic, number, target] = mine
            for step, knowledge in steps:
                await asyncio.sleep(rng.choice((0.0, 0.0, nemesis.seconds(0, 1), _LONG_SLEEP_S)))
                if rng.random() < 0.1:
                    return  # it dies here
                await _stubbornly(nemesis, step(operator, *knowledge))
    except VqError as error:
        world.history.add("note", "operator", f"sleepy mover: {type(error).__name__}")


async def _stubbornly(nemesis: Nemesis, step: Coroutine[Any, Any, None]) -> None:
    """Take a step of a move; one that is refused mostly does not end the mover."""
    try:
        await step
    except VqError as error:
        nemesis.world.history.add("note", "operator", f"a step: {type(error).__name__}")
        if nemesis.rng.random() < 0.3:
            raise


async def add_partition(nemesis: Nemesis) -> None:
    """An operator gives the topic one more partition; not more than twice in a run."""
    world = nemesis.world
    if nemesis.struck.get("grow", 0) >= 2:
        return
    nemesis.note("grow", "orders")
    try:
        await topics.add_partitions(nemesis.operator.coordinator, "orders", 1)
    except VqError as error:
        world.history.add("note", "operator", f"growing orders: {type(error).__name__}")


async def change_settings(nemesis: Nemesis) -> None:
    """An operator has the topic flushed before acknowledgements, or no longer."""
    world = nemesis.world
    if TAKE_UNFLUSHED & set(nemesis.kinds):
        flush = FlushMode.SYNC
    else:
        flush = nemesis.rng.choice((FlushMode.SYNC, FlushMode.ASYNC))
    nemesis.note("settings", "orders", 0)
    try:
        view = await topics.describe_topic(nemesis.operator.coordinator, "orders")
        settings = replace(view.settings, flush=flush)
        await topics.change_settings(nemesis.operator.coordinator, "orders", settings)
    except VqError as error:
        world.history.add("note", "operator", f"settings of orders: {type(error).__name__}")


async def change_replication(nemesis: Nemesis) -> None:
    """An operator has the master of the second topic acknowledge alone, or no longer."""
    world = nemesis.world
    if not world.size.fast:
        return
    wanted = nemesis.rng.choice(list(Replication))
    nemesis.note("replication", f"{FAST} {wanted}", 0)
    try:
        view = await topics.describe_topic(nemesis.operator.coordinator, FAST)
        settings = replace(view.settings, replication=wanted)
        await topics.change_settings(nemesis.operator.coordinator, FAST, settings)
    except VqError as error:
        world.history.add("note", "operator", f"settings of {FAST}: {type(error).__name__}")


#: Only where there is a second topic, so not drawn.
REPLICATION = "replication"
FAULTS: dict[str, Fault] = {
    "kill broker": kill_broker,
    "power cut": cut_power,
    "kill all": kill_all_brokers,
    "graceful restart": restart_broker,
    "hand over": hand_over,
    "slow disk": slow_disk,
    "failing disk": failing_disk,
    "full disk": full_disk,
    "second broker": second_broker,
    "cut": cut_network,
    "reset": reset_connections,
    "pause": pause,
    "clock": step_clock,
    "leave": member_leaves,
    "client dies": client_dies,
    "expire": expire_session,
    "disconnect": disconnect,
    "blink": blink,
    "lost reply": lose_reply,
    "lost request": lose_request,
    "watches": lose_watches,
    "stale reads": stale_reads,
    "flaky zookeeper": flaky_zookeeper,
    "ensemble away": ensemble_away,
    "move": move_partition,
    "sleepy mover": sleepy_mover,
    "grow": add_partition,
    "settings": change_settings,
}

#: Kinds of faults that meet in the same few lines of the broker or the client.
COMBINATIONS: tuple[tuple[str, ...], ...] = (
    ("power cut", "slow disk"),  # what was acknowledged, and what only nearly was
    ("move", "watches"),  # the old and the new group hear of it at different times
    ("sleepy mover", "watches"),
    ("sleepy mover", "kill broker"),
    ("move", "lost reply", "lost request"),  # the version is raised, or it is not known
    ("move", "power cut"),
    ("expire", "failing disk"),  # a new epoch that cannot be stored
    ("full disk", "kill all"),
    ("reset", "slow disk"),  # resends while the first attempt waits for its flush
    ("pause", "expire", "leave"),
    ("hand over", "lost reply", "lost request"),  # who leads now?
    ("hand over", "kill broker", "cut"),  # the successor is gone, or does not hear of it
)
