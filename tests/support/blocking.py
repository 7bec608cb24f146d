"""Short ways to use the blocking API of a cluster of processes."""

import itertools
import signal
from collections import defaultdict
from typing import Any

from support.cluster import ProcessCluster

import vq

NAMES = itertools.count()


def config_of(cluster: ProcessCluster, **settings: Any) -> vq.MessageFactoryConfig:
    return vq.MessageFactoryConfig(
        zookeeper=cluster.zookeeper, cluster=cluster.name, **{"session_timeout_s": 30.0, **settings}
    )


def read_all(factory: vq.MessageFactory, topic: str) -> dict[int, list[vq.Message]]:
    """Every message of a topic, by partition."""
    found: dict[int, list[vq.Message]] = defaultdict(list)
    with factory.create_consumer() as consumer:
        for placement in factory.get_partitions_for_topic(topic):
            number, offset = placement.partition, 0
            while messages := consumer.get(topic, number, offset, 1 << 20):
                found[number] += messages
                offset = messages[-1].next_offset
    return found


def contents(messages: list[vq.Message]) -> list[bytes]:
    return [message.content for message in messages]


class stopped:
    """The broker of a group stands still meanwhile."""

    def __init__(self, cluster: ProcessCluster, group: str) -> None:
        self._broker = cluster.brokers[group]

    def __enter__(self) -> None:
        self._broker.signal(signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        self._broker.signal(signal.SIGCONT)
