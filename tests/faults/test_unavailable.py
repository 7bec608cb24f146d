"""kill -9 of one broker of three, while nothing is in flight: where messages go until it is back.

Goal: messages without a key are stored at once, long before ZooKeeper ends the broker's session.
Messages with a key do what the producer's policy says. After the return every key is where it was,
and every acknowledged message is stored once.
"""

from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.faults import broker_settings, client_of, kill
from support.producers import core_of

import vq
from vq.errors import PartitionUnavailable
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow
PARTITIONS = 6
#: The session of a killed broker outlives the steps that follow the kill, also on a slow machine.
SESSION_S = 40.0


@pytest.mark.parametrize("policy", vq.OnUnavailable)
def test_a_killed_broker_delays_only_what_is_bound_to_it(
    processes: ProcessCluster, tmp_path: Path, policy: vq.OnUnavailable
) -> None:
    for group in ("b1", "b2", "b3"):
        settings = broker_settings(tmp_path / f"{group}.toml", session_timeout_s=SESSION_S)
        processes.add(group, *settings)
    processes.vq_json("topic", "create", "t", "--partitions", str(PARTITIONS))
    config = vq.ProducerConfig(on_unavailable=policy, send_timeout_s=100)
    with client_of(processes) as factory, factory.create_producer(config) as producer:

        def send(key: int | None) -> vq.SendFuture:
            sent.append(b"%d" % len(sent))
            return producer.send_async(vq.Message("t", sent[-1], key=key))

        sent: list[bytes] = []
        keys = range(PARTITIONS)
        assert [send(key).result().partition for key in keys] == list(keys)
        cluster = core_of(producer).cluster
        routes = cluster.routes.topic("t")
        away = [each.partition for each in routes.partitions if each.writer_group == "b2"]
        assert len(away) == PARTITIONS // 3
        assert kill(processes.brokers["b2"])
        address = cluster.routes.masters["b2"].address
        block_until(lambda: cluster.connections.live(address) is None, "the cut connection")

        keyed = [send(key) for key in keys]
        block_until(lambda: address in cluster.unreachable, "an attempt to connect")
        spread = [send(None) for _ in range(60)]
        assert not {future.result(60).partition for future in spread} & set(away)
        results = [producer.send_sync(vq.Message("t", b"sync")) for _ in range(12)]
        assert not {result.partition for result in results} & set(away)
        for key in keys:
            if key not in away:
                assert keyed[key].result(60).partition == key
        refused: set[int] = set()
        if policy is not vq.OnUnavailable.WAIT:
            for key in away:
                error = keyed[key].exception(60)
                if policy is vq.OnUnavailable.ANY:
                    assert keyed[key].result().diverted
                else:
                    assert type(error) is PartitionUnavailable
                    refused.add(PARTITIONS + key)
        else:
            assert not any(keyed[key].done() for key in away)
        assert "b2" in cluster.routes.masters, "ZooKeeper was to know nothing yet"

        processes.restart("b2")
        if policy is vq.OnUnavailable.WAIT:
            assert [keyed[key].result().partition for key in away] == away
        block_until(lambda: address not in cluster.unreachable, "the return of the broker")
        assert [send(key).result().partition for key in keys] == list(keys)
        assert {send(None).result().partition for _ in range(60)} == set(keys)

        consumer = factory.create_consumer()
        stored: list[bytes] = []
        for partition in range(PARTITIONS):
            offset = 0
            while messages := consumer.get("t", partition, offset, 1 << 20):
                stored += [message.content for message in messages]
                offset = messages[-1].next_offset
        expected = [content for number, content in enumerate(sent) if number not in refused]
        assert sorted(stored) == sorted([*expected, *[b"sync"] * 12])
