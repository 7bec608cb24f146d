"""A node in sync whose disk refuses messages, while the master goes: another one has to lead.

From 90 % of its disk on a node refuses messages, and up to 97 % it copies on, so it could lead.
"""

import asyncio

from support.simulation.nemesis import Nemesis
from support.simulation.world import BrokerHost

from vq.errors import VqError

_FULL = 0.93
#: Longer than a node needs to see that, and to tell it in its registration.
_TELL_S = 4.0
#: A full node may lead so long beside one with space: it hands over, and tries again after 30 s if
#: that failed.
LEADS_MAX_S = 8.0
_WATCH_S = 12.0


async def full_heir(nemesis: Nemesis, *ways: str) -> None:
    """A copy is nearly full; then the master ends, hands over, or is full as well."""
    world, rng = nemesis.world, nemesis.rng
    group = rng.choice(world.brokers).group
    master = world.master(group)
    others = [each for each in world.machines if each.group == group and each is not master]
    heir: BrokerHost | None = nemesis.pick(others)
    if master is None or heir is None or heir.is_filled or not master.serves:
        return
    nemesis.note("full heir", heir.name, _TELL_S + _WATCH_S)
    heir.fill(_FULL)
    try:
        await asyncio.sleep(_TELL_S)
        way = rng.choice(ways or ("kill", "hand over", "full master"))
        if world.master(group) is not master or not master.serves:
            return
        record = world.record(group)
        assert record is not None
        nemesis.had_effect("full heir", heir.node_name in record.insync and heir.tells_full())
        await _end(nemesis, master, way)
        await _watch(nemesis, group, heir)
    finally:
        heir.fill(None)
        master.fill(None)


async def _end(nemesis: Nemesis, master: BrokerHost, way: str) -> None:
    if way == "kill":
        nemesis.note("kill", master.name, _WATCH_S)
        master.down_until = nemesis.world.loop.time() + _WATCH_S
        master.kill()
    elif way == "full master":
        master.fill(_FULL)
    else:
        assert master.process is not None
        assert master.node is not None
        node = master.node

        async def run() -> None:
            try:
                await node.parts.hand_over.run()
            except VqError as error:
                nemesis.world.history.add("note", master.name, f"hand-over: {error}")

        master.process.spawn(run())


async def _watch(nemesis: Nemesis, group: str, heir: BrokerHost) -> None:
    """Tell history if the full node leads on while another one could take messages.

    Only where nothing else is wrong: else nobody knows who could.
    """
    world = nemesis.world
    since = world.loop.time()
    end = since + _WATCH_S
    while world.loop.time() < end:
        await asyncio.sleep(0.1)
        record = world.record(group)
        assert record is not None
        better = [
            each
            for each in world.machines
            if each.group == group
            and each.node_name in record.insync
            and each.serves
            and not each.is_filled
        ]
        led = record.master == heir.node_name and heir.serves and better
        if not (led and nemesis.is_alone):
            since = world.loop.time()
        elif world.loop.time() - since > LEADS_MAX_S:
            world.history.add("broken", heir.name, "leads on with a full disk", better[0].name)
            return
