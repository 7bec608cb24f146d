"""A cluster of two brokers, a factory and a topic for the blocking API."""

import threading
from collections.abc import Iterator

import pytest
from support.blocking import NAMES, config_of
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq.testing.waiting import block_until


@pytest.fixture
def factory(cluster: ProcessCluster) -> Iterator[vq.MessageFactory]:
    before = threading.active_count()
    with vq.MessageFactory(config_of(cluster)) as factory:
        yield factory
    block_until(lambda: threading.active_count() <= before)


@pytest.fixture
def topic(cluster: ProcessCluster) -> str:
    """A topic of four partitions, made just now."""
    name = f"topic-{next(NAMES)}"
    create_topic(cluster, name, partitions=4)
    return name
