"""Has a delayed message delivered to nobody: asks the master of the partition where it waits."""

from vq import limits
from vq.bounds import check_whole
from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.errors import InvalidArgument, InvalidRequest, OutcomeUnknown
from vq.model import Cancellation, SendResult, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import CancelRequest
from vq.reserved import DELAYED_TOPIC
from vq.shown import shown


async def cancel(cluster: ClusterClient, result: SendResult, timeout_s: float) -> Cancellation:
    """Return what became of a delayed message; it is asked again until that is known.

    Raises:
        InvalidArgument: It is not the result of a delayed message.
        VqError: The broker could not be asked in time; the message is certainly not cancelled.
    """
    given: object = result
    if not isinstance(given, SendResult):
        raise InvalidArgument(
            f"{shown(given)} is {type(given).__name__}; give the result of a delayed message"
        )
    for name, value, least, most in (
        ("partition", result.partition, 0, limits.PARTITIONS_PER_TOPIC_MAX - 1),
        ("offset", result.offset, -1, 2**63 - 1),
        ("id", result.id, 0, 2**63 - 1),
    ):
        check_whole(name, value)
        if not least <= value <= most:
            raise InvalidArgument(
                f"{name} = {shown(value)} of {shown(result)} is outside [{least}, {most}]; give "
                "what the send of the delayed message returned"
            )
    if result.offset < 0:
        raise InvalidArgument(
            f"{shown(result)} does not tell where the message waits: it was sent in a transaction; "
            "give what commit() of that returns, called again if the offset is -1 there, too"
        )
    deadline = cluster.clock.monotonic() + timeout_s
    partition = TopicPartition(DELAYED_TOPIC, result.partition)
    request = CancelRequest(
        topic=DELAYED_TOPIC,
        partition=result.partition,
        offset=result.offset,
        message_id=result.id,
    )
    await cluster.track(DELAYED_TOPIC)
    try:
        answer = await ask_master(
            cluster,
            partition,
            Command.CANCEL,
            request,
            deadline=deadline,
            what="whether the message is cancelled",
        )
    except InvalidRequest as error:
        raise InvalidArgument(str(error)) from error
    except OutcomeUnknown:
        return Cancellation.UNKNOWN
    return Cancellation(answer.outcome)
