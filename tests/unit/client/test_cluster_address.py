"""Whom a client asks for the bytes at an offset."""

import random
from types import SimpleNamespace

import pytest

from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.clock import ManualClock
from vq.coordination.topics.routes import Master, Routes
from vq.coordination.tree.memory import MemoryEnsemble
from vq.errors import NotMaster, OffsetOutOfRange, UnknownPartition
from vq.model import Address, PartitionPlacement, Span, TopicPartition
from vq.remoting.transport import TcpNetwork

pytestmark = pytest.mark.virtual_time

WHERE = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> ClusterClient:
    """A client that knows one partition: [100, 500) in b1, which nobody leads, the rest in b2."""
    clock = ManualClock()
    client = ClusterClient(
        MessageFactoryConfig(),
        coordinator=MemoryEnsemble(clock=clock).coordinator("default"),
        network=TcpNetwork(),
        clock=clock,
        rng=random.Random(1),
    )
    spans = (Span("b1", 100, 500), Span("b2", 500))
    view = SimpleNamespace(partitions=(PartitionPlacement("t", 0, spans),))
    routes = Routes({"t": view}, {"b2": Master(Address("127.0.0.1", 1), 7)})
    client.watcher = SimpleNamespace(snapshot=routes)
    return client


async def test_the_group_whose_span_holds_the_offset_is_asked(cluster):
    """The end of a span belongs to the next one; the last span has no end."""
    assert cluster.master_at(WHERE, 500) == (Address("127.0.0.1", 1), 7)
    assert cluster.master_at(WHERE, 10**12) == (Address("127.0.0.1", 1), 7)


async def test_a_group_without_a_master_is_waited_for(cluster):
    """It may come back: retriable."""
    with pytest.raises(NotMaster):
        cluster.master_at(WHERE, 499)


async def test_what_lies_before_the_first_span_is_out_of_range(cluster):
    """It never comes back, so nobody may wait for it in silence."""
    with pytest.raises(OffsetOutOfRange) as caught:
        cluster.master_at(WHERE, 99)
    assert caught.value.details["earliest"] == 100
    assert not caught.value.retriable


async def test_an_unknown_partition_is_named(cluster):
    """With the ones there are."""
    with pytest.raises(UnknownPartition, match="partitions 0 to 0, not 7"):
        cluster.master_at(TopicPartition("t", 7), 0)
