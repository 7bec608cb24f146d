"""A second node of a group copies the logs of the first: real processes, real disks."""

import contextlib
import json
import signal
from dataclasses import replace
from pathlib import Path

from support.cluster import ForkedBroker, ProcessCluster
from support.raw_client import RawClient, message

import vq
from vq.devtools.processes import BrokerChild
from vq.testing.waiting import PROCESSES_WAIT_S, block_until


def add_copy(cluster: ProcessCluster) -> BrokerChild:
    """Start node n2 of group b1, with a data directory of its own."""
    spec = replace(cluster.spec("b1", node="n2"), data=cluster.directory / "b1-n2")
    return cluster.run(ForkedBroker(spec), name="b1-n2")


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
    found: int | None = rows["n2"]["lag_bytes"]
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
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    master.kill()
    block_until(lambda: leader(processes) == "n2", "n2 does not lead")
    send(copy, 900, 300)
    master.start()
    master.wait_ready(PROCESSES_WAIT_S)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n1 is not in sync")
    assert blocks(copy.spec.data) == blocks(master.spec.data)
    assert processes.vq("cluster", "switch", "b1", "--to", "n1").returncode == 0
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    rows = {row["node"]: row for row in processes.vq_json("cluster", "status")}
    assert [(rows[n]["role"], rows[n]["in_sync"]) for n in ("n1", "n2")] == [
        ("master", True),
        ("slave", True),
    ]
    assert [rows[n]["pid"] for n in ("n1", "n2")] == [master.pid, copy.pid]
    assert [(rows[n]["host"], rows[n]["epoch"]) for n in ("n1", "n2")] == [("127.0.0.1", 3)] * 2
    assert (rows["n2"]["lag_bytes"], rows["n2"]["lag_s"], rows["n2"]["unsafe"]) == (0, 0.0, [])
    copy.stop()
    block_until(lambda: "n2 was in sync and does not run" in said(processes), "it is not missed")
    assert processes.vq("topic", "create", "u", "--min-insync", "2").returncode == 0
    block_until(lambda: "u (2)" in said(processes), "nobody says that it refuses messages")
    assert processes.vq("topic", "alter", "u", "--min-insync", "1").returncode == 0
    assert processes.vq("broker", "remove", "b1/n2", "--yes").returncode == 0
    block_until(lambda: said(processes) == "", "something is still unsafe")
    refused = processes.vq("topic", "create", "v", "--min-insync", "2")
    assert refused.returncode == 1
    assert "b1 has 1 node(s), and the topic's min_insync is 2" in refused.stderr.decode()
    refused = processes.vq("topic", "alter", "u", "--min-insync", "2")
    assert refused.returncode == 2
    assert "group 'b1' has 1 node(s), and the topic's min_insync is 2" in refused.stderr.decode()


def test_the_copy_takes_over_from_a_master_that_is_killed(processes: ProcessCluster) -> None:
    """Under load: nothing acknowledged is lost, doubled or reordered; the old master follows."""
    first = processes.add("b1")
    assert processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    second = add_copy(processes)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    sent: list[list[int]] = [[] for _ in range(4)]
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        number = 100
        for master in (first, second):
            for _ in range(200):
                number += 1
                sent[producer.send_sync(vq.Message("t", b"%d" % number)).partition].append(number)
            futures = [
                producer.send_async(vq.Message("t", b"%d" % (number + 1 + each)))
                for each in range(500)
            ]
            number += 500
            master.kill()
            for each, future in enumerate(futures):
                sent[future.result().partition].append(number - 499 + each)
            number += 1
            sent[producer.send_sync(vq.Message("t", b"%d" % number)).partition].append(number)
            master.start()
            master.wait_ready(PROCESSES_WAIT_S)
            block_until(lambda: in_sync(processes) == {"n1", "n2"}, "not in sync again")
        found = read_all(factory)
    assert found == sent
    block_until(lambda: blocks(first.spec.data) == blocks(second.spec.data), "not the same bytes")


def test_a_take_over_tells_what_it_lost_of_an_async_topic(processes: ProcessCluster) -> None:
    """The master had acknowledged it alone. The producer goes on, and nobody has read it."""
    first = processes.add("b1")
    options = ("--partitions", "1", "--replication", "async")
    assert processes.vq("topic", "create", "t", *options).returncode == 0
    second = add_copy(processes)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    config = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:

        def send_some(begin: int, end: int) -> list[int]:
            acknowledged = []
            for number in range(begin, end):
                with contextlib.suppress(vq.OutcomeUnknown):  # sent to the one that was killed
                    producer.send_sync(vq.Message("t", b"%d" % number), timeout=30)
                    acknowledged.append(number)
            return acknowledged

        kept = send_some(100, 150)
        block_until(lambda: behind(processes) == 0, "n2 is behind")
        second.signal(signal.SIGSTOP)
        alone = send_some(150, 180)
        first.kill()
        second.signal(signal.SIGCONT)
        later = send_some(180, 200)
        block_until(lambda: read_all(factory, 1)[0][-1:] == later[-1:], "n2 waits for n1")
        (found,) = read_all(factory, 1)
    lost = sorted({*alone} - {*found})
    assert found == kept + [number for number in alone if number not in lost] + later
    assert len(kept + alone + later) >= 99
    assert len(lost) >= len(alone) // 2  # a little was under way to the one that stood still
    first.start()
    first.wait_ready(PROCESSES_WAIT_S)
    told = f"lost up to {len(lost)} acknowledged messages of partition t-0"
    block_until(lambda: told in problems_of(processes)["n1"], "n1 does not tell the loss")
    block_until(lambda: blocks(first.spec.data) == blocks(second.spec.data), "not the same bytes")


def problems_of(cluster: ProcessCluster) -> dict[str, str]:
    rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
    return {row["node"]: " ".join(row["problems"]) for row in rows}


def test_an_operator_has_a_node_lead_when_all_in_sync_are_lost(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """It is refused before, written down, and what is cut can be read and deleted afterwards."""
    config = tmp_path / "b1.toml"
    config.write_text("[broker]\nsession_timeout_s = 2.0\n")
    first = processes.add("b1", "--config", str(config))
    assert processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    second = add_copy(processes)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    second.stop()
    block_until(lambda: in_sync(processes) == {"n1"}, "n2 has not left")
    send(first, 0, 40)
    first.kill()
    second.start()
    second.wait_ready(PROCESSES_WAIT_S)
    unclean = ("cluster", "unclean", "b1", "--node", "n2")
    block_until(
        lambda: b"add --yes" in processes.vq(*unclean, "--topic", "t").stderr,
        "the session of n1 has not ended",
    )
    refused = processes.vq(*unclean, "--yes")
    assert (refused.returncode, b"missing: t" in refused.stderr) == (2, True)
    assert processes.vq_json(*unclean, "--topic", "t", "--yes")["done"]
    block_until(lambda: "n1 was in sync and does not run" in said(processes), "n2 does not lead")
    assert "had n2 lead after epoch 1" in processes.vq("cluster", "status").stderr.decode()
    send(second, 100, 8)
    first.start()
    first.wait_ready(PROCESSES_WAIT_S)
    block_until(lambda: len(processes.vq_json("cluster", "diverged")) == 4, "n1 cuts nothing")
    cut = processes.vq_json("cluster", "diverged")
    assert sum(each["messages"] for each in cut) == 40
    name = cut[0]["file"]
    printed = processes.vq("cluster", "diverged", name).stdout.split()
    assert printed == [b"%d" % number * 20 for number in range(0, 40, 4)]
    delete = ("cluster", "diverged", name, "--delete")
    assert processes.vq_json(*delete)["done"] is False
    assert processes.vq_json(*delete, "--yes")["done"] is True
    assert len(processes.vq_json("cluster", "diverged")) == 3
    block_until(lambda: blocks(first.spec.data) == blocks(second.spec.data), "not the same bytes")


def test_what_a_start_took_off_the_end_is_copied_from_the_other_node(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """kill -9 of both, a flipped bit in the master's last batch, which was acknowledged.

    The old master does not lead before the other one is there, and nothing is lost.
    """
    config = tmp_path / "b1.toml"
    config.write_text("[broker]\nsession_timeout_s = 2.0\n")
    first = processes.add("b1", "--config", str(config))
    assert processes.vq("topic", "create", "t").returncode == 0
    second = add_copy(processes)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    with RawClient(first.spec.address) as client:
        for number in range(20):
            client.put("t", 0, [message(b"%d" % number * 20, number + 1)])
    right = blocks(first.spec.data)
    second.kill()
    first.kill()
    (block,) = (first.spec.data / "t" / "0").glob("*.block")
    content = bytearray(block.read_bytes())
    content[content.index(b"19" * 20)] ^= 1
    block.write_bytes(content)
    first.start()
    waits = "may lack acknowledged messages; it waits for n2"
    block_until(lambda: waits in first.spec.log.read_text(), "n1 does not wait")
    assert blocks(first.spec.data) != right
    second.start()
    second.wait_ready(PROCESSES_WAIT_S)
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n1 is not in sync")
    assert leader(processes) == "n2"
    assert blocks(first.spec.data) == blocks(second.spec.data) == right
    (kept,) = processes.vq_json("cluster", "diverged")
    assert (kept["node"], kept["at_start"], kept["messages"]) == ("n1", True, 1)
    assert problems_of(processes) == {"n1": "", "n2": ""}, "it is back"


def said(cluster: ProcessCluster) -> str:
    """Return what `vq cluster status` says is wrong; it ends with 1 then."""
    ended = cluster.vq("cluster", "status")
    return ended.stderr.decode() if ended.returncode == 1 else ""


def in_sync(cluster: ProcessCluster) -> set[str]:
    rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
    return {row["node"] for row in rows if row["in_sync"]}


def leader(cluster: ProcessCluster) -> str:
    rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
    return next((row["node"] for row in rows if row["role"] == "master"), "")


def read_all(factory: vq.MessageFactory, partitions: int = 4) -> list[list[int]]:
    """Return the numbers in each partition of ``t``, in order."""
    found = []
    with factory.create_consumer() as consumer:
        for partition in range(partitions):
            numbers, bounds = [], consumer.get_bounds("t", partition)
            offset = bounds.earliest
            while offset < bounds.latest:
                for each in consumer.get("t", partition, offset, 1 << 20):
                    numbers.append(int(each.content[:20]))
                    offset = each.next_offset
            found.append(numbers)
    return found


def test_a_consumer_reads_from_the_copy_in_its_rack(processes: ProcessCluster) -> None:
    """While the copy stands still, and after it was killed, it gets all messages nevertheless."""
    processes.add("b1", "--rack", "red")
    assert processes.vq("topic", "create", "t", "--partitions", "4").returncode == 0
    spec = processes.spec("b1", "--rack", "blue", node="n2")
    copy = processes.run(
        ForkedBroker(replace(spec, data=processes.directory / "b1-n2")), name="b1-n2"
    )
    block_until(lambda: in_sync(processes) == {"n1", "n2"}, "n2 is not in sync")
    rows = processes.vq_json("cluster", "status")
    assert {row["node"]: row["rack"] for row in rows} == {"n1": "red", "n2": "blue"}
    near = ("--read-from", "nearest", "--rack", "blue")
    send(processes.brokers["b1"], 0, 200)
    with RawClient(copy.spec.address) as client:
        before = client.status().bytes_out
        consumed(processes, 200, *near)
        assert client.status().bytes_out > before
    copy.signal(signal.SIGSTOP)
    send(processes.brokers["b1"], 200, 200)
    consumed(processes, 200, *near)
    copy.signal(signal.SIGCONT)
    copy.kill()
    send(processes.brokers["b1"], 400, 200)
    consumed(processes, 200, *near)


def consumed(cluster: ProcessCluster, count: int, *options: str) -> None:
    """Have the group read so many messages that it has not read."""
    limits = ("--max", str(count), "--timeout", str(PROCESSES_WAIT_S), "--json")
    ended = cluster.vq("consume", "t", "--group", "g", *options, *limits)
    found = [json.loads(line)["offset"] for line in ended.stdout.splitlines()]
    assert (ended.returncode, len(found)) == (0, count), ended.stderr.decode()
