"""Which bytes of a partition count. (With brokers: tests/cluster, test_load_follower.)"""

from types import SimpleNamespace
from typing import Any

import pytest

from vq.client.producer.spread.following import read_stored
from vq.coordination.topics.routes import Master, Routes
from vq.coordination.tree.reading import TopicView
from vq.errors import NotMaster
from vq.model import Address, PartitionPlacement, PartitionState, Span, TopicSettings
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import OffsetsRequest, OffsetsResponse

MASTER = Master(Address("h", 1), epoch=7, node="n1")


async def stored(answer: OffsetsResponse | None, *spans: Span) -> dict[int, int]:
    """Ask for one partition with these spans; the broker of ``b1`` answers, or refuses."""
    view = TopicView(
        name="t",
        id="id",
        settings=TopicSettings(),
        version=0,
        partitions=(PartitionPlacement("t", 0, spans, PartitionState.RW),),
        partition_versions=(0,),
    )

    async def request(
        address: Address, command: Command, message: OffsetsRequest, **_: Any
    ) -> tuple[OffsetsResponse, bytes]:
        assert (address, command) == (MASTER.address, Command.OFFSETS)
        assert (message.topic, message.partition, message.topic_id) == ("t", 0, "id")
        assert message.epoch == MASTER.epoch
        if answer is None:
            raise NotMaster("no longer")
        return answer, b""

    cluster: Any = SimpleNamespace(routes=Routes({"t": view}, {"b1": MASTER}), request=request)
    return await read_stored(cluster, "t")


@pytest.mark.parametrize(
    ("spans", "earliest", "size"),
    [
        ((Span("b1", 0),), 0, 900),  # all that was ever sent
        ((Span("b1", 0),), 600, 300),  # the rest was deleted
        ((Span("b2", 0, 500), Span("b1", 500)), 500, 400),  # moved here
        ((Span("b1", 0, 200), Span("b2", 200, 500), Span("b1", 500)), 0, 400),  # and came back
    ],
)
async def test_the_bytes_of_the_open_span_count(spans, earliest, size):
    answer = OffsetsResponse(earliest=earliest, log_end_offset=900)
    assert await stored(answer, *spans) == {0: size}


async def test_what_no_broker_tells_is_left_out():
    """Unknown is not 0: an empty partition would get the most."""
    assert await stored(None, Span("b1", 0)) == {}
    assert await stored(OffsetsResponse(log_end_offset=9), Span("b2", 0)) == {}
