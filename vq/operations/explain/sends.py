"""Why a message is refused, and where a key goes: what is asked for the answers.

Loop-bound functions on a ``ClusterClient``. They read, and change and send nothing.
"""

import zlib
from dataclasses import replace
from typing import Final

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.client.producer.intake.stages import Heads
from vq.client.producer.spread.partitioner import key_partition
from vq.coordination.topics import topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.tree.reading import TopicView, read_topic
from vq.coordination.tree.values.topics import READY
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.limits import PARTITIONS_PER_TOPIC_MAX
from vq.model import Key, check_name
from vq.operations.explain.answers import Explanation, explain
from vq.operations.explain.places import read_places
from vq.operations.explain.send_causes import (
    KEY_TABLE,
    SEND_TABLE,
    KeyFacts,
    SendFacts,
    key_told,
    send_told,
)
from vq.operations.security.quotas import show_quota
from vq.reserved import is_reserved
from vq.security.quotas import QuotaLimit
from vq.security.rules import ANONYMOUS

#: Limits that a send may meet.
_USED: Final = frozenset(
    {QuotaLimit.BYTES_IN, QuotaLimit.MESSAGES_IN, QuotaLimit.REQUESTS, QuotaLimit.TIME}
)


async def explain_send(
    cluster: ClusterClient,
    topic: str,
    *,
    key: Key | None = None,
    partition: int | None = None,
    size: int | None = None,
    sender: str | None = None,
) -> Explanation:
    """Say why a message to a topic is refused now, or may be slow, or that nothing refuses it.

    It looks at what a broker would look at; nothing is sent.

    Args:
        topic: The topic, which need not exist.
        key: That of the message: only its partition is looked at.
        partition: Look only at this one; not beside ``key``.
        size: Bytes of its content.
        sender: Whose quota is looked at: a user, or ``anonymous``; None: that of the client.

    Raises:
        InvalidArgument: The name is none that a topic can have, or an argument is out of range.
        UnknownPartition: There is no such partition.
    """
    check_name("topic", topic)
    if key is not None and partition is not None:
        raise InvalidArgument("give key or partition; a key has its partition")
    if key is not None:
        Heads().of_message(None, key, None)
    for what, value in (("partition", partition), ("size", size)):
        if value is not None:
            check_whole(what, value)
            if value < 0:
                raise InvalidArgument(f"{what} = {value} is below 0")
    facts = await _gather(cluster, topic, key, partition, size)
    facts, quota_unknown = await _with_quota(cluster, facts, sender)
    subject = f"a message to {topic}"
    if facts.partition is not None:
        subject = f"a message to {topic}-{facts.partition}"
    unknown = sorted(
        {each.answer.error for each in facts.places if each.answer and each.answer.error}
    )
    unknown += quota_unknown
    return explain("send", subject, SEND_TABLE, facts, send_told(facts), unknown)


async def _with_quota(
    cluster: ClusterClient, facts: SendFacts, sender: str | None
) -> tuple[SendFacts, list[str]]:
    """Return the facts with the quota of who sends, and why it is not known."""
    user = (cluster.config.user or ANONYMOUS) if sender is None else sender
    try:
        limits = await show_quota(cluster, user)
    except CoordinationError as error:
        return replace(facts, sender=user), [f"the quotas: {error}"]
    used = tuple(each for each in limits if each.limit in _USED and each.value is not None)
    return replace(facts, sender=user, quota=used), []


async def explain_key(cluster: ClusterClient, topic: str, key: Key) -> Explanation:
    """Say to which partition of a topic a key goes, where that is, and what would change it.

    Args:
        topic: The topic.
        key: Text, bytes or an integer.

    Raises:
        UnknownTopic: There is none of this name.
        InvalidArgument: No message can have the key.
    """
    Heads().of_message(None, key, None)
    view = await topics.describe_topic(cluster.coordinator, topic)
    count = len(view.partitions)
    number = key_partition(key, count)
    send = await _of_view(cluster, view, number, None)
    if isinstance(key, int):
        kind, shown_key, value = "integer", str(int(key)), int(key)
    elif isinstance(key, str):
        kind, shown_key, value = "text", key, zlib.crc32(key.encode())
    else:
        kind, shown_key, value = "bytes", key.hex(), zlib.crc32(key)
    then = key_partition(key, min(count + 1, PARTITIONS_PER_TOPIC_MAX))
    facts = KeyFacts(send=send, key=shown_key, kind=kind, hash=value, partitions=count, then=then)
    unknown = [each.answer.error for each in send.places if each.answer and each.answer.error]
    subject = f"key {shown_key} in {topic}"
    return explain("key", subject, KEY_TABLE, facts, key_told(facts), unknown)


async def _gather(
    cluster: ClusterClient, topic: str, key: Key | None, partition: int | None, size: int | None
) -> SendFacts:
    reserved = is_reserved(topic)
    try:
        view = await read_topic(cluster.coordinator, topic, any_phase=True)
    except UnknownTopic:
        settings = await read_settings(cluster.coordinator)
        return SendFacts(
            topic=topic, is_reserved=reserved, may_create=settings.may_create, size=size
        )
    if view.phase != READY:
        return SendFacts(topic=topic, is_reserved=reserved, phase=view.phase, size=size)
    if key is not None:
        partition = key_partition(key, len(view.partitions))
    if partition is not None:
        topics.check_partition(view, partition)
    return await _of_view(cluster, view, partition, size)


async def _of_view(
    cluster: ClusterClient, view: TopicView, partition: int | None, size: int | None
) -> SendFacts:
    numbers = range(len(view.partitions)) if partition is None else [partition]
    return SendFacts(
        topic=view.name,
        is_reserved=is_reserved(view.name),
        phase=view.phase,
        settings=view.settings,
        size=size,
        partition=partition,
        places=tuple(await read_places(cluster, view, numbers)),
    )
