"""T-ROT: bytes of one node change, in any file of a log, while it runs or not; all come back.

Each seed draws the node, whether it runs, is stopped or is killed, the file, and what happens:
one bit flips, 512 bytes become zeros, the file is cut, two parts change places.
"""

import asyncio
import random

import pytest
from support.broker import DATA, Client, MemoryCluster, memory_cluster, message
from support.faults import times
from support.store import SMALL

from vq.broker.node import BrokerNode
from vq.errors import VqError
from vq.store.disk.memory_disk import keep_all
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

SEEDS, LONG_SEEDS = 16, times(1, 300)
BATCHES = 25
LIMIT_S = 240.0  # of virtual time; a scrub begins every 20 s


async def start(cluster: MemoryCluster, node: str) -> BrokerNode:
    made = cluster.node(node=node, scrub_interval_s=20.0, log_config=SMALL)
    await made.start()
    return made


def key(node: str) -> str:
    return "b1" if node == "n1" else f"b1-{node}"


def whole(node: BrokerNode) -> bytes | None:
    """The bytes of the log as a reader gets them; None: it has none, or they cannot be read."""
    found = node.parts.partitions.channels.get(("t", 0))
    log = None if found is None else found.log
    if log is None:
        return None
    parts, offset = [], log.start_offset
    try:
        while offset < log.end_offset:
            parts.append(bytes(log.reader.read(offset, 1 << 20, log.end_offset)))
            offset += len(parts[-1])
    except VqError:
        return None
    return b"".join(parts)


async def put(cluster: MemoryCluster, rng: random.Random, count: int) -> list[bytes]:
    """Put messages to whoever leads; return those that were acknowledged."""
    stored: list[bytes] = []
    while len(stored) < count:
        for node in cluster.nodes.values():
            if not node.epoch:
                continue
            try:
                client = await Client.connect(cluster.network, node.address)
                payload = rng.randbytes(rng.randint(1, 900))
                await client.put("t", 0, [message(payload)])
                client.close()
            except (VqError, OSError, TimeoutError):
                continue
            stored.append(payload)
        await asyncio.sleep(0.01)
    return stored


def damage(cluster: MemoryCluster, name: str, rng: random.Random) -> str:
    """Change a file of the log of a node; return what was done."""
    disk, directory = cluster.disks[name], DATA / "t" / "0"
    names = [each for each in disk.listdir(directory) if "damaged" not in each]
    blocks = [each for each in names if each.endswith(".block")]
    file_name = rng.choice(blocks if rng.random() < 0.7 else names)
    path, how = directory / file_name, rng.choice(["flip", "zero", "cut", "swap"])
    content = disk.read_bytes(path)
    used = max(1, len(content.rstrip(b"\0")))
    at, other = rng.randrange(used), rng.randrange(used)
    file = disk.open(path)
    if how == "flip":
        file.pwrite([bytes([content[at] ^ 1 << rng.randrange(8)])], at)
    elif how == "zero":
        file.pwrite([bytes(min(512, len(content) - at))], at)
    elif how == "cut":
        file.truncate(at)
    else:
        size = min(512, len(content) - max(at, other))
        file.pwrite([content[other : other + size]], at)
        file.pwrite([content[at : at + size]], other)
    file.close()
    return f"{how} {file_name} at {at} of {used}"


def is_damaged(node: BrokerNode) -> bool:
    return node.parts.verifier.any_damage()


async def run(seed: int) -> str:
    """Carry out one seed; return what was done."""
    rng = random.Random(seed)
    async with memory_cluster() as cluster:
        await start(cluster, "n1")
        await cluster.create_topic("t", partitions=1)
        await start(cluster, "n2")
        stored = await put(cluster, rng, BATCHES)
        nodes = cluster.nodes
        await until(lambda: whole(nodes["b1"]) == whole(nodes["b1-n2"]))
        await until(lambda: nodes["b1"].parts.context.role.named == 2)
        victim = rng.choice(["n1", "n2"])
        state = rng.choice(["running", "stopped", "killed"])
        name = key(victim)
        if state == "stopped":
            await nodes[name].stop()
        elif state == "killed":
            await nodes[name].parts.tasks.close()
            cluster.ensemble.crash(cluster.coordinators[name])
            cluster.network.kill(name)
            cluster.disks[name] = cluster.disks[name].crash(keep_all)
        done = f"seed {seed}: {state} {victim}, {damage(cluster, name, rng)}"
        if state != "running":
            await asyncio.sleep(rng.choice([0, 2]))
            await start(cluster, victim)
        stored += await put(cluster, rng, 3)

        def is_well() -> bool:
            ours, theirs = whole(nodes["b1"]), whole(nodes["b1-n2"])
            return ours is not None and ours == theirs and not any(map(is_damaged, nodes.values()))

        if state == "running":  # nobody knows of it before a scrub was there
            begun = cluster.ensemble.clock.wall_ms()
            await until(
                lambda: all(_scrubbed(each) > begun for each in nodes.values()), timeout_s=LIMIT_S
            )
        try:
            await until(is_well, timeout_s=LIMIT_S)
        except TimeoutError:
            raise AssertionError(f"not repaired: {done}") from None
        found = whole(nodes["b1"])
        assert found is not None
        lost = [payload for payload in stored if payload not in found]
        assert not lost, f"{len(lost)} of {len(stored)} messages are lost: {done}"
        return done


def _scrubbed(node: BrokerNode) -> int:
    """When the last pass over everything that has ended began."""
    position = node.parts.upkeep.scrubber.position
    return int(position.begun_ms) if position.ended_ms else 0


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_damage_of_any_kind_is_repaired(seed: int) -> None:
    print(await run(seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_000 + LONG_SEEDS))
async def test_damage_of_any_kind_is_repaired_long(seed: int) -> None:
    print(await run(seed))
