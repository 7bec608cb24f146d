"""The asynchronous API: the same names, defaults and errors as ``vq``, as coroutines.

All of it runs on the caller's event loop, without threads. A factory and all that it makes belong
to the loop on which the factory was opened: on another one, every coroutine raises
``InvalidState``. Example::

    config = vq.MessageFactoryConfig(zookeeper="127.0.0.1:2181")
    async with vq.aio.MessageFactory(config) as factory:
        async with await factory.create_producer() as producer:
            result = await producer.send(vq.Message("orders", b"one"))
        async with await factory.create_consumer(vq.ConsumerConfig(group="shop")) as consumer:
            consumer.subscribe("orders")
            async for message in consumer:
                print(message.content)
"""

from typing import TYPE_CHECKING

from vq.aio.consumer import MessageConsumer as MessageConsumer
from vq.aio.factory import MessageFactory as MessageFactory
from vq.aio.local import LocalQueue as LocalQueue
from vq.aio.producer import MessageProducer as MessageProducer
from vq.aio.transaction import Transaction as Transaction

__all__ = [
    "Admin",
    "LocalQueue",
    "MessageConsumer",
    "MessageFactory",
    "MessageProducer",
    "Transaction",
]

if TYPE_CHECKING:
    from vq.aio.admin import Admin as Admin
else:

    def __getattr__(name: str) -> type:
        if name != "Admin":
            raise AttributeError(f"module 'vq.aio' has no attribute {name!r}")
        from vq.aio.admin import Admin

        return Admin
