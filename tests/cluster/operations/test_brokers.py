"""What brokers say of themselves, over a cluster in memory."""

from types import SimpleNamespace
from typing import cast

import pytest
from support.broker import MemoryCluster

from vq.client.cluster import ClusterClient
from vq.clock import ManualClock
from vq.errors import Unreachable
from vq.model import Address, StatusResult
from vq.operations.brokers import brokers
from vq.operations.brokers.brokers import (
    BadPartition,
    Damage,
    all_statuses,
    broker_status,
    master_of,
    ping,
)
from vq.remoting.wire_pb2 import (
    DamagedRange,
    PartitionStatus,
    PingResponse,
    StatusRequest,
    StatusResponse,
)
from vq.testing.waiting import until_true

pytestmark = pytest.mark.virtual_time


async def test_status_of_one_and_of_all(cluster: MemoryCluster, client: ClusterClient) -> None:
    node = await master_of(client, "b1")
    assert node is not None
    address = node.address

    async def has_heard() -> bool:
        return (await broker_status(client, address)).partitions == 2

    await until_true(has_heard)  # the broker, of the topic
    one = await broker_status(client, address)
    assert (one.address, one.group, one.node, one.partitions) == (address, "b1", "n1", 2)
    assert len(one.raw["partitions"]) == 2
    await cluster.start("b2")
    assert {each.group for each in (await all_statuses(client)).values()} == {"b1", "b2"}
    with pytest.raises(Unreachable):
        await broker_status(client, Address("nowhere", 1))


async def test_a_status_in_several_answers_is_put_together(
    client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of many partitions; a broker of before tells no number of damaged ranges."""
    answers = {
        ("", 0): StatusResponse(
            node="n1",
            more=True,
            partitions=[
                PartitionStatus(topic="a", partition=7, damage=[DamagedRange()], damaged_ranges=64)
            ],
        ),
        ("a", 7): StatusResponse(
            more=True, partitions=[PartitionStatus(topic="b", damage=[DamagedRange()])]
        ),
        ("b", 0): StatusResponse(),
    }

    async def answer(
        _: Address, __: object, request: StatusRequest
    ) -> tuple[StatusResponse, bytes]:
        return answers[request.after_topic, request.after_partition], b""

    monkeypatch.setattr(client, "request", answer)
    found = await broker_status(client, Address("b1", 1))
    assert found.node == "n1"
    told = [
        (each["topic"], each["partition"], each["damaged_ranges"])
        for each in found.raw["partitions"]
    ]
    assert told == [("a", 7, 64), ("b", 0, 1)]


async def test_brokers_that_do_not_answer_are_left_out(
    cluster: MemoryCluster, client: ClusterClient
) -> None:
    await cluster.start("b2")
    cluster.network.kill("b2")
    assert [each.group for each in (await all_statuses(client)).values()] == ["b1"]


@pytest.mark.parametrize("ahead_s", [-3.0, 0.0, 3.0])
async def test_a_clock_is_compared_with_the_middle_of_the_round_trip(ahead_s: float) -> None:
    clock = ManualClock(wall_ms=1_000_000)

    async def connection(_: Address) -> None:
        clock.advance(5.0)  # does not count

    async def request(*_: object) -> tuple[PingResponse, bytes]:
        clock.advance(0.1)
        answer = PingResponse(wall_ms=clock.wall_ms() + int(ahead_s * 1000))
        clock.advance(0.1)
        return answer, b""

    face = SimpleNamespace(clock=clock, connection=connection, request=request)
    trip_s, skew_s = await ping(cast("ClusterClient", face), Address("b1", 1))
    assert (trip_s, skew_s) == (pytest.approx(0.2), pytest.approx(ahead_s, abs=0.002))


def test_a_status_tells_what_is_bad_and_what_is_damaged() -> None:
    """A sealed partition is bad and has not failed; ro is what somebody wanted."""
    damaged = {"start": 5, "end": 9, "file": "f", "reason": "checksum", "found_ms": 7}
    partitions = [
        {
            "topic": "t",
            "partition": number,
            "state": state,
            "reason": f"why {state}",
            "damage": [damaged] if state == "quarantined" else [],
            "damaged_ranges": 3 if state == "quarantined" else 0,
        }
        for number, state in enumerate(("rw", "ro", "sealed", "failed", "quarantined"))
    ]
    status = StatusResult(Address("b", 1), "b1", "n1", "", 0.0, 5, raw={"partitions": partitions})
    bad = brokers.bad_partitions(status)
    assert [each.state for each in bad] == ["sealed", "failed", "quarantined"]
    assert [each.failed for each in bad] == [False, True, True]
    assert bad[0] == BadPartition("t", 2, "sealed", "why sealed")
    assert brokers.damage(status) == [Damage("t", 4, "b1", 5, 9, "f", "checksum", 7, "n1")]
    assert brokers.damaged_ranges(status) == 3
    assert str(brokers.damage(status)[0]) == (
        "t-4 on b1/n1: offsets [5, 9) are damaged in f: checksum"
    )
