"""A consumer that cannot reach ZooKeeper for longer than its session lives.

    consumer ──▶ proxy ──✗─▶ ZooKeeper       consumer ──▶ broker (reachable all the time)

Goal: the only member of a group, which lives on, gets no message twice.
"""

import pytest
from support.blocking import NAMES, config_of
from support.chaos_proxy import ChaosProxy
from support.cluster import ProcessCluster
from support.zookeeper import admin

import vq
from vq.model import Address
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow


def test_no_message_comes_twice_after_an_outage_longer_than_the_session(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    group, seen = f"group-{next(NAMES)}", []
    producer = factory.create_producer()
    with ChaosProxy(Address.parse(cluster.zookeeper.split(",")[0])) as link:
        settings = config_of(cluster, session_timeout_s=4.0)
        reach = vq.MessageFactoryConfig(
            zookeeper=str(link.address),
            cluster=settings.cluster,
            session_timeout_s=settings.session_timeout_s,
        )
        with vq.MessageFactory(reach) as others:
            consumer = others.create_consumer(
                vq.ConsumerConfig(group=group, commit_interval_s=600.0, max_wait_s=0.2)
            )
            consumer.subscribe(topic, 1 << 20, lambda message: seen.append(message.content))
            consumer.start()
            for number in range(100):
                producer.send_async(vq.Message(topic, b"%d" % number, key=str(number)))
            block_until(lambda: len(seen) == 100, timeout_s=PROCESSES_WAIT_S)
            link.refuse()
            link.cut_now()
            members = f"/vq/{cluster.name}/consumers/{group}/members"
            with admin(cluster.zookeeper) as zookeeper:
                block_until(
                    lambda: zookeeper.get_children(members) == [], timeout_s=PROCESSES_WAIT_S
                )
            link.heal()
            for number in range(100, 200):
                producer.send_async(vq.Message(topic, b"%d" % number, key=str(number)))
            block_until(lambda: len(seen) >= 200, timeout_s=PROCESSES_WAIT_S)
    assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
