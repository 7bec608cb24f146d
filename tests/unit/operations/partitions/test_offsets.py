"""Offsets of partitions: what no broker tells stays unknown. The brokers are a table of answers."""

import pytest
from support.admin import ADDRESS, EPOCH, Brokers, cluster_of

from vq.errors import InvalidArgument
from vq.model import PartitionPlacement, Span
from vq.operations.partitions import offsets
from vq.operations.partitions.offsets import Inspector, PartitionEnds
from vq.operations.topics.topics import bounds

PLACEMENT = PartitionPlacement("t", 0, (Span("b1", 0, 500), Span("b2", 500)))


async def test_the_ends_of_a_moved_partition_come_from_both_its_groups(brokers: Brokers) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    ends = await Inspector(cluster_of(brokers)).ends(PLACEMENT)
    assert ends == PartitionEnds(100, 900, 900)


@pytest.mark.parametrize("silent", ["b1", "b2"])
async def test_an_end_that_nobody_tells_is_unknown(brokers: Brokers, silent: str) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.silent = {ADDRESS[silent]}
    assert await Inspector(cluster_of(brokers)).ends(PLACEMENT) is None
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, 100, 900) is None


@pytest.mark.parametrize(
    ("first", "second", "found", "asked"),
    [
        (300, 700, 300, ["b1"]),
        (500, 500, 500, ["b1", "b2"]),
        (500, 700, 700, ["b1", "b2"]),
        (500, 900, 900, ["b1", "b2"]),
    ],
)
async def test_a_time_is_looked_for_in_one_group_after_the_other(
    brokers: Brokers, first: int, second: int, found: int, asked: list[str]
) -> None:
    """A group answers with its end when it has nothing that young."""
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.at_time = {ADDRESS["b1"]: first, ADDRESS["b2"]: second}
    inspector = Inspector(cluster_of(brokers))
    assert await inspector.offset_at_time(PLACEMENT, 5) == found
    assert [address for address, _ in brokers.asked] == [ADDRESS[name] for name in asked]
    brokers.silent = {ADDRESS[asked[-1]]}
    assert await inspector.offset_at_time(PLACEMENT, 5) is None


@pytest.mark.parametrize("time_ms", [-1, 1 << 63])
async def test_a_time_that_is_none_is_refused(brokers: Brokers, time_ms: int) -> None:
    with pytest.raises(InvalidArgument, match="ms since 1970"):
        await offsets.offsets_at_time(cluster_of(brokers), "t", time_ms)


async def test_a_time_behind_a_partition_that_takes_no_more_messages_is_its_end(
    brokers: Brokers,
) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.at_time = {ADDRESS["b1"]: 500, ADDRESS["b2"]: 900}
    closed = PartitionPlacement("t", 0, (Span("b1", 0, 500), Span("b2", 500, 900)))
    assert await Inspector(cluster_of(brokers)).offset_at_time(closed, 5) == 900


@pytest.mark.parametrize(
    ("start", "end", "count", "asked"),
    [
        (100, 900, 4 + 4, ["b1", "b2"]),
        (100, 500, 4, ["b1"]),
        (500, 900, 4, ["b2"]),
        (300, 300, 0, []),
    ],
)
async def test_messages_are_counted_where_they_lie(
    brokers: Brokers, start: int, end: int, count: int, asked: list[str]
) -> None:
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, start, end) == count
    assert [address for address, _ in brokers.asked] == [ADDRESS[name] for name in asked]
    assert all(request.epoch == EPOCH for _, request in brokers.asked)


@pytest.mark.parametrize("damaged", ["b1", "b2"])
async def test_a_count_that_is_not_exact_is_unknown(brokers: Brokers, damaged: str) -> None:
    """A broker that cannot read what it holds answers 0, and that it is not exact."""
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (500, 900)}
    brokers.damaged = {ADDRESS[damaged]}
    assert await Inspector(cluster_of(brokers)).count(PLACEMENT, 100, 900) is None
    assert await Inspector(cluster_of(brokers)).ends(PLACEMENT) == PartitionEnds(100, 900, 900)


async def test_a_topic_is_asked_for_as_a_whole(brokers: Brokers) -> None:
    """By partition; one whose broker is silent is unknown, the other one is not."""
    brokers.ends = {ADDRESS["b1"]: (100, 500), ADDRESS["b2"]: (0, 0)}
    brokers.at_time = {ADDRESS["b1"]: 300}
    brokers.silent = {ADDRESS["b2"]}
    cluster = cluster_of(brokers)
    assert await bounds(cluster, "t") == {0: PartitionEnds(100, 500, 500), 1: None}
    assert await offsets.offsets_at_time(cluster, "t", 5) == {0: 300, 1: None}
