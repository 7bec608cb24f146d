"""The faults of brokers and their disks: killed, without power, restarted; slow, full, failing."""

import asyncio
import errno

from support.simulation.nemesis import TAKE_UNFLUSHED, Nemesis
from support.simulation.world import DATA, BrokerHost

from vq.errors import VqError


async def kill_broker(nemesis: Nemesis) -> None:
    """SIGKILL: what was written stays in the page cache."""
    await _kill_broker(nemesis, "kill", power=False)


async def cut_power(nemesis: Nemesis) -> None:
    """Power cut: what was not synced is lost in part."""
    await _kill_broker(nemesis, "power cut", power=True)


async def _kill_broker(nemesis: Nemesis, kind: str, *, power: bool) -> None:
    host: BrokerHost | None = nemesis.pick(nemesis.world.machines)
    if host is not None:
        down_s = nemesis.seconds(0.1, 8)
        nemesis.note(kind, host.name, down_s)
        host.down_until = nemesis.world.loop.time() + down_s
        host.kill(power=power)


async def kill_all_brokers(nemesis: Nemesis) -> None:
    """Every broker loses power, or is killed, within a moment."""
    power = TAKE_UNFLUSHED & set(nemesis.kinds) and nemesis.rng.random() < 0.5
    for host in nemesis.world.machines:
        if host.alive and not host.paused:
            down_s = nemesis.seconds(0.1, 5)
            nemesis.note("power cut" if power else "kill", host.name, down_s)
            host.down_until = nemesis.world.loop.time() + down_s
            host.kill(power=bool(power))
            await asyncio.sleep(nemesis.rng.uniform(0, 0.1))


async def restart_broker(nemesis: Nemesis) -> None:
    """SIGTERM, and a start soon after."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is not None:
        down_s = nemesis.seconds(0.1, 3)
        nemesis.note("graceful restart", host.name, down_s)
        host.down_until = nemesis.world.loop.time() + 60
        process = host.process
        try:
            await host.stop()
        finally:
            if host.process is process:
                host.down_until = nemesis.world.loop.time() + down_s
                if host.alive:  # healed meanwhile: no more time for a graceful end
                    host.kill()


async def hand_over(nemesis: Nemesis) -> None:
    """An operator has another node lead a group; with one node in sync that is refused."""
    masters = [each for each in nemesis.world.machines if each.serves and each.node.epoch]
    host: BrokerHost | None = nemesis.pick(masters)
    if host is None:
        return
    nemesis.note("hand over", host.name)
    assert host.process is not None
    assert host.node is not None
    node = host.node

    async def run() -> str:
        try:
            return await node.parts.hand_over.run()
        except VqError as error:
            return type(error).__name__

    task = host.process.spawn(run())
    await asyncio.wait([task], timeout=10)
    if task.done() and not task.cancelled():
        nemesis.world.history.add("note", host.name, f"hand-over: {task.result()}")


async def slow_disk(nemesis: Nemesis) -> None:
    """Every flush takes long for a while."""
    host = nemesis.rng.choice(nemesis.world.machines)
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("slow disk", host.name, lasts_s)
    host.flush_s = nemesis.seconds(0.02, 1.5)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        host.flush_s = 0.000_5


async def failing_disk(nemesis: Nemesis) -> None:
    """One write or flush fails; some time later an operator restarts the broker."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is None or host.disk_was_hurt:
        return
    kind = nemesis.rng.choice(("datasync", "datasync", "pwrite", "sync_directory", "allocate"))
    lasts_s = nemesis.seconds(0.5, 6)
    nemesis.note(f"failing {kind}", host.name, lasts_s)
    host.disk.fail(kind, error=errno.EIO, after=nemesis.rng.randrange(4))
    host.disk_was_hurt = host.disk_ever_failed = True
    await asyncio.sleep(lasts_s)
    host.disk.forget_faults()
    if host.alive and not host.paused:  # also one that was killed and met the fault at its start
        host.kill(power=nemesis.rng.random() < 0.5)


async def second_broker(nemesis: Nemesis) -> None:
    """An operator starts a broker twice; the second one must not touch the directory."""
    host: BrokerHost | None = nemesis.pick([b for b in nemesis.world.machines if b.serves])
    if host is not None:
        nemesis.note("second broker", host.name)
        host.start_second()


async def full_disk(nemesis: Nemesis) -> None:
    """The disk is full, or nearly, for a while."""
    host: BrokerHost | None = nemesis.pick(nemesis.world.machines)
    if host is None:
        return
    if nemesis.rng.random() < 0.4:
        kind = nemesis.rng.choice(("pwrite", "allocate"))
        nemesis.note(f"no room for one {kind}", host.name)
        host.disk.fail(kind, error=errno.ENOSPC, name=".block")
        return
    lasts_s = nemesis.seconds(0.5, 8)
    nemesis.note("full disk", host.name, lasts_s)
    if not host.disk.exists(DATA):
        return
    free, total = host.disk.free_space(DATA)
    used = total - free
    host.disk.capacity_bytes = used + nemesis.rng.choice((0, 100, 5_000, 20_000))
    try:
        await asyncio.sleep(lasts_s)
    finally:
        host.disk.capacity_bytes = None
