"""The stages before the accumulator: which messages pass unchanged, what each stage is given."""

from typing import Any

import pytest

from vq.client.config import ProducerConfig
from vq.client.producer.partition_queue import PartitionQueue
from vq.client.producer.partitioner import Keys
from vq.client.producer.spread import Ring
from vq.client.producer.stages import Stages, as_bytes
from vq.client.producer.topic_queues import TopicQueues
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import Message, TopicSettings


def topic() -> TopicQueues:
    queues = TopicQueues(
        "t",
        "id",
        lambda partition: PartitionQueue(partition, lambda: 7, ProducerConfig(), lambda *_: None),
        keys=Keys.DIRECT,
        spread=lambda _: Ring(first=0),
    )
    queues.update(TopicSettings(max_message_bytes=10), 5, range(5))
    return queues


def test_plain_messages_pass_when_no_stage_wants_them() -> None:
    assert Stages().pass_plain
    assert not Stages(directs_all=True).pass_plain
    assert not Stages(intercept=lambda message: message).pass_plain
    assert not Stages(serialize=lambda content: b"").pass_plain


def test_a_message_is_prepared_as_it_is_without_stages() -> None:
    content, head, partition = Stages().prepare(Message("t", b"x", tag="T", key="a"), topic())
    assert content == b"x"
    assert head == Stages().heads.of("T", "a", None)
    assert partition == 2


def test_each_stage_gets_what_the_one_before_it_made() -> None:
    def intercept(message: Message) -> Message:
        return message._replace(content={"n": 1}, key="b")  # type: ignore[arg-type]

    def serialize(content: Any) -> bytes:
        assert content == {"n": 1}
        return b"n=1"

    stages = Stages(intercept=intercept, serialize=serialize)
    content, head, partition = stages.prepare(Message("t", b"x", key="a"), topic())
    assert content == b"n=1"
    assert head == stages.heads.of(None, "b", None)
    assert partition == topic().partition_of(Message("t", b"", key="b"))


def test_the_size_is_that_of_the_bytes() -> None:
    stages = Stages(serialize=lambda content: bytes(11))
    with pytest.raises(MessageTooLarge, match="message of 11 bytes; topic t takes at most 10"):
        stages.prepare(Message("t", b"x"), topic())


class Odd(bytes):
    def __bytes__(self) -> bytes:
        return b"other"


@pytest.mark.parametrize("content", [b"x", bytearray(b"x"), memoryview(b"x"), Odd(b"x")])
def test_anything_with_bytes_is_taken(content: Any) -> None:
    taken = as_bytes(content)
    assert taken == b"x"
    assert type(taken) is bytes


@pytest.mark.parametrize("content", ["x", None, 7, [1]])
def test_other_contents_are_refused(content: Any) -> None:
    with pytest.raises(InvalidArgument, match="give bytes"):
        as_bytes(content)
