"""A link of three nodes that is silent, while the master changes from one of its ends and back.

    first leads ── third lags ── the link first–last falls silent ── third leads, last is cut
                                                                       │
       last leads ◀── first is killed ◀── first leads again ◀── third is killed

Whatever ``first`` heard from ``last`` before says nothing of what that one has when ``first`` leads
again: its log was cut meanwhile.
"""

import asyncio
from collections.abc import Callable

from support.simulation.nemesis import Nemesis
from support.simulation.world import BrokerHost, World

#: Longer than these take; all of them together no longer than a node in sync may be silent.
_ELECTION_S = 1.0
_CUT_S = 0.3
_REJOIN_S = 2.0


async def silence_link(nemesis: Nemesis) -> None:
    """Two of three nodes hear nothing of each other, and both changes of master meet that."""
    world = nemesis.world
    group = nemesis.rng.choice(world.brokers).group
    first, nodes = world.master(group), [each for each in world.machines if each.group == group]
    if group in nemesis.elections:
        return
    if first is None or len(nodes) < 3 or not _all_in_sync(world, nodes):
        return
    others = [each for each in nodes if each is not first]
    third, last = nemesis.rng.sample(others, 2)
    nemesis.note("silent link", f"{first.name} and {last.name}")
    nemesis.elections.add(group)
    try:
        await _change_masters(nemesis, first, third, last)
    finally:
        nemesis.elections.discard(group)
        for one, other in ((first, third), (first, last), (third, last)):
            world.network.heal(one.name, other.name)


async def _change_masters(
    nemesis: Nemesis, first: BrokerHost, third: BrokerHost, last: BrokerHost
) -> None:
    world, rng = nemesis.world, nemesis.rng
    world.network.cut(first.name, third.name)  # what comes now is on the other two alone
    await asyncio.sleep(rng.uniform(0.3, 1.6))
    world.network.cut(first.name, last.name)
    before = _stored(last)
    if not await _has_lead(world, third, last, instead_of=first):
        return
    world.network.heal(first.name, third.name)
    await _until(world, lambda: _stored(last) < before, _CUT_S)
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 0.1))))
    world.network.cut(third.name, last.name)
    await _until(world, lambda: _all_in_sync(world, [first, third, last]), _REJOIN_S)
    nemesis.note("kill", third.name, 6)
    if not await _has_lead(world, first, last, instead_of=third, kill=True):
        return
    await asyncio.sleep(rng.uniform(0.3, 1.6))
    if first.alive:
        nemesis.note("kill", first.name, 6)
        nemesis.had_effect("silent link")
        _kill(first)


async def _has_lead(
    world: World, heir: BrokerHost, deaf: BrokerHost, *, instead_of: BrokerHost, kill: bool = False
) -> bool:
    """End the session of a master; whether ``heir`` leads, as the third node hears it later."""
    hearing, coordinator = deaf.coordinator, instead_of.coordinator
    if not all(each.alive for each in (heir, deaf, instead_of)) or hearing is None:
        return False
    if coordinator is None or hearing.held is not None:
        return False
    world.ensemble.hold_events(hearing)
    try:
        if world.ensemble.is_live(coordinator.session_id):
            world.ensemble.expire(coordinator)
        if kill:
            _kill(instead_of)
        await _until(world, lambda: heir.leads, _ELECTION_S)
    finally:
        if hearing.held is not None:
            world.ensemble.release_events(hearing)
    return heir.leads


async def _until(world: World, holds: Callable[[], bool], timeout_s: float) -> None:
    end = world.loop.time() + timeout_s
    while not holds() and world.loop.time() < end:
        await asyncio.sleep(0.001)


def _stored(host: BrokerHost) -> int:
    """Return how much is in the logs of a node, as it is written."""
    channels = host.node.parts.partitions.channels.values() if host.node is not None else ()
    return sum(each.log.end_offset for each in channels if each.log is not None)


def _all_in_sync(world: World, nodes: list[BrokerHost]) -> bool:
    record = world.record(nodes[0].group)
    names = {each.node_name for each in nodes}
    return record is not None and {*record.insync} == names and all(each.serves for each in nodes)


def _kill(host: BrokerHost) -> None:
    host.down_until = host.world.loop.time() + 6.0
    host.kill()
