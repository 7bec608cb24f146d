"""The history of a console as the past of disks: a forecast in the first capacity report."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_vq.reports.disks import disk_rows
from pyspark_vq.reports.holdings import Disk
from pyspark_vq.reports.past import points_of_shares, read_shares, together
from vq.cli.main import cli
from vq.console.clusters.history import store_minute
from vq.console.clusters.measured import DISK_USED
from vq.console.database.database import Database
from vq.errors import InvalidArgument

GIB = 1 << 30
BEGIN_S = 1_790_000_000 // 900 * 900


def sample(time_s: int, mean: float, step_s: int = 900, series: str = "disk_used b1/n1") -> str:
    return json.dumps({"series": series, "time_s": time_s, "step_s": step_s, "mean": mean})


def disk(node: str, directory: str, system: str = "fs") -> Disk:
    return Disk("b1", node, directory, 100 * GIB, 40 * GIB, "ok", None, None, "", system)


def test_what_a_console_exports_gives_a_forecast_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that grows by a tenth in a day, measured for two days, is full after four more."""
    now_s = BEGIN_S + 2 * 86_400.0
    monkeypatch.setattr(time, "time", lambda: now_s)  # what is too old is deleted
    url = f"sqlite:///{tmp_path}/console.db"
    database = Database(url)
    database.upgrade()

    def fill(connection):
        for minute in range(0, 2 * 86_400, 300):  # as often as a console that is busy
            share = 0.4 + 0.1 * (minute + 30) / 86_400
            values = {f"{DISK_USED} b1/n1": [share], "bytes_in b1": [1.0]}
            store_minute(connection, "main", BEGIN_S + minute, values)
            if minute % 900 == 600:  # the last minute of a quarter of an hour
                store_minute(connection, "main", BEGIN_S + minute + 300, {})

    database.run_here(fill)
    database.close()
    file = tmp_path / "history.jsonl"
    words = ["console", "history", "export", str(file), "--database", url, "--cluster", "main"]
    made = CliRunner().invoke(cli, words)
    assert made.exit_code == 0, made.output
    assert "samples of main written" in made.output
    with file.open() as lines:
        shares = read_shares(lines)
    assert list(shares) == [("b1", "n1")]
    disks = [disk("n1", "/a")]
    history = together({}, points_of_shares(disks, shares), now_s=now_s)
    [row] = disk_rows(disks, history, {}, now_s=now_s)
    assert row["verdict"] == "fills"
    assert row["full_in_days"] == pytest.approx(4.0, abs=0.1)
    assert row["growth_bytes_per_day"] == pytest.approx(10 * GIB, rel=0.02)


def test_an_export_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/console.db"
    words = ["console", "history", "export", str(tmp_path / "f"), "--database", url]
    made = CliRunner().invoke(cli, words)
    assert "there is no database of a console" in str(made.exception)
    assert list(tmp_path.iterdir()) == []
    database = Database(url)
    database.upgrade()
    database.close()
    made = CliRunner().invoke(cli, words)
    assert "has measured no cluster 'default'; it has: none" in str(made.exception)
    assert not (tmp_path / "f").exists()


def test_a_history_that_is_young_counts_by_minutes() -> None:
    """A few quarters of an hour make no forecast; minutes beside many of them do not count."""
    minutes = [sample(BEGIN_S + n * 60, 0.5, 60) for n in range(30)]
    few = [sample(BEGIN_S + n * 900, 0.5) for n in range(2)]
    assert len(read_shares([*minutes, *few])["b1", "n1"]) == 30
    many = [sample(BEGIN_S + n * 900, 0.5) for n in range(8)]
    points = read_shares([*reversed(many), "", *minutes])["b1", "n1"]
    assert [time for time, _ in points] == [BEGIN_S + n * 900 + 450 for n in range(8)]


@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"series": "disk_used b1/n1"}', sample(1, 0.5).replace("0.5", '"a"')]
)
def test_a_line_of_another_file_is_refused(line: str) -> None:
    with pytest.raises(InvalidArgument, match=r"line 2 of the history is .*history export"):
        read_shares([sample(BEGIN_S, 0.5), line])


def test_of_a_node_with_several_file_systems_nobody_knows_which_is_meant() -> None:
    """Two directories on one file system are as full as each other."""
    shares = {("b1", each): [(1.0, 0.5)] for each in ("n1", "n2")}
    disks = [disk("n1", "/a", "x"), disk("n1", "/b", "y"), disk("n2", "/a"), disk("n2", "/b")]
    assert points_of_shares(disks, shares) == {
        ("b1", "n2", "/a"): [(1.0, 50 * GIB)],
        ("b1", "n2", "/b"): [(1.0, 50 * GIB)],
    }


def test_snapshots_and_history_count_together() -> None:
    key, other = ("b1", "n1", "/a"), ("b2", "n1", "/a")
    found = together(
        {key: [(1.0, 10.0), (3.0, 30.0)]}, {key: [(2.0, 20.0), (9.0, 90.0)], other: []}, now_s=5.0
    )
    assert found == {key: [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)], other: []}
