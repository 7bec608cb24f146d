"""A reader tells the broker that what it sent fails a check."""

from vq.client.cluster import ClusterClient
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import VerifyRequest, VerifyResponse


async def report_damage(
    cluster: ClusterClient, address: Address, where: TopicPartition, offset: int
) -> bool:
    """Tell a broker that the bytes it sent for ``offset`` fail a check.

    It looks into that, and shows to operators what it finds.

    Returns:
        Whether the damage is on the broker's disk; otherwise the bytes changed on their way, or
        the producer sent them so.

    Raises:
        Busy: It had many reports lately; there is no hurry.
        Unreachable, TimedOut: It does not answer.
        VqError: It refuses, for one because the offset is not there any more.
    """
    request = VerifyRequest(topic=where.topic, partition=where.partition, offset=offset)
    response, _ = await cluster.request(address, Command.VERIFY, request)
    assert isinstance(response, VerifyResponse)
    return any(each.start <= offset < each.end for each in response.damage)
