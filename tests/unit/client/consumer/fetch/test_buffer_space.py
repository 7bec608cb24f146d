"""Partitions share a bounded memory, and each can always take what it needs next."""

import random

import pytest
from support.fetch_sessions import HERE, KIB, MIB, Connection, Partition, World, refusal, turn

from vq.client.consumer.fetch.buffer_space import BufferSpace
from vq.errors import ConnectionCut, OffsetOutOfRange
from vq.remoting.wire_pb2 import FetchResult

pytestmark = pytest.mark.usefixtures("quick_fetches")


async def test_every_partition_has_its_share_whatever_the_others_do() -> None:
    """Half is divided; the other half is for those that are known to have more."""
    world = World(buffer_bytes=8 * MIB)
    partitions = world.partitions(16)
    assert world.fetches.space.share_bytes == 4 * MIB // 16
    assert [world.fetches.space.allowance(each) for each in partitions] == [256 * KIB] * 16
    for each in partitions[:4]:
        each.behind = True
        each.buffered = world.fetches.space.allowance(each)
        each.count()
    assert partitions[0].buffered == 4 * MIB + 256 * KIB
    assert sum(each.buffered for each in partitions) == 4 * MIB + 4 * 256 * KIB
    assert [world.fetches.space.allowance(each) for each in partitions] == [0] * 4 + [
        256 * KIB
    ] * 12
    partitions[0].buffered = 100 * KIB
    partitions[0].count()
    assert world.fetches.space.allowance(partitions[1]) == 4 * MIB
    partitions[15].behind = True
    assert world.fetches.space.allowance(partitions[15]) == 4 * MIB + 256 * KIB


@pytest.mark.parametrize("seed", range(10))
async def test_all_partitions_together_keep_to_the_bound(seed: int) -> None:
    """Whoever asks, gets, is slow, leaves; and nobody is ever without its share."""
    rng = random.Random(seed)
    bound = 4 * MIB
    world = World(buffer_bytes=bound)
    partitions = world.partitions(100)
    share = world.fetches.space.share_bytes
    for _ in range(3_000):
        each = rng.choice(partitions)
        each.behind = rng.random() < 0.7
        if each.asked:
            got = rng.randrange(each.asked + 1)
            each.buffered += got
            each.asked = 0
        elif rng.random() < 0.5:
            each.asked = min(MIB, world.fetches.space.allowance(each))
            assert each.asked or each.buffered >= share
        else:
            each.buffered = rng.choice([each.buffered, each.buffered // 2, 0])
        each.count()
        assert sum(each.asked + each.buffered for each in partitions) <= bound
    for each in partitions:
        each.leave()
    assert world.fetches.space.extra_sum == 0


async def test_shares_are_of_all_partitions_that_will_be_there() -> None:
    """What comes one by one must not be asked for with shares that exceed the bound together."""
    world = World(buffer_bytes=8 * MIB)
    one, two = world.partitions(2)
    for each in (one, two):
        each.go_on = lambda each=each: each.ask(world.fetches.space.share_bytes)  # type: ignore[method-assign]
        each.go_on()
    two.behind = True
    await turn()
    world.fetches.expect(16)
    await turn()
    assert world.fetches.space.share_bytes == 4 * MIB // 16
    assert (one.asked, two.asked) == (4 * MIB // 16, 2 * MIB)
    assert world.fetches.space.extra_sum == 2 * MIB - 4 * MIB // 16
    request = world.here.last
    assert list(request.removed) == [1]
    assert [item.max_bytes for item in request.partitions] == [4 * MIB // 16]
    world.here.answer(FetchResult(handle=1, size=3), body=b"old")
    assert one.took_bodies == []
    world.fetches.expect(2)
    assert world.fetches.space.share_bytes == 2 * MIB


def starved(world: World, count: int) -> list[Partition]:
    """Partitions that hold all memory, each with half of a record."""
    partitions = world.partitions(count)
    for each in partitions:
        each.buffered = 2 * world.fetches.space.share_bytes + 1  # more than the bound, by a little
        each.missing = 600 * KIB
        each.count()
    assert [world.fetches.space.allowance(each) for each in partitions] == [0] * count
    return partitions


async def test_one_partition_at_a_time_goes_beyond_the_bound_in_the_order_of_their_need() -> None:
    world = World()
    partitions = starved(world, 3)
    first, second = partitions[:2]
    for each in partitions:
        each.go_on()
    assert [each.asked for each in partitions] == [600 * KIB, 0, 0]
    first.asked, first.buffered = 0, first.buffered + 600 * KIB
    first.count()
    await turn()
    assert second.asked == 0, "its record is whole, and still there"
    first.buffered = first.missing = 0
    first.count()
    await turn()
    assert [each.asked for each in partitions] == [0, 600 * KIB, 0]
    assert world.fetches.space.grower is second


async def test_who_stands_in_line_goes_on_as_soon_as_there_is_room() -> None:
    world = World()
    first, second = starved(world, 2)
    first.go_on()
    second.missing = 50 * KIB
    second.go_on()
    assert second.asked == 0
    second.buffered = 100 * KIB
    world.fetches.space.count(second)
    await turn()
    assert (first.asked, second.asked) == (600 * KIB, 50 * KIB)
    assert (world.fetches.space.grower, world.fetches.space.queue) == (first, {})


async def test_the_permit_comes_back_however_its_holder_ends() -> None:
    """An error, a cut, no connection, the partition's end."""
    world = World()
    first, second, third, fourth, fifth = partitions = starved(world, 5)
    for each in partitions:
        each.go_on()
    await turn()
    world.here.answer(refusal(1, OffsetOutOfRange("no")))
    await turn()
    assert [type(each) for each in first.errors] == [OffsetOutOfRange]
    assert world.fetches.space.grower is second
    world.cluster.connections[HERE], before = None, world.here
    before.close()
    assert [type(each) for each in second.errors] == [ConnectionCut]
    await turn()
    assert world.fetches.space.grower is None, "without a connection nobody keeps it"
    assert [type(each) for each in fifth.errors] == [ConnectionCut]
    world.cluster.connections[HERE] = Connection()
    third.go_on()
    fourth.go_on()
    fifth.go_on()
    fourth.leave()
    third.leave()
    await turn()
    assert (world.fetches.space.grower, world.fetches.space.queue) == (fifth, {})


async def test_the_default_leaves_four_thousand_partitions_something() -> None:
    """As the documents say."""
    space = BufferSpace(64 * MIB)
    space.expect(4_096)
    assert space.share_bytes == 8 * KIB
