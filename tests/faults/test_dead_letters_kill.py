"""`vq dlq resend`, and a broker, are killed with SIGKILL again and again: no letter goes twice."""

import asyncio
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster import ProcessCluster, process_cluster
from support.zookeeper import ZooKeeperService

from vq import aio
from vq.client.config import MessageFactoryConfig
from vq.client.copies import MessageCopies
from vq.reserved import DeliveryFailure
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

COUNT = 120
KILLS = 6


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperService) -> Iterator[ProcessCluster]:
    """Two brokers, topic ``t`` with two partitions, and a dead letter of each of its messages."""
    with process_cluster(tmp_path, zookeeper.hosts) as made:
        made.add_all("b1", "b2")
        made.vq_json("topic", "create", "t", "--partitions", "2")
        lines = b"".join(b"%d\n" % number for number in range(COUNT))
        assert made.vq("produce", "t", stdin=lines).returncode == 0
        asyncio.run(give_up_all(made))
        yield made


async def give_up_all(cluster: ProcessCluster) -> None:
    config = MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name)
    async with aio.MessageFactory(config) as factory:
        copies = MessageCopies(factory.admin.cluster, "g")
        for number in range(2):
            for message in (await factory.admin.read_range("t", number, 0)).messages():
                failure = DeliveryFailure(3, 1_764_000_000_000, "ValueError: no")
                await copies.give_up(message, failure, timeout=PROCESSES_WAIT_S)


def read_all(cluster: ProcessCluster) -> list[dict[str, object]]:
    ended = cluster.vq("consume", "t", "--json")
    assert ended.returncode == 0, ended.stderr.decode()
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_letters_are_sent_once_however_often_the_command_is_killed(
    cluster: ProcessCluster,
) -> None:
    rng = random.Random(int(os.environ.get("VQ_SEED", "5")))
    command = cluster.command("dlq", "resend", "g", "--yes", "--rate", "40")
    was_cut = 0
    for number in range(KILLS):
        child = subprocess.Popen(
            command, env=cluster.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            child.wait(0.8 + rng.random())
        except subprocess.TimeoutExpired:
            was_cut += 1
        takes_broker = number % 3 == 2
        if takes_broker:
            cluster.brokers["b1"].kill()
        child.kill()
        child.wait(PROCESSES_WAIT_S)
        if takes_broker:
            cluster.restart("b1")
    assert was_cut, "no call was cut: the test is void"
    done = cluster.vq_json("dlq", "resend", "g", "--yes", "--rate", "1000")
    assert done["homeless"] == 0
    found = read_all(cluster)
    assert len(found) == 2 * COUNT
    again = [each for each in found if "_vq.resent" in (each["headers"] or {})]  # type: ignore[operator]
    first = [each for each in found if each not in again]
    same = ("id", "content", "key", "tag", "partition")
    assert sorted([each[name] for name in same] for each in again) == sorted(
        [each[name] for name in same] for each in first
    )
    (listed,) = cluster.vq_json("dlq", "list")
    assert (listed["open"], listed["resending"], listed["resent"]) == (0, 0, COUNT)
