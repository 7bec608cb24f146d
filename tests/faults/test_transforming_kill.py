"""Members that consume, transform and produce are killed: each input has one output."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.blocking import read_all
from support.cluster import ProcessCluster
from support.faults import make_rng

import vq
from vq.testing.waiting import WAIT_S, block_until

#: Sent before each kill.
MESSAGES = 60
#: Where members die: around the decision, and around the requests to the journal.
POINTS = [
    (function, when)
    for function in (
        "vq.coordination.groups.zookeeper_offsets:ZooKeeperOffsets.commit_with",
        "vq.client.producer.transaction.in_journal:JournalRequests.ask",
    )
    for when in ("before", "after")
]


@pytest.mark.slow
def test_each_input_has_one_output_across_kills(processes: ProcessCluster) -> None:
    """SIGKILL before and after the decision, and the requests to the journal."""
    _transform(processes, listens=False, kills=len(POINTS))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("listens", [False, True])
def test_each_input_has_one_output_across_many_kills(
    processes: ProcessCluster, listens: bool
) -> None:
    """The same, for longer and at any moment, also with listeners that run beside each other."""
    _transform(processes, listens=listens, kills=30)


def _transform(processes: ProcessCluster, *, listens: bool, kills: int) -> None:
    rng = make_rng()
    processes.add("b1")
    processes.vq("topic", "create", "t", "--partitions", "2")
    processes.vq("topic", "create", "out", "--partitions", "2")
    sent: list[bytes] = []
    members: list[subprocess.Popen[bytes]] = []
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:

        def stored() -> list[bytes]:
            found = read_all(factory, "out").values()
            return [each.content for messages in found for each in messages]

        def send() -> None:
            more = [b"%d" % n for n in range(len(sent), len(sent) + MESSAGES)]
            producer.send_batch([vq.Message("t", each, key=each) for each in more])
            sent.extend(more)

        try:
            for kill in range(kills):
                send()
                function, when = POINTS[kill % len(POINTS)]
                member = _member(processes, listens, f"{function}:{when}:{rng.randrange(1, 5)}")
                members.append(member)
                assert member.wait(WAIT_S) == -signal.SIGKILL
                if kill >= len(POINTS):  # and one at any moment
                    send()
                    members.append(_member(processes, listens))
                    some = len(sent) - rng.randrange(MESSAGES)
                    block_until(lambda n=some: len(stored()) >= n, f"{some} outputs")
                    members[-1].kill()
            members.append(_member(processes, listens))
            block_until(lambda: len(stored()) >= len(sent), "all outputs")
        finally:
            for each in members:
                each.kill()
                each.wait()
        found = stored()
        assert not {text: n for text, n in Counter(found).items() if n > 1}
        assert sorted(found) == sorted(sent)


def _member(
    processes: ProcessCluster, listens: bool, dies_at: str = ""
) -> "subprocess.Popen[bytes]":
    where = [processes.zookeeper, processes.name, "g", "t", "out", str(os.getpid())]
    program = ["support.transforming_process", *where, "yes" if listens else "no"]
    tests = Path(__file__).parent.parent
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", *(["support.killed", dies_at] if dies_at else []), *program],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
