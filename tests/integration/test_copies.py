"""A second node of a group copies the logs of the first: real processes, real disks."""

import json
from dataclasses import replace
from pathlib import Path

from support.cluster import ProcessCluster
from support.raw_client import RawClient, message
from support.waiting import PROCESSES_WAIT_S, block_until

from vq.devtools.processes import BrokerChild


def add_copy(cluster: ProcessCluster) -> BrokerChild:
    """Start node n2 of group b1, with a data directory of its own."""
    spec = replace(cluster.spec("b1", node="n2"), data=cluster.directory / "b1-n2")
    return cluster.run(BrokerChild(spec), name="b1-n2")


def blocks(data: Path) -> dict[str, bytes]:
    """Return the blocks of topic ``t``, without the space taken ahead."""
    return {
        str(path.relative_to(data)): path.read_bytes().rstrip(b"\0")
        for path in sorted((data / "t").glob("*/*.block"))
    }


def behind(cluster: ProcessCluster) -> int | None:
    """Return what n2 lacks; None while the command says that something is wrong."""
    ended = cluster.vq("cluster", "status", "--json")
    rows = {row["node"]: row for row in json.loads(ended.stdout)}
    found: int | None = rows["n2"]["bytes_behind"]
    return None if ended.returncode else found


def send(broker: BrokerChild, first: int, count: int) -> None:
    with RawClient(broker.spec.address) as client:
        for number in range(first, first + count):
            client.put("t", number % 4, [message(b"%d" % number * 20, number + 1)])


def test_a_second_node_has_the_same_bytes(processes: ProcessCluster) -> None:
    """Also after a kill of each of them; `vq cluster status` shows what it is and lacks."""
    master = processes.add("b1")
    assert processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    send(master, 0, 300)
    copy = add_copy(processes)
    send(master, 300, 300)
    block_until(lambda: behind(processes) == 0, "n2 is behind")
    assert blocks(copy.spec.data) == blocks(master.spec.data) != {}
    copy.kill()
    send(master, 600, 300)
    copy.start()
    copy.wait_ready(PROCESSES_WAIT_S)
    block_until(lambda: behind(processes) == 0, "n2 is behind")
    master.kill()
    master.start()
    master.wait_ready(PROCESSES_WAIT_S)
    send(master, 900, 300)
    block_until(lambda: behind(processes) == 0, "n2 is behind")
    assert blocks(copy.spec.data) == blocks(master.spec.data)
    rows = {row["node"]: row for row in processes.vq_json("cluster", "status")}
    assert [(rows[n]["role"], rows[n]["in_sync"]) for n in ("n1", "n2")] == [
        ("master", True),
        ("slave", False),
    ]
    told = processes.vq("cluster", "status").stderr.decode()
    assert "b1/n2 copies the logs of n1 and is 0 B behind; it does not take over" in told
