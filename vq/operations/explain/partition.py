"""Why a consumer group does not consume a partition: what is asked for the answer.

Loop-bound functions on a ``ClusterClient``. They read, and change nothing.
"""

from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.groups import claims, groups
from vq.coordination.groups.groups import UnknownGroup
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.consumers import Assignment
from vq.errors import InvalidArgument, VqError
from vq.limits import MIB
from vq.message_filter import ALL, Filter
from vq.model import PartitionPlacement, TopicPartition, check_name
from vq.operations.explain.answers import Explanation, explain
from vq.operations.explain.partition_causes import TABLE, PartitionFacts, facts_told
from vq.operations.explain.places import GroupAnswer, ask_group, told_of
from vq.operations.groups.groups import GroupProgress, progress, read_nodes
from vq.operations.messages.finding import find_messages
from vq.operations.partitions.offsets import Inspector

#: So much of a partition is searched for a message that a filter lets through.
SEARCHED_BYTES: Final = 16 * MIB
SEARCH_S: Final = 10.0


async def explain_partition(
    cluster: ClusterClient, group: str, topic: str, partition: int
) -> Explanation:
    """Say why a consumer group does not consume a partition, or that it does.

    Args:
        group: The group, which need not exist.
        topic: The topic.
        partition: Its partition.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
    """
    facts, unknown = await gather_partition(cluster, group, topic, partition)
    subject = f"group {group} in {facts.name}"
    return explain("partition", subject, TABLE, facts, facts_told(facts), unknown)


async def gather_partition(
    cluster: ClusterClient, group: str, topic: str, partition: int
) -> tuple[PartitionFacts, list[str]]:
    """Return what is known of a group and a partition, and what could not be asked.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
    """
    check_name("group", group)
    coordinator = cluster.coordinator
    view = await topics.describe_topic(coordinator, topic)
    topics.check_partition(view, partition)
    wanted = TopicPartition(topic, partition)
    now_s = cluster.clock.wall_ms() / 1000
    try:
        nodes = await read_nodes(cluster, group, wanted)
    except UnknownGroup:
        return (
            PartitionFacts(
                topic=topic, partition=partition, group=group, now_s=now_s, exists=False
            ),
            [],
        )
    contract = nodes.contract
    members = {name: each.value for name, each in nodes.members.items()}
    subscribers = [name for name, each in members.items() if each.reads(topic)]
    reads = contract.filter_of(topic) is not None
    unknown: list[str] = []
    found: GroupProgress | None = None
    placement = view.partitions[partition]
    if reads:
        inspector = Inspector(cluster)
        found = await progress(inspector, nodes, placement, count=False)
    answer = await _reading_group(cluster, placement, found)
    told = None if answer is None else told_of(answer, topic, partition)
    silent = ""
    if answer is not None and answer.status is None:
        silent = answer.error
    elif found is not None and found.readable and found.end is None:
        silent = f"no broker tells which offsets {topic}-{partition} has"
    if silent:
        unknown.append(silent)
    claimed, kept = await _claimed(cluster, group, wanted, unknown)
    owner = None if found is None or found.owner is None else members.get(found.owner)
    facts = PartitionFacts(
        topic=topic,
        partition=partition,
        group=group,
        now_s=now_s,
        reads=reads,
        progress=found,
        model=contract.model,
        members=len(members),
        subscribers=len(subscribers),
        by_stream=contract.by_stream,
        rolls=contract.roll is not None,
        claimed_by=claimed,
        kept_for=kept,
        owner_place=None if owner is None else f"{owner.host}, process {owner.pid}",
        reading_group=None if answer is None else answer.group,
        no_master=answer is not None and answer.master is None,
        silent=silent,
        state=None if told is None else told["state"],
        reason="" if told is None else told["reason"],
        log_end=None
        if told is None or found is None or not _is_open(placement, answer)
        else told["log_end_offset"],
        matching=await _matching(cluster, view, contract.filter_of(topic), found, unknown),
    )
    return facts, unknown


def _is_open(placement: PartitionPlacement, answer: GroupAnswer | None) -> bool:
    return answer is not None and placement.writer_group == answer.group


async def _reading_group(
    cluster: ClusterClient, placement: PartitionPlacement, found: GroupProgress | None
) -> GroupAnswer | None:
    """Ask the broker group that has what the group reads next."""
    at = None if found is None else found.committed
    if at is None:
        at = None if found is None else found.start
    span = None if at is None else placement.span_at(at)
    if span is None and placement.spans:
        span = placement.spans[-1]
    return None if span is None else await ask_group(cluster, span.group)


async def _claimed(
    cluster: ClusterClient, group: str, partition: TopicPartition, unknown: list[str]
) -> tuple[str | None, str | None]:
    """Return who claimed the partition last, and that one if its place is kept meanwhile."""
    coordinator = cluster.coordinator
    try:
        assigned = await claims.read_assigned(coordinator, Assignment.path(group, *partition))
        kept = await groups.kept_places(coordinator, group)
    except Unreadable as error:
        unknown.append(str(error))
        return None, None
    if assigned is None:
        return None, None
    return assigned.member, assigned.member if assigned.member in kept else None


async def _matching(
    cluster: ClusterClient,
    view: TopicView,
    wanted: Filter | None,
    found: GroupProgress | None,
    unknown: list[str],
) -> int | None:
    """Return how many messages of the partition a filter lets through: 0, 1, or not known.

    It is searched only where the group stands at the end, and only so far.
    """
    if wanted is None or wanted == ALL or found is None or found.lag_bytes != 0:
        return None
    if found.start is None or found.start == found.end:
        return None
    if wanted.code:
        unknown.append(f"the filter {wanted.text!r} is code of the members: it is not tried here")
        return None
    try:
        searched = await find_messages(
            cluster,
            view.name,
            tag=wanted.text if wanted.tags else None,
            where=wanted.where or None,
            partitions=[found.partition],
            limit=1,
            max_bytes=SEARCHED_BYTES,
            timeout=SEARCH_S,
        )
    except (InvalidArgument, VqError) as error:
        unknown.append(f"messages that the filter lets through: {type(error).__name__}: {error}")
        return None
    if searched.messages:
        return 1
    if searched.complete:
        return 0
    unknown.append(
        f"messages that the filter lets through: only {SEARCHED_BYTES // MIB} MiB were searched"
    )
    return None
