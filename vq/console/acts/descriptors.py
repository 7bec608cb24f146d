"""Descriptor sets that people have uploaded, and of which type the messages of a topic are.

Functions on a connection of the database; sets and types are those of one cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from vq.console.accounts.accounts import now_ms
from vq.console.database.schema import descriptors, topic_types
from vq.decoding.descriptors import DescriptorSet, MessageType
from vq.errors import InvalidArgument
from vq.limits import is_valid_name
from vq.shown import shown

#: Sets of one cluster.
SETS_MAX: Final = 50
#: Topics of one cluster whose type is known.
TYPED_TOPICS_MAX: Final = 5_000


@dataclass(frozen=True, slots=True)
class KeptDescriptors:
    """A descriptor set, without its bytes.

    Attributes:
        name: As a person has called it.
        time_ms: When it was uploaded, in milliseconds since 1970.
        person: Who did it.
        size_bytes: Of the set.
        types: How many types of messages it has.
    """

    name: str
    time_ms: int
    person: str
    size_bytes: int
    types: int


@dataclass(frozen=True, slots=True)
class TopicType:
    """Of which type the messages of a topic are: the set by its name, the type by its full name."""

    topic: str
    descriptors: str
    type: str


def keep_descriptors(
    connection: Connection, cluster: str, name: str, data: bytes, person: str
) -> int:
    """Keep a set, in place of the one of this name; return how many types it has.

    Raises:
        InvalidArgument: It is not valid, or there are too many.
    """
    if not is_valid_name(name):
        raise InvalidArgument(
            f"{shown(name)} is no name for a descriptor set: letters, digits, '.', '_' and '-'"
        )
    types = len(DescriptorSet.parse(data).types)
    of = (descriptors.c.cluster == cluster) & (descriptors.c.name == name)
    connection.execute(descriptors.delete().where(of))
    count = connection.execute(
        sqlalchemy.select(sqlalchemy.func.count()).where(descriptors.c.cluster == cluster)
    ).scalar_one()
    if count >= SETS_MAX:
        raise InvalidArgument(
            f"{SETS_MAX} descriptor sets are kept of a cluster: delete one, or put files together"
        )
    connection.execute(
        descriptors.insert().values(
            cluster=cluster,
            name=name,
            time_ms=now_ms(),
            person=person,
            size_bytes=len(data),
            types=types,
            data=data,
        )
    )
    return types


def list_descriptors(connection: Connection, cluster: str) -> list[KeptDescriptors]:
    """Return the sets by name."""
    c = descriptors.c
    query = (
        sqlalchemy.select(c.name, c.time_ms, c.person, c.size_bytes, c.types)
        .where(c.cluster == cluster)
        .order_by(c.name)
    )
    return [KeptDescriptors(*each) for each in connection.execute(query)]


def read_descriptors(connection: Connection, cluster: str, name: str) -> DescriptorSet:
    """Return the set of a name.

    Raises:
        InvalidArgument: There is none.
    """
    query = sqlalchemy.select(descriptors.c.data).where(
        descriptors.c.cluster == cluster, descriptors.c.name == name
    )
    data = connection.execute(query).scalar()
    if data is None:
        raise InvalidArgument(f"there is no descriptor set {shown(name)} of this cluster")
    return DescriptorSet.parse(bytes(data))


def remove_descriptors(connection: Connection, cluster: str, name: str) -> None:
    """Delete a set; the topics whose types are in it have none any more.

    Raises:
        InvalidArgument: There is none.
    """
    of = (descriptors.c.cluster == cluster) & (descriptors.c.name == name)
    if not connection.execute(descriptors.delete().where(of)).rowcount:
        raise InvalidArgument(f"there is no descriptor set {shown(name)} of this cluster")
    used = (topic_types.c.cluster == cluster) & (topic_types.c.descriptors == name)
    connection.execute(topic_types.delete().where(used))


def list_topic_types(connection: Connection, cluster: str) -> list[TopicType]:
    """Return the topics whose type is known, by name."""
    c = topic_types.c
    query = (
        sqlalchemy.select(c.topic, c.descriptors, c.type)
        .where(c.cluster == cluster)
        .order_by(c.topic)
    )
    return [TopicType(*each) for each in connection.execute(query)]


def check_topic_type(connection: Connection, cluster: str, wanted: TopicType) -> None:
    """Return if a topic may have a type.

    Raises:
        InvalidArgument: The set has no such type, or the topic no valid name.
    """
    if not is_valid_name(wanted.topic):
        raise InvalidArgument(f"{shown(wanted.topic)} is no name of a topic")
    read_descriptors(connection, cluster, wanted.descriptors).message_type(wanted.type)


def set_topic_type(connection: Connection, cluster: str, wanted: TopicType) -> None:
    """Remember the type of a topic.

    Raises:
        InvalidArgument: As ``check_topic_type``, or types of too many topics are kept.
    """
    check_topic_type(connection, cluster, wanted)
    forget_topic_type(connection, cluster, wanted.topic)
    count = connection.execute(
        sqlalchemy.select(sqlalchemy.func.count()).where(topic_types.c.cluster == cluster)
    ).scalar_one()
    if count >= TYPED_TOPICS_MAX:
        raise InvalidArgument(f"types are kept of {TYPED_TOPICS_MAX} topics: forget those of some")
    connection.execute(
        topic_types.insert().values(
            cluster=cluster,
            topic=wanted.topic,
            descriptors=wanted.descriptors,
            type=wanted.type,
        )
    )


def forget_topic_type(connection: Connection, cluster: str, topic: str) -> None:
    """Forget the type of a topic, if it is known."""
    of = (topic_types.c.cluster == cluster) & (topic_types.c.topic == topic)
    connection.execute(topic_types.delete().where(of))


def message_types(
    connection: Connection, cluster: str, topics: Sequence[str]
) -> Mapping[str, MessageType | str]:
    """Return the types of those topics that have one, ready to read; or why one is not.

    Args:
        connection: Of the database.
        cluster: Its name in the console.
        topics: 1,000 at most.
    """
    c = topic_types.c
    query = sqlalchemy.select(c.topic, c.descriptors, c.type).where(
        c.cluster == cluster, c.topic.in_(topics)
    )
    found: dict[str, MessageType | str] = {}
    for each in [TopicType(*row) for row in connection.execute(query)]:
        try:
            kept = read_descriptors(connection, cluster, each.descriptors)
            found[each.topic] = kept.message_type(each.type)
        except InvalidArgument as error:  # the set was replaced by one without the type
            found[each.topic] = f"{each.descriptors}: {error}"
    return found
