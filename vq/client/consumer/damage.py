"""The report of a reader to a broker: bytes that it sent fail a check."""

from vq.client.cluster import ClusterClient
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest, VerifyResponse


async def report_damage(
    cluster: ClusterClient, address: Address, partition: TopicPartition, offset: int
) -> bool:
    """Report to a broker that the bytes it sent for ``offset`` fail a check.

    The broker checks them on its disk, and shows the result to operators.

        Returns:
            Whether the damage is on the broker's disk; otherwise the bytes changed on their way, or
            the producer sent them so.

        Raises:
            Busy: It had many reports lately; try again later.
            Unreachable, TimedOut: It does not answer.
            VqError: It refuses, for example since the offset is gone.
    """
    request = VerifyRequest(topic=partition.topic, partition=partition.partition, offset=offset)
    response, _ = await cluster.request(address, Command.VERIFY, request)
    assert isinstance(response, VerifyResponse)
    return any(each.start <= offset < each.end for each in response.damage)
