"""``vq archive list|verify|restore|export``: output as text and JSON, and exit codes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commands import cells, run_command
from support.json_schema import schema_of, wrong

from vq.cli.archives import archive
from vq.cli.base import errors
from vq.model import Address, Message
from vq.operations.archives import archives
from vq.operations.archives.archives import ArchivedBlock, RestoredArchive, VerifiedArchive
from vq.operations.base import connect
from vq.operations.messages import streams

BLOCK = ArchivedBlock(
    group="b1",
    node="n1",
    address=Address("localhost", 1),
    topic="t",
    partition=0,
    topic_id="ab",
    start=0,
    end=5_000,
    first_ms=1_763_800_000_000,
    last_ms=1_763_800_009_500,
    messages=40,
    zip_bytes=900,
    url="",
)
OTHER = replace(BLOCK, start=5_000, end=9_000, url="file:///mnt/a/1.zip")


class Cluster:
    """What nodes say.

    Attributes:
        blocks, silent: For ``list_archives``.
        verified: For ``verify_archives``.
        asked: How blocks were looked for.
        restored: Blocks that were restored.
    """

    def __init__(self) -> None:
        self.blocks: list[ArchivedBlock] = [BLOCK, OTHER]
        self.silent: list[str] = []
        self.verified: list[VerifiedArchive] = []
        self.asked: tuple[Any, ...] = ()
        self.restored: list[ArchivedBlock] = []
        self.refused: set[ArchivedBlock] = set()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()

    @asynccontextmanager
    async def client(_: object) -> AsyncIterator[None]:
        yield

    async def list_archives(_: object, topic: str | None, **options: Any) -> Any:
        made.asked = (topic, options)
        return made.blocks, made.silent

    async def verify(_: object, blocks: Any, *, on_progress: Any) -> Any:
        assert blocks == made.blocks
        on_progress(1, 2)
        return made.verified

    async def restore(_: object, blocks: Any, *, on_progress: Any) -> Any:
        made.restored += [each for each in blocks if each not in made.refused]
        on_progress(1, 2)
        away = "Busy: its place cannot be reached"
        return [RestoredArchive(each, away if each in made.refused else "") for each in blocks]

    monkeypatch.setattr(connect, "cluster_client", client)
    monkeypatch.setattr(archives, "list_archives", list_archives)
    monkeypatch.setattr(archives, "verify_archives", verify)
    monkeypatch.setattr(archives, "restore_archives", restore)
    return made


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command; return exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        return run_command(archive.archive, arguments, capsys)

    return call


def test_archives_are_listed_with_their_places(cluster: Cluster, run: Any) -> None:
    code, out, _ = run("list", "--topic", "t", "--partition", "0", "--since", "2025-11-22T08:26:40")
    assert code == 0
    options = {"partitions": (0,), "since_ms": 1_763_800_000_000, "until_ms": None}
    assert cluster.asked == ("t", options)
    first, second = cells(out)
    assert (first["where"], second["where"]) == ("beside", "file:///mnt/a/1.zip")
    assert (first["start"], first["end"], first["messages"]) == ("0", "5000", "40")
    assert first["last"] == "2025-11-22T08:26:49.500Z"
    document = json.loads(run("list", "--json")[1])
    assert not list(wrong(document, schema_of(["archive", "list"])))
    assert [each["url"] for each in document] == [None, "file:///mnt/a/1.zip"]


def test_a_broker_that_does_not_answer_ends_with_1(cluster: Cluster, run: Any) -> None:
    cluster.silent = ["b2/n1 at x:1: Unreachable: no"]
    code, out, err = run("list")
    assert code == 1
    assert len(cells(out)) == 2
    assert "1 broker(s) do not answer, so their archives are not among these: b2/n1" in err
    cluster.blocks, cluster.silent = [], []
    code, _, err = run("list")
    assert code == 0
    assert "nothing is archived" in err


def test_damage_ends_verifying_with_1(cluster: Cluster, run: Any) -> None:
    intact = VerifiedArchive(BLOCK, 9)
    cluster.verified = [intact, VerifiedArchive(OTHER, 2, "a chunk is damaged")]
    code, out, err = run("verify")
    assert code == 1
    assert [each["state"] for each in cells(out)] == ["intact", "damaged"]
    assert "1 of 2 archives read" in err
    assert "t-0 on b1/n1: offsets [5000, 9000): a chunk is damaged" in err
    cluster.verified = [intact, VerifiedArchive(OTHER, None, error="Busy: away")]
    code, out, err = run("verify", "--json")
    assert code == 1
    assert "could not be read: Busy: away" in err
    document = json.loads(out)
    assert not list(wrong(document, schema_of(["archive", "verify"])))
    assert [each["state"] for each in document] == ["intact", "unknown"]
    cluster.verified = [intact]
    assert run("verify")[0] == 0


def test_restoring_is_shown_first_and_done_with_yes(cluster: Cluster, run: Any) -> None:
    code, out, err = run("restore", "t")
    assert (code, cluster.restored, len(cells(out))) == (0, [], 2)
    assert "give --yes" in err
    cluster.refused = {BLOCK}
    code, out, err = run("restore", "t", "--yes", "--json")
    assert code == 1
    assert cluster.restored == [OTHER]
    assert "1 block(s) could not be restored: Busy: its place" in err
    document = json.loads(out)
    assert not list(wrong(document, schema_of(["archive", "restore"])))
    assert (document["done"], document["blocks"][1]["error"]) == (True, None)
    assert "1 block(s), 3.9 KiB: restored" in run("restore", "t", "--yes")[2]
    cluster.blocks = []
    code, _, err = run("restore", "t")
    assert code == 0
    assert "nothing is archived" in err
    assert "--yes" not in err


def test_an_export_writes_what_is_read(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    async def messages(_: object, topic: str, begin: Any, **options: Any) -> Any:
        asked.update(topic=topic, begin=begin, **options)
        yield [Message("t", b"a", None, None, None, 0, 0, 10, 1 << 23, 5)]
        yield [Message("t", b"b", None, None, None, 0, 10, 20, 2 << 23, 6)]

    monkeypatch.setattr(streams, "messages", messages)
    path = tmp_path / "out.jsonl"
    given = ["export", "t", "--output", str(path), "--partition", "0"]
    code, out, _ = run(*given, "--from-offset", "5", "--to-offset", "9", "--json")
    assert code == 0
    document = json.loads(out)
    assert not list(wrong(document, schema_of(["archive", "export"])))
    assert (document["messages"], document["bytes"]) == (2, path.stat().st_size)
    assert len(path.read_text().splitlines()) == 2
    assert asked["begin"] == streams.Begin(offset=5)
    assert asked["end"] == streams.End(offset=9)
    assert asked["partitions"] == (0,)
    code, _, err = run(*given)
    assert code == errors.EXIT_USAGE
    assert "--force" in err
    assert run(*given, "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--since", "1h", "--until", "2h"], "is not before --until"),
        (["verify", "--since", "1h", "--until", "2h"], "is not before --until"),
        (["restore", "t", "--since", "1h", "--until", "2h"], "is not before --until"),
        (["export", "t", "--output", "x.jsonl", "--since", "1h", "--until", "2h"], "--until"),
        (
            ["export", "t", "--output", "x.jsonl", "--from-offset", "9", "--to-offset", "5"],
            "--from-offset 9 is not before --to-offset 5",
        ),
        (["export", "t", "--output", "-", "--format", "jsonl"], "`vq consume t --json`"),
        (["export", "t", "--output", "none/x.jsonl"], "there is no directory none"),
    ],
)
def test_what_can_find_nothing_or_be_written_nowhere_is_wrong_usage(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    """An empty file, or one called `-`, looked like an export that was done."""
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*arguments)
    assert code == errors.EXIT_USAGE
    assert said in err
    assert list(tmp_path.iterdir()) == []
