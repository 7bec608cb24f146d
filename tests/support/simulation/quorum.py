"""The faults of ZooKeeper: sessions, replies and watches that are lost, reads that are old."""

import asyncio

from support.simulation.nemesis import Nemesis
from support.simulation.world import Host

from vq.coordination.tree.coordinator import SessionState


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
    if not nemesis.ensemble_is_up:
        return
    lasts_s = nemesis.seconds(0.2, 15)
    nemesis.note("ensemble away", "all", lasts_s)
    nemesis.ensemble_is_up = False
    nemesis.world.ensemble.stop()
    try:
        await asyncio.sleep(lasts_s)
    finally:
        nemesis.ensemble_is_up = True
        nemesis.world.ensemble.start()
