"""``vq cluster status``: its table fits a terminal, and its JSON has everything."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.commands import run_command

from vq.cli.base.output import Output
from vq.cli.cluster import cluster
from vq.model import Address, GroupView, NodeInfo, StatusResult
from vq.operations.base import connect
from vq.operations.brokers.safety import Unsafe, UnsafeKind
from vq.operations.cluster.cluster import BrokerReport, ClusterStatus


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def report(node: str, *, master: bool = False, **more: Any) -> BrokerReport:
    address = Address("127.0.0.1", 18123)
    raw = {"partitions": [], "problems": [], "master": master}
    status = StatusResult(address, "b1", node, "", 0.0, 1, raw=raw)
    info = NodeInfo("b1", node, address, pid=4711)
    options = {"name": node, "role": "master" if master else "slave", "in_sync": True} | more
    return BrokerReport(GroupView("b1"), info, 12, status, **options)


LACKS = Unsafe(UnsafeKind.NOT_IN_SYNC, "b1", "n2", (), "b1/n2 is not in sync")
REMARK = Unsafe(UnsafeKind.WEAK, "b1", "", ("t",), "b1: topics may lose messages: t")
BEHIND = report("n2", in_sync=False, lag_bytes=123_456_789_012, lag_s=12_345.678)
GONE = BrokerReport(
    GroupView("b1"), None, 12, None, "it is not registered", "n3", "slave", in_sync=True
)
PICTURE = ClusterStatus((report("n1", master=True), BEHIND, GONE), (LACKS, REMARK))


def test_the_table_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    stdout = Terminal()
    rows = [cluster.row_of(each, PICTURE) for each in PICTURE.brokers]
    cluster.show_brokers(Output(stdout=stdout), rows, PICTURE)
    head, _, *lines = stdout.getvalue().splitlines()
    assert " ".join(head.split()) == "group node address role epoch in_sync lag answers"
    assert max(map(len, [head, *lines])) <= 80
    assert [line.split() for line in lines] == [
        ["b1", "n1", "127.0.0.1:18123", "master", "12", "yes", "-", "yes"],
        [
            "b1",
            "n2",
            "127.0.0.1:18123",
            "slave",
            "12",
            "no",
            "115.0",
            "GiB,",
            "3",
            "h",
            "yes",
        ],
        ["b1", "n3", "unknown", "slave", "12", "yes", "unknown", "no"],
    ]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on a picture; return exit code, standard output and standard error."""

    def call(picture: ClusterStatus, *arguments: str) -> tuple[int, str, str]:
        @asynccontextmanager
        async def client(_: object) -> AsyncIterator[None]:
            yield

        async def status(_: object) -> ClusterStatus:
            return picture

        monkeypatch.setattr(connect, "cluster_client", client)
        monkeypatch.setattr(cluster, "cluster_status", status)
        return run_command(cluster.cluster, ["status", *arguments], capsys)

    return call


def test_json_names_for_each_node_what_a_program_needs(run: Any) -> None:
    code, out, _ = run(PICTURE, "--json")
    assert code == 1
    first, second, third = json.loads(out)
    names = ("group", "node", "host", "pid", "role", "epoch", "in_sync", "lag_bytes", "lag_s")
    assert [first[name] for name in names] == [
        *("b1", "n1", "127.0.0.1", 4711, "master", 12, True, None, None)
    ]
    assert (second["lag_bytes"], second["lag_s"]) == (123_456_789_012, 12_345.678)
    assert (third["host"], third["pid"], third["in_sync"]) == (None, None, True)
    assert (first["rack"], third["rack"]) == (None, None)
    assert [each["kind"] for each in first["unsafe"]] == ["weak"]
    assert second["unsafe"] == [
        {"kind": "not_in_sync", "text": "b1/n2 is not in sync", "topics": [], "wrong": True}
    ]


def test_what_is_unsafe_is_said_and_ends_with_1(run: Any) -> None:
    code, _, said = run(ClusterStatus(PICTURE.brokers[:2], (LACKS, REMARK)))
    assert code == 1
    assert "b1/n2 is not in sync\nb1: topics may lose messages: t\n" in said
    assert "1 thing(s) are unsafe, see above" in said


def test_a_remark_ends_with_0(run: Any) -> None:
    code, _, said = run(ClusterStatus((report("n1", master=True),), (REMARK,)))
    assert (code, said) == (0, "b1: topics may lose messages: t\n")


def test_a_column_says_what_is_drained_if_anything_is(run: Any) -> None:
    group = GroupView("b1", draining=True, drained=("n2",))
    first, second = report("n1", master=True), report("n2")
    _, out, said = run(ClusterStatus((replace(first, group=group), replace(second, group=group))))
    head, *rows = [line.split("\t") for line in out.splitlines()]
    place = head.index("draining")
    assert [row[place] for row in rows] == ["group", "group and node"]
    assert "b1 is drained: no new partitions" in said
    _, out, _ = run(ClusterStatus((first,)))
    assert "draining" not in out


def disk(**fields: object) -> dict[str, object]:
    """A disk as a broker tells it."""
    return {
        "directory": "/mnt/1",
        "bytes_free": 20 << 30,
        "bytes_total": 100 << 30,
        "level": "ok",
        "growth_known": True,
        "growth_bytes_per_hour": 1 << 30,
        "fills": True,
        "full_in_s": 36_000,
        "excess_bytes": 0,
        "files_free": 0,
        "files_total": 0,
    } | fields


def test_disks_are_told_and_those_that_need_attention_are_remarked(run: Any) -> None:
    unknown = disk(directory="/mnt/2", growth_known=False, fills=False, full_in_s=0)
    steady = disk(directory="/mnt/3", fills=False, growth_bytes_per_hour=-5, full_in_s=0)
    full = disk(directory="/mnt/4", level="relieve", full_in_s=180_000, excess_bytes=7)
    made = report("n1", master=True)
    assert made.status is not None
    many = disk(
        directory="/mnt/5",
        file_system="boot 8:1",
        level="warn",
        fills=False,
        files_free=1,
        files_total=10,
    )
    made.status.raw["disks"] = [disk(), unknown, steady, full, many]
    picture = ClusterStatus((made,))
    code, out, _ = run(picture, "--json")
    assert code == 0
    found = json.loads(out)[0]["disks"]
    assert [each["full_in_hours"] for each in found[:4]] == [10.0, None, None, 50.0]
    assert [each["growth_bytes_per_hour"] for each in found[:4]] == [1 << 30, None, -5, 1 << 30]
    assert [each["files_free"] for each in found] == [None, None, None, None, 1]
    assert [each["file_system"] for each in found] == ["", "", "", "", "boot 8:1"]
    _, _, said = run(picture)
    assert "b1/n1: disk /mnt/1 is 80.0% full, 20.0 GiB are free: full in 10.0 h" in said
    assert "b1/n1: disk /mnt/4" in said
    assert "deleted early where topics allow it; full in 50.0 h" in said
    assert "and 90.0% of its files (inodes) are in use: it fills up" in said
    assert "/mnt/2" not in said
    assert "/mnt/3" not in said
