"""What archiving does meanwhile: blocks become archives, and files again, on any node, any time."""

import asyncio

from fsspec.implementations.memory import MemoryFileSystem
from support.simulation.nemesis import Nemesis
from support.simulation.world import PLACE

from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.errors import VqError

#: The name of this fault. It is not drawn by ``draw_kinds``: seeds have to stay what they are.
ARCHIVE = "archive"
#: Nor is this one; with it, half of the archives are at a URL.
HANGING_PLACE = "hanging place"


async def archive_blocks(nemesis: Nemesis) -> None:
    """A node goes over all its blocks, whatever else happens to it."""
    host = nemesis.pick(nemesis.world.machines)
    if host is None or host.node is None or not host.serves:
        return
    nemesis.note(ARCHIVE, host.name)
    host.process.spawn(_go_over(nemesis, host.node))


async def hang_place(nemesis: Nemesis) -> None:
    """The place of archives at a URL does not answer for a while; sends go on."""
    world = nemesis.world
    if world.place_hangs:
        return
    lasts_s = nemesis.seconds(3, 20)
    nemesis.note(HANGING_PLACE, "all", lasts_s)
    world.place_hangs = True
    try:
        await asyncio.sleep(lasts_s)
        if {*nemesis.kinds} <= {ARCHIVE, HANGING_PLACE}:  # nothing else is in the way of sends
            world.history.add("calm", "all", lasts_s)
    finally:
        world.place_hangs = False
        nemesis.effects[HANGING_PLACE] = world.held_calls


def _place(nemesis: Nemesis) -> str | None:
    """Return where the next archive goes: to a URL, or beside its log."""
    if HANGING_PLACE not in nemesis.kinds or nemesis.rng.random() < 0.5:
        return None
    if not nemesis.effects.get("at a place"):
        MemoryFileSystem.store.clear()  # of an earlier run in this process
    nemesis.had_effect("at a place")
    return PLACE


async def _go_over(nemesis: Nemesis, node: BrokerNode) -> None:
    for channel in list(node.parts.partitions.channels.values()):
        for part in [*channel.older, channel]:
            try:
                await _archive_some(nemesis, node, channel, part)
            except (VqError, OSError) as error:
                what = f"archiving {channel}: {type(error).__name__}"
                nemesis.world.history.add("note", node.config.node, what)


async def _archive_some(
    nemesis: Nemesis, node: BrokerNode, channel: Channel, part: Channel
) -> None:
    """Archive most blocks of a log, restore some, give some up half-way.

    Raises:
        VqError, OSError: Something came in between.
    """
    rng, logs, log = nemesis.rng, node.parts.partitions.logs, part.log
    if log is None:
        return
    if part is channel and log.open_block is not None and rng.random() < 0.5:
        await logs.roll(channel, log.open_block)
    blocks = [each for each in log.closed_blocks if each.length]
    for block in blocks:
        patience = rng.choice((1, 3, 5, 1000, 1000, 1000, 1000))
        looks = iter(range(patience))
        if not block.is_archived:
            await logs.archiving.archive(
                channel,
                block,
                _place(nemesis),
                still=lambda looks=looks: next(looks, None) is not None,
            )
            nemesis.had_effect(ARCHIVE)
        elif rng.random() < 0.3:
            await logs.archiving.restore(channel, block)
            nemesis.had_effect("restore")
        else:
            found = await logs.archiving.verify(channel, block)
            if found.problem:
                nemesis.world.history.add("broken", node.config.node, found.problem)
