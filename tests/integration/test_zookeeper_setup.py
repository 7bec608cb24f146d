"""The ZooKeeper of production that the how-to sets up: its file makes three servers serve vq."""

import re
from pathlib import Path

import pytest
from support.cluster import process_cluster
from support.documents import ROOT

from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.testing.waiting import block_until

PAGE = ROOT / "docs" / "howto" / "set-up-zookeeper.md"


def documented() -> dict[str, str]:
    """The settings of the page's file."""
    (block,) = re.findall(r"^```ini\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return dict(line.split("=", 1) for line in block.splitlines())


class Documented(EmbeddedZooKeeper):
    """Three servers with the page's settings, but for what one machine cannot have thrice."""

    def _configure(self, *, fresh_ports: bool) -> None:
        super()._configure(fresh_ports=fresh_ports)
        for server in self._servers:
            file = server.directory / "zoo.cfg"
            ours = dict(line.split("=", 1) for line in file.read_text().splitlines())
            places = {
                name: value
                for name, value in ours.items()
                if name in {"dataDir", "clientPort", "clientPortAddress"}
                or name.startswith("server.")
            }
            log = {"dataLogDir": "./log"}
            (server.directory / "log").mkdir(exist_ok=True)
            settings = {**documented(), **places, **log}
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


@pytest.mark.slow
def test_the_file_of_the_how_to_serves_a_cluster(tmp_path: Path) -> None:
    """Three servers; the loss of one changes nothing."""
    assert [name for name in documented() if name.startswith("server.")] == [
        f"server.{number}" for number in (1, 2, 3)
    ]
    with (
        Documented(tmp_path / "zk", servers=3) as zookeeper,
        process_cluster(tmp_path / "brokers", zookeeper.hosts) as cluster,
    ):
        cluster.add("b1")
        assert cluster.vq("topic", "create", "t").returncode == 0
        doctor = {each["check"]: each for each in cluster.vq_json("doctor")}
        assert doctor["zookeeper"]["level"] == "ok"
        assert re.search(r"\b3\.\d+\.\d+", doctor["zookeeper"]["detail"])
        zookeeper.kill(zookeeper.leader())
        block_until(lambda: zookeeper.leader() is not None, "the other two agree on a leader")
        sent = cluster.vq("produce", "t", stdin=b"one\n")
        assert sent.returncode == 0, sent.stderr
        assert cluster.vq("consume", "t", "--group", "g", "--max", "1").stdout == b"one\n"
