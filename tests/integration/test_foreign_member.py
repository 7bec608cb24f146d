"""A client that was written from the pages alone shares groups of each mode with those of vq."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.blocking import NAMES, config_of
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[1] / "support" / "foreign_member.py"
CONTENTS = ["0", "slow-1", "2", "bad", "4", "slow-5", "6"]


def handled_by(factory: vq.MessageFactory, topic: str, group: str, **settings: Any) -> list[str]:
    """Return what a member of vq gets that comes behind the foreign one, but for ``end``."""
    handled: list[str] = []
    consumer = factory.create_consumer(vq.ConsumerConfig(group=group, **settings))
    consumer.subscribe(topic, listener=lambda message: handled.append(message.content.decode()))
    with consumer:
        consumer.start()
        block_until(lambda: handled.count("end") == 4)
    return sorted(each for each in handled if each != "end")


def test_a_foreign_member_of_each_mode_leaves_what_members_of_vq_go_on_with(
    cluster: ProcessCluster,
) -> None:
    """Offsets, what is handled ahead, and the retry topic that it made and went through."""
    topic = f"foreign-{next(NAMES)}"
    create_topic(cluster, topic, partitions=2)
    with vq.MessageFactory(config_of(cluster)) as factory:
        with factory.create_producer() as producer:
            for each in CONTENTS:
                key = "slow" if each.startswith("slow") else each
                producer.send_sync(vq.Message(topic, each.encode(), "tag", key, {"n": each}))
        ran = subprocess.run(
            [sys.executable, str(PROGRAM), cluster.zookeeper, cluster.name, topic],
            capture_output=True,
            text=True,
            timeout=PROCESSES_WAIT_S,
            env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        )
        assert ran.returncode == 0, ran.stderr
        found: dict[str, list[str]] = {}
        for line in ran.stdout.splitlines():
            found |= json.loads(line)
        assert sorted(found["orderly"]) == sorted(CONTENTS)
        assert sorted(found["concurrent"]) == sorted(CONTENTS)
        assert found["concurrent"][-1] == "bad", "from the retry topic"
        assert sorted(found["broadcasting"]) == sorted(CONTENTS)
        slow = [each for each in CONTENTS if each.startswith("slow")]
        assert sorted(found["keyed"]) == sorted(set(CONTENTS) - set(slow))
        assert set(factory.admin.describe_group(f"{topic}-concurrent").topics) == {
            topic,
            f"_vq.retry.{topic}-concurrent",
        }
        with factory.create_producer() as producer:
            for key in ("0", "1", "2", "3"):
                producer.send_sync(vq.Message(topic, b"end", key=key))
        assert handled_by(factory, topic, f"{topic}-orderly") == []
        assert handled_by(factory, topic, f"{topic}-keyed", mode="keyed") == slow
        assert handled_by(factory, topic, f"{topic}-concurrent", mode="concurrent") == []
