"""What operators do meanwhile: move partitions, sleep in the middle, change settings."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from zlib import crc32

from support.simulation.nemesis import TAKE_UNFLUSHED, Nemesis
from support.simulation.workload import one_of
from support.simulation.world import FAST, POOL, SEAL_TIMEOUT_S

from vq.coordination.topics import topics
from vq.coordination.topics.reserved_topics import INTERNAL_SETTINGS
from vq.errors import VqError
from vq.model import FlushMode, Replication, TopicPartition
from vq.operations.allocation.advisor import judge
from vq.operations.allocation.applying import (
    apply_allocation,
    cancel_allocation,
    resume_allocation,
)
from vq.operations.allocation.measuring import read_allocation
from vq.operations.allocation.runs import list_allocations
from vq.operations.partitions import placements as admin
from vq.reserved import SHARED_TOPIC

#: The name of this fault. It is not drawn by ``draw_kinds``: seeds have to stay what they are.
BALANCE = "balance"
#: Longer than a seal lasts.
_LONG_SLEEP_S = SEAL_TIMEOUT_S + 0.7


def _movable(nemesis: Nemesis) -> tuple[str, int]:
    """Return a partition to move: of a topic of the clients, or also of a journal."""
    world, rng = nemesis.world, nemesis.rng
    topic = one_of([*world.topics, *world.journals], rng)
    count = world.size.partitions if topic in world.topics else INTERNAL_SETTINGS.partitions
    if topic == SHARED_TOPIC:  # the partition that has the group of the clients
        return topic, crc32(POOL.encode()) % count
    return topic, rng.randrange(count)


async def move_partition(nemesis: Nemesis) -> None:
    """An operator gives a partition to the other group."""
    world = nemesis.world
    topic, number = _movable(nemesis)
    target = nemesis.rng.choice(world.brokers).name
    try:
        moves = await admin.plan_moves(nemesis.operator, topic, [number], target)
        for planned in moves:
            slow_s = nemesis.rng.choice((0.0, nemesis.seconds(0.5, 7)))
            nemesis.note("move", f"{topic}-{number} to {target}", slow_s)
            if slow_s:  # SEAL is answered at once, ADOPT is not
                world.network.cut("operator", target)
                world.loop.call_later(slow_s, world.network.heal, "operator", target)
            offset = await admin.carry_out(nemesis.operator, planned)
            world.history.add("note", "operator", f"{topic}-{number} is on {target} from {offset}")
    except VqError as error:
        world.history.add("note", "operator", f"move of {topic}-{number}: {type(error).__name__}")


async def sleepy_mover(nemesis: Nemesis) -> None:
    """A mover sleeps, dies, or comes back at every step of a move.

    What it knows may be over by then; it goes on all the same, as a process does that was stopped
    between two requests. What an earlier mover of the partition sent may arrive only now.
    """
    world, rng, operator = nemesis.world, nemesis.rng, nemesis.operator
    topic, number = _movable(nemesis)
    target = rng.choice(world.brokers).name
    try:
        moves = await admin.plan_moves(operator, topic, [number], target)
        for planned in moves:
            nemesis.note("sleepy mover", f"{topic}-{number} to {target}")
            mine = planned, await admin.seal(operator, planned)
            steps = [(admin.adopt, mine), (admin.place, mine)]
            earlier = nemesis.earlier_moves.get((topic, number, target), mine)
            while rng.random() < 0.5:
                late = rng.choice((admin.adopt, admin.place)), rng.choice((mine, earlier))
                steps.insert(rng.randrange(len(steps) + 1), late)
            nemesis.earlier_moves[topic, number, target] = mine
            for step, knowledge in steps:
                await asyncio.sleep(rng.choice((0.0, 0.0, nemesis.seconds(0, 1), _LONG_SLEEP_S)))
                if rng.random() < 0.1:
                    return  # it dies here
                await _stubbornly(nemesis, step(operator, *knowledge))
    except VqError as error:
        world.history.add("note", "operator", f"sleepy mover: {type(error).__name__}")


async def _stubbornly(nemesis: Nemesis, step: Coroutine[Any, Any, None]) -> None:
    """Take a step of a move; one that is refused mostly does not end the mover."""
    try:
        await step
    except VqError as error:
        nemesis.world.history.add("note", "operator", f"a step: {type(error).__name__}")
        if nemesis.rng.random() < 0.3:
            raise


async def add_partition(nemesis: Nemesis) -> None:
    """An operator gives the topic one more partition; not more than twice in a run."""
    world = nemesis.world
    if nemesis.struck.get("grow", 0) >= 2:
        return
    nemesis.note("grow", "orders")
    try:
        await topics.add_partitions(nemesis.operator.coordinator, "orders", 1)
    except VqError as error:
        world.history.add("note", "operator", f"growing orders: {type(error).__name__}")


async def change_settings(nemesis: Nemesis) -> None:
    """An operator has the topic flushed before acknowledgements, or no longer."""
    world = nemesis.world
    if TAKE_UNFLUSHED & set(nemesis.kinds):
        flush = FlushMode.SYNC
    else:
        flush = nemesis.rng.choice((FlushMode.SYNC, FlushMode.ASYNC))
    nemesis.note("settings", "orders", 0)
    try:
        view = await topics.describe_topic(nemesis.operator.coordinator, "orders")
        settings = replace(view.settings, flush=flush)
        await topics.change_settings(nemesis.operator.coordinator, "orders", settings)
    except VqError as error:
        world.history.add("note", "operator", f"settings of orders: {type(error).__name__}")


async def change_replication(nemesis: Nemesis) -> None:
    """An operator has the master of the second topic acknowledge alone, or no longer."""
    world = nemesis.world
    if not world.size.fast:
        return
    wanted = nemesis.rng.choice(list(Replication))
    nemesis.note("replication", f"{FAST} {wanted}", 0)
    try:
        view = await topics.describe_topic(nemesis.operator.coordinator, FAST)
        settings = replace(view.settings, replication=wanted)
        await topics.change_settings(nemesis.operator.coordinator, FAST, settings)
    except VqError as error:
        world.history.add("note", "operator", f"settings of {FAST}: {type(error).__name__}")


async def carry_out_plan(nemesis: Nemesis) -> None:
    """An operator carries out a plan, or goes on with one; at any moment its process may die.

    Another fault of this kind may do the same at that time, or want the end of it.
    """
    world, rng, operator = nemesis.world, nemesis.rng, nemesis.operator
    nemesis.note(BALANCE, "all")
    try:
        left = [each for each in await list_allocations(operator) if each.state == "interrupted"]
        if left and rng.random() < 0.7:
            run = await resume_allocation(operator, left[0].plan)
            nemesis.had_effect("gone on", run.done)
            return
        facts = await read_allocation(operator, topics=set(world.topics))
        keys = rng.sample(sorted(facts.partitions), rng.randint(1, len(facts.partitions)))
        names = [broker.name for broker in world.brokers]
        wanted = [(TopicPartition(*key), rng.choice(names)) for key in keys]
        plan = judge(facts, None, wanted)
        pause_s = rng.choice((0.0, 0.3))
        work = apply_allocation(operator, plan, at_a_time=rng.randint(1, 3), pause_s=pause_s)
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task], timeout=rng.choice((None, nemesis.seconds(0, 2))))
            if not task.done():
                nemesis.had_effect("cut short")
                if rng.random() < 0.3:
                    await cancel_allocation(operator, plan.id, timeout=10.0)
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            nemesis.had_effect(BALANCE, task.result().done)
    except VqError as error:
        world.history.add("note", "operator", f"a plan: {type(error).__name__}")
