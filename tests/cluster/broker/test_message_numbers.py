"""Numbers of messages: the same on every node, and kept when a partition moves."""

import contextlib

import pytest
from support.broker import DATA, Client, message
from support.group_pair import GroupPair
from support.node_pair import NodePair, settled

from vq.store.disk.memory_disk import keep_all
from vq.store.records.format import CHECKPOINT_NAME
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def pair(cluster):
    """See ``GroupPair``."""
    return await GroupPair(cluster).start()


async def number_at(client: Client, offset: int) -> int | None:
    answer = await client.offsets("t", 0, number=True, number_offset=offset)
    return answer.number if answer.number_known else None


async def offset_at(client: Client, number: int) -> int | None:
    answer = await client.offsets("t", 0, by_number=True, at_number=number)
    return answer.offset if answer.offset_known else None


async def test_messages_are_numbered_and_found_by_number(pair):
    """From the first one on, within batches, too; what is not there yet is at the end."""
    client = pair.clients[pair.old]
    assert await number_at(client, 0) == 0
    assert await offset_at(client, 0) == 0
    starts = [
        (await client.put("t", 0, [message(b"x" * size) for size in sizes])).offset
        for sizes in ([1, 2], [3], [4, 5, 6])
    ]
    end = (await client.offsets("t", 0)).latest
    found = [await offset_at(client, number) for number in range(7)]
    assert [found[0], found[2], found[3], found[6]] == [*starts, end]
    assert found == sorted(set(found))
    assert [await number_at(client, offset) for offset in found] == list(range(7))
    assert await number_at(client, found[4] + 1) == 5
    assert await number_at(client, end + 1) is None
    assert await offset_at(client, 1000) == end


async def test_numbers_go_on_across_moves(pair):
    """Also when the partition moves back, and after a restart."""
    ends = [await pair.move_between_messages() for _ in range(3)]
    spans = (await pair.view()).partitions[0].spans
    assert [(each.start, each.number) for each in spans] == [
        (0, None),
        *zip(ends, (1, 3, 5), strict=True),
    ]
    for each in spans:
        client = pair.clients[each.group]
        number = each.number or 0
        assert await number_at(client, each.start) == number
        assert await offset_at(client, number) == each.start + 88
    last = pair.cluster.nodes[pair.old]
    await last.stop()
    node = await pair.cluster.start(pair.old)
    client = await Client.connect(pair.cluster.network, node.address)
    await until(lambda: node.epoch > 0)
    assert await number_at(client, ends[-1]) == 5
    assert await number_at(client, ends[1] + 1) is None  # of a range of the other group


async def test_a_number_that_nobody_knows_is_told_as_unknown(pair):
    """A mover of an earlier vq does not pass it on; what it moves on is not known either."""
    await pair.put(pair.old)
    view, sealed = await pair.view(), await pair.seal()
    assert (sealed.next_number, sealed.number_known) == (1, True)
    await pair.adopt(sealed.end_offset, sealed.producers)
    await pair.place(view, sealed.end_offset)
    await pair.until_writable(pair.new)
    await pair.put(pair.new)
    client = pair.clients[pair.new]
    assert await number_at(client, sealed.end_offset) is None
    assert await offset_at(client, 1) is None
    pair.old, pair.new = pair.new, pair.old
    again = await pair.seal()
    assert (again.next_number, again.number_known) == (0, False)


async def test_a_copy_that_begins_in_the_middle_numbers_as_its_master_does(
    node_pair: NodePair,
) -> None:
    """Its master tells it the number, since it cannot count what retention took."""
    await node_pair.stop("n2")
    await node_pair.put(5)
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    disk = node_pair.disk("n2")
    disk.rmtree(DATA / "t" / "0")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(DATA / "@logs")
    await node_pair.put(3)
    await node_pair.start("n2")
    await until(node_pair.same)
    n1, n2 = node_pair.log("n1"), node_pair.log("n2")
    assert n2.start_offset > 0
    assert n2.successor.number == n1.successor.number
    assert n2.reader.number_at(n2.start_offset) == n1.reader.number_at(n2.start_offset)
    assert n2.reader.number_at(n2.start_offset) > 0


async def test_a_copy_that_lost_its_count_learns_it_from_its_master(node_pair: NodePair) -> None:
    """Without its checkpoint a log that begins later cannot number its messages."""
    await node_pair.put(5)
    await until(node_pair.same)
    middle = node_pair.log("n1").end_offset
    for name in ("n1", "n2"):
        await node_pair.drop(name, middle)
    await node_pair.put(3)
    await until(node_pair.same)
    right = node_pair.log("n1").successor.number
    await node_pair.stop("n2")
    node_pair.disk("n2").unlink(DATA / "t" / "0" / CHECKPOINT_NAME)
    await node_pair.start("n2")
    await until(node_pair.same)
    await until(lambda: node_pair.log("n2").successor.number is not None)
    assert node_pair.log("n2").successor.number == right
    await settled(node_pair.channel("n2"))
    await node_pair.stop("n2")
    node_pair.cluster.disks["b1-n2"] = node_pair.disk("n2").crash(keep_all)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert node_pair.log("n2").reader.number_at(middle) == node_pair.log("n1").reader.number_at(
        middle
    )


async def test_a_copy_that_lost_its_count_and_begins_behind_its_master_learns_it(
    node_pair: NodePair,
) -> None:
    """It has led before, and deleted more: the number of where the master begins is of no use."""
    await node_pair.put(5)
    await until(node_pair.same)
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    await node_pair.put(5)
    await until(node_pair.same)
    await node_pair.drop("n2", node_pair.log("n2").end_offset)
    await node_pair.put(3)
    await until(node_pair.same)
    assert 0 < node_pair.log("n1").start_offset < node_pair.log("n2").start_offset
    right = node_pair.log("n1").successor.number
    await node_pair.stop("n2")
    node_pair.disk("n2").unlink(DATA / "t" / "0" / CHECKPOINT_NAME)
    await node_pair.start("n2")
    await until(node_pair.same)
    await until(lambda: node_pair.log("n2").successor.number is not None)
    assert node_pair.log("n2").successor.number == right
