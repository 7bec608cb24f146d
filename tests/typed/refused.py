"""Mistakes that a type checker finds before the program runs."""

import vq


def names() -> None:
    vq.NoSuchName  # refused
    vq.errors.NoSuchError  # refused
    vq.admin.NoSuchValue  # refused
    vq.aio.NoSuchClass  # refused


def settings() -> None:
    vq.ProducerConfig(linger_ms="soon")  # refused
    vq.ConsumerConfig(grop="shop")  # refused
    vq.ConsumerConfig(group="shop", on_failure="skipp")  # refused
    vq.ProducerConfig(when_full="drop")  # refused
    vq.TopicSettings(flush="never")  # refused
    vq.admin.Target(goal="newest")  # refused
    vq.Message("orders", b"x", key=1.5)  # refused


def statuses(factory: vq.MessageFactory) -> None:
    factory.get_status("127.0.0.1:8123").items()  # refused
    print(factory.get_status().uptime_s)  # refused


def consumer(given: vq.MessageConsumer) -> None:
    given.seek("orders", "yesterday")  # refused
    given.subscribe("orders", 1_024, lambda: None)  # refused


def administer(admin: vq.Admin, other: vq.aio.Admin) -> int:
    admin.describe_topic(3)  # refused
    admin.describe_topic()  # refused
    admin.delete_topic("orders", True)  # refused
    admin.create_topic("orders", sure=True)  # refused
    admin.no_such_operation()  # refused
    admin.describe_topic("orders").topic.no_such_fact  # refused
    return other.list_writes()  # refused


async def forgotten(given: vq.aio.MessageConsumer) -> int:
    return given.get_many(10, timeout=1.0)  # refused
