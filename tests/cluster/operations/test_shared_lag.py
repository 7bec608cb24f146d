"""What operators see of a shared group: its lag, its metrics, and why a message is not done."""

import pytest
from support.broker import memory_cluster
from support.client import factory_of
from support.http import samples

from vq import ConsumerConfig, Message
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.explain.partition import explain_partition
from vq.operations.groups.groups import describe_group
from vq.operations.groups.lag_metrics import lag_families
from vq.remoting.exposition import metrics_page
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_one_message_that_fails_is_a_lag_of_one_however_many_are_done_behind_it() -> None:
    done: set[bytes] = set()

    async def listener(message: Message) -> None:
        if message.content == b"0":
            raise ValueError("it fails each time")
        done.add(message.content)

    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            config = ConsumerConfig(
                group="g", model="shared", retry_backoff=(60.0, 60.0), max_deliveries=1_000
            )
            consumer = await factory.create_consumer(config)
            await consumer.subscribe("t", listener=listener).start()
            producer = await factory.create_producer()
            await producer.send_batch([Message("t", b"%d" % each) for each in range(30)])
            await until(lambda: len(done) == 29)

            client = factory._cluster
            (described,) = (await describe_group(client, "g")).partitions
            look = await look_at_groups(client, count=True)
            (looked,) = look.groups["g"].partitions
            for found in (described, looked):
                assert (found.lag_messages, found.owner) == (1, None)
                assert found.shared is not None
                assert (found.shared.low, found.shared.cursor, found.shared.waiting) == (0, 30, 1)
            page = await metrics_page(lag_families(look, cluster="c"))
            told = samples(page.body.decode())
            labels = '{group="g",partition="0",topic="t"}'
            assert told[f"vq_group_lag_messages{labels}"] == 1
            assert told[f"vq_group_shared_waiting_messages{labels}"] == 1
            assert told[f"vq_group_shared_held_messages{labels}"] == 0
            assert f"vq_group_owned{labels}" not in told

            explained = await explain_partition(client, "g", "t", 0)
            cause = explained.found
            assert cause.cause == "consumed"
            assert "1 member(s) share it: 1 message(s) are not done" in cause.text
            assert "1 have failed and come again later" in cause.text
            assert "the lowest is number 0" in cause.text
            assert cause.commands == ("vq group shared g",)
            await consumer.close()
