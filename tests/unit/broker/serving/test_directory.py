"""Finding the channel of a request: by name, and of the topic that the client means."""

from types import SimpleNamespace
from typing import Any

from vq.broker.partition.channel import Channel
from vq.broker.serving.directory import known, look_up
from vq.errors import UnknownPartition, UnknownTopic
from vq.model import PartitionPlacement, Span, TopicPartition, TopicSettings

WHERE = TopicPartition("t", 0)


def channel(topic_id: str) -> Channel:
    context: Any = SimpleNamespace(group="b1", roles={"b1": None}, call_later=None, main=None)
    return Channel(
        WHERE,
        topic_id=topic_id,
        settings=TopicSettings(),
        placement=PartitionPlacement("t", 0, (Span("b1", 0, None),)),
        placement_version=0,
        context=context,
    )


def directory(found: object) -> Any:
    """One that finds ``found`` when it is asked."""
    channels = {WHERE: found} if isinstance(found, Channel) else {}
    return SimpleNamespace(channels=channels, resolve=lambda partition, then, asker: then(found))


def test_a_channel_is_known_by_its_name_and_its_topics_id() -> None:
    """Without an id whichever topic has the name."""
    held = channel("id-1")
    assert known(directory(held), WHERE, "id-1") is held
    assert known(directory(held), WHERE, "") is held
    assert known(directory(held), WHERE, "id-0") is None
    assert known(directory(None), WHERE, "") is None


def test_a_look_up_never_gives_the_namesake_of_a_topic() -> None:
    """The client is told that its topic was deleted."""
    held, told = channel("id-2"), []
    look_up(directory(held), WHERE, "id-2", told.append, "asker")
    look_up(directory(held), WHERE, "", told.append, "asker")
    look_up(directory(held), WHERE, "id-1", told.append, "asker")
    error = UnknownPartition("none")
    look_up(directory(error), WHERE, "id-1", told.append, "asker")
    assert told[:2] == [held, held]
    assert isinstance(told[2], UnknownTopic)
    assert "made anew" in str(told[2])
    assert told[3] is error
