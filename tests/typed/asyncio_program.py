"""Coroutines: send, receive, read by position and by time, administer."""

from datetime import UTC, datetime
from typing import assert_type

import vq


class Large(vq.MessageFilter):
    def matches(self, message: vq.Message) -> bool:
        return len(message.content) > 1_000


async def run() -> None:
    config = vq.MessageFactoryConfig(zookeeper="127.0.0.1:2181")
    async with vq.aio.MessageFactory(config) as factory:
        async with await factory.create_producer() as producer:
            await send(producer)
        async with await factory.create_consumer(vq.ConsumerConfig(group="shop")) as consumer:
            await read(consumer)
        assert_type(await factory.get_status(), dict[vq.Address, vq.StatusResult])
        assert_type(await factory.get_status("127.0.0.1:8123"), vq.StatusResult)
        summaries: list[vq.admin.TopicSummary] = await factory.admin.list_topics()
        print(summaries)


async def administer(admin: vq.aio.Admin) -> None:
    assert_type(await admin.create_topic("orders", if_not_exists=True), vq.admin.Topic)
    planned = await admin.plan_moves("orders", [0], "b1")
    assert_type(planned, list[vq.admin.Move])
    assert_type(await admin.move(planned), list[vq.admin.Moved])
    async for columns in admin.read_columns("orders", 0, 0, 1_024, columns=["offset"]):
        assert_type(columns, vq.admin.StoredColumns)


async def send(producer: vq.aio.MessageProducer) -> None:
    results = await producer.send_batch(
        [vq.Message("orders", b"one"), vq.Message("orders", b"two")]
    )
    assert_type(results, list[vq.SendResult])
    future: vq.SendFuture = await producer.send_async(vq.Message("orders", b"x", tag="t"))
    assert_type(await future, vq.SendResult)


async def read(consumer: vq.aio.MessageConsumer) -> None:
    consumer.subscribe("orders", message_filter="paid || sent")
    consumer.subscribe("carts", message_filter=vq.Where("price > 10"))
    consumer.subscribe("visits", message_filter=Large())
    await consumer.seek("orders", datetime(2026, 1, 1, tzinfo=UTC))
    assert_type(await consumer.get_many(100, timeout=1.0), list[vq.Message])
    async for message in consumer:
        assert_type(message, vq.Message)
        consumer.pause(vq.TopicPartition(message.topic, message.partition))
        break
    assert_type(await consumer.get_last("orders", 10), list[vq.Message])
    assert_type(
        await consumer.offsets_at("orders", vq.StartPosition.EARLIEST), dict[vq.TopicPartition, int]
    )
