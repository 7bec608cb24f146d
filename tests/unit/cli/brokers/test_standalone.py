"""Children of ``vq standalone`` that end are started again, and not for ever."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vq.cli.brokers import standalone
from vq.cli.brokers.standalone import STARTS_MAX, ChildrenEnd, PortTaken, Supervised
from vq.devtools.zookeeper import MissingPart
from vq.errors import CoordinationError, DirectoryRefused


class Child:
    """A broker that runs until it is told to end."""

    def __init__(self, name: str = "b1/n1") -> None:
        self.running = True
        self.starts = 1
        self.exit_code = -9
        self.refuses = False
        self.spec = SimpleNamespace(name=name, log=Path(f"{name}.log"))
        self.directory = Path("zookeeper")

    def start(self) -> None:
        self.starts += 1
        if self.refuses:
            raise CoordinationError("the port is taken")
        self.running = True


def supervised() -> tuple[Child, Supervised]:
    child = Child()
    return child, Supervised(child, "broker b1/n1", Path("b1.log"))


def test_a_child_that_runs_is_left_alone() -> None:
    child, found = supervised()
    assert [found.look(now) for now in (1.0, 2.0)] == ["", ""]
    assert child.starts == 1


def test_one_that_ended_is_started_again_after_a_pause_that_grows() -> None:
    child, found = supervised()
    now = 0.0
    for pause_s in ("0.5", "1", "2"):
        child.running = False
        told = found.look(now)
        assert told == (
            "broker b1/n1 was killed (SIGKILL); its log is b1.log. It is started again in "
            f"{pause_s} s"
        )
        starts = child.starts
        assert found.look(now + float(pause_s) - 0.1) == ""
        assert child.starts == starts
        now += float(pause_s)
        assert found.look(now) == ""
        assert child.starts == starts + 1


def test_one_that_ran_well_for_a_minute_begins_anew() -> None:
    child, found = supervised()
    for now in (100.0, 200.0):
        child.running = False
        assert "started again in 0.5 s" in found.look(now)
        found.look(now + 1)


def test_one_that_ends_at_once_again_and_again_is_given_up() -> None:
    child, found = supervised()
    now, told = 0.0, []
    while not found.given_up:
        child.running = False
        told.append(found.look(now))
        now += 30
        found.look(now)
    assert len(told) == child.starts == STARTS_MAX
    assert told[-1].endswith(f"It ended {STARTS_MAX} times in a row and is not started again")
    assert found.look(now) == ""


def test_one_that_cannot_be_started_is_tried_again_and_that_is_said() -> None:
    """ZooKeeper, say, while another process has its port."""
    child, found = supervised()
    child.running, child.refuses = False, True
    found.look(0.0)
    assert found.look(0.5) == (
        "broker b1/n1 was not started again (the port is taken); its log is b1.log. It is started "
        "again in 1 s"
    )
    child.refuses = False
    assert found.look(1.5) == ""
    assert child.running


class Stop(threading.Event):
    """A signal to stop that comes after so many looks; each look takes half a minute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
        super().__init__()
        self._left = looks
        self._now = 0.0
        monkeypatch.setattr("vq.cli.brokers.standalone.time.monotonic", lambda: self._now)

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        self._now += 30
        return self._left < 0


def watch(zookeeper: Child, brokers: list[Child], stop: Stop) -> list[str]:
    said: list[str] = []
    invocation: Any = SimpleNamespace(output=SimpleNamespace(remark=said.append))
    cluster: Any = SimpleNamespace(zookeeper=zookeeper, brokers=brokers, console=None)
    standalone.watch_over(invocation, cluster, stop)
    return said


def crashing(name: str) -> Child:
    child = Child(name)
    child.running, child.refuses = False, True
    return child


def test_a_zookeeper_that_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    zookeeper = Child()
    zookeeper.running = False
    said = watch(zookeeper, [Child("b1/n1")], Stop(monkeypatch, looks=5))
    assert len(said) == 1
    assert said[0].startswith("ZooKeeper was killed (SIGKILL)")
    assert zookeeper.running


@pytest.mark.parametrize(
    ("zookeeper", "brokers", "named"),
    [
        (crashing("z"), [Child("b1/n1")], "ZooKeeper"),
        (Child("z"), [crashing("b1/n1"), crashing("b2/n1")], "broker b1/n1.*, broker b2/n1"),
    ],
    ids=["ZooKeeper", "all brokers"],
)
def test_the_command_ends_with_an_error_when_nothing_can_work(
    monkeypatch: pytest.MonkeyPatch, zookeeper: Child, brokers: list[Child], named: str
) -> None:
    with pytest.raises(ChildrenEnd, match=f"^ended {STARTS_MAX} times in a row: {named}"):
        watch(zookeeper, brokers, Stop(monkeypatch, looks=1000))


def test_one_broker_that_is_given_up_ends_only_when_the_command_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others go on; the exit code says that it was not well."""
    stop = Stop(monkeypatch, looks=1000)
    with pytest.raises(ChildrenEnd, match=r": broker b2/n1 \(b2/n1.log\)\n"):
        watch(Child("z"), [Child("b1/n1"), crashing("b2/n1")], stop)
    assert stop._left < 0


@pytest.mark.parametrize(
    ("free", "said"), [(0, "is nearly full (0 bytes free): make space there"), (1 << 30, "")]
)
def test_the_error_names_a_disk_that_is_full(
    monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    """ZooKeeper's log has no room for the reason."""
    monkeypatch.setattr(
        "vq.devtools.zookeeper.shutil.disk_usage", lambda _place: SimpleNamespace(free=free)
    )
    with pytest.raises(ChildrenEnd) as raised:
        watch(crashing("z"), [Child("b1/n1")], Stop(monkeypatch, looks=1000))
    assert str(raised.value).endswith(said or "server.log)")


def test_a_second_one_in_a_directory_is_told_so_and_not_that_its_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standalone, "find_parts", lambda: (Path("java"), ()))
    monkeypatch.setattr(standalone, "port_error", lambda address: address.port and "in use")
    monkeypatch.setattr(standalone, "check_told_host", lambda _host: None)
    arguments = ["--data", str(tmp_path / "data")]
    with standalone.exclusive(tmp_path / "data"), pytest.raises(DirectoryRefused, match="another"):
        standalone.standalone.main(arguments, standalone_mode=False)
    with pytest.raises(PortTaken, match="port 8123"):
        standalone.standalone.main(arguments, standalone_mode=False)


def test_without_java_no_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingPart("no Java")

    monkeypatch.setattr(standalone, "find_parts", missing)
    with pytest.raises(MissingPart):
        standalone.standalone.main(["--data", str(tmp_path / "data")], standalone_mode=False)
    assert not (tmp_path / "data").exists()
