"""Which node a partition is read from; ``Nodes`` on a real clock that the test moves."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from vq.client.config import ConsumerConfig, ReadFrom
from vq.client.reading.nodes import AVOID_S, Nodes, candidates
from vq.coordination.topics.routes import CopyNode, Master
from vq.errors import InvalidArgument, NotMaster, OffsetOutOfRange
from vq.model import Address, TopicPartition

A, B, C = (Address("h", port) for port in (1, 2, 3))
MASTER = Master(A, 4, "n2", 9, "red", (CopyNode("n3", C, "blue"), CopyNode("n1", B, "blue")))
WHERE = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("read_from", "rack", "expected"),
    [
        ("master", "blue", [A]),
        ("any", "", [B, A, C]),
        ("nearest", "blue", [B, C]),
        ("nearest", "red", [A]),
        ("nearest", "green", [A]),
    ],
)
def test_candidates(read_from: str, rack: str, expected: list[Address]) -> None:
    assert candidates(MASTER, ReadFrom(read_from), rack) == expected


@pytest.mark.parametrize("read_from", ReadFrom)
def test_the_master_alone_is_read_from_while_nothing_is_in_sync(read_from: ReadFrom) -> None:
    assert candidates(Master(A, 4, "n2"), read_from, "blue") == [A]


class Cluster:
    """A cluster of one group, and the calls that ``Nodes`` made."""

    def __init__(self) -> None:
        self.now = 100.0
        self.clock = SimpleNamespace(monotonic=lambda: self.now)
        self.rng = random.Random(1)
        self.unreachable: dict[Address, str] = {}
        self.tried: list[Address] = []
        self.live_connection = self.tried.append
        span = SimpleNamespace(group="b1")
        placement = SimpleNamespace(span_at=lambda _: span)
        self.routes = SimpleNamespace(placement=lambda _: placement, masters={"b1": MASTER})
        self.reads_copies = False

    def read_copies(self) -> None:
        self.reads_copies = True

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        master = self.routes.masters.get("b1")
        if master is None:
            raise NotMaster("no master now")
        return master.address, master.epoch


def nodes(cluster: Any, read_from: str = "any", rack: str = "") -> Nodes:
    return Nodes(cluster, ReadFrom(read_from), rack)


def test_partitions_are_spread_over_all_nodes() -> None:
    chosen = nodes(Cluster())
    found = [chosen.at(TopicPartition("t", number), 7) for number in range(6)]
    assert {epoch for _, epoch in found} == {4}
    assert sorted(address for address, _ in found) == [A, A, B, B, C, C]
    assert found[:3] == found[3:]


def test_with_master_no_copy_is_looked_for() -> None:
    cluster = Cluster()
    chosen = nodes(cluster, "master")
    assert chosen.at(WHERE, 7) == (A, 4)
    assert not cluster.reads_copies
    assert not chosen.from_copy


def test_a_node_that_failed_is_avoided_for_a_while() -> None:
    cluster = Cluster()
    chosen = nodes(cluster)
    first, _ = chosen.at(WHERE, 7)
    chosen.avoid(first)
    assert chosen.at(WHERE, 7)[0] != first
    cluster.now += AVOID_S
    assert chosen.at(WHERE, 7)[0] == first


def test_what_a_copy_refuses_is_read_from_the_others_and_never_told() -> None:
    cluster = Cluster()
    chosen = nodes(cluster, "nearest", "blue")
    first, _ = chosen.at(WHERE, 7)
    error = chosen.refused(WHERE, 7, first, OffsetOutOfRange("behind"))
    assert isinstance(error, NotMaster)
    assert "behind" in str(error)
    second, _ = chosen.at(WHERE, 7)
    assert {first, second} == {B, C}
    assert chosen.at(TopicPartition("t", 2), 7)[0] == first  # of another partition it may answer
    chosen.refused(WHERE, 7, second, OffsetOutOfRange("behind"))
    assert chosen.at(WHERE, 7) == (A, 4)
    final = OffsetOutOfRange("gone")
    assert chosen.refused(WHERE, 7, A, final) is final


def test_a_copy_that_cannot_be_reached_is_tried_again_beside_the_reading() -> None:
    cluster = Cluster()
    chosen = nodes(cluster, "nearest", "blue")
    cluster.unreachable = {B: "refused", C: "refused"}
    assert chosen.at(WHERE, 7) == (A, 4)
    assert chosen.at(WHERE, 7) == (A, 4)
    assert sorted(cluster.tried) == [B, C]  # once in a while only
    cluster.unreachable = {}
    assert chosen.at(WHERE, 7) == (A, 4)
    cluster.now += AVOID_S
    assert chosen.at(WHERE, 7)[0] in {B, C}


def test_without_a_master_nothing_is_read() -> None:
    cluster = Cluster()
    chosen = nodes(cluster)
    cluster.routes.masters.clear()
    with pytest.raises(NotMaster):
        chosen.at(WHERE, 7)


def test_settings_are_checked() -> None:
    assert ConsumerConfig(read_from="any").read_from is ReadFrom.ANY
    with pytest.raises(InvalidArgument, match=r"read_from = 'all'; give 'master' or 'any' or"):
        ConsumerConfig(read_from="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="needs rack"):
        ConsumerConfig(read_from=ReadFrom.NEAREST)
    with pytest.raises(InvalidArgument, match="rack"):
        ConsumerConfig(rack="a/b")
