"""The simulated machines: ZooKeeper, network, disks, clocks, and the processes on them.

A host outlives its processes. A broker host has a disk; its process is started, killed, paused and
started again on what the disk then holds. A client host runs one factory.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from support.simulation.history import History
from support.simulation.losses import Loss, Place, messages_on, surely_on

from vq import aio
from vq.broker.base.config import ARCHIVE_PLACES, BrokerConfig
from vq.broker.base.runner import HANGS_S, InlineRunner, Lane
from vq.broker.node import BrokerNode
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.coordinator import Create, NoNode, Operation, Set, Stat
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.coordination.tree.values.consumers import Assignment, CommittedOffset, Owner
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import DirectoryRefused, VqError
from vq.reserved import SHARED_TOPIC
from vq.store.commit.flusher import Flusher, FlushRunner, OnDone
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.disk.memory_names import RandomChance
from vq.store.log.log_config import LogConfig
from vq.store.log.ticket import SyncTicket
from vq.testing.loop import SimulatedClock, SimulatedProcess, VirtualLoop, generator
from vq.testing.network import TappedNetwork

T = TypeVar("T")

CLUSTER = "sim"
TOPIC = "orders"
FAST = "clicks"  # with ``Size.fast``
LOOSE = "views"  # with ``Size.loose``
POOL = "pool"  # the shared group, with ``Size.shared``
DATA = Path("/data")
PLACE = "memory://archives"  # for those at a URL
SESSION_TIMEOUT_S = 4.0
#: Shorter than a move may take: safety must not rest on the mover being quick.
SEAL_TIMEOUT_S = 3.0
#: Small, so that a minute of traffic sees blocks and checkpoints come and go.
LOG_CONFIG = LogConfig(
    block_bytes=16 * 1024,
    checkpoint_bytes=8 * 1024,
    checkpoint_batches=40,
    allocate_bytes_min=4096,
    allocate_bytes_max=8192,
)


_LATENCY_S = 0.000_2
#: Of a disk that another program fills.
_DISK_BYTES = 1 << 30


class RecordingEnsemble(MemoryEnsemble):
    """A ZooKeeper that notes claims and commits the moment it takes them.

    ``on_unclean`` is called with group and node when an operator has one lead that lacks messages.
    """

    def __init__(
        self, history: History, *, on_unclean: Callable[[str, str], None], **options: Any
    ) -> None:
        super().__init__(**options)
        self._history = history
        self._on_unclean = on_unclean
        self._epochs: dict[str, int] = {}  # by broker group

    def apply(self, operations: Sequence[Operation], session_id: int) -> list[Stat | None]:
        """See ``MemoryEnsemble.apply``."""
        results = super().apply(operations, session_id)
        for operation in operations:
            if isinstance(operation, Create | Set):
                self._note(operation)
        return results

    def _note(self, operation: Create | Set) -> None:
        words = operation.path.split("/")  # vq/<cluster>/consumers/<group>/<what>/<topic>/<n>
        if words[2:3] == ["brokers"] and words[4:] == ["state"]:
            state = GroupState.decode(operation.path, operation.data)
            if self._epochs.get(words[3]) != state.epoch:
                self._epochs[words[3]] = state.epoch
                self._history.add("lead", state.master, words[3], state.epoch, *state.insync)
                if state.unclean:
                    self._on_unclean(words[3], state.master)
        elif words[2:3] == ["topics"] and len(words) == 4:
            settings = TopicNode.decode(operation.path, operation.data).settings
            self._history.add("set", words[3], str(settings.replication), str(settings.flush))
        if len(words) != 7 or words[2] != "consumers":
            return
        _, _, _, _, what, topic, number = words
        partition = f"{topic}-{number}"
        if what == "offsets":
            offset = CommittedOffset.decode(operation.path, operation.data)
            if not offset.member:  # an operator's
                self._history.add("reset", words[3], partition, offset.offset)
                return
            if words[3] == POOL:  # its members claim nothing
                self._history.add("low", offset.member, partition, offset.offset)
                return
            self._history.add("commit", offset.member, partition, offset.offset)
            if offset.stopped:
                self._history.add("stopped", offset.member, partition, offset.offset)
            path = "/".join([*words[:4], "assignment", topic, number])
            owner = Assignment.decode(path, self.tree.get(path).data).member
            if owner != offset.member:
                self._history.add(
                    "broken", offset.member, f"commits {partition}, which is {owner}'s"
                )
        elif what == "owners" and isinstance(operation, Create):  # a claim, not a reported error
            claim = Owner.decode(operation.path, operation.data)
            self._history.add("own", claim.member, partition, claim.generation)


class SimulatedNetwork(TappedNetwork):
    """A network that now and then hands bytes over in pieces."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(latency_s=_LATENCY_S, jitter_s=0.000_8, rng=rng)
        self._random = rng

    @property
    def is_slow(self) -> bool:
        """Whether hosts are far from each other now."""
        return self.latency_s > _LATENCY_S

    def slow_down(self, seconds: float) -> None:
        """Have all that hosts send arrive so many seconds later; 0: as it was."""
        self.latency_s = _LATENCY_S + seconds

    def chunk_bytes(self, available: int) -> int:
        """See ``MemoryNetwork.chunk_bytes``."""
        whole = self._random.random() < 0.95
        return min(available, 262_144) if whole else super().chunk_bytes(available)

    def held_between(self, ways: Sequence[tuple[str, str]]) -> int:
        """Return how many sends are held back now on cut ways, each from a host to a host."""
        return sum((source, target) in ways for source, target, _ in self._held)


class SimulatedFlusher(Flusher):
    """A flush takes a while; at which moment of it the bytes reach the medium is a matter of luck.

    What is appended in between may or may not be durable then, as with a real disk.
    """

    def __init__(self, runner: FlushRunner, rng: random.Random, delay_s: Callable[[], float]):
        self._runner = runner
        self._rng = rng
        self._delay_s = delay_s
        self._on_done: OnDone | None = None

    def start(self, on_done: OnDone) -> None:
        """See ``Flusher.start``."""
        self._on_done = on_done

    def submit(self, tickets: Sequence[SyncTicket]) -> None:
        """See ``Flusher.submit``."""
        loop = asyncio.get_running_loop()
        delay = self._delay_s()
        early = delay * self._rng.random()

        def run() -> None:
            outcome = self._runner.run(tickets)
            loop.call_later(delay - early, self._finish, tickets, outcome)

        loop.call_later(early, run)

    def stepped_s(self) -> float:
        """See ``Flusher.stepped_s``."""
        return self._runner.stepped_s

    def close(self) -> None:
        """See ``Flusher.close``."""
        self._on_done = None

    def _finish(self, tickets: Sequence[SyncTicket], outcome: Any) -> None:
        if self._on_done is not None:
            self._on_done(tickets, outcome)


class SimulatedRunner(InlineRunner):
    """Runs calls on the loop; while the place of archives hangs, those that ask it wait."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def run(self, call: Callable[[], T], lane: Lane = Lane.LOGS, place: str = "") -> T:
        """See ``Runner.run``."""
        if lane.by_place and place and self._world.place_hangs:
            self._world.held_calls += 1
            end = self._world.loop.time() + HANGS_S
            while self._world.place_hangs:
                await asyncio.sleep(0.1)
                if self._world.loop.time() > end:
                    raise TimeoutError(f"{place} hangs")
        return await super().run(call, lane, place)


class Host:
    """A machine with a name, a clock and at most one process."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.clock = SimulatedClock(world.loop)
        self.starts = 0
        self.down_until = 0.0  # it is not started before this time
        self.wanted = True  # it is started again when it is down
        self.process: SimulatedProcess | None = None
        self.coordinator: MemoryCoordinator | None = None

    def start(self) -> object:
        """Begin a process."""
        raise AssertionError(f"{self.name} is no broker and no client")

    async def keep_running(self) -> None:
        """Start a process whenever there should be one: what an operator's supervisor does."""
        while True:
            if self.wanted and not self.alive and self.world.loop.time() >= self.down_until:
                self.start()
            await asyncio.sleep(0.25)

    @property
    def alive(self) -> bool:
        """Whether a process runs here and was not killed."""
        return self.process is not None and not self.process.dead

    @property
    def paused(self) -> bool:
        """Whether its process is paused."""
        return self.process is not None and self.process.held and not self.process.dead

    def new_process(self) -> tuple[SimulatedProcess, random.Random]:
        """Begin a process with a session and random numbers of its own."""
        assert not self.alive, f"{self.name} runs already"
        self.starts += 1
        name = f"{self.name}#{self.starts}"
        process = self.process = SimulatedProcess(self.world.loop, name)
        self.world.processes.append(process)
        self.coordinator = self.world.ensemble.coordinator(
            CLUSTER, session_timeout_s=SESSION_TIMEOUT_S
        )
        return process, generator(self.world.seed, name)

    def kill(self) -> None:
        """End the process as SIGKILL does: its connections are reset without a close."""
        assert self.process is not None
        self.process.kill()
        self.world.network.kill(self.name)
        if self.coordinator is not None:
            self.world.ensemble.crash(self.coordinator)

    def pause(self) -> None:
        """Stop the process as SIGSTOP does; its session ages."""
        assert self.process is not None
        self.process.pause()
        if self.coordinator is not None:
            self.world.ensemble.freeze(self.coordinator)

    def resume(self) -> None:
        """Let it go on; a moment later it hears whether its session still lives."""
        process, coordinator = self.process, self.coordinator
        assert process is not None
        assert coordinator is not None
        process.resume()
        late = self.world.rng.uniform(0, 0.02)
        self.world.loop.call_later(late, self.world.ensemble.thaw, coordinator)


class BrokerHost(Host):
    """A machine with a disk, for a node of a broker group: ``n1``, or one that copies its logs."""

    def __init__(self, world: "World", group: str, node_name: str = "n1") -> None:
        super().__init__(world, group if node_name == "n1" else f"{group}-{node_name}")
        self.group = group
        self.node_name = node_name
        self.disk = MemoryDisk(record=False)
        self.disks = 1  # so far
        self.flush_s = 0.000_5
        self._filled: float | None = None
        self.node: BrokerNode | None = None
        self.disk_was_hurt = False  # an I/O error struck since the last start
        self.disk_ever_failed = False
        self.seconds = 0  # how often a second broker was tried
        self.flushes = 0
        self.starting: asyncio.Task[None] | None = None

    @property
    def leads(self) -> bool:
        """Whether its process acts as master of its group."""
        return self.alive and self.node is not None and self.node.epoch > 0

    @property
    def serves(self) -> bool:
        """Whether it was started and neither stopped nor killed since."""
        started = self.starting is not None and self.starting.done()
        return self.alive and not self.paused and started

    def start(self) -> object:
        """Begin to start a broker; the task ends when it serves, or failed to."""
        process, rng = self.new_process()
        self.disk_was_hurt = False
        assert self.coordinator is not None
        self.node = self._make_node(self.coordinator, self.name, rng)
        self.starting = process.spawn(self._start(process, self.node))
        return self.starting

    def _make_node(
        self, coordinator: MemoryCoordinator, host: str, rng: random.Random
    ) -> BrokerNode:
        config = BrokerConfig(
            data=DATA,
            cluster=CLUSTER,
            group=self.group,
            node=self.node_name,
            host=host,
            metrics_port=0,
            load_interval_s=3.0,
            refresh_interval_s=10.0,
            retention_interval_s=2.0 if self.world.size.kept_bytes else 60.0,
            seal_timeout_s=SEAL_TIMEOUT_S,
            archive_places=(*ARCHIVE_PLACES, PLACE),
        )
        runner = FlushRunner(self.clock)
        return BrokerNode(
            config,
            coordinator=coordinator,
            network=self.world.network.at(host),
            disk=self.disk,
            clock=self.clock,
            rng=rng,
            flushers=(SimulatedFlusher(runner, rng, lambda: self._flush_takes_s(rng)),),
            runner=SimulatedRunner(self.world),
            log_config=LOG_CONFIG,
        )

    def _flush_takes_s(self, rng: random.Random) -> float:
        self.flushes += 1
        return self.flush_s * rng.uniform(0.5, 2)

    def fill(self, share: float | None) -> None:
        """Have another program use so much of the disk; None: nothing.

        What the broker writes itself does not count: it is little beside that.
        """
        self._filled = share
        self._fill()

    def _fill(self) -> None:
        if self._filled is None:
            vars(self.disk).pop("free_space", None)
        else:
            free = round(_DISK_BYTES * (1 - self._filled))
            vars(self.disk)["free_space"] = lambda _: (free, _DISK_BYTES)

    @property
    def is_filled(self) -> bool:
        """Whether another program uses much of the disk."""
        return self._filled is not None

    def tells_full(self) -> bool:
        """Whether its registration says that it refuses messages."""
        path = f"vq/{CLUSTER}/{Registration.path(self.group, self.node_name)}"
        try:
            return Registration.decode(path, self.world.ensemble.tree.get(path).data).full
        except NoNode:
            return False

    def empty_disk(self) -> None:
        """Give it a new disk; the process must be dead."""
        assert not self.alive
        self.disk, self.disks = MemoryDisk(record=False), self.disks + 1
        self._fill()

    def start_second(self) -> None:
        """Start a broker on the same directory beside the one that runs: it must be refused."""
        self.seconds += 1
        host = f"{self.name}-second{self.seconds}"
        process = SimulatedProcess(self.world.loop, host)
        self.world.processes.append(process)
        coordinator = self.world.ensemble.coordinator(CLUSTER, session_timeout_s=SESSION_TIMEOUT_S)
        node = self._make_node(coordinator, host, generator(self.world.seed, host))
        process.spawn(self._start_second(host, node))

    async def _start_second(self, host: str, node: BrokerNode) -> None:
        try:
            await node.start()
        except DirectoryRefused:
            self.world.history.add("note", host, "refused")
        except OSError as error:  # a fault of the disk they share met this one
            self.world.history.add("note", host, "did not start", type(error).__name__)
        else:
            self.world.history.add("broken", host, "started on a directory that is in use")

    async def _start(self, process: SimulatedProcess, node: BrokerNode) -> None:
        try:
            await node.start()
        except Exception as error:  # any error ends this process; the operator tries again
            self.world.history.add("note", process.name, "did not start", type(error).__name__)
            self.world.trace(f"{process.name}: {error}")
            if isinstance(error, VqError | OSError):
                self.down_until = self.world.loop.time() + 1.0
            else:
                self.world.history.add("broken", process.name, "crashed", repr(error))
            process.kill()
            self._die()

    async def stop(self) -> None:
        """Stop the broker gracefully."""
        assert self.process is not None
        assert self.node is not None
        task = self.process.spawn(self.node.stop())
        await asyncio.wait([task], timeout=15)
        self.kill(power=False)

    def kill(self, *, power: bool = False) -> None:
        """End the process; with ``power``, what was not synced is lost in part."""
        super().kill()
        if power or self.disk_was_hurt:  # what it could not write is lost with the page cache
            self.world.note_power_cut(self)
        if power:
            chance = RandomChance(self.world.rng)
            self.disk = self.disk.crash(chance)
            self._fill()
        self._die()

    def _die(self) -> None:
        self.world.network.kill(self.name)
        if self.coordinator is not None:
            self.world.ensemble.crash(self.coordinator)
        self.disk.release_locks()


class ClientHost(Host):
    """A machine with a client program; ``begin`` says what it does."""

    def __init__(self, world: "World", name: str, program: "Program") -> None:
        super().__init__(world, name)
        self.program = program
        self.task: asyncio.Task[None] | None = None  # done when the program has ended
        self.stopping = False  # the program shall come to an end

    def start(self) -> object:
        """Start the program in a new process, with an open factory."""
        process, rng = self.new_process()
        self.stopping = False
        self.task = process.spawn(self._run(process, rng))
        return self.task

    async def _run(self, process: SimulatedProcess, rng: random.Random) -> None:
        try:
            await self._open_and_run(process, rng)
        except VqError as error:
            self.world.history.add("note", process.name, "ended", type(error).__name__)
            self.world.trace(f"{process.name}: {error}")
        except Exception as error:
            self.world.history.add("broken", process.name, "crashed", repr(error))
            raise
        finally:
            if not process.dead:
                process.kill()
                self.world.network.kill(self.name)

    async def _open_and_run(self, process: SimulatedProcess, rng: random.Random) -> None:
        assert self.coordinator is not None
        cluster = ClusterClient(
            MessageFactoryConfig(
                cluster=CLUSTER,
                client_id=self.name,
                session_timeout_s=SESSION_TIMEOUT_S,
                connect_timeout_s=1.0,
                request_timeout_s=3.0,
            ),
            coordinator=self.coordinator,
            network=self.world.network.at(self.name),
            clock=self.clock,
            rng=rng,
        )
        await cluster.start()
        async with aio.MessageFactory.on_cluster(cluster) as factory:
            await self.program(self, process.name, factory, rng)


Program = Callable[[ClientHost, str, aio.MessageFactory, random.Random], Coroutine[Any, Any, None]]
"""``(host, name of the process, factory, random numbers)``; ends when ``host.stopping`` is set."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a simulation."""

    brokers: int = 2
    partitions: int = 3
    producers: int = 2
    members: int = 2
    filtered: int = 0  # members of a second group, which takes only messages with a tag
    shared: int = 0  # members of a shared group
    keyed: bool = False  # it keeps the order of keys
    kept_bytes: int | None = None  # so many of a partition stay when groups are done with them
    copies: int = 0  # further nodes of each broker group
    fast: bool = False  # a second topic, whose messages the master acknowledges alone
    loose: bool = False  # a further topic, whose messages count before they are flushed


class World:
    """Everything there is in one simulation."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        size: Size,
        tell: Callable[[Any], None] | None = None,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.size = size
        self.rng = generator(seed, "world")
        self.history = History(loop.time, tell=tell)
        self._tell = tell
        delays = generator(seed, "zookeeper")
        self.zookeeper_late_s = 0.0
        self.place_hangs = False
        self.held_calls = 0  # so far, by a place that hangs
        self.ensemble = RecordingEnsemble(
            self.history,
            on_unclean=self._note_unclean,
            clock=SimulatedClock(loop),
            delay=lambda: delays.uniform(0.000_2, 0.001_5) + self.zookeeper_late_s,
            reconnect_delay_s=0.05,
        )
        self.network = SimulatedNetwork(generator(seed, "network"))
        self.brokers = [BrokerHost(self, f"b{number + 1}") for number in range(size.brokers)]
        self.copies = [
            BrokerHost(self, broker.group, f"n{number + 2}")
            for broker in self.brokers
            for number in range(size.copies)
        ]
        self.removed: list[BrokerHost] = []  # for good
        #: vq's own topics whose partitions are moved, too.
        self.journals: list[str] = [SHARED_TOPIC] if size.shared else []
        self.clients: list[ClientHost] = []
        self.processes: list[SimulatedProcess] = []
        self.losses: list[Loss] = []

    def note_power_cut(self, host: BrokerHost) -> None:
        """Note what a node may lose that loses power now."""
        written = messages_on(host.disk, DATA, self.topics)
        sure = surely_on(host.disk, DATA, self.topics)
        self._lose("power", host.group, host.node_name, written - sure)

    def _note_unclean(self, group: str, node: str) -> None:
        """Note what may be lost now that a node leads which an operator named."""
        nodes = {each.node_name: each for each in self.machines if each.group == group}
        sure = {name: surely_on(each.disk, DATA, self.topics) for name, each in nodes.items()}
        written = [messages_on(each.disk, DATA, self.topics) for each in nodes.values()]
        places = frozenset[Place]().union(*written) - sure[node]
        holders = {name: (each.disks, sure[name] & places) for name, each in nodes.items()}
        self._lose("unclean", group, node, places, holders)

    def _lose(
        self,
        kind: str,
        group: str,
        node: str,
        places: frozenset[Place],
        holders: Mapping[str, tuple[int, frozenset[Place]]] = MappingProxyType({}),
    ) -> None:
        self.history.add("loss", node, kind, group, len(places))
        at = self.history.events[-1][0]
        self.losses.append(Loss(at, kind, group, node, places, holders))

    def client(self, name: str, program: Program) -> ClientHost:
        """Add a machine for a client program, not started."""
        host = ClientHost(self, name, program)
        self.clients.append(host)
        return host

    def add_copy(self, group: str) -> BrokerHost:
        """Add a machine for a node that copies, not started."""
        known = [*self.machines, *self.removed]
        number = sum(each.group == group for each in known) + 1
        host = BrokerHost(self, group, f"n{number}")
        self.copies.append(host)
        return host

    @property
    def hosts(self) -> list[Host]:
        """All machines, in the order in which they were added."""
        return [*self.machines, *self.clients]

    @property
    def topics(self) -> list[str]:
        """The topics of the clients."""
        return [TOPIC, *[FAST] * self.size.fast, *[LOOSE] * self.size.loose]

    @property
    def machines(self) -> list[BrokerHost]:
        """All machines for brokers."""
        return [*self.brokers, *self.copies]

    def record(self, group: str) -> GroupState | None:
        """Return the record of a group as ZooKeeper has it now."""
        path = f"vq/{CLUSTER}/{GroupState.path(group)}"
        try:
            return GroupState.decode(path, self.ensemble.tree.get(path).data)
        except NoNode:
            return None

    def master(self, group: str) -> BrokerHost | None:
        """Return the machine that leads a group by its record, if its process runs."""
        record = self.record(group)
        for host in self.machines:
            runs = host.group == group and host.alive and not host.paused
            if record is not None and runs and host.node_name == record.master:
                return host
        return None

    def trace(self, line: str) -> None:
        """Show a line that is no part of the history."""
        if self._tell is not None:
            self._tell(line)
