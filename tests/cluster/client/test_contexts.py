"""Context variables: in whose name callbacks, listeners and vq's own work run."""

import asyncio
import contextvars
import functools
import gc
import weakref
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import HOST, cluster_client, factory_of

import vq
from vq import aio, blocking
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

REQUEST: contextvars.ContextVar[Any] = contextvars.ContextVar("request", default="nobody's")


class Request:
    """What a web framework keeps in a context variable."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize("end", ["stored", "late"])
async def test_callbacks_run_in_the_context_in_which_the_factory_was_opened(
    cluster: MemoryCluster, end: str
) -> None:
    """Not in that of the first sender, whose connection, timers and wake-ups serve all."""
    seen: list[tuple[str, str]] = []
    REQUEST.set("opened")
    async with factory_of(cluster) as factory:
        producer = await factory.create_producer()

        async def handle(request: str) -> None:
            REQUEST.set(request)
            future = await producer.send_async(
                Message("t", b"x"),
                lambda *_: seen.append(("callback", REQUEST.get())),
                None if end == "stored" else 0.3,
            )
            future.add_done_callback(lambda _: seen.append(("done", REQUEST.get())))
            own = functools.partial(
                contextvars.copy_context().run, lambda *_: seen.append(("own", REQUEST.get()))
            )
            if end == "stored":
                await (await producer.send_async(Message("t", b"y"), own))
            await until(future.done)
            assert REQUEST.get() == request

        if end == "late":
            await producer.publish("t")
            cluster.network.cut(HOST, "b1")
        for request in ("first", "second"):
            await asyncio.create_task(handle(request))
        assert [value for what, value in seen if what != "own"] == ["opened"] * 4
        owners = ["first", "second"] if end == "stored" else []
        assert [value for what, value in seen if what == "own"] == owners
        cluster.network.heal()


async def test_no_later_work_keeps_the_objects_of_the_first_sender(
    factory: aio.MessageFactory,
) -> None:
    producer = await factory.create_producer()

    async def handle() -> "weakref.ref[Request]":
        request = Request("first")
        REQUEST.set(request)
        await producer.publish("t")  # a time-out of asyncio would keep the context until it is due
        await (await producer.send_async(Message("t", b"x")))
        return weakref.ref(request)

    first = await asyncio.create_task(handle())

    def is_gone() -> bool:
        gc.collect()
        return first() is None

    await until(is_gone)
    await producer.send(Message("t", b"x"))


def test_listeners_and_callbacks_of_threads_have_the_context_of_the_factory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one message's listener sets is not there for another partition's."""
    made: list[MemoryCluster] = []

    async def open_cluster(_: MessageFactoryConfig) -> ClusterClient:
        cluster = MemoryCluster()
        made.append(cluster)
        await cluster.start()
        await cluster.create_topic("t", partitions=2)
        client = cluster_client(cluster)
        await client.start()
        return client

    monkeypatch.setattr(blocking.factory, "open_cluster", open_cluster)

    def program() -> None:
        REQUEST.set("opened")
        seen: list[str] = []
        factory = vq.MessageFactory().open()
        REQUEST.set("later")
        producer = factory.create_producer(ProducerConfig())
        producer.send_async(Message("t", b"x"), lambda *_: seen.append(REQUEST.get())).result()
        consumer = factory.create_consumer(ConsumerConfig(group="g", workers=1))

        def listener(message: Message) -> None:
            seen.append(REQUEST.get())
            REQUEST.set(message.content)

        consumer.subscribe("t", 1, listener).start()
        for partition in range(2):
            producer.send_sync(Message("t", b"%d" % partition, key=partition))
        runtime = factory._runtime
        assert runtime is not None
        runtime.run(until(lambda: len(seen) >= 4), WAIT_S)
        assert set(seen[:2]) == {"opened"}
        assert "later" not in seen
        consumer.close()
        producer.close()
        runtime.run(made[0].stop())
        factory.shutdown()

    contextvars.Context().run(program)
