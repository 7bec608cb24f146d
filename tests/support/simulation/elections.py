"""The faults of masterships: a hand-over that is cut short, an election that loses messages."""

import asyncio
from collections.abc import Callable

from support.simulation.nemesis import TAKE_UNFLUSHED, Nemesis
from support.simulation.world import BrokerHost

from vq.coordination.topics.topics import describe_topic, list_topics
from vq.errors import VqError
from vq.operations.brokers import unclean

#: Longer than it takes until a node that is cut off is out of the in-sync set.
_OUT_OF_SYNC_S = 10.0
#: Longer than it takes until dead nodes are not registered any more.
_OPERATOR_S = 12.0
_POLL_S = 0.000_5


async def cut_hand_over(nemesis: Nemesis) -> None:
    """A master, its successor or both are killed in the middle of a hand-over."""
    world, rng = nemesis.world, nemesis.rng
    master: BrokerHost | None = nemesis.pick([m for m in world.machines if m.serves and m.leads])
    if master is None or master.process is None or master.node is None:
        return
    group, node = master.group, master.node
    epoch = node.epoch

    def moment(name: str) -> bool:
        record = world.record(group)
        assert record is not None
        if name == "held":
            return node.parts.gate.holds
        return bool(record.successor) if name == "offered" else record.epoch > epoch

    async def run() -> str:
        try:
            return await node.parts.hand_over.run()
        except VqError as error:
            return type(error).__name__

    task = master.process.spawn(run())
    wanted, who = rng.choice(("held", "offered", "claimed")), rng.choice(("old", "new", "both"))
    reached = await _until(lambda: moment(wanted) or task.done() or not master.alive, 5.0)
    if not (reached and moment(wanted) and master.alive):
        return  # refused: no other node is in sync
    await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.01))))
    record = world.record(group)
    assert record is not None
    heir = record.successor or (record.master if record.epoch > epoch else "")
    struck = [master] if who in {"old", "both"} else []
    struck += [
        each
        for each in world.machines
        if each.group == group and each.node_name == heir and who in {"new", "both"}
    ]
    nemesis.had_effect("cut hand-over", any(each.alive for each in struck))
    for each in struck:
        _kill(nemesis, each, nemesis.seconds(0.1, 8))


async def elect_uncleanly(nemesis: Nemesis) -> None:
    """All nodes in sync are gone, and an operator has one lead that lacks messages."""
    world, group = nemesis.world, nemesis.rng.choice(nemesis.world.brokers).group
    nodes = [each for each in world.machines if each.group == group]
    master = world.master(group)
    heir: BrokerHost | None = nemesis.pick([each for each in nodes if each is not master])
    if master is None or heir is None or group in nemesis.elections:
        return
    nemesis.elections.add(group)
    others = [each for each in nodes if each is not heir]
    nemesis.note("unclean", heir.name)
    try:
        await _fall_behind(nemesis, heir, others)
        for each in others:
            each.down_until = world.loop.time() + 60.0
            if each.alive:
                _kill(nemesis, each, 60.0)
        await _decide(nemesis, heir)
    finally:
        nemesis.elections.discard(group)
        for each in others:
            each.down_until = world.loop.time() + nemesis.seconds(0.1, 6)


async def _fall_behind(nemesis: Nemesis, heir: BrokerHost, others: list[BrokerHost]) -> None:
    """Keep a node from the others until it is not in sync any more, and a while longer."""
    world = nemesis.world

    def is_out() -> bool:
        record = world.record(heir.group)
        return record is not None and heir.node_name not in record.insync

    for each in others:
        world.network.cut(heir.name, each.name)
    try:
        await _until(is_out, _OUT_OF_SYNC_S)
        await asyncio.sleep(nemesis.seconds(0, 3))
    finally:
        for each in others:
            world.network.heal(heir.name, each.name)


async def _decide(nemesis: Nemesis, heir: BrokerHost) -> None:
    """Do what an operator does: try until it is not refused any more."""
    world, operator = nemesis.world, nemesis.operator
    said, deadline = "", world.loop.time() + _OPERATOR_S
    while world.loop.time() < deadline:
        try:
            names = await list_topics(operator.coordinator)
            views = [await describe_topic(operator.coordinator, name) for name in names]
            topics = [
                view.name
                for view in views
                if any(span.group == heir.group for each in view.partitions for span in each.spans)
            ]
            await unclean.elect_uncleanly(operator, heir.group, heir.node_name, topics)
        except VqError as error:
            said = type(error).__name__
            await asyncio.sleep(0.3)
        else:
            nemesis.had_effect("unclean")
            world.history.add("note", "operator", f"{heir.name} is to lead")
            return
    world.history.add("note", "operator", f"{heir.name} is not to lead: {said}")


def _kill(nemesis: Nemesis, host: BrokerHost, down_s: float) -> None:
    power = bool(TAKE_UNFLUSHED & {*nemesis.kinds}) and nemesis.rng.random() < 0.3
    nemesis.note("power cut" if power else "kill", host.name, down_s)
    host.down_until = nemesis.world.loop.time() + down_s
    if host.alive:
        host.kill(power=power)


async def _until(check: Callable[[], object], timeout_s: float) -> bool:
    """Wait until something holds; whether it does in time."""
    end = asyncio.get_running_loop().time() + timeout_s
    while not check():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True
