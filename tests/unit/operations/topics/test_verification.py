"""Verifying: who is asked, how far brokers are, and what they found."""

import pytest
from support.admin import ADDRESS, Brokers, cluster_of

from vq.coordination.tree.reading import TopicView
from vq.errors import InvalidArgument, TimedOut
from vq.model import Address, PartitionPlacement, Span, TopicSettings
from vq.operations.topics import verification
from vq.operations.topics.verification import VerifyProgress, held_parts, verify
from vq.remoting.wire_pb2 import DamagedRange, VerifyRequest, VerifyResponse


@pytest.mark.parametrize("number", [1, -1])
async def test_a_partition_that_is_not_there_is_refused(brokers: Brokers, number: int) -> None:
    """Verifying nothing would end well."""
    placement = PartitionPlacement("t", 0, (Span("g1", 0),))
    view = TopicView("t", "id", TopicSettings(), 0, (placement,), (0,))
    with pytest.raises(InvalidArgument, match=f"partitions 0 to 0, not {number}"):
        await held_parts(cluster_of(brokers), [view], [0, number])


async def test_brokers_are_asked_until_all_have_ended(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told to begin once; a silent one holds up nobody, and how far the rest is is told."""
    answers = [
        VerifyResponse(running=True, begun_ms=5, verified_bytes=10, total_bytes=40),
        VerifyResponse(running=True, begun_ms=5, verified_bytes=20, total_bytes=40),
        VerifyResponse(begun_ms=5, verified_bytes=40, damage=[DamagedRange(start=1, end=2)]),
    ]
    begun: list[bool] = []

    async def request(
        address: Address, _: object, message: VerifyRequest
    ) -> tuple[VerifyResponse, bytes]:
        brokers.clock.advance(3.0)
        if address == ADDRESS["b2"]:
            raise TimedOut("b2 is silent")
        begun.append(message.begin)
        return answers.pop(0), b""

    monkeypatch.setattr(brokers, "request", request)
    monkeypatch.setattr(verification, "POLL_S", 0.0)
    told: list[VerifyProgress] = []
    found = await verify(cluster_of(brokers), None, on_progress=told.append)
    assert begun == [True, False, False]
    assert [each.read_bytes for each in told][-1] == 20
    assert all((each.total_bytes, each.running) == (40, 1) for each in told)
    one, two = found
    assert (one.node, two.node) == ("n1", "n1")
    assert (one.group, one.read_bytes, one.damaged, one.error) == ("b1", 40, 1, "")
    assert (two.group, two.read_bytes, two.damaged) == ("b2", None, None)
    assert "silent" in two.error
