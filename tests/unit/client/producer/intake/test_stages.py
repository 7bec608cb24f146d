"""The stages before the accumulator: which messages pass unchanged, what each stage is given."""

import math
from typing import Any

import pytest
from support.queues import QueueHost

from vq.client.config import ProducerConfig
from vq.client.future import ANY_PARTITION
from vq.client.producer.intake.stages import Stages, as_bytes, serialize_with, with_flag
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.errors import InvalidArgument, MessageTooLarge
from vq.model import Message, TopicSettings
from vq.serializers import Json
from vq.store.records.compression import decompress
from vq.store.records.format import COMPRESSION_ZSTD, FLAG_COMPRESSION_SHIFT


def stages_of(**settings: Any) -> Stages:
    return Stages(ProducerConfig(**settings))


def topic(max_message_bytes: int = 10, **settings: Any) -> TopicQueues:
    queues = QueueHost(**settings).topic()
    queues.update(TopicSettings(max_message_bytes=max_message_bytes), 5, range(5))
    return queues


def test_plain_messages_pass_when_no_stage_wants_them() -> None:
    assert stages_of().pass_plain
    assert not stages_of(partitioner="hash").pass_plain
    assert not stages_of(partitioner=lambda message, partitions: 0).pass_plain
    assert not stages_of(serializer=Doubles()).pass_plain


def test_a_message_is_prepared_as_it_is_without_stages() -> None:
    content, head, partition = stages_of().prepare(Message("t", b"x", tag="T", key="a"), topic())
    assert content == b"x"
    assert head == stages_of().heads.of("T", "a", None)
    assert partition == 2


def test_each_stage_gets_what_the_one_before_it_made() -> None:
    stages = stages_of(serializer=Json())
    message = Message("t", {"n": 1}, key="b")  # type: ignore[arg-type]
    content, head, partition = stages.prepare(message, topic())
    assert content == b'{"n":1}'
    assert head == stages.heads.of(None, "b", None)
    assert partition == topic().partition_of(Message("t", b"", key="b"))


class Doubles:
    """A serializer of numbers, with the faults that one of ones own may have."""

    name = "doubles"

    def dumps(self, value: Any) -> Any:
        if value == 3:
            return bytearray(b"6")
        return b"%d" % (2 * value)

    def loads(self, content: bytes) -> int:
        return int(content) // 2


def test_every_content_goes_through_the_serializer() -> None:
    """Bytes, too."""
    serialize = serialize_with(Doubles())
    assert serialize(21) == b"42"
    with pytest.raises(InvalidArgument, match="does not take content of type bytes: TypeError"):
        serialize(b"x")


def test_what_a_serializer_raises_is_the_cause_of_a_refusal() -> None:
    serialize = serialize_with(Doubles())
    with pytest.raises(InvalidArgument, match="the serializer doubles does not take") as caught:
        serialize(None)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(InvalidArgument, match=r"^nan cannot be written as JSON") as caught:
        serialize_with(Json())(math.nan)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_serializer_must_make_bytes() -> None:
    with pytest.raises(InvalidArgument, match="doubles made bytearray of content of type int"):
        serialize_with(Doubles())(3)


def test_the_size_is_that_of_the_bytes() -> None:
    stages = stages_of(serializer=Doubles())
    message = Message("t", 50_000_000_000)  # type: ignore[arg-type]
    with pytest.raises(MessageTooLarge, match="message of 12 bytes; topic t takes at most 10"):
        stages.prepare(message, topic())


def test_content_is_compressed_behind_all_checks() -> None:
    """The size counts before compression; the flag joins those of tag and properties."""
    queues = topic(100, compression="zstd", compression_threshold=0)
    for message in (Message("t", bytes(100)), Message("t", bytes(100), "T", "k")):
        plain = stages_of().prepare(message, topic(max_message_bytes=100))
        content, head, partition = stages_of().prepare(message, queues)
        assert decompress(content, COMPRESSION_ZSTD) == message.content
        assert head == with_flag(plain[1], COMPRESSION_ZSTD << FLAG_COMPRESSION_SHIFT)
        assert partition == plain[2]
    assert stages_of().prepare(Message("t", b"x"), queues) == (b"x", None, ANY_PARTITION)
    with pytest.raises(MessageTooLarge, match="message of 101 bytes"):
        stages_of().prepare(Message("t", bytes(101)), queues)


class Odd(bytes):
    def __bytes__(self) -> bytes:
        return b"other"


@pytest.mark.parametrize("content", [b"x", bytearray(b"x"), memoryview(b"x"), Odd(b"x")])
def test_anything_with_bytes_is_taken(content: Any) -> None:
    taken = as_bytes(content)
    assert taken == b"x"
    assert type(taken) is bytes


class Silent(Exception):
    """Its code raises whatever it is asked."""

    def __repr__(self) -> str:
        raise KeyError("no text")

    __str__ = __repr__


def test_headers_that_raise_refuse_the_message() -> None:
    class Gone(dict[str, str]):
        def items(self) -> Any:
            raise KeyError("gone")

    with pytest.raises(InvalidArgument, match="headers cannot be read: KeyError: 'gone'") as caught:
        stages_of().prepare(Message("t", b"x", headers=Gone(a="b")), topic())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_serializer_may_raise_what_has_no_text() -> None:
    class Fails(Doubles):
        def dumps(self, value: Any) -> Any:
            raise Silent

    with pytest.raises(InvalidArgument, match="doubles does not take content of type int: Silent"):
        serialize_with(Fails())(1)


@pytest.mark.parametrize("content", ["x", None, 7, [1], 10**5000, Silent()], ids=list("snilhe"))
def test_other_contents_are_refused(content: Any) -> None:
    is_text = isinstance(content, str)
    remedy = r"content\.encode\(\)" if is_text else "serializer=vq.serializers.Json"
    with pytest.raises(InvalidArgument, match=f"give bytes.*{remedy}"):
        as_bytes(content)
