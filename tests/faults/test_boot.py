"""Starts that must work, and starts that must be refused with a reason.

Goal: a broker that was killed is back before its old session ends, registered once; a process that
must not run here (same directory, other directory, other cluster, newer format, taken port) ends
with exit code 1 and a message that says what to do, and harms nobody.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster import VQ, ForkedBroker, ProcessCluster
from support.command_server import command_server
from support.faults import (
    LONG,
    Sender,
    broker_settings,
    client_of,
    judge_run,
    kill,
    read_back,
    times,
)
from support.judge import Fault
from support.zookeeper import admin

from vq.coordination.brokers.registry import REGISTER_TIMEOUT_S
from vq.devtools.processes import BrokerSpec
from vq.model import Address
from vq.remoting.ports import free_port
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow

SESSION_S = 60.0
START_S = PROCESSES_WAIT_S


def start_and_end(spec: BrokerSpec) -> tuple[int, str]:
    """Start a broker that is expected to refuse; return exit code and what it said."""
    server = command_server(os.environ)
    if server is not None:
        ended = server.run(spec.command()[len(VQ) :], b"", START_S, os.environ)
    else:
        ended = subprocess.run(
            spec.command(), input=b"", capture_output=True, timeout=START_S, check=False
        )
    return ended.returncode, ended.stderr.decode()


def elsewhere(spec: BrokerSpec, **changes: object) -> BrokerSpec:
    """The same broker on another port, so that the port is not what is refused."""
    return replace(spec, address=Address("127.0.0.1", free_port()), **changes)


def test_a_killed_broker_is_back_before_its_old_session_ends(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """The node of the dead process is taken away at once, never adopted, never doubled."""
    restarts = times(3, 20)
    killed = 0
    broker = processes.add(
        "b1", *broker_settings(tmp_path / "b1.toml", session_timeout_s=SESSION_S)
    )
    processes.vq_json("topic", "create", "t")
    path = f"/vq/{processes.name}/brokers/b1"
    seen: list[tuple[int, int, int]] = []
    with client_of(processes) as factory, admin(processes.zookeeper) as zookeeper:

        def look() -> None:
            (name,) = zookeeper.get_children(f"{path}/nodes")
            _, stat = zookeeper.get(f"{path}/nodes/{name}")
            state = json.loads(zookeeper.get(f"{path}/state")[0])
            assert state["incarnations"] == {"n1": stat.czxid}
            seen.append((stat.ephemeralOwner, stat.czxid, state["epoch"]))

        with Sender(factory, "t", tmp_path / "h" / "s0.jsonl") as sender:
            look()
            for _ in range(restarts):
                sender.wait_sent(50)
                killed += kill(broker)
                begin = time.monotonic()
                processes.restart("b1")
                sender.wait_sent(1)
                took_s = time.monotonic() - begin
                assert took_s < SESSION_S, "it waited for the old session"
                look()
            sender.finish()
        log = read_back(factory, "t")
    owners, incarnations, epochs = zip(*seen, strict=True)
    assert len(set(owners)) == len(seen), "every process has a session of its own"
    assert list(incarnations) == sorted(set(incarnations))
    assert list(epochs) == list(range(epochs[0], epochs[0] + len(seen)))
    fault = Fault("kill -9", killed, strikes=restarts)
    judge_run(tmp_path / "h", log, fault, acknowledged_min=50)


def test_a_second_process_on_one_directory_is_refused(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """It ends at once with code 1 and names the directory and the process that has it."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    attempts = times(2, 20)
    codes = []
    with client_of(processes) as factory:
        with Sender(factory, "t", tmp_path / "h" / "s0.jsonl") as sender:
            for number in range(attempts):
                spec = elsewhere(broker.spec, node=f"n{number % 2 + 1}")
                code, said = start_and_end(spec)
                codes.append(code)
                assert str(spec.data) in said
                assert f"process {broker.pid}" in said
                assert "stop it or choose another directory" in said
                sender.wait_sent(50)
            sender.finish()
        log = read_back(factory, "t")
    assert broker.running
    fault = Fault("refused", codes.count(1), strikes=attempts)
    judge_run(tmp_path / "h", log, fault, acknowledged_min=50)


def test_another_cluster_group_or_node_is_refused_a_used_directory(
    processes: ProcessCluster,
) -> None:
    """Whose directory it is, whose it should be, and what to do about it."""
    broker = processes.add("b1")
    assert broker.stop() == 0
    for changes in ({"cluster": "other"}, {"group": "b2"}, {"node": "n2"}):
        code, said = start_and_end(elsewhere(broker.spec, **changes))
        assert code == 1
        for name in (processes.name, "'b1'", "'n1'", *map(repr, changes.values())):
            assert name in said
        assert "give it a directory of its own" in said


def test_swapped_directories_are_refused(processes: ProcessCluster) -> None:
    """Two brokers whose directories were mixed up start neither, and lose nothing."""
    first, second = processes.add("b1"), processes.add("b2")
    processes.vq_json("topic", "create", "t", "--partitions", "2")
    processes.vq_json("produce", "t", stdin=b"1\n2\n3\n4\n")
    assert first.stop() == 0
    assert second.stop() == 0
    one, two = first.spec.data, second.spec.data

    def swap() -> None:
        aside = one.with_name("aside")
        one.rename(aside)
        two.rename(one)
        aside.rename(two)

    swap()
    for broker in (first, second) * times(1, 10):
        code, said = start_and_end(elsewhere(broker.spec))
        assert code == 1
        assert "belongs to cluster" in said
    swap()
    processes.restart("b1")
    processes.restart("b2")
    ended = processes.vq("consume", "t", "--group", "g", "--max", "4", "--timeout", "10")
    assert sorted(ended.stdout.split()) == [b"1", b"2", b"3", b"4"]


def test_an_emptied_directory_under_a_known_name_is_not_served_as_if_nothing_was_lost(
    processes: ProcessCluster,
) -> None:
    """Refused at once, until the directory is back or the operator accepts the loss."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    processes.vq_json("produce", "t", stdin=b"1\n2\n")
    broker.kill()
    kept = broker.spec.data.with_name("kept")
    broker.spec.data.rename(kept)
    for _ in range(times(1, 20)):
        code, said = start_and_end(elsewhere(broker.spec))
        assert code == 1
        assert "the acknowledged messages of group 'b1' are in the data directory with id" in said
        assert "start node 'n1' with its old directory" in said
        shutil.rmtree(broker.spec.data)
    kept.rename(broker.spec.data)
    processes.restart("b1")
    consume = ("consume", "t", "--group", "g", "--max", "2", "--timeout", "10")
    assert processes.vq(*consume).stdout == b"1\n2\n"
    assert broker.stop() == 0
    shutil.rmtree(broker.spec.data)
    processes.run(ForkedBroker(replace(broker.spec, more=("--accept-data-loss",))))


def test_a_directory_of_a_newer_format_is_refused(processes: ProcessCluster) -> None:
    broker = processes.add("b1")
    assert broker.stop() == 0
    identity = broker.spec.data / "@identity"
    values = json.loads(identity.read_bytes())
    identity.write_bytes(json.dumps({**values, "v": 99}).encode())
    code, said = start_and_end(elsewhere(broker.spec))
    assert code == 1
    assert "format version 99" in said
    assert "a newer vq wrote it; run that one" in said
    assert json.loads(identity.read_bytes())["v"] == 99, "nothing was changed"


def test_a_directory_of_something_else_is_refused_and_left_alone(
    processes: ProcessCluster,
) -> None:
    spec = processes.spec("b1")
    spec.data.mkdir(parents=True)
    (spec.data / "thesis.txt").write_text("mine")
    code, said = start_and_end(spec)
    assert code == 1
    assert "'thesis.txt'" in said
    assert "choose an empty or a new directory" in said
    assert [path.name for path in spec.data.iterdir() if path.name != "@lock"] == ["thesis.txt"]


def test_a_taken_port_is_refused_and_registers_nothing(processes: ProcessCluster) -> None:
    """Nobody may be sent to an address where somebody else listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        spec = replace(processes.spec("b1"), address=Address("127.0.0.1", port))
        code, said = start_and_end(spec)
    assert code == 1
    assert str(port) in said
    assert "ss -ltnp" in said or "another port" in said
    with admin(processes.zookeeper) as zookeeper:
        nodes = f"/vq/{processes.name}/brokers/b1/nodes"
        assert not zookeeper.exists(nodes) or zookeeper.get_children(nodes) == []


def test_a_second_process_under_one_name_is_refused_while_the_first_lives(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Same group and node, a new directory each time: refused, as the group's data lie elsewhere.

    One that was told to accept the loss of those data finds the name taken: it waits for the first
    to go, never takes over from it, and gives up in the end.
    """
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "t")
    identity = json.loads((broker.spec.data / "@identity").read_bytes())["id"]
    attempts = times(2, 20)
    codes = []
    patient = ForkedBroker(
        elsewhere(broker.spec, data=processes.directory / "patient", more=("--accept-data-loss",))
    )
    waiting = f"holder={broker.spec.address}"
    with client_of(processes) as factory, admin(processes.zookeeper) as zookeeper:
        group = f"/vq/{processes.name}/brokers/b1"
        before = zookeeper.get(f"{group}/state")[0], zookeeper.get(f"{group}/nodes/n1")
        with Sender(factory, "t", tmp_path / "h" / "s0.jsonl") as sender:
            patient.start()
            try:
                for number in range(attempts):
                    spec = elsewhere(broker.spec, data=processes.directory / f"other-{number}")
                    code, said = start_and_end(spec)
                    codes.append(code)
                    assert f"'b1' are in the data directory with id {identity}" in said
                    assert "start node 'n1' with its old directory" in said
                    assert json.loads((spec.data / "@identity").read_bytes())["id"] in said
                    sender.wait_sent(50)
                block_until(
                    lambda: waiting in patient.spec.log.read_text(), "it finds the name taken"
                )
                sender.wait_sent(50)
                assert patient.running
                if LONG:
                    codes.append(patient.wait(REGISTER_TIMEOUT_S + START_S))
                    said = patient.spec.log.read_text()
                    assert "node 'n1' of group 'b1' is registered by" in said
                    assert "stop it or give this node another name" in said
            finally:
                patient.kill()
            sender.finish()
        log = read_back(factory, "t")
        (node,) = factory.get_status()
        after = zookeeper.get(f"{group}/state")[0], zookeeper.get(f"{group}/nodes/n1")
        assert zookeeper.get_children(f"{group}/nodes") == ["n1"]
    assert node == broker.spec.address
    assert after == before, "somebody else wrote the state or the node of the first"
    fault = Fault("refused", codes.count(1), strikes=len(codes))
    judge_run(tmp_path / "h", log, fault, acknowledged_min=50)
