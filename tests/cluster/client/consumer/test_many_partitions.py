"""One consumer of thousands of partitions of one broker, most of them idle."""

import asyncio

import pytest
from support.broker import memory_cluster
from support.client import factory_of

from vq.broker.serving.fetched_partition import FetchedPartition
from vq.broker.serving.fetching import ServedSessions
from vq.client.config import ConsumerConfig
from vq.model import Message
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

PARTITIONS = 2_048


@pytest.mark.slow
async def test_a_member_of_two_thousand_partitions_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds them all, gets what arrives in any of them, and its factory sends as before.

    More reads could not even wait on a connection, and with one for each partition no send would
    have left it. One request waits for all, and looks at no partition but those that moved.
    """
    requests, looks = [], []
    fetch, look = ServedSessions.fetch, FetchedPartition.look

    def noted_fetch(self, session, request_id, header):  # type: ignore[no-untyped-def]
        requests.append(len(header.partitions))
        fetch(self, session, request_id, header)

    def noted_look(self: FetchedPartition) -> None:
        looks.append(self.handle)
        look(self)

    monkeypatch.setattr(ServedSessions, "fetch", noted_fetch)
    monkeypatch.setattr(FetchedPartition, "look", noted_look)
    async with memory_cluster() as cluster:
        node = await cluster.start(refresh_interval_s=60.0)
        await cluster.create_topic("t", partitions=PARTITIONS)
        async with factory_of(cluster, session_timeout_s=20.0) as factory:
            config = ConsumerConfig(group="g", max_wait_s=0.2, commit_interval_s=60.0)
            consumer = (await factory.create_consumer(config)).subscribe("t")
            received: set[bytes] = set()

            async def receive() -> None:
                async for message in consumer:
                    received.add(message.content)

            receiving = asyncio.create_task(receive())
            await until(lambda: len(consumer.assignment()) == PARTITIONS)
            channels = node.parts.partitions.channels.values()
            await until(lambda: sum(bool(each.parked) for each in channels) == PARTITIONS)
            assert node.parts.server.reads_waiting == 1

            requests.clear()
            looks.clear()
            await until(lambda: len(requests) >= 5)  # the wait ends, and begins again
            assert set(requests) == {0}
            assert looks == []

            producer = await factory.create_producer()
            sends = [producer.send(Message("t", b"%d" % n, key=f"k{n}")) for n in range(500)]
            await asyncio.wait_for(asyncio.gather(*sends), WAIT_S)
            await until(lambda: len(received) == 500)
            assert len(set(looks)) < 500
            await producer.close()
            receiving.cancel()
            await asyncio.wait([receiving])
            await consumer.close()
