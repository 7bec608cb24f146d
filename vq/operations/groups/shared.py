"""What is open of a shared group, as the node tells it that leads the group's journal."""

from collections.abc import Mapping
from dataclasses import dataclass

from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.client.consumer.shared.desk import ANSWER_S, shared_journal_of
from vq.coordination.groups import groups
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidState, UnknownTopic, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import SharedRequest, SharedResponse
from vq.reserved import SHARED_TOPIC

logger = get_logger(__name__)

#: How long the journal is asked what is open.
ASK_S = 5.0
#: Partitions in one answer.
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class SharedProgress:
    """What is open of one partition of a shared group. Messages are told by their numbers.

    Attributes:
        topic, partition: Which.
        low: The lowest message that is not done.
        cursor: From this message on none was delivered.
        open: Messages between these that are not done.
        held: Of these, members have so many.
        waiting: Of these, so many are due later: they have failed.
        deliveries_max: How often that open message was delivered that was delivered most.
        redelivered: Of the open messages, so many were delivered more than once.
    """

    topic: str
    partition: int
    low: int
    cursor: int
    open: int
    held: int
    waiting: int
    deliveries_max: int
    redelivered: int

    @property
    def due(self) -> int:
        """Of the open messages, so many go to whoever asks now."""
        return self.open - self.held - self.waiting


@dataclass(frozen=True, slots=True)
class SharedGroupDescription:
    """What is open of a shared group.

    Attributes:
        group: Its name.
        journal: The partition of ``_vq.shared`` that knows it.
        receiving: Members that wait for messages now.
        partitions: Those of which the group has had messages, by topic and partition.
    """

    group: str
    journal: int
    receiving: int
    partitions: tuple[SharedProgress, ...]


async def describe_shared_group(cluster: ClusterClient, group: str) -> SharedGroupDescription:
    """Return what is open of a shared group.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidState: It is not shared.
        VqError: The node that leads its journal does not answer.
    """
    contract = await groups.known_group(cluster.coordinator, group)
    if contract.model != GroupModel.SHARED:
        raise InvalidState(
            f"group {group!r} is {contract.model}: its members commit offsets, see "
            "`vq group describe`"
        )
    journal = await shared_journal_of(cluster, group)
    found: list[SharedProgress] = []
    receiving = 0
    request = SharedRequest(group=group, max_count=_PAGE)
    while True:
        answer = await _ask(cluster, journal, request, ASK_S)
        receiving = answer.receiving
        found += [
            SharedProgress(
                each.topic,
                each.partition,
                each.low,
                each.cursor,
                each.open,
                each.held,
                each.waiting,
                each.deliveries_max,
                each.redelivered,
            )
            for each in answer.sources
        ]
        if not answer.more:
            return SharedGroupDescription(group, journal.partition, receiving, tuple(found))
        request.after_topic, request.after_partition = found[-1].topic, found[-1].partition


async def open_of(
    cluster: ClusterClient, group: str
) -> Mapping[TopicPartition, SharedProgress] | None:
    """Return what is open of a shared group by partition; None: nobody tells now."""
    try:
        found = await describe_shared_group(cluster, group)
    except VqError as error:
        logger.debug("what is open of a shared group is not known", group=group, error=error)
        return None
    return {TopicPartition(each.topic, each.partition): each for each in found.partitions}


async def forget_shared_group(cluster: ClusterClient, group: str, topic: str = "") -> None:
    """Have the journal forget a shared group, or what it has of a topic.

    Raises:
        VqError: The node that leads the journal does not answer, or refuses.
    """
    try:
        await cluster.track(SHARED_TOPIC)
    except UnknownTopic:
        return  # there never was a shared group
    journal = await shared_journal_of(cluster, group)
    request = SharedRequest(group=group, forget=not topic, forget_topic=topic)
    await _ask(cluster, journal, request, ANSWER_S)


async def _ask(
    cluster: ClusterClient, journal: TopicPartition, request: SharedRequest, answer_s: float
) -> SharedResponse:
    request.topic, request.partition = journal
    answer: SharedResponse = await ask_master(
        cluster,
        journal,
        Command.SHARED,
        request,
        deadline=cluster.clock.monotonic() + answer_s,
        what="whether the group is forgotten",
    )
    return answer
