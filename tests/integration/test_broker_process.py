"""A real broker process on a real disk, real sockets and a real ZooKeeper."""

import json
import os
import re
import signal
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from support.cluster import ForkedBroker, ProcessCluster
from support.faults import broker_settings
from support.raw_client import RawClient, message
from support.zookeeper import admin

from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.errors import FrameTooLarge, OutcomeUnknown, UnknownTopic
from vq.model import Address
from vq.remoting.format import MAGIC_VERSION, PREFIX
from vq.remoting.frames import FrameParser
from vq.remoting.messages import decode_error
from vq.remoting.ports import free_port
from vq.store.records.record import decode_records
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

STAMP = {"producer_id": 5, "producer_epoch": 1}


def _topic(cluster: ProcessCluster, name: str = "t", *more: str) -> None:
    ended = cluster.vq("topic", "create", name, *more)
    assert ended.returncode == 0, ended.stderr.decode()


def _connect(broker: BrokerChild) -> RawClient:
    return RawClient(broker.spec.address)


def _read_all(client: RawClient, topic: str = "t", partition: int = 0) -> list[bytes]:
    payloads, offset = [], 0
    while True:
        header, body = client.get(topic, partition, offset, max_bytes=1 << 20)
        if not body:
            return payloads
        payloads += [r.payload for r in decode_records(body, offset)]
        offset = header.next_offset


def _failed_start(cluster: ProcessCluster, *arguments: str) -> str:
    """Run ``vq broker`` that cannot start; return what it says on stderr."""
    ended = cluster.vq("broker", *arguments)
    assert ended.returncode == 1
    return ended.stderr.decode()


def test_messages_survive_kill_and_restart(processes):
    """Every acknowledged message is there after SIGKILL, once, and a resend is recognised."""
    broker = processes.add("b1")
    _topic(processes)
    sent: list[bytes] = []
    for life in range(3):
        with _connect(broker) as client:
            for n in range(50):
                payload = b"%d-%d" % (life, n)
                client.put("t", 0, [message(payload, len(sent))], sequence=len(sent), **STAMP)
                sent.append(payload)
        broker.kill()
        processes.restart("b1")
    with _connect(broker) as client:
        last = len(sent) - 1
        again = client.put("t", 0, [message(sent[-1], last)], sequence=last, **STAMP)
        assert again.duplicate
        assert _read_all(client) == sent


def test_a_kill_in_the_middle_of_sends_loses_nothing_acknowledged(processes):
    """Whatever was in flight may or may not be there, but in order and once."""
    broker = processes.add("b1")
    _topic(processes)
    with _connect(broker) as client:
        waiting = [
            client.send_put("t", 0, [message(b"%d" % n, n)], sequence=n, **STAMP)
            for n in range(200)
        ]
        for correlation_id in waiting[:60]:
            client.wait(correlation_id)
        broker.kill()
    processes.restart("b1")
    with _connect(broker) as client:
        found = [int(p) for p in _read_all(client)]
        assert found == list(range(len(found)))
        assert len(found) >= 60
        for n in range(len(found), 200):
            client.put("t", 0, [message(b"%d" % n, n)], sequence=n, **STAMP)
        assert [int(p) for p in _read_all(client)] == list(range(200))


def test_a_stop_by_signal_is_quick_and_clean(processes):
    """SIGTERM ends the process with code 0, its node is gone, and nothing is cut at the start."""
    broker = processes.add("b1")
    _topic(processes)
    with _connect(broker) as client:
        client.put("t", 0, [message(b"x")])
        assert broker.stop() == 0  # and not of being killed, when its time was up
    with admin(processes.zookeeper) as zookeeper:
        assert zookeeper.get_children(f"/vq/{processes.name}/brokers/b1/nodes") == []
    blocks = list(Path(processes.directory).rglob("*.block"))
    assert [block.stat().st_size for block in blocks] == [88 + 21]


def test_a_port_that_is_taken_is_named_with_what_to_do(processes):
    """The error names address and remedy, the exit code is 1."""
    broker = processes.add("b1")
    port = str(broker.spec.address.port)
    said = _failed_start(
        processes, "--data", str(processes.directory / "b2"), "--group", "b2", "--node", "n1",
        "--port", port,
    )  # fmt: skip
    assert f"127.0.0.1:{port}" in said
    assert "in use" in said
    assert "Traceback" not in said


def test_two_brokers_cannot_use_one_data_directory(processes):
    """The second is refused at once; the first goes on."""
    broker = processes.add("b1")
    _topic(processes)
    said = _failed_start(
        processes, "--data", str(broker.spec.data), "--group", "b1", "--node", "n1", "--port", "0"
    )
    assert str(broker.spec.data) in said
    assert "Traceback" not in said
    with _connect(broker) as client:
        client.put("t", 0, [message(b"x")])


@pytest.mark.parametrize("change", ["--cluster", "--group", "--node"])
def test_a_foreign_data_directory_is_refused(processes, change):
    """A directory of another cluster, group or node: the error says whose it is."""
    broker = processes.add("b1")
    broker.stop()
    names = {"--cluster": processes.name, "--group": "b1", "--node": "n1", change: "other"}
    flags = [word for pair in names.items() for word in pair]
    said = _failed_start(processes, "--data", str(broker.spec.data), "--port", "0", *flags)
    assert "belongs to" in said
    assert "'other'" in said


def test_half_a_frame_and_garbage_do_not_disturb_others(processes):
    """Peers that send nonsense, stop in the middle, or vanish, beside one that works."""
    broker = processes.add("b1")
    _topic(processes)
    with _connect(broker) as client:
        for data in (
            b"\x16\x03\x01" + os.urandom(500),
            bytes(1000),
            PREFIX.pack(4000, MAGIC_VERSION, 0, 1, 0, 1, 10)[:12],
            struct.pack(">I", 0xFFFF_FFFF) + os.urandom(100),
        ):
            with socket.create_connection(broker.spec.address, timeout=PROCESSES_WAIT_S) as sock:
                sock.sendall(data)
                client.put("t", 0, [message(b"x")])
        with RawClient(broker.spec.address) as broken:
            broken.sock.sendall(
                PREFIX.pack(100_000, MAGIC_VERSION, 0, 10, 0, 1, 10) + bytes(50_000)
            )
            broken.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.put("t", 0, [message(b"x")])
        assert len(_read_all(client)) == 5


def test_the_reason_of_a_refusal_reaches_a_peer_that_is_still_sending(processes):
    """An oversize frame is refused by its prefix; the peer reads why, although it sent on."""
    broker = processes.add("b1")
    with RawClient(broker.spec.address) as client:
        client.sock.sendall(PREFIX.pack(1 << 25, MAGIC_VERSION, 0, 10, 0, 1, 10))
        for _ in range(40):
            client.sock.sendall(bytes(100_000))
        (frame,) = FrameParser().feed(client.sock.recv(65_536))
        error = decode_error(frame.status, frame.header, frame.flags)
        assert isinstance(error, FrameTooLarge)
        assert error.details["max_bytes"] == 16 << 20


def test_large_batches_and_large_reads_travel_whole(processes):
    """The largest batch, and a read of many of them, byte for byte."""
    broker = processes.add("b1")
    _topic(processes)
    payload = os.urandom(1 << 20)
    with _connect(broker) as client:
        for n in range(3):
            client.put("t", 0, [message(payload, n)] * 3)
        header, body = client.get("t", 0, 0, max_bytes=8 << 20)
        assert len(body) == min(8 << 20, header.high_watermark)
        assert [r.payload == payload for r in decode_records(body, 0)] == [True] * 7


def test_a_reader_that_stops_reading_costs_only_itself(processes):
    """Eight answers of a MiB that nobody takes; a writer beside them is not slowed."""
    broker = processes.add("b1")
    _topic(processes)
    with _connect(broker) as writer, _connect(broker) as lazy:
        writer.put("t", 0, [message(os.urandom(1 << 20))])
        asked = [lazy.send_get("t", 0, 0, max_bytes=2 << 20) for _ in range(32)]
        for n in range(100):
            writer.put("t", 0, [message(b"x", n)])
        bodies = [lazy.wait(correlation_id)[1] for correlation_id in asked]
        assert all(body[: 1 << 20] == bodies[0][: 1 << 20] for body in bodies)


def test_a_paused_broker_leaves_sends_unknown_and_goes_on(processes):
    """SIGSTOP looks like a broken network: the outcome is unknown, a resend settles it."""
    broker = processes.add("b1")
    _topic(processes)
    assert broker.pid is not None
    with _connect(broker) as client:
        client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
        os.kill(broker.pid, signal.SIGSTOP)
        client.sock.settimeout(0.2)
        with pytest.raises((TimeoutError, OutcomeUnknown)):
            client.put("t", 0, [message(b"y")], sequence=1, **STAMP)
        os.kill(broker.pid, signal.SIGCONT)
    with _connect(broker) as client:
        client.put("t", 0, [message(b"y")], sequence=1, **STAMP)
        assert _read_all(client) == [b"x", b"y"]


def test_the_doctor_says_of_a_broker_that_hangs_that_it_hangs(processes, tmp_path):
    """Its machine accepts connections, so the network is the wrong place to look."""
    settings = broker_settings(tmp_path / "broker.toml", session_timeout_s=30.0)
    broker = processes.add("b1", *settings)
    os.kill(broker.pid, signal.SIGSTOP)
    ended = processes.vq("doctor", "--json")
    os.kill(broker.pid, signal.SIGCONT)
    assert ended.returncode == 1
    (found,) = (each for each in json.loads(ended.stdout) if each["check"] == "broker b1/n1")
    assert "accepts connections and did not answer HELLO" in found["detail"]
    assert "hangs or is stopped" in found["detail"]
    assert "kill -CONT" in found["remedy"]


def test_a_deleted_topic_takes_its_files_out_of_the_way(processes):
    """Its directory leaves the data; the next topic of that name starts empty."""
    broker = processes.add("b1")
    _topic(processes)
    with _connect(broker) as client:
        client.put("t", 0, [message(b"old")])
        assert processes.vq("topic", "delete", "t", "--now", "--yes").returncode == 0
        block_until(lambda: not (broker.spec.data / "t").exists(), "its directory goes")
        with pytest.raises(UnknownTopic):
            client.put("t", 0, [message(b"x")])
        _topic(processes)
        client.put("t", 0, [message(b"new")])
        assert _read_all(client) == [b"new"]


def test_a_stop_while_starting_is_quick(processes):
    """A broker that waits for a ZooKeeper that is not there can be told to stop."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        spec = BrokerSpec(
            data=processes.directory / "b1",
            group="b1",
            node="n1",
            address=Address("127.0.0.1", free_port()),
            zookeeper=f"127.0.0.1:{silent.getsockname()[1]}",
            cluster=processes.name,
        )
        broker = processes.brokers["b1"] = ForkedBroker(spec)
        broker.start()
        block_until((spec.data / "@lock").exists, "it starts")
        assert broker.stop() == 0  # and not of being killed, when its time was up


def test_a_data_directory_that_is_not_given_is_missed_and_given_up_on_request(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """The refusal names its id and the option; what lay elsewhere is served."""
    second = tmp_path / "second"
    broker = processes.add("b1", "--data", str(second))
    _topic(processes, "t", "--partitions", "2")
    for number in range(2):
        with _connect(broker) as client:
            client.put("t", number, [message(b"x")])
    homes = {(path / "t" / str(n)).is_dir() for path in (second,) for n in range(2)}
    assert homes == {True, False}, "each directory has a partition"
    assert broker.stop() == 0
    spec = replace(broker.spec, more=())
    said = _failed_start(processes, *spec.command()[4:])
    assert f"last at {second}" in said
    [lost] = re.findall(r"--without-data (\w+)", said)
    again = processes.run(ForkedBroker(replace(spec, more=("--without-data", lost))))
    again.wait_ready(PROCESSES_WAIT_S)
    ended = processes.vq("topic", "describe", "t", "--json")
    states = sorted(each["state"] for each in json.loads(ended.stdout)["partitions"])
    assert states == ["quarantined", "rw"]
