"""Has a delayed message delivered to nobody: asks the master of the partition where it waits."""

import asyncio
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.errors import InvalidArgument, InvalidRequest, NotMaster, OutcomeUnknown, VqError
from vq.model import Cancellation, SendResult, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import CancelRequest
from vq.reserved import DELAYED_TOPIC

_PAUSE: Final = Backoff(first_s=0.02, most_s=0.5)


async def cancel(cluster: ClusterClient, result: SendResult, timeout_s: float) -> Cancellation:
    """Return what became of a delayed message; it is asked again until that is known.

    Raises:
        InvalidArgument: It is not the result of a delayed message.
        VqError: The broker could not be asked in time; the message is certainly not cancelled.
    """
    deadline = cluster.clock.monotonic() + timeout_s
    partition = TopicPartition(DELAYED_TOPIC, result.partition)
    request = CancelRequest(
        topic=DELAYED_TOPIC,
        partition=result.partition,
        offset=result.offset,
        message_id=result.id,
    )
    await cluster.track(DELAYED_TOPIC)
    tries, in_doubt = 0, False
    while True:
        tries += 1
        pause = _PAUSE.pause_s(tries)
        left = deadline - cluster.clock.monotonic()
        bound = max(0.01, min(left, cluster.config.request_timeout_s))
        try:
            group = cluster.routes.placement(partition).writer_group
            master = None if group is None else cluster.routes.master(group)
            if master is None:
                raise NotMaster(f"{partition}: {group} has no master now")
            address, request.epoch = master
            answer, _ = await cluster.request(address, Command.CANCEL, request, timeout=bound)
            return Cancellation(answer.outcome)
        except InvalidRequest as error:
            raise InvalidArgument(str(error)) from error
        except VqError as error:
            in_doubt = in_doubt or isinstance(error, OutcomeUnknown)
            may_repeat = error.retriable or error.refresh_routes or in_doubt
            if not may_repeat or left <= pause:
                if in_doubt:
                    return Cancellation.UNKNOWN
                raise
            cluster.refresh(DELAYED_TOPIC, error)
        await asyncio.sleep(pause)
