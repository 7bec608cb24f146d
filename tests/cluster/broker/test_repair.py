"""Damage in one copy of a log: the others go on, and give back what is damaged."""

import asyncio

import pytest
from support.broker import DATA, Client
from support.client import started
from support.repairing import channel, pair_with, put, repairer, same, whole

from vq.broker.health.repairing import Repairer
from vq.broker.health.scrubbing import SCRUB_NAME, Position
from vq.broker.node import BrokerNode
from vq.broker.replication import following
from vq.errors import CorruptData
from vq.operations.topics.verification import verify
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


def scratch(node: BrokerNode, offset: int, data: bytes = b"#") -> None:
    """Change stored bytes behind the back of a running node."""
    log = channel(node).log
    piece = next(p for p in log.reader.pieces(0, log.end_offset) if p.start <= offset < p.end)
    file = node.parts.disk.open(piece.path)
    file.pwrite([data], offset - piece.block_start)
    file.close()


def kept(node: BrokerNode, directory: str = "0") -> list[bytes]:
    """The files of damaged bytes."""
    path = DATA / "t" / directory
    return [
        node.parts.disk.read_bytes(path / n)
        for n in node.parts.disk.listdir(path)
        if ".damaged" in n
    ]


async def test_a_verification_tells_what_was_repaired_since(cluster):
    """Damage that another node repairs at once would look as if there had been none."""
    _, copy, starts = await pair_with(cluster)
    scratch(copy, starts[4] + 120, b"damage")
    scratch(copy, starts[7] + 120, b"damage")
    async with started(cluster) as client:

        async def counts() -> list[tuple[str, int | None, int | None]]:
            found = await verify(client, ["t"], again=True)
            return [(each.node, each.damaged, each.repaired) for each in found]

        first = await counts()
        assert first[0] == ("n1", 0, 0)
        node, damaged, repaired = first[1]
        assert node == "n2"
        assert (damaged or 0) + (repaired or 0) == 2, "whatever of it is repaired already"
        await until(lambda: repairer(copy).count == 2)
        topic_id = channel(copy).topic_id
        request = wire.VerifyRequest(topic="t", partition=0, topic_id=topic_id, whole=True)
        answer, _ = await client.request(copy.address, Command.VERIFY, request)
        assert (len(answer.damage), answer.repaired) == (0, 2)
        assert await counts() == [("n1", 0, 0), ("n2", 0, 0)], "the next one finds nothing"


@pytest.mark.parametrize("where", ["master", "copy"])
@pytest.mark.parametrize("batch", [0, 4, 8])
async def test_damage_is_repaired_from_another_node(cluster, where, batch):
    """In place, while the log is open; what was there is kept."""
    master, copy, starts = await pair_with(cluster)
    damaged = master if where == "master" else copy
    good = whole(damaged)
    scratch(damaged, starts[batch] + 120, b"damage")
    assert whole(damaged) != good
    damaged.parts.context.suspect(channel(damaged), starts[batch] + 100)
    await until(lambda: repairer(damaged).count == 1)
    await until(lambda: not damaged.parts.verifier.any_damage())
    assert whole(damaged) == good
    [was] = kept(damaged)
    assert b"damage" in was
    [repair] = repairer(damaged).repairs
    assert (repair.start, repair.source) == (starts[batch], "n2" if where == "master" else "n1")
    await put(cluster, master)
    await until(lambda: same(master, copy))


@pytest.mark.parametrize("at", [0, 4])
async def test_damage_that_hinders_the_comparison_with_the_master_is_repaired(
    cluster, monkeypatch, at
):
    """The epochs of a log are looked up in its batches; nobody else may read there for days."""
    master, copy, starts = await pair_with(cluster)
    for node in (copy, master):  # so each log has batches of three epochs
        await cluster.nodes["b1-n2" if node is master else "b1"].parts.hand_over.run()
        await until(lambda n=node: n.epoch > 0 and n.parts.context.role.named == 2)
        await put(cluster, node)
    await until(lambda: same(master, copy))
    good, last = whole(copy), following.common_end

    def lacks_the_newer_ones(last_epoch, own, other):
        own(1)  # where the end of this epoch is, if the master has no newer one
        return last(last_epoch, own, other)

    monkeypatch.setattr(following, "common_end", lacks_the_newer_ones)
    scratch(copy, starts[at] + 8, b"damage")
    assert whole(copy) != good
    cluster.network.reset_connections("b1")
    await until(lambda: whole(copy) == good)
    await until(lambda: not copy.parts.verifier.any_damage())


async def test_batches_side_by_side_are_repaired_together(cluster):
    _, copy, starts = await pair_with(cluster)
    good = whole(copy)
    scratch(copy, starts[2] + 5, bytes(starts[5] - starts[2]))
    copy.parts.context.suspect(channel(copy), starts[2])
    await until(lambda: repairer(copy).count > 0 and not copy.parts.verifier.any_damage())
    assert whole(copy) == good


@pytest.mark.parametrize("lost", ["bytes", "file"])
async def test_what_retention_drops_during_its_repair_stays_away(cluster, lost, monkeypatch):
    """The block does not come back, and nobody misses it."""
    master, copy, starts = await pair_with(cluster)
    log = channel(master).log
    log.roll()
    await put(cluster, master)
    await until(lambda: same(master, copy))
    directory = DATA / "t" / "0"
    first = next(name for name in master.parts.disk.listdir(directory) if name.endswith(".block"))
    real = Repairer._ask

    async def ask(repairer: Repairer, *about: object) -> tuple[bytes, bytes]:
        found = await real(repairer, *about)
        await master.parts.partitions.logs.drop_before(channel(master), log.end_offset)
        await until(lambda: not master.parts.disk.exists(directory / first))
        return found

    monkeypatch.setattr(Repairer, "_ask", ask)
    if lost == "bytes":
        scratch(master, starts[1] + 120, b"damage")
    else:
        master.parts.disk.unlink(directory / first)
    master.parts.context.suspect(channel(master), starts[1] + 100)
    await until(lambda: log.start_offset > starts[-1])
    await until(lambda: not master.parts.verifier.any_damage())
    await asyncio.sleep(30)
    assert [n for n in master.parts.disk.listdir(directory) if n.startswith(first[:16])] == []
    await put(cluster, master)


async def test_bytes_that_are_damaged_at_both_nodes_are_left_alone(cluster):
    """Nothing is put into a log that fails a check."""
    master, copy, starts = await pair_with(cluster)
    for node in (master, copy):
        scratch(node, starts[4] + 120, b"damage")
        node.parts.context.suspect(channel(node), starts[4] + 100)
    was = whole(copy)
    await asyncio.sleep(5)
    assert whole(copy) == was
    assert copy.parts.verifier.any_damage()
    assert repairer(copy).count == 0


# The slow pass over everything --------------------------------------------------------------------
@pytest.mark.parametrize("min_insync", [1, 2])
async def test_a_scrub_finds_damage_that_nobody_reads_and_has_it_repaired(cluster, min_insync):
    master = await cluster.start(scrub_interval_s=30.0)
    await cluster.create_topic("t", partitions=1, min_insync=min_insync)
    await until(lambda: ("t", 0) in master.parts.partitions.channels)
    copy = await cluster.start(node="n2", scrub_interval_s=30.0)
    await until(lambda: master.parts.context.role.named == 2)
    starts = await put(cluster, master, 9)
    await until(lambda: master.parts.context.role.named == 2 and same(master, copy))
    good = whole(copy)
    for node, batch in ((master, 2), (copy, 5)):
        scratch(node, starts[batch] + 120, b"damage")
    await until(lambda: repairer(master).count == repairer(copy).count == 1, timeout_s=3 * WAIT_S)
    await until(
        lambda: not master.parts.verifier.any_damage() and not copy.parts.verifier.any_damage()
    )
    assert whole(master) == whole(copy) == good
    client = await Client.connect(cluster.network, copy.address)
    told = await client.status()
    assert told.repairs == 1
    assert told.scrub_begun_ms
    assert told.scrub_read_bytes == len(good)


async def test_a_scrub_goes_on_after_a_restart_where_it_was(cluster):
    node = await cluster.start()
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    await put(cluster, node, 9)
    await node.stop()
    position = Position(begun_ms=1_000, read_bytes=77, topic="t", partition=0, offset=400)
    cluster.disks["b1"].write_atomic(DATA / SCRUB_NAME, position.to_bytes())
    node = await cluster.start()
    client = await Client.connect(cluster.network, node.address)
    while not (told := await client.status()).scrub_ended_ms:
        await asyncio.sleep(0.1)
    assert told.scrub_begun_ms == 1_000
    assert told.scrub_read_bytes > 77
    found = Position.from_bytes(cluster.disks["b1"].read_bytes(DATA / SCRUB_NAME))
    assert found.ended_ms == told.scrub_ended_ms
    with pytest.raises(CorruptData):
        Position.from_bytes(position.to_bytes().replace(b"400", b"500"))
