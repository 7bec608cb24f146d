"""Faults of groups with copies: what strikes the nodes of one group against each other.

``nemesis`` has those that strike every cluster. Each fault here counts its effects in
``Nemesis.effects``: a message that was held back, an event that was lost, a node that joined. A
kind without effect proves nothing, and a test says so.
"""

import asyncio

from support.simulation import elections, heirs, silence, slow
from support.simulation.kinds import COMBINATIONS, EVERY_KIND, FAULTS, KINDS_PER_RUN
from support.simulation.nemesis import TAKE_UNFLUSHED, Fault, Nemesis
from support.simulation.world import DATA, SESSION_TIMEOUT_S, BrokerHost

from vq.testing.loop import generator

#: So many nodes may be added to the groups of one run, and taken away.
CHANGES_MAX = 3
#: By how much wall clocks are wrong; at most by less than messages are kept: a clock that is ahead
#: deletes early.
OFFSETS_MS = (-3_600_000, -10_000, 0, 10_000, 3_600_000, 48 * 3_600_000)


async def cut_nodes(nemesis: Nemesis) -> None:
    """Two nodes of a group do not hear each other, or one does not hear the other."""
    world, rng = nemesis.world, nemesis.rng
    copy = rng.choice(world.copies)
    master = world.master(copy.group)
    peers = [each for each in world.machines if each.group == copy.group and each is not copy]
    other = (rng.choice(peers) if master is None or master is copy else master).name
    one = copy.name
    ways = rng.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
    lasts_s = nemesis.seconds(0.2, 15)
    nemesis.note("cut nodes", " and ".join(f"{a} to {b}" for a, b in ways), lasts_s)
    for source, target in ways:
        world.network.cut_one_way(source, target)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        nemesis.had_effect("cut nodes", world.network.held_between(ways))
        world.network.heal(one, other)


async def isolate_master(nemesis: Nemesis) -> None:
    """Only clients reach the master: neither ZooKeeper nor its copies do, for longer than a lease.

    Another node leads meanwhile, and clients still reach both.
    """
    world = nemesis.world
    group = nemesis.rng.choice(world.brokers).group
    master = world.master(group)
    if master is None or master.coordinator is None or master.coordinator.cut:
        return
    coordinator, lasts_s = master.coordinator, nemesis.seconds(1, 3 * SESSION_TIMEOUT_S)
    nemesis.note("disconnect", master.name, lasts_s)
    nemesis.had_effect("isolate master")
    peers = [each.name for each in world.machines if each.group == group and each is not master]
    for peer in peers:
        world.network.cut(master.name, peer)
    world.ensemble.disconnect(coordinator)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for peer in peers:
            world.network.heal(master.name, peer)
        if coordinator.cut and not coordinator.crashed:
            world.ensemble.reconnect(coordinator)


async def deafen_group(nemesis: Nemesis) -> None:
    """All watch events of all nodes of a group are lost for a while."""
    world = nemesis.world
    group = nemesis.rng.choice(world.brokers).group
    struck = [
        host.coordinator
        for host in world.machines
        if host.group == group and host.alive and host.coordinator is not None
    ]
    struck = [each for each in struck if each.held is None]
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("watches lost", group, lasts_s)
    for coordinator in struck:
        world.ensemble.hold_events(coordinator)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        for coordinator in struck:
            nemesis.had_effect("deaf group", len(coordinator.held or ()))
            world.ensemble.release_events(coordinator, drop=True)


async def run_clocks(nemesis: Nemesis) -> None:
    """The wall clocks of the nodes are set again and again, each to another time."""
    world, rng = nemesis.world, nemesis.rng
    lasts_s = nemesis.seconds(2, 10)
    nemesis.note("clock", "all", lasts_s)
    end = world.loop.time() + lasts_s
    while world.loop.time() < end:
        for host in world.machines:
            before = host.clock.wall_ms()
            host.clock.wall_offset_ms = rng.choice(OFFSETS_MS)
            nemesis.had_effect("clocks", host.clock.wall_ms() != before)
        await asyncio.sleep(rng.uniform(0.2, 5))


async def slow_nodes(nemesis: Nemesis) -> None:
    """All flushes of one node take as long as it takes to be put out of the set, or nearly."""
    host: BrokerHost = nemesis.rng.choice(nemesis.world.machines)
    lasts_s, flush_s = nemesis.seconds(2, 12), nemesis.rng.uniform(0.2, 4)
    nemesis.note("slow disk", host.name, lasts_s)
    host.flush_s, before = flush_s, host.flushes
    try:
        await asyncio.sleep(lasts_s)
    finally:
        host.flush_s = 0.000_5
        nemesis.had_effect("slow node", host.flushes - before)


async def black_out(nemesis: Nemesis) -> None:
    """All nodes of all groups lose power in the same moment."""
    world = nemesis.world
    struck = [host for host in world.machines if host.alive]
    for host in struck:
        down_s = nemesis.seconds(0.1, 6)
        nemesis.note("power cut", host.name, down_s)
        host.down_until = world.loop.time() + down_s
        host.kill(power=True)
    nemesis.had_effect("black-out", len(struck) > 1)


# Members --------------------------------------------------------------------------------------
async def add_node(nemesis: Nemesis) -> None:
    """A new node joins a group."""
    world = nemesis.world
    if nemesis.effects.get("add node", 0) >= CHANGES_MAX:
        return
    host = world.add_copy(nemesis.rng.choice(world.brokers).group)
    nemesis.note("add node", host.name)
    nemesis.had_effect("add node")
    nemesis.supervise(host)


async def remove_node(nemesis: Nemesis) -> None:
    """A node that copies is stopped, or breaks, and never comes back."""
    removed = nemesis.effects.get("remove node", 0)
    host = _expendable(nemesis)
    if host is None or removed >= CHANGES_MAX:
        return
    nemesis.note("remove node", host.name)
    nemesis.had_effect("remove node")
    host.wanted = False
    nemesis.world.copies.remove(host)
    nemesis.world.removed.append(host)
    host.kill()


async def replace_disk(nemesis: Nemesis) -> None:
    """A node that copies comes back with an empty disk."""
    host = _expendable(nemesis)
    if host is None:
        return
    down_s = nemesis.seconds(0.1, 6)
    nemesis.note("replace disk", host.name, down_s)
    nemesis.had_effect("replace disk", host.disk.exists(DATA))
    host.down_until = nemesis.world.loop.time() + down_s
    host.kill()
    host.empty_disk()


def _expendable(nemesis: Nemesis) -> BrokerHost | None:
    """Return a copy that may go for good at this moment, as an operator decides it.

    The record names another node as master, whose disk never failed; so that node has everything
    that was acknowledged, and is in sync. Where a power cut may take some of it, no copy goes; nor
    one that an operator is about to have lead.
    """
    if nemesis.world.size.loose and TAKE_UNFLUSHED & {*nemesis.kinds}:
        return None
    for host in nemesis.rng.sample(nemesis.world.copies, len(nemesis.world.copies)):
        record = nemesis.world.record(host.group)
        if record is None or record.master == host.node_name or not host.alive:
            continue
        if host.group in nemesis.elections:
            continue
        if not any(each.disk_ever_failed for each in nemesis.world.machines):
            return host
    return None


COPY_FAULTS: dict[str, Fault] = {
    "cut nodes": cut_nodes,
    "isolate master": isolate_master,
    "deaf group": deafen_group,
    "clocks": run_clocks,
    "slow node": slow_nodes,
    "black-out": black_out,
    "add node": add_node,
    "remove node": remove_node,
    "replace disk": replace_disk,
    "cut hand-over": elections.cut_hand_over,
    "silent link": silence.silence_link,
    "full heir": heirs.full_heir,
    "slow zookeeper": slow.slow_zookeeper,
    "slow links": slow.slow_links,
}

#: Kinds of faults that meet in the same few lines of replication.
COPY_COMBINATIONS: tuple[tuple[str, ...], ...] = (
    ("cut nodes", "kill broker"),  # out of the set just before the master goes
    ("isolate master", "slow node"),
    ("slow node", "kill broker"),  # what is acknowledged waits for the slowest
    ("black-out", "slow node"),
    ("black-out", "cut nodes"),
    ("add node", "kill broker", "cut nodes"),
    ("replace disk", "expire"),
    ("remove node", "kill broker"),
    ("deaf group", "expire"),  # a change of masters that nobody hears of
    ("pause", "cut nodes", "deaf group"),
    ("isolate master", "power cut"),
    ("lost reply", "lost request", "cut nodes"),  # a change of the set that may have happened
    ("isolate master", "move"),
    ("cut hand-over", "lost reply", "lost request"),  # did the successor claim the group?
    ("cut hand-over", "slow node"),
    ("ensemble away", "cut nodes", "kill broker"),  # nobody can be put out of the set
    ("disconnect", "isolate master", "pause"),  # a master goes on that does not know its end
    ("slow zookeeper", "hand over", "kill broker"),  # who leads is known late
    ("slow zookeeper", "cut nodes"),  # so is who is in sync
    ("slow links", "hand over", "kill broker"),  # logs are compared over a long way
    ("slow links", "isolate master"),
)

#: An operator has a node lead that lacks messages; one seed in ``UNCLEAN_EVERY`` has it.
UNCLEAN = "unclean"
UNCLEAN_EVERY = 5
MOVES = frozenset({"move", "sleepy mover"})
#: All that are drawn for a cluster with copies.
ALL_FAULTS: dict[str, Fault] = {**FAULTS, **COPY_FAULTS}
#: All by name, also those that only some runs can have.
BY_NAME: dict[str, Fault] = {**EVERY_KIND, **COPY_FAULTS, UNCLEAN: elections.elect_uncleanly}


def draw_copy_kinds(seed: int) -> tuple[str, ...]:
    """Return the kinds of faults of a run with copies: always some that strike them."""
    rng = generator(seed, "copy kinds")
    kinds = set(rng.sample(sorted(ALL_FAULTS), rng.randint(*KINDS_PER_RUN)))
    kinds.add(rng.choice(sorted(COPY_FAULTS)))
    if seed % 3:
        combinations = COPY_COMBINATIONS if seed % 3 == 1 else COMBINATIONS
        kinds.update(combinations[(seed // 3) % len(combinations)])
    if seed % UNCLEAN_EVERY == UNCLEAN_EVERY - 1:
        kinds -= MOVES  # of a partition with a hole that nobody fills, groups wait for an operator
        kinds.add(UNCLEAN)
    return tuple(sorted(kinds))
