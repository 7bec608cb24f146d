"""The embedded ZooKeeper: starts, keeps its data and ports, and never outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.faults import wait_leader
from support.zookeeper import admin

from vq.coordination.zookeeper.four_letter import four_letter_word
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.errors import CoordinationError, InvalidState
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def test_a_restarted_server_has_its_data_and_its_port(make_zookeeper) -> None:
    """Also after kill -9."""
    server = make_zookeeper()
    port = server.port
    with admin(server.hosts) as client:
        client.create("/kept", b"x")
    server.restart()
    server.kill()
    assert server.pids == []
    again = EmbeddedZooKeeper(server.directory)
    with again:
        assert again.port == port
        with admin(again.hosts) as client:
            assert client.get("/kept")[0] == b"x"


def test_data_stay_in_the_directory_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A properties file has escapes and an alphabet of its own, and so has Java's locale."""
    monkeypatch.setenv("LC_ALL", "C")
    name = "zwölf 十二 back\\slash a b=c:d#e \\u0041"
    directory = tmp_path / name
    with EmbeddedZooKeeper(directory) as server, admin(server.hosts) as client:
        client.create("/kept", b"x")
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert list(directory.glob("**/version-2/log.*")) != []


def test_a_start_that_is_interrupted_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it writes on in a directory that whoever made it is deleting."""
    started: list[int] = []

    def interrupted(server: EmbeddedZooKeeper, _deadline: float) -> bool:
        started.extend(server.pids)
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedZooKeeper, "_wait_serving", interrupted)
    with pytest.raises(KeyboardInterrupt), EmbeddedZooKeeper(tmp_path / "zookeeper"):
        pass
    assert len(started) == 1
    assert not is_alive(started[0])


def test_a_relative_directory_is_taken_from_where_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``vq standalone`` and its default, ``vq-data``."""
    monkeypatch.chdir(tmp_path)
    with EmbeddedZooKeeper(Path("data/zookeeper")) as server:
        assert server.directory == tmp_path / "data" / "zookeeper"
        with admin(server.hosts) as client:
            assert client.exists("/zookeeper")


def test_a_taken_port_is_refused_with_its_number(tmp_path: Path) -> None:
    """Before any process is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        zookeeper = EmbeddedZooKeeper(tmp_path, port=port)
        with pytest.raises(CoordinationError, match=f"port {port} .* taken"):
            zookeeper.start()
    with zookeeper:
        assert zookeeper.port == port


def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    """Even if the parent is killed and cannot clean up."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from vq.devtools.zookeeper import EmbeddedZooKeeper\n"
        "z = EmbeddedZooKeeper(Path(sys.argv[1])).start()\n"
        "print(*z.pids, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    block_until(lambda: not is_alive(pid))


def test_the_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """An executor's worker may start it and end."""
    zookeeper = EmbeddedZooKeeper(tmp_path)
    worker = threading.Thread(target=zookeeper.start)
    worker.start()
    worker.join()
    try:
        assert not worker.is_alive()
        with admin(zookeeper.hosts) as client:
            client.create("/a", b"")
        assert len(zookeeper.pids) == 1
    finally:
        zookeeper.stop()
    assert zookeeper.pids == []


def test_a_paused_server_answers_again_after_resume(make_zookeeper) -> None:
    """SIGSTOP and SIGCONT."""
    server = make_zookeeper()
    server.pause()
    assert four_letter_word("127.0.0.1", server.port, "srvr", timeout_s=0.2) == ""
    server.resume()
    block_until(lambda: "Mode: standalone" in four_letter_word("127.0.0.1", server.port, "srvr"))


def test_stopping_a_paused_server_works(make_zookeeper) -> None:
    """No process is left behind."""
    server = make_zookeeper()
    [pid] = server.pids
    server.pause()
    server.stop()
    assert not is_alive(pid)
    server.stop()


def test_only_stopped_servers_are_wiped(make_zookeeper) -> None:
    """A wiped one starts empty."""
    server = make_zookeeper()
    with admin(server.hosts) as client:
        client.create("/gone", b"x")
    with pytest.raises(InvalidState):
        server.wipe()
    server.stop()
    server.wipe()
    server.start()
    with admin(server.hosts) as client:
        assert client.exists("/gone") is None


def test_an_ensemble_elects_another_leader(make_zookeeper) -> None:
    """Three servers; the leader is killed; what was written is there; it may come back."""
    ensemble = make_zookeeper(servers=3, tick_ms=200)
    with admin(ensemble.hosts) as client:
        client.create("/kept", b"x")
    leader = wait_leader(ensemble)
    ensemble.kill(leader)
    assert wait_leader(ensemble) != leader
    with admin(ensemble.hosts) as client:
        assert client.get("/kept")[0] == b"x"
    ensemble.start()
    assert len(ensemble.pids) == 3


def test_a_server_that_is_killed_by_others_is_noticed(make_zookeeper) -> None:
    """It is no longer counted as running, and start brings it back."""
    server = make_zookeeper()
    [pid] = server.pids
    os.kill(pid, signal.SIGKILL)
    block_until(lambda: server.pids == [])
    server.start()
    assert server.pids != [pid]
