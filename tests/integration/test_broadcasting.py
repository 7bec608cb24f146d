"""A broadcasting member that is killed goes on where its file says, on real brokers.

sender ──▶ radio-N.a, radio-N.b        the second one is created while the members run
             │
             ├──▶ m0   killed (kill -9) again and again, and started again
             └──▶ m1   undisturbed
"""

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from support.blocking import NAMES, config_of
from support.cluster import ProcessCluster
from support.topics import create_topic

import vq
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

TESTS = Path(__file__).parents[1]
MESSAGES = 1_500


class Process:
    """A member in a process of its own, and what it handled."""

    def __init__(self, cluster: ProcessCluster, group: str, member: str, files: Path) -> None:
        self.handled: list[str] = []
        paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "support.broadcast_process"),
                *(cluster.zookeeper, cluster.name, group, member, f"{group}.*", str(os.getpid())),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "VQ_OFFSETS_DIR": str(files),
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.handled.append(line.strip())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PROCESSES_WAIT_S)
        self._reader.join(PROCESSES_WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def test_a_killed_member_misses_nothing_and_begins_at_its_last_commit(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """And the other one gets each message once."""
    group = f"radio-{next(NAMES)}"
    create_topic(cluster, f"{group}.a", partitions=2)
    whole = Process(cluster, group, "m1", tmp_path)
    lives = [Process(cluster, group, "m0", tmp_path)]
    try:
        with (
            vq.MessageFactory(config_of(cluster)) as factory,
            factory.create_producer() as producer,
        ):
            for topic in (f"{group}.a", f"{group}.b"):
                if topic.endswith("b"):
                    create_topic(cluster, topic, partitions=2)
                for number in range(MESSAGES // 2):
                    producer.send_async(vq.Message(topic, b"%d" % number))
        every = {f"{group}.{name} {number}" for name in "ab" for number in range(MESSAGES // 2)}
        for share in (0.3, 0.7):
            block_until(
                lambda share=share: (
                    len({each for life in lives for each in life.handled}) > share * MESSAGES
                ),
            )
            lives[-1].kill()
            lives.append(Process(cluster, group, "m0", tmp_path))
        block_until(
            lambda: {each for life in lives for each in life.handled} == every,
        )
        block_until(lambda: len(whole.handled) >= MESSAGES)
    finally:
        for process in (whole, *lives):
            process.kill()
    assert Counter(whole.handled) == dict.fromkeys(every, 1)
    again = Counter(each for life in lives for each in life.handled)
    assert sum(again.values()) - MESSAGES < MESSAGES / 2, "only what was not committed"
