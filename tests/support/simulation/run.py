"""One seed from beginning to end: start, break, heal, drain, judge, take down.

    python -m pytest tests/faults/test_simulation.py             many seeds
    VQ_SEED=17 python -m pytest tests/faults/test_simulation.py -s   one, with a trace

``simulate`` returns a report; it raises only if the simulation itself is broken.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from support.shared_judge import deliveries_of
from support.simulation import workload
from support.simulation.contents import all_contents, different, has_the_same, places
from support.simulation.copies import BY_NAME, UNCLEAN, draw_copy_kinds
from support.simulation.history import History
from support.simulation.judge import Evidence, Stored, judge
from support.simulation.kept import Kept, kept_messages, untold
from support.simulation.kinds import draw_kinds
from support.simulation.losses import Place
from support.simulation.nemesis import TAKE_UNFLUSHED, Nemesis
from support.simulation.shared import judge_members, queues_of, share
from support.simulation.world import (
    CLUSTER,
    FAST,
    LOOSE,
    POOL,
    SESSION_TIMEOUT_S,
    TOPIC,
    BrokerHost,
    ClientHost,
    Program,
    Size,
    World,
)

from vq import aio
from vq.broker.partition.channel import Channel
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics.topics import create_topic
from vq.errors import UnknownTopic, VqError
from vq.model import FlushMode, Replication, TopicSettings
from vq.operations.brokers.diverged import CutFile, list_cut
from vq.operations.groups import resets
from vq.operations.messages.dead_letters import read_dead_letters
from vq.store.log.log import Log
from vq.testing.loop import SimulatedProcess, Stuck, VirtualLoop, generator

#: How long the cluster may need, once all is well, to have everything delivered: lost watches are
#: made up for by timers of 30 s, a lost session by its time-out and a back-off.
DRAIN_S = 60.0
#: Seeds whose shared group keeps the order of keys, by their rest; every second one has copies.
KEYED_OF_4 = (2, 3)
FLUSH_MODES = (FlushMode.SYNC, FlushMode.SYNC, FlushMode.ASYNC)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one seed."""

    seed: int
    violations: list[str]
    hash: str
    faults: dict[str, int]
    effects: dict[str, int]
    acknowledged: int
    unknown: int
    refused: int
    delivered: int
    seconds: float
    history: History

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {len(self.violations)} violations", *self.violations]
        return "\n  ".join(lines)


class NotDrained(Exception):
    """The cluster does not come to rest although nothing is wrong any more."""


class Simulation:
    """One run; ``main`` is its course."""

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        seconds: float,
        size: Size,
        kinds: tuple[str, ...],
        tell: Callable[[Any], None] | None,
    ) -> None:
        self.world = World(loop, seed, size=size, tell=tell)
        self.seconds = seconds
        self.kinds = kinds
        self.faults: dict[str, int] = {}
        self.effects: dict[str, int] = {}
        self.violations: list[str] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._operator_rng = generator(seed, "operator")
        self._min_insync = generator(seed, "min_insync").choice((1, 1, 2)) if size.copies else 1
        #: Messages may be lost that were read.
        self._lossy = size.loose or UNCLEAN in kinds
        self._operator_process = SimulatedProcess(loop, "operator")
        self.world.processes.append(self._operator_process)

    async def main(self) -> None:
        """Do everything; leave what is wrong in ``violations``."""
        world = self.world
        operator = await self.start()
        await self.create_topic(operator)
        resetting = self._operator_process.spawn(self._reset_stopped(operator))
        producers = self.clients("p", world.size.producers, workload.produce)
        members = self.clients("c", world.size.members, workload.consume)
        members += self.clients("f", world.size.filtered, workload.consume)
        members += self.clients("s", world.size.shared, share)
        auditors = self.clients("a", 1, workload.audit)
        nemesis = Nemesis(
            world,
            members=members,
            producers=producers,
            operator=operator,
            kinds=self.kinds,
            faults=BY_NAME,
        )
        world.history.add("note", "nemesis", *nemesis.kinds)
        await asyncio.sleep(1.0)
        await self.strike(nemesis)
        await nemesis.heal()
        self.faults, self.effects = nemesis.struck, nemesis.effects
        try:
            await self._drain(producers, members, auditors)
        except NotDrained as error:
            self.violations.append(f"liveness: {error}")
            world.history.add("broken", "cluster", str(error))
        resetting.cancel()
        await self._collect(operator)
        await self._operator_process.spawn(operator.close())
        await self._compare_copies()
        for broker in world.machines:
            await broker.stop()

    async def strike(self, nemesis: Nemesis) -> None:
        """Break things; a story breaks those that it tells of."""
        await nemesis.run(self.seconds)

    async def _compare_copies(self) -> None:
        """Have every copy come to what its master has, byte by byte."""
        masters = {broker.group: broker for broker in self.world.brokers}
        for copy in self.world.copies:
            master = masters[copy.group]
            check = partial(has_the_same, master, copy)
            try:
                await self.until(f"{copy.name} to have what {copy.group} has", check)
            except NotDrained as error:
                self.violations.append(f"copies: {error}: {', '.join(different(master, copy))}")

    async def start(self) -> ClusterClient:
        """Start the brokers; return an operator's client once they serve."""
        for broker in self.world.machines:
            self._supervise(broker.keep_running())
        await self.until("brokers to start", lambda: all(b.serves for b in self.world.brokers))
        return await self._operator_process.spawn(self._open_operator())

    async def create_topic(self, operator: ClusterClient) -> None:
        """Make the topic; it is flushed before acknowledgements wherever that is needed."""
        rng = self._operator_rng
        settings = TopicSettings(
            partitions=self.world.size.partitions,
            flush=FlushMode.SYNC if TAKE_UNFLUSHED & set(self.kinds) else rng.choice(FLUSH_MODES),
            flush_interval_messages=20,
            flush_interval_ms=400,
            min_insync=self._min_insync,
            retention_bytes=self.world.size.kept_bytes,
            retention_policy="keep" if self.world.size.kept_bytes else "delete",
        )
        await create_topic(operator.coordinator, TOPIC, settings, rng=rng)
        if self.world.size.fast:
            settings = replace(settings, replication=Replication.ASYNC)
            await create_topic(operator.coordinator, FAST, settings, rng=rng)
        if self.world.size.loose:
            settings = replace(settings, replication=Replication.SYNC, flush=FlushMode.ASYNC)
            await create_topic(operator.coordinator, LOOSE, settings, rng=rng)

    async def _reset_stopped(self, operator: ClusterClient) -> None:
        """Have groups that were stopped read all again, as a careful operator does."""
        target = resets.Target(goal=resets.Goal.EARLIEST)
        while self._lossy:
            await asyncio.sleep(1.0)
            for group in workload.GROUPS.values():
                try:
                    planned = await resets.plan_reset(operator, group, target, only_stopped=True)
                    stopped = [each for each in planned if each.before and each.before.stopped]
                    await resets.reset(operator, group, stopped, fence=True)
                except VqError as error:
                    self.world.trace(f"operator: {group} cannot be reset: {error}")

    def _supervise(self, work: Any) -> None:
        self._supervisors.append(self.world.loop.create_task(work))

    def clients(self, prefix: str, count: int, program: Program) -> list[ClientHost]:
        """Add machines for a program, and keep it running on each of them."""
        hosts = [self.world.client(f"{prefix}{number + 1}", program) for number in range(count)]
        for host in hosts:
            self._supervise(host.keep_running())
        return hosts

    async def _open_operator(self) -> ClusterClient:
        world = self.world
        operator = ClusterClient(
            MessageFactoryConfig(cluster=CLUSTER, client_id="operator", request_timeout_s=8.0),
            coordinator=world.ensemble.coordinator(CLUSTER, session_timeout_s=SESSION_TIMEOUT_S),
            network=world.network.at("operator"),
            clock=world.ensemble.clock,
            rng=generator(world.seed, "operator client"),
        )
        await operator.start()
        return operator

    # Drain --------------------------------------------------------------------------------------
    async def _drain(
        self, producers: list[ClientHost], members: list[ClientHost], auditors: list[ClientHost]
    ) -> None:
        """Let producers finish and members catch up, then close all clients."""
        world = self.world
        await self.until("brokers to serve", lambda: all(b.serves for b in world.brokers))
        await self.end(producers)
        if world.copies:
            # What has no outcome may be shown only when all copies have told what they have.
            await self.until("the masters to show all", self.everything_is_shown)
        await self.until("the members to catch up", self.everything_is_done)
        await self.end(auditors)
        for host in members:
            host.wanted = True
        await self.until("members to run", lambda: all(each.alive for each in members))
        await self.end(members)

    async def end(self, hosts: list[ClientHost]) -> None:
        """Have client programs come to their end."""
        for host in hosts:
            host.wanted = False
            host.stopping = True
        names = " ".join(host.name for host in hosts)
        await self.until(f"{names} to end", lambda: not any(host.alive for host in hosts))

    def everything_is_done(self) -> bool:
        """Whether every group got, and committed, every acknowledged message that is for it.

        Those that may have been lost, and are in no log, are not waited for.
        """
        history = self.world.history
        committed: dict[tuple[str, str], int] = {}
        letters = {group: letter for letter, group in workload.GROUPS.items()}
        for _, kind, who, partition, offset in history.of("commit", "reset"):
            committed[letters[who] if kind == "reset" else who[0], partition] = offset
        acknowledged = [event[3:7] for event in history.of("ok")]
        lost: set[Place] | None = None
        if self.world.copies:
            ends = self._ends()
            if any(committed.get(("c", name), 0) < end for name, end in ends.items()):
                return False
        if self._lossy and self._waits_for_operator(committed):
            return False
        if self.world.size.shared and not self.shared_is_done():
            return False
        for letter in workload.GROUPS if self.world.size.filtered else "c":
            got = {event[6] for event in history.of("read") if event[2][0] == letter}
            for value, partition, offset, message_id in acknowledged:
                done = value in got and committed.get((letter, partition), 0) > offset
                if done or not workload.is_for(letter, value):
                    continue
                if lost is None:
                    lost = self._lost()
                if (partition, offset, message_id) not in lost:
                    return False
        return True

    def shared_is_done(self) -> bool:
        """Whether nothing of the shared group is open."""
        lows = {event[3]: event[4] for event in self.world.history.of("low")}  # the last ones
        return all(lows.get(name) == end for name, end in self._ends().items())

    def _waits_for_operator(self, committed: Mapping[tuple[str, str], int]) -> bool:
        """Whether a group is stopped, or will be: it is ahead of a log that lost its end."""
        stopped: set[tuple[str, str]] = set()
        letters = {group: letter for letter, group in workload.GROUPS.items()}
        for _, kind, who, partition, _ in self.world.history.of("stopped", "reset"):
            if kind == "stopped":
                stopped.add((who[0], partition))
            else:
                stopped.discard((letters[who], partition))
        ends = self._ends()
        return bool(stopped) or any(
            offset > ends.get(partition, offset) for (_, partition), offset in committed.items()
        )

    def _lost(self) -> set[Place]:
        """Return the messages that were cut from a log, or that a disk lost, and are in no log."""
        if not self.world.size.fast and not self._lossy:
            return set()
        found = set(kept_messages(self.world)).union(*(each.places for each in self.world.losses))
        for machine in self.world.machines:
            if machine.node is None or not machine.serves or not machine.node.epoch:
                continue
            for channel in machine.node.parts.partitions.channels.values():
                for start, data in all_contents(channel):
                    found -= set(places(str(channel.partition), start, data))
        return found

    def everything_is_shown(self) -> bool:
        """Whether all groups have a master, and readers may read all that it has."""
        masters = [self.world.master(broker.group) for broker in self.world.brokers]
        return all(masters) and all(
            log is None or channel.high_watermark == log.end_offset
            for channel, log in self._logs(masters)
        )

    def _ends(self) -> dict[str, int]:
        """Return where the partitions of the clients' topics end, if they have messages."""
        masters = [self.world.master(broker.group) for broker in self.world.brokers]
        ends: dict[str, int] = {}
        for channel, log in self._logs(masters):  # of one that was moved there are several
            if log is not None and log.size_bytes and channel.partition.topic in self.world.topics:
                ends[str(channel)] = max(log.end_offset, ends.get(str(channel), 0))
        return ends

    @staticmethod
    def _logs(masters: list[BrokerHost | None]) -> list[tuple[Channel, Log | None]]:
        nodes = [master.node for master in masters if master is not None]
        return [
            (channel, channel.log)
            for node in nodes
            if node is not None
            for channel in node.parts.partitions.channels.values()
            if channel.span is not None
        ]

    async def until(self, what: str, check: Callable[[], bool]) -> None:
        """Return once ``check()`` holds."""
        loop = self.world.loop
        deadline = loop.time() + DRAIN_S
        while not check():
            if loop.time() > deadline:
                raise NotDrained(f"waited {DRAIN_S:g} s for {what}")
            await asyncio.sleep(0.5)

    # Judge --------------------------------------------------------------------------------------
    async def _collect(self, operator: ClusterClient) -> None:
        """Read what is left at the end, and judge."""
        world = self.world
        reading = self._operator_process.spawn(self._read_end(operator))
        done, _ = await asyncio.wait([reading], timeout=DRAIN_S)
        if not done:
            self.violations.append("liveness: the final log cannot be read")
            return
        try:
            log, ends, committed, listed = reading.result()
        except VqError as error:
            self.violations.append(f"liveness: the final log cannot be read: {error!r}")
            return
        self.violations += judge(
            Evidence(
                events=world.history.events,
                log=log,
                ends=ends,
                committed=committed,
                groups=workload.GROUPS if world.size.filtered else {"c": workload.GROUPS["c"]},
                is_for=workload.is_for,
                kept=self._kept(),
                losses=world.losses,
            )
        )
        self.violations += self._untold(log, listed)
        if world.size.shared:
            await self._judge_shared(operator, log)

    async def _judge_shared(self, operator: ClusterClient, log: dict[str, list[Stored]]) -> None:
        letters = await self._operator_process.spawn(self.read_letters(operator))
        self.effects["dead letters"] = len(letters)
        stored = {name: [(each.offset, each.value) for each in log[name]] for name in log}
        events, queues = self.world.history.events, list[list[str]]()
        if self.world.size.keyed:
            queues = queues_of(events, stored)
            self.effects["in order"] = sum(len(each) - 1 for each in queues)
        self.violations += judge_members(events, stored, letters, queues)

    async def read_letters(self, operator: ClusterClient) -> dict[str, list[int]]:
        """Return the counts of deliveries of the dead letters of each message."""
        letters: dict[str, list[int]] = {}
        try:
            async for letter in read_dead_letters(operator, POOL):
                counts = letters.setdefault(workload.value_of(letter.message), [])
                counts.append(deliveries_of(letter.failure))
        except UnknownTopic:
            pass  # no message was given up
        return letters

    def _kept(self) -> dict[Place, list[Kept]]:
        return kept_messages(self.world) if self.world.size.fast or self._lossy else {}

    def _untold(self, log: dict[str, list[Stored]], listed: list[CutFile]) -> list[str]:
        """Return the acknowledged messages that are lost, are kept, and that no node tells of."""
        there = {(where, each.offset, each.id) for where, found in log.items() for each in found}
        lost = {event[4:7] for event in self.world.history.of("ok")} - there
        kept = self._kept()
        alone = [event[2:4] for event in self.world.history.of("set") if event[2] == FAST]
        if not lost:
            return []
        silent = self._not_kept(lost, kept)
        silent += [
            f"hidden: {place} is lost and kept, and no node lists it"
            for place in kept
            if place in lost
            and not any(
                (file.topic, file.partition) == _of(place[0])
                and file.start_offset <= place[1] < file.end_offset
                for file in listed
            )
        ]
        if not alone or alone[-1][1] != Replication.ASYNC:
            return silent
        places = [place for place in kept if place in lost and place[0].startswith(FAST)]
        for machine in self.world.machines:
            if places and machine.serves:
                places = untold(machine, places)
        return silent + [f"untold: {place} is lost, and no broker tells of it" for place in places]

    def _not_kept(self, lost: set[Place], kept: Mapping[Place, list[Kept]]) -> list[str]:
        """Return what an unclean election lost and nobody keeps, although a disk had it."""
        disks = {(each.group, each.node_name): each.disks for each in self.world.machines}
        return [
            f"thrown away: {place} was on {node} of {loss.group}, and is lost and not kept"
            for loss in self.world.losses
            for node, (number, places) in loss.holders.items()
            if disks.get((loss.group, node)) == number
            for place in sorted(places & lost)
            if place not in kept
        ]

    async def _read_end(
        self, operator: ClusterClient
    ) -> tuple[dict[str, list[Stored]], dict[str, int], dict[tuple[str, str], int], list[CutFile]]:
        factory = aio.MessageFactory.on_cluster(operator)
        consumer = await factory.create_consumer()
        found = await workload.read_all(self.world, factory)
        log = {
            partition: [
                Stored(m.offset, m.next_offset, workload.value_of(m), m.id) for m in messages
            ]
            for partition, messages in found.items()
        }
        ends = {
            partition: (await consumer.get_bounds(topic, int(number))).latest
            for partition in log
            for topic, _, number in [partition.rpartition("-")]
        }
        committed: dict[tuple[str, str], int] = {}
        for group in workload.GROUPS.values():
            offsets = await ZooKeeperOffsets(operator.coordinator).read(group, self.world.topics)
            committed |= {
                (group, str(partition)): each.offset for partition, each in offsets.items()
            }
        listed, _ = await list_cut(operator)
        return log, ends, committed, listed

    # End ----------------------------------------------------------------------------------------
    async def take_down(self) -> None:
        """Let every task of every process end, dead or alive, so that nothing is left behind."""
        loop, me = self.world.loop, asyncio.current_task()
        for process in self.world.processes:
            process.release()
        for _ in range(20):
            tasks = [task for task in loop.unfinished() if task is not me]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5.0)


def _of(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


class SendersUnderFaults(Simulation):
    """Clients that send in one way, and members of groups, while faults strike.

    Attributes:
        prefix: Begins the names of the clients that send.
    """

    prefix: str

    def sends(self) -> Program:
        """Return what each of these clients does."""
        raise NotImplementedError

    async def settle(self) -> None:
        """Return when nothing more is to come; these clients have ended."""
        raise NotImplementedError

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """Return what is wrong, by the history and the final log of each partition."""
        raise NotImplementedError

    async def main(self) -> None:
        """See ``Simulation.main``."""
        world = self.world
        operator = await self.start()
        await self.create_topic(operator)
        senders = self.clients(self.prefix, world.size.producers, self.sends())
        members = self.clients("c", world.size.members, workload.consume)
        members += self.clients("s", world.size.shared, share)
        nemesis = Nemesis(
            world,
            members=members,
            producers=senders,
            operator=operator,
            kinds=self.kinds,
            faults=BY_NAME,
        )
        await asyncio.sleep(1.0)
        await self.strike(nemesis)
        await nemesis.heal()
        self.faults, self.effects = nemesis.struck, nemesis.effects
        try:
            await self.until("brokers to serve", lambda: all(b.serves for b in world.brokers))
            await self.end(senders)
            await self.settle()
            await self.end(members)
        except NotDrained as error:
            self.violations.append(f"liveness: {error}")
        log, *_ = await self._operator_process.spawn(self._read_end(operator))
        self.violations += self.judge(log)
        await self._operator_process.spawn(operator.close())
        for broker in world.machines:
            await broker.stop()


class _Alarm(logging.Handler):
    """Notes every exception that production code logs as one it did not expect."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history
        self.armed = True

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        error = record.exc_info[1] if record.exc_info else None
        if self.armed and error is not None and not isinstance(error, VqError | OSError):
            self._history.add("broken", record.name, record.getMessage(), repr(error))


def simulate(
    seed: int,
    *,
    seconds: float = 30.0,
    size: Size | None = None,
    kinds: tuple[str, ...] | None = None,
    copied: bool = False,
    shared: bool = False,
    tell: Callable[[Any], None] | None = None,
) -> Report:
    """Run one seed.

    Args:
        seed: Everything follows from it and from the other arguments.
        seconds: Virtual seconds in which faults strike; start and drain come on top.
        size: The numbers of brokers, clients and partitions; None: drawn from the seed.
        kinds: The kinds of faults; None: drawn from the seed.
        copied: Of what is drawn: groups have one or two nodes that copy, and faults strike them.
        shared: Of what is drawn: there is a shared group, and nothing that may lose messages. Of
            every second seed it keeps the order of keys.
        tell: Called with every event and every line worth showing.
    """
    rng = generator(seed, "size")
    drawn = Size(
        brokers=rng.choice((1, 2, 2, 3)),
        partitions=rng.choice((1, 2, 3, 5)),
        producers=rng.choice((1, 2, 3)),
        members=rng.choice((1, 2, 2, 3, 5)),
        filtered=rng.choice((0, 0, 1, 2)),
        copies=generator(seed, "copies").choice((1, 1, 2)) if copied else 0,
        loose=generator(seed, "loose").random() < 0.3,
    )
    draw = draw_copy_kinds if copied else draw_kinds
    drawn_kinds = draw(seed)
    if shared:
        few = generator(seed, "shared").choice((2, 3, 4))
        drawn = replace(
            drawn, members=1, filtered=0, loose=False, shared=few, keyed=seed % 4 in KEYED_OF_4
        )
        # Without a node that its topic needs in sync, no dead letter is stored any more.
        drawn_kinds = tuple(each for each in drawn_kinds if each not in {UNCLEAN, "remove node"})
    return execute(
        lambda loop: Simulation(
            loop,
            seed,
            seconds=seconds,
            size=size or drawn,
            kinds=drawn_kinds if kinds is None else kinds,
            tell=tell,
        ),
        quiet=tell is None,
    )


def execute(make: Callable[[VirtualLoop], Simulation], *, quiet: bool = True) -> Report:
    """Run a simulation on a loop of its own; ``quiet`` keeps the log lines back."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    simulation = make(loop)
    history = simulation.world.history
    alarm = _Alarm(history)
    loop.set_exception_handler(lambda _, context: _unhandled(history, alarm, context))
    logger = logging.getLogger("vq")
    before = logger.level, logger.propagate
    logger.addHandler(alarm)
    if quiet:
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    begin = loop.time()
    try:
        loop.run_until_complete(simulation.main())
    except (Stuck, NotDrained) as error:
        simulation.violations.append(f"stuck: {error}")
    finally:
        elapsed = loop.time() - begin
        digest, alarm.armed = history.hash, False
        logger.setLevel(logging.CRITICAL + 1)
        loop.run_until_complete(simulation.take_down())
        logger.removeHandler(alarm)
        logger.setLevel(before[0])
        logger.propagate = before[1]
        asyncio.set_event_loop(None)
        loop.close()
    return _report(simulation, digest, elapsed)


def _unhandled(history: History, alarm: _Alarm, context: dict[str, Any]) -> None:
    if alarm.armed:
        error = context.get("exception")
        history.add("broken", "loop", str(context.get("message")), repr(error))


def _report(simulation: Simulation, digest: str, elapsed: float) -> Report:
    history = simulation.world.history
    counts = dict.fromkeys(("ok", "unknown", "refused", "read"), 0)
    for event in history.events:
        if event[1] in counts:
            counts[event[1]] += 1
    return Report(
        seed=simulation.world.seed,
        violations=simulation.violations,
        hash=digest,
        faults=simulation.faults,
        effects=simulation.effects,
        acknowledged=counts["ok"],
        unknown=counts["unknown"],
        refused=counts["refused"],
        delivered=counts["read"],
        seconds=elapsed,
        history=history,
    )
