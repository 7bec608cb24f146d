"""The scenario of metadata that grow: empty topics, and a group that shares many partitions."""

import contextlib
import statistics
import subprocess
import sys
import time
from typing import Final

from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure

#: Partitions in the cluster at which metadata are measured, and of each topic.
METADATA_PARTITIONS: Final = (100, 1_000, 2_000, 5_000, 10_000, 20_000)
_TOPIC_PARTITIONS: Final = 20
#: Topics made last whose median counts.
_TOPICS_TIMED: Final = 20
#: Partitions and members of the group.
GROUP_PARTITIONS: Final = 2_000
GROUP_MEMBERS: Final = 4


def metadata(context: Context) -> Rounds:
    """Make topics of 20 partitions until the cluster has 20 000; list them, start the broker.

    The partitions have no messages. Commands are timed from outside, with the interpreter's start.
    Then a group of four members: until they share 2 000 partitions, and until three of them have
    taken over what the fourth had when it leaves.
    """
    last = context.pick(METADATA_PARTITIONS[-1], METADATA_PARTITIONS[1])
    with context.cluster() as cluster:
        taken: list[float] = []
        first_s = 0.0
        for level in (each for each in METADATA_PARTITIONS if each <= last):
            count = level // _TOPIC_PARTITIONS - len(taken)
            taken += cluster.run(
                "make_topics", first=len(taken), count=count, partitions=_TOPIC_PARTITIONS
            )["seconds"]
            made_s = statistics.median(taken[-_TOPICS_TIMED:])
            first_s = first_s or made_s
            at = f"at {level} partitions"
            yield [
                Figure(f"make a topic, {at}", made_s * 1e3, "ms", first_s * 1e3, 2 * first_s * 1e3),
                Figure(f"vq topic list, {at}", _command_s(cluster, "topic", "list"), "s"),
                Figure(f"vq cluster status, {at}", _command_s(cluster, "cluster", "status"), "s"),
                Figure(f"start of a broker, {at}", _start_s(cluster), "s"),
            ]
        yield [Figure(f"make {len(taken)} topics", sum(taken), "s")]
    with context.cluster() as cluster:
        partitions = context.pick(GROUP_PARTITIONS, 200)
        for _ in range(context.rounds):
            topic = cluster.topic(partitions)
            balanced_s, handed_over_s = _shared(cluster, topic, partitions)
            cluster.drop(topic)
            what = f"{GROUP_MEMBERS} members, {partitions} partitions"
            yield [
                Figure(f"{what}: balanced", balanced_s, "s"),
                Figure(f"{what}: one leaves", handed_over_s, "s"),
            ]


def _command_s(cluster: Cluster, *words: str) -> float:
    """Return the median time of three runs of a command."""
    options = ("--zookeeper", cluster.zookeeper, "--cluster", cluster.client["cluster"], "--json")
    times = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "vq.cli.main", *words, *options],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        times.append(time.monotonic() - begin)
    return statistics.median(times)


def _start_s(cluster: Cluster) -> float:
    """Kill the broker and return the time from its new start until it leads its group again."""
    cluster.broker.kill()
    begin = time.monotonic()
    cluster.broker.start()
    cluster.broker.wait_ready(timeout_s=300.0)
    return time.monotonic() - begin


def _shared(cluster: Cluster, topic: str, partitions: int) -> tuple[float, float]:
    """Return how long a new group takes to be balanced, and to take over one member's share."""
    with contextlib.ExitStack() as stack:
        *staying, leaving = [
            stack.enter_context(
                cluster.worker(
                    "be_member", topic=topic, group=topic, partitions=partitions, members=counts
                )
            )
            for counts in [[GROUP_MEMBERS, GROUP_MEMBERS - 1]] * (GROUP_MEMBERS - 1)
            + [[GROUP_MEMBERS]]
        ]
        members = [*staying, leaving]
        for each in members:
            each.wait_ready()
        began = time.monotonic()
        for each in members:
            each.go()
        for each in members:
            each.wait_ready()
        left = time.monotonic()
        for each in (leaving, *staying):
            each.go()
        for each in staying:
            each.wait_ready().go()
        times = [each.result()["times"] for each in members]
    balanced = max(own[0] for own in times)
    handed_over = max(own[1] for own in times[:-1])
    return balanced - began, handed_over - left
