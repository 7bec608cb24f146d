"""The faults of links and of processes on any host, and of clients: cut, paused, set, killed."""

import asyncio

from support.simulation.nemesis import Nemesis
from support.simulation.world import ClientHost, Host


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
