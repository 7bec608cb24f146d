"""What is far away: ZooKeeper answers late, or all hosts hear each other late."""

import asyncio

from support.simulation.nemesis import Nemesis

#: The least and the most that an answer takes: of ZooKeeper, of another host.
ZOOKEEPER_S = (0.06, 0.9)
LINKS_S = (0.02, 0.4)


async def slow_zookeeper(nemesis: Nemesis) -> None:
    """ZooKeeper answers everybody late for a while."""
    world = nemesis.world
    if world.zookeeper_late_s:
        return
    lasts_s, round_trip_s = nemesis.seconds(2, 15), nemesis.rng.uniform(*ZOOKEEPER_S)
    nemesis.note("slow zookeeper", "all", lasts_s)
    served = world.ensemble.served
    world.zookeeper_late_s = round_trip_s / 2
    try:
        await asyncio.sleep(lasts_s)
    finally:
        world.zookeeper_late_s = 0.0
        nemesis.had_effect("slow zookeeper", world.ensemble.served - served)


async def slow_links(nemesis: Nemesis) -> None:
    """All hosts are far from each other for a while: logs are compared over long ways."""
    world = nemesis.world
    if world.network.is_slow:
        return
    lasts_s, round_trip_s = nemesis.seconds(2, 15), nemesis.rng.uniform(*LINKS_S)
    nemesis.note("slow links", "all", lasts_s)
    world.network.slow_down(round_trip_s / 2)
    epochs = _epochs(nemesis)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        world.network.slow_down(0.0)
        nemesis.had_effect("slow links")
        nemesis.had_effect("masters over slow links", _epochs(nemesis) - epochs)


def _epochs(nemesis: Nemesis) -> int:
    records = [nemesis.world.record(each.group) for each in nemesis.world.brokers]
    return sum(record.epoch for record in records if record is not None)
