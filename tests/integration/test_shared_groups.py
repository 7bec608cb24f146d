"""Shared groups with threads, real brokers, and workers that are killed."""

import threading
import time
from collections import Counter
from operator import attrgetter

import pytest
from support.blocking import config_of
from support.cluster import ProcessCluster

import vq
from vq.errors import LeaseLost
from vq.testing.waiting import block_until

OPEN = attrgetter("open")


@pytest.mark.slow
def test_threads_settle_messages_one_by_one(cluster: ProcessCluster) -> None:
    """More threads than partitions; methods of messages wait; a late one raises."""
    cluster.vq("topic", "create", "jobs", "--partitions", "2")
    seen: Counter[bytes] = Counter()
    late: list[Exception] = []
    threads: set[int] = set()

    def work(message: vq.Message) -> None:
        assert isinstance(message, vq.SharedMessage)
        threads.add(threading.get_ident())
        seen[message.content] += 1
        time.sleep(0.02)
        if message.content == b"1" and message.attempts == 1:
            message.nack(delay_s=0.2)
        elif message.content == b"2" and message.attempts == 1:
            time.sleep(3)
            try:
                message.ack()
            except LeaseLost as error:
                late.append(error)
        elif message.content == b"3":
            message.extend(30)
            time.sleep(3)

    settings = {"group": "g", "model": "shared", "workers": 8, "lease_s": 2.0}
    with vq.MessageFactory(config_of(cluster)) as factory:
        with factory.create_producer() as producer:
            producer.send_batch([vq.Message("jobs", b"%d" % n, key=n) for n in range(40)])
        with factory.create_consumer(vq.ConsumerConfig(**settings)) as consumer:
            consumer.subscribe("jobs", listener=work).start()
            block_until(lambda: len(seen) == 40 and bool(late), "messages")
            block_until(
                lambda: not sum(map(OPEN, factory.admin.describe_shared_group("g").partitions)),
                "all of it done",
            )
        assert len(threads) == 8
        assert {key: n for key, n in seen.items() if n > 1} == {b"1": 2, b"2": 2}
        progress = factory.admin.describe_group("g").partitions
        assert [each.lag_bytes for each in progress] == [0, 0]
    assert b"jobs" in cluster.vq("group", "shared", "g").stdout
