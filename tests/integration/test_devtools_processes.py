"""Brokers and ``vq standalone`` as processes: starting, refusing, stopping, leaving nothing."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.zookeeper import ZooKeeperService

from vq.devtools.processes import ChildEnded
from vq.remoting.ports import free_port
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

pytestmark = pytest.mark.slow


def is_gone(pid: int) -> bool:
    """Whether no process has this id (a zombie that nobody waited for counts as gone)."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_broker_stops_gracefully_and_comes_back_with_its_messages(
    processes: ProcessCluster,
) -> None:
    """SIGTERM, start again; then SIGKILL, start again: the messages are there both times."""
    broker = processes.add("b1")
    processes.vq_json("topic", "create", "kept")
    processes.vq_json("produce", "kept", stdin=b"1\n")
    assert broker.stop() == 0
    down = processes.vq("cluster", "status")
    assert down.returncode == 1
    assert b"no broker is registered" in down.stdout
    assert down.stdout.splitlines()[1].split(b"\t")[4] == b"1"  # its epoch is known all the same
    processes.restart("b1")
    processes.vq_json("produce", "kept", stdin=b"2\n")
    broker.kill()
    processes.restart("b1")
    ended = processes.vq("consume", "kept", "--group", "g", "--max", "2", "--timeout", "10")
    assert ended.stdout == b"1\n2\n"


def test_a_second_broker_on_one_data_directory_is_refused(processes: ProcessCluster) -> None:
    first = processes.add("b1")
    spec = first.spec
    second = subprocess.run(
        [
            *processes.command("broker", "--data", str(spec.data), "--group", "b1"),
            *("--node", "n1", "--port", "0"),
        ],
        capture_output=True,
        env=processes.environ,
        timeout=PROCESSES_WAIT_S,
    )
    assert second.returncode == 1
    assert str(spec.data) in second.stderr.decode()
    assert first.running


def test_a_taken_port_is_named(processes: ProcessCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ChildEnded, match=str(port)):
            processes.add("b1", "--port", str(port))


def test_an_address_of_another_machine_is_not_said_to_be_taken(processes: ProcessCluster) -> None:
    with pytest.raises(ChildEnded, match=r"(?s)192\.0\.2\.1.*name an address of this machine"):
        processes.add("b1", "--host", "192.0.2.1", "--plaintext", "--authentication", "off")


def test_a_broker_without_zookeeper_says_what_it_waits_for(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [
            *ProcessCluster(tmp_path, address).command("broker", "--data", str(tmp_path / "b1")),
            *("--group", "b1", "--node", "n1", "--port", "0", "--zookeeper", address),
        ],
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stderr is not None
        assert address in running.stderr.readline().decode()
        running.send_signal(signal.SIGINT)
        assert running.wait(PROCESSES_WAIT_S) == 0


def test_the_doctor_says_what_to_do_without_zookeeper(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [*ProcessCluster(tmp_path, address).command("doctor", "--json")],
        capture_output=True,
        env={**os.environ, "VQ_ZOOKEEPER": address, "VQ_BROKER_DATA": str(tmp_path)},
        timeout=PROCESSES_WAIT_S,
    )
    assert ended.returncode == 1
    findings = {each["check"]: each for each in json.loads(ended.stdout)}
    assert findings["zookeeper"]["level"] == "fail"
    assert findings["zookeeper"]["detail"] == f"{address} refused the connection"
    assert "vq standalone" in findings["zookeeper"]["remedy"]
    assert findings["data directory"]["level"] == "ok"


def test_the_doctor_lets_the_first_broker_of_a_cluster_be_set_up(
    processes: ProcessCluster, tmp_path: Path
) -> None:
    """Checking a broker's file before its first start warns; a mistyped cluster still fails."""
    (tmp_path / "vq.toml").write_text(
        f'[broker]\ndata = "{tmp_path / "data"}"\ngroup = "b1"\nnode = "n1"\nport = 0\n'
    )
    first = processes.vq("doctor", "--config", str(tmp_path / "vq.toml"), "--json")
    assert first.returncode == 0, first.stdout
    (found,) = (each for each in json.loads(first.stdout) if each["check"] == "brokers")
    assert found["level"] == "warn"
    assert found["remedy"] == "start this one: vq broker --config FILE"
    assert processes.vq("doctor").returncode == 1


def test_a_file_gives_the_settings_of_a_broker(processes: ProcessCluster, tmp_path: Path) -> None:
    """Everything from [broker] of a file named by --config; a flag still wins."""
    port = processes.hold_port()
    (tmp_path / "vq.toml").write_text(
        f'zookeeper = "{processes.zookeeper}"\ncluster = "{processes.name}"\n'
        f'[broker]\ndata = "{tmp_path / "data"}"\ngroup = "filed"\nnode = "n7"\nport = 1\n'
        '[broker.labels]\nrack = "r1"\n'
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VQ_")}
    arguments = ("broker", "--config", str(tmp_path / "vq.toml"), "--port", str(port))
    log = tmp_path / "broker.log"
    with (
        log.open("wb") as said,
        subprocess.Popen(processes.command(*arguments), env=environ, stderr=said) as running,
    ):

        def serves() -> bool:
            assert running.poll() is None, log.read_text()
            rows = json.loads(processes.vq("cluster", "status", "--json").stdout or b"[]")
            return [(r["group"], r["node"], r["answers"]) for r in rows] == [("filed", "n7", True)]

        try:
            block_until(serves, "the broker of the file serves")
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(PROCESSES_WAIT_S) == 0


def start_standalone(tmp_path: Path, *more: str) -> "subprocess.Popen[bytes]":
    arguments = ["standalone", "--brokers", "2", "--data", str(tmp_path / "data"), "--json"]
    arguments += ["--port", "0", "--zookeeper-port", "0", "--console-port", "0", *more]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VQ_")}
    cluster = ProcessCluster(tmp_path, "")
    return subprocess.Popen(
        cluster.command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environ, **{n: v for n, v in os.environ.items() if n == "VQ_ZOOKEEPER_JARS"}},
    )


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_standalone_takes_everything_down_with_it(
    tmp_path: Path, zookeeper: ZooKeeperService, number: int
) -> None:
    """However it ends, no broker, console or ZooKeeper outlives it. (``zookeeper``: Java is there.)

    The console that it names shows the cluster.
    """
    with start_standalone(tmp_path) as running:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert len(told["brokers"]) == 2
        pids = [broker["pid"] for broker in told["brokers"]]
        with urllib.request.urlopen(told["console"], timeout=PROCESSES_WAIT_S) as page:
            assert b"/c/default/topics" in page.read()
        second = start_standalone(tmp_path)
        _, said = second.communicate(timeout=PROCESSES_WAIT_S)
        assert second.returncode == 1
        assert b"another `vq standalone` runs in" in said
        running.send_signal(number)
        code = running.wait(PROCESSES_WAIT_S)
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
    block_until(lambda: all(map(is_gone, pids)), "the brokers are gone")
    console = told["console"].removeprefix("http://").rstrip("/")

    def refused(address: str) -> bool:
        host, port = address.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    for address in (told["zookeeper"], console):
        block_until(lambda address=address: refused(address), f"{address} is gone")


def test_a_killed_broker_of_standalone_is_started_again(
    tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    """The command says so, and no message is lost. (``zookeeper``: Java is there.)"""
    running = start_standalone(tmp_path, "--brokers", "1", "--replicas", "2")
    try:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        assert [broker["node"] for broker in told["brokers"]] == ["n1", "n2"]
        cluster = ProcessCluster(tmp_path, told["zookeeper"])
        cluster.name = "default"
        assert cluster.vq("topic", "create", "t").returncode == 0
        assert cluster.vq("produce", "t", stdin=b"1\n").returncode == 0

        def roles() -> dict[str, tuple[str, bool]]:
            rows = json.loads(cluster.vq("cluster", "status", "--json").stdout)
            return {row["node"]: (row["role"], row["in_sync"]) for row in rows}

        block_until(lambda: roles() == {"n1": ("master", True), "n2": ("slave", True)}, "in sync")
        os.kill(told["brokers"][0]["pid"], signal.SIGKILL)
        assert cluster.vq("produce", "t", stdin=b"2\n").returncode == 0
        block_until(lambda: {at for _, at in roles().values()} == {True}, "in sync again")
        taken = cluster.vq("consume", "t", "--group", "g", "--max", "2")
        assert taken.stdout == b"1\n2\n"
    finally:
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=PROCESSES_WAIT_S)
    assert b"broker b1/n1 was killed (SIGKILL)" in said
    assert b"It is started again in 0.5 s" in said
    assert running.returncode == 0


def test_standalone_starts_a_broker_without_copies_and_zookeeper_again(
    tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    """A message waits for them. (``zookeeper``: Java is there.)"""
    running = start_standalone(tmp_path, "--brokers", "1")
    try:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        cluster = ProcessCluster(tmp_path, told["zookeeper"])
        cluster.name = "default"
        assert cluster.vq("topic", "create", "t").returncode == 0
        os.kill(told["brokers"][0]["pid"], signal.SIGKILL)
        assert cluster.vq("produce", "t", stdin=b"1\n").returncode == 0
        java = child_named(running.pid, "java")
        os.kill(java, signal.SIGKILL)
        block_until(lambda: is_gone(java), "ZooKeeper is gone")
        block_until(lambda: child_named(running.pid, "java") not in {0, java}, "another one")
        assert cluster.vq("produce", "t", stdin=b"2\n").returncode == 0
        taken = cluster.vq("consume", "t", "--group", "g", "--max", "2")
        assert taken.stdout == b"1\n2\n"
    finally:
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=PROCESSES_WAIT_S)
    assert b"broker b1/n1 was killed (SIGKILL)" in said
    assert b"ZooKeeper was killed (SIGKILL)" in said
    assert running.returncode == 0


def child_named(parent: int, name: str) -> int:
    """Return the id of a process that ``parent`` started, 0 if there is none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, _, rest = stat.read_text().partition(" (")
            found, _, fields = rest.rpartition(") ")
            if found == name and int(fields.split()[1]) == parent:
                return int(number)
    return 0


def test_standalone_names_a_port_that_is_taken_before_it_starts_anything(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flag in ("--port", "--zookeeper-port"):
            with start_standalone(tmp_path, flag, str(port), "--brokers", "1") as running:
                out, said = running.communicate(timeout=PROCESSES_WAIT_S)
            assert running.returncode == 1
            assert out == b""
            assert f"port {port}" in said.decode()
            assert flag in said.decode()
    assert not (tmp_path / "data").exists()


def test_standalone_refuses_one_port_for_two_before_it_starts_anything(tmp_path: Path) -> None:
    first = free_port()
    flags = ("--port", str(first), "--brokers", "2", "--zookeeper-port", str(first))
    with start_standalone(tmp_path, *flags) as running:
        out, said = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 2
    assert out == b""
    assert f"--zookeeper-port {first} is also the port of broker b1" in said.decode()
    assert not (tmp_path / "data").exists()


def test_standalone_listens_on_the_address_of_its_choice_alone(
    tmp_path: Path, zookeeper: ZooKeeperService
) -> None:
    """Brokers, metrics and ZooKeeper; clients are told that address. (``zookeeper``: see above.)"""
    with start_standalone(tmp_path, "--host", "127.0.0.2", "--brokers", "1") as running:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        (broker,) = told["brokers"]
        addresses = [told["zookeeper"], broker["address"], broker["metrics"].split("/")[2]]
        cluster = ProcessCluster(tmp_path, told["zookeeper"])
        try:
            assert {each.rpartition(":")[0] for each in addresses} == {"127.0.0.2"}
            for each in addresses:
                here, port = each.rpartition(":")[::2]
                socket.create_connection((here, int(port)), timeout=10).close()
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", int(port)), timeout=10)
            assert cluster.vq("topic", "create", "t", "--cluster", "default").returncode == 0
            sent = cluster.vq("produce", "t", "--cluster", "default", stdin=b"hello\n")
            assert sent.returncode == 0, sent.stderr
        finally:
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=PROCESSES_WAIT_S)


@pytest.mark.parametrize(
    ("host", "code", "said"),
    [
        ("0.0.0.0", 2, "--host 0.0.0.0 is every address of this machine"),
        ("::", 2, "--host :: is every address of this machine"),
        ("not a host", 2, "'not a host' is not the name of a host"),
        ("192.0.2.1", 1, "nothing can listen on --host 192.0.2.1"),
    ],
)
def test_standalone_refuses_an_address_that_is_none_of_this_machine(
    tmp_path: Path, host: str, code: int, said: str
) -> None:
    with start_standalone(tmp_path, "--host", host) as running:
        out, told = running.communicate(timeout=PROCESSES_WAIT_S)
    assert (running.returncode, out) == (code, b"")
    assert said in told.decode()
    assert not (tmp_path / "data").exists()


def test_standalone_has_its_own_zookeeper(tmp_path: Path) -> None:
    with start_standalone(tmp_path, "--zookeeper", "127.0.0.1:1") as running:
        _, said = running.communicate(timeout=PROCESSES_WAIT_S)
    assert running.returncode == 2
    assert b"--zookeeper-port" in said
