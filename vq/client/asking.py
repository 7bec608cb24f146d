"""One request to the master of a partition, repeated until it is answered or its time is over."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.errors import NotMaster, OutcomeUnknown, PartitionReadOnly, SequenceStale, VqError
from vq.model import Address, TopicPartition
from vq.remoting.format import Command

_PAUSE: Final = Backoff(first_s=0.02, most_s=0.5)


async def ask_master(
    cluster: ClusterClient,
    partition: TopicPartition,
    command: Command,
    request: Any,
    body: bytes = b"",
    *,
    deadline: float,
    what: str,
    unanswered: Callable[[], None] | None = None,
) -> Any:
    """Return the header of the answer; see ``ask_for_body``."""
    answer, _ = await ask_for_body(
        cluster,
        partition,
        command,
        request,
        body,
        deadline=deadline,
        what=what,
        unanswered=unanswered,
    )
    return answer


async def ask_for_body(
    cluster: ClusterClient,
    partition: TopicPartition,
    command: Command,
    request: Any,
    body: bytes = b"",
    *,
    deadline: float,
    what: str,
    unanswered: Callable[[], None] | None = None,
) -> tuple[Any, bytes]:
    """Return the header and the body of the answer.

    Args:
        cluster: It tracks the topic.
        partition: Whose master is asked.
        command, request, body: What is asked; to ask it again does no harm. ``request.epoch`` is
            filled in.
        deadline: Monotonic time; the last try ends then.
        what: What is unknown if nobody answers, as "whether a batch is stored".
        unanswered: Called when a try had no answer: the next one may be a repetition.

    Raises:
        OutcomeUnknown: A try had no answer, and a later one no better one.
        VqError: The broker refuses it, or none could be reached in time; it is certainly not done.
    """
    in_doubt: VqError | None = None
    tries = 0
    while True:
        tries += 1
        pause = _PAUSE.pause_s(tries)
        left = deadline - cluster.clock.monotonic()
        bound = max(0.01, min(left, cluster.config.request_timeout_s))
        try:
            address, request.epoch = master_of(cluster, partition)
            return await cluster.request(address, command, request, body, timeout=bound)
        except VqError as error:
            if isinstance(error, OutcomeUnknown):
                in_doubt = error
                if unanswered is not None:
                    unanswered()
            again = isinstance(error, OutcomeUnknown) and not isinstance(error, SequenceStale)
            again = again or error.retriable or error.refresh_routes
            if not again or left <= pause:
                if in_doubt is None or in_doubt is error:
                    raise
                raise OutcomeUnknown(
                    f"{partition}: it is unknown {what}: {in_doubt}; then: {error}"
                ) from error
            cluster.refresh(partition.topic, error)
        await asyncio.sleep(pause)


def master_of(cluster: ClusterClient, partition: TopicPartition) -> tuple[Address, int]:
    """Return who takes the appends of a partition, and its epoch.

    Raises:
        VqError: Nobody does now.
    """
    group = cluster.routes.placement(partition).writer_group
    if group is None:
        raise PartitionReadOnly(f"{partition}: it takes no messages")
    master = cluster.routes.master(group)
    if master is None:
        raise NotMaster(f"{partition}: {group} has no master now")
    return master
