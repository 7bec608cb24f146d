"""Threads: send, receive, read by position and by time, ask for the status."""

from datetime import UTC, datetime, timedelta
from typing import assert_type

import vq
from vq.errors import MessageTooLarge


def send(producer: vq.MessageProducer) -> int:
    message = vq.Message("orders", b"one", key=1001, headers={"from": "shop"})
    result = producer.send_sync(message, timeout=5.0)
    assert_type(result, vq.SendResult)
    producer.send_async(message, stored).add_done_callback(lambda future: print(future.done()))
    return result.offset


def stored(result: vq.SendResult | None, error: vq.VqError | None) -> None:
    if isinstance(error, vq.Refused) and error.retriable:
        print(error.hint, error.details)
    elif result is not None:
        print(result.partition)


CALLBACK: vq.SendCallback = stored


def handle(message: vq.Message) -> None:
    assert_type(message.key, vq.Key | None)
    assert_type(message.timestamp, datetime | None)
    assert_type(message.append_time, datetime | None)
    print(message.content.decode())


LISTENER: vq.Listener = handle


def read(factory: vq.MessageFactory) -> None:
    config = vq.ConsumerConfig(group="shop", start_position=vq.StartPosition.LATEST)
    with factory.create_consumer(config) as consumer:
        assert_type(consumer.get("orders", 0, 0, 1_024), vq.MessageList)
        bounds = consumer.get_bounds("orders", 0)
        assert_type(bounds, vq.OffsetBounds)
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert_type(consumer.offset_at("orders", 0, hour_ago), int)
        assert_type(consumer.offsets_at("orders", "latest"), dict[vq.TopicPartition, int])
        assert_type(consumer.get_last("orders", 10), list[vq.Message])
        consumer.subscribe("orders", length=1_024, listener=handle).start()
        consumer.seek(vq.TopicPartition("orders", 0), bounds.earliest)
        consumer.seek("orders", hour_ago)
        consumer.pause("orders")
        consumer.resume()
    with factory.create_consumer(config) as puller:
        puller.subscribe("orders").start()
        assert_type(puller.get_many(100, timeout=1.0), list[vq.Message])


def status(factory: vq.MessageFactory) -> None:
    assert_type(factory.get_status(), dict[vq.Address, vq.StatusResult])
    assert_type(factory.get_status("127.0.0.1:8123"), vq.StatusResult)
    placements = factory.get_partitions_for_topic("orders")
    spans: tuple[vq.Span, ...] = placements[0].spans
    print([span.group for span in spans], vq.PartitionState.RW)


def administer(factory: vq.MessageFactory) -> None:
    admin: vq.Admin = factory.admin
    assert_type(admin.create_topic("orders", if_not_exists=True), vq.admin.Topic)
    assert_type(admin.alter_topic("orders", partitions=4, readable=True), vq.admin.Topic)
    assert_type(admin.bounds("orders"), dict[int, vq.admin.PartitionEnds | None])
    planned = admin.plan_reset("shop", vq.admin.Target(goal="earliest"), only_stopped=True)
    assert_type(planned, list[vq.admin.Reset])
    admin.reset("shop", planned, fence=True)
    for columns in admin.read_columns("orders", 0, 0, 1_024, columns=["offset"]):
        assert_type(columns, vq.admin.StoredColumns)


def settings() -> vq.TopicSettings:
    return vq.TopicSettings(flush=vq.FlushMode.ASYNC, compression=vq.Compression.ZSTD)


def is_final(error: Exception) -> bool:
    return isinstance(error, MessageTooLarge | vq.errors.UnknownTopic)
