"""What a message holds is stored as it was sent, or refused before anything is taken."""

import asyncio
import math
from dataclasses import dataclass
from typing import Any

import pytest
from support.cases import case
from support.key_vectors import KEY_VECTORS
from support.producers import core_of, ended, producer_of, published, send, space, stored

from vq import aio
from vq.client.config import ConsumerConfig
from vq.client.producer.spread.partitioner import key_partition
from vq.errors import (
    InvalidArgument,
    MessageTooLarge,
    UnknownTopic,
)
from vq.limits import MESSAGE_BYTES_MAX
from vq.model import Message
from vq.serializers import Hessian2, Json, Protobuf, Serializer
from vq.store.properties_pb2 import RecordProperties
from vq.testing.waiting import WAIT_S


async def test_keys_of_every_kind_come_back_from_their_partition(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory)
    keys = [vector.key for vector in KEY_VECTORS]
    for key in keys:
        for tag in (None, "tag"):
            for headers in (None, {"a": "b"}):
                message = Message("t", b"x", tag=tag, key=key, headers=headers)
                place = await producer.send(message)
                consumer = await factory.create_consumer(ConsumerConfig())
                [found] = await consumer.get("t", place.partition, place.offset, 1)
                assert (found.key, type(found.key)) == (key, type(key))
                assert (found.tag, found.headers) == (tag, headers)
                assert place.partition == key_partition(key, 2)


@dataclass
class Order:
    id: str
    count: int


@pytest.mark.parametrize(
    ("serializer", "content"),
    [
        (Json(), {"id": "o-1", "count": 3}),
        (Json(), None),
        (Protobuf(RecordProperties), RecordProperties(origin="x")),
        (Hessian2({"com.example.Order": Order}), Order("o-1", 3)),
        (Hessian2(), b"bytes"),
    ],
)
async def test_objects_are_stored_as_the_serializer_writes_them(
    factory: aio.MessageFactory, serializer: Serializer, content: Any
) -> None:
    """Each way to send: bytes are objects to a serializer, too."""
    producer = await producer_of(factory, serializer=serializer)
    await producer.send(Message("t", content))
    await producer.send_async(Message("t", content, tag="tag"))
    await producer.send_async(Message("t", content, key=1001))
    await producer.flush()
    found = await stored(factory)
    assert found == [serializer.dumps(content)] * 3
    assert serializer.loads(found[0]) == content


@pytest.mark.parametrize("content", [math.nan, b"bytes", {1: 2}, Order("o-1", 3)])
async def test_what_a_serializer_refuses_is_not_appended(
    factory: aio.MessageFactory, content: object
) -> None:
    producer = await producer_of(factory, serializer=Json())
    for send_it in (producer.send, producer.send_async):
        with pytest.raises(InvalidArgument, match="cannot be written as JSON") as caught:
            await send_it(Message("t", content))
        assert isinstance(caught.value.__cause__, TypeError | ValueError)
    assert space(core_of(producer)) == producer.config.buffer_bytes
    with pytest.raises(MessageTooLarge, match="message of 1048577 bytes"):
        await producer.send(Message("t", "x" * (MESSAGE_BYTES_MAX - 1)))
    await producer.close()
    assert await stored(factory) == []


REFUSED: Any = [
    (Message("t", "text"), InvalidArgument),  # type: ignore[arg-type]
    (Message("t", b"x" * (MESSAGE_BYTES_MAX + 1)), MessageTooLarge),
    (Message("t", b"x", tag=""), InvalidArgument),
    (Message("t", b"x", tag="t" * 256), InvalidArgument),
    (Message("t", b"x", tag="\ud800"), InvalidArgument),
    (Message("t", b"x", tag=b"bytes"), InvalidArgument),  # type: ignore[arg-type]
    (Message("t", b"x", key="\ud800"), InvalidArgument),
    (Message("t", b"x", key=1.5), InvalidArgument),  # type: ignore[arg-type]
    (Message("t", b"x", key=True), InvalidArgument),
    (Message("t", b"x", key=2**63), InvalidArgument),
    (Message("t", b"x", key=b"k" * 40_000), MessageTooLarge),
    (Message("t", b"x", headers={"a": 5}), InvalidArgument),  # type: ignore[dict-item]
    (Message("t", b"x", headers={"a": "b" * 40_000}), MessageTooLarge),
    *(
        (Message("t", b"x", **{name: value}), InvalidArgument)
        for name in ("tag", "key", "headers")
        for value in (5, 0, [], ["k"], b"", {1: "a"}, {"a": None})
        if name != "key" or not isinstance(value, int | bytes)
    ),
    (Message("t", None), InvalidArgument),  # type: ignore[arg-type]
    (Message("t", 5), InvalidArgument),  # type: ignore[arg-type]
    (Message("missing", b"x"), UnknownTopic),
    (Message("bad name", b"x"), InvalidArgument),
    (Message([], b"x"), InvalidArgument),  # type: ignore[arg-type]
    (Message(b"t", b"x"), InvalidArgument),  # type: ignore[arg-type]
    ("hello", InvalidArgument),
    (b"x", InvalidArgument),
    (None, InvalidArgument),
]


async def test_what_cannot_be_sent_is_refused_before_anything_is_taken(
    factory: aio.MessageFactory,
) -> None:
    producer = await producer_of(factory)
    for number, (message, error) in enumerate(REFUSED):
        with case(number):
            with pytest.raises(error):
                await producer.send(message)
            assert space(core_of(producer)) == producer.config.buffer_bytes
    await producer.close()


async def test_bytes_like_contents_are_copied(factory: aio.MessageFactory) -> None:
    producer = await producer_of(factory)
    content = bytearray(b"before")
    message = Message("t", content)  # type: ignore[arg-type]
    future = await producer.send_async(message)
    content[:] = b"behind"
    await ended(future)
    assert await stored(factory) == [b"before"]


async def test_the_bytes_of_a_derived_type_are_those_it_holds(
    factory: aio.MessageFactory,
) -> None:
    """Whatever its methods say: the message would hold up all that stand behind it."""

    class Odd(bytes):
        def __len__(self) -> int:
            return 1

        def __bytes__(self) -> bytes:
            return Odd(bytes(3 << 20))

    core = await published(factory)
    await ended(core.append_any(Message("t", Odd(b"abc"))))
    released = memoryview(b"x")
    released.release()
    with pytest.raises(InvalidArgument, match="released"):
        core.append_any(Message("t", released))  # type: ignore[arg-type]
    await core.close()
    assert await stored(factory) == [b"abc"]


# Objects of the application whose class behaves oddly ---------------------------------------------
class OddInt(int):
    """A number whose arithmetic is not that of ``int``."""

    def __mod__(self, other: Any) -> Any:
        return 99

    def __index__(self) -> int:
        return 98

    def __int__(self) -> int:
        return 97

    def __mul__(self, other: Any) -> Any:
        return "many"

    __rmul__ = __mul__

    def __ge__(self, other: Any) -> bool:
        return True

    def __le__(self, other: Any) -> bool:
        return True


class RaisingInt(OddInt):
    def __mod__(self, other: Any) -> Any:
        raise RuntimeError("no remainder")


class OddText(str):
    """A text that encodes to something else at each call."""

    def encode(self, *_: Any, **__: Any) -> Any:
        return OddBytes(b"other")

    def strip(self, *_: Any) -> str:
        return str(self)


class OddBytes(bytes):
    def __len__(self) -> int:
        return 10**9

    def __add__(self, other: Any) -> Any:
        return 3

    __radd__ = __add__


ODD_MESSAGES = {
    "remainder": Message("t", b"odd", key=OddInt(7)),
    "remainder raises": Message("t", b"odd", key=RaisingInt(7)),
    "text": Message("t", b"odd", key=OddText("k")),
    "bytes": Message("t", b"odd", key=OddBytes(b"k")),
    "tag": Message("t", b"odd", tag=OddText("T")),
    "headers": Message("t", b"odd", headers={OddText("a"): OddText("b")}),
    "headers and key": Message("t", b"odd", key=OddInt(7), headers={"a": "b"}),
    "topic": Message(OddText("t"), b"odd"),
    "content": Message("t", OddBytes(b"odd")),
}


@pytest.mark.parametrize("odd", ODD_MESSAGES.values(), ids=ODD_MESSAGES)
@pytest.mark.parametrize("way", ["send", "send_async", "send_oneway", "send_batch", "threads"])
async def test_an_object_whose_class_behaves_oddly_harms_no_other_message(
    factory: aio.MessageFactory, odd: Message, way: str
) -> None:
    """It counts as the plain value that it holds, and producer and deadlines go on."""
    producer = await producer_of(factory, send_timeout_s=5.0)
    await producer.publish("t")
    sent = [Message("t", b"before"), odd, Message("t", b"behind", key=7)]
    async with asyncio.timeout(WAIT_S):
        if way == "send_batch":
            places = await producer.send_batch(sent)
        elif way == "threads":
            core = core_of(producer)
            futures = [await asyncio.to_thread(core.send_blocking, message) for message in sent]
            places = [future.result() for future in futures]
        elif way == "send_oneway":
            for message in sent:
                await producer.send_oneway(message)
            places = []
        else:
            futures = [await getattr(producer, way)(message) for message in sent]
            places = futures if way == "send" else [await future for future in futures]
        await producer.close()
    assert space(core_of(producer)) == core_of(producer).config.buffer_bytes
    assert sorted(await stored(factory)) == [b"before", b"behind", b"odd"]
    consumer = await factory.create_consumer()
    for place in places[1:2]:
        found = (await consumer.get("t", place.partition, place.offset, 1))[0]
        headers = {"a": "b"} if odd.headers else None
        key = {OddInt: 7, RaisingInt: 7, OddText: "k", OddBytes: b"k"}.get(type(odd.key))
        tag = None if odd.tag is None else "T"
        assert (found.key, found.tag, found.headers) == (key, tag, headers)
        if key is not None:
            assert place.partition == key_partition(key, 2)


class OddSeconds(float):
    """It compares like a number and is none."""

    def __float__(self) -> float:
        return math.nan


async def test_a_time_out_is_what_its_number_says(factory: aio.MessageFactory) -> None:
    core = await published(factory)
    future = send(core, Message("t", b"x", key="k"), None, OddSeconds(5.0))
    assert future.deadline == future.appended_at + 5.0
    assert await future
