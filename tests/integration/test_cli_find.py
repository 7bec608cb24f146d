"""``vq message find`` against real brokers: what it finds, tells, and how it goes on.

Every JSON document is compared with the schema of the command (``ProcessCluster.vq_json``).
"""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.cluster import ProcessCluster
from support.command_server import FASTER

from vq.limits import MIB
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


def filled(cluster: ProcessCluster, topic: str) -> None:
    """Make a topic of two partitions with keys of each type, and tags."""
    cluster.vq_json("topic", "create", topic, "--partitions", "2")
    lines = b"".join(b"k%d:%d\n" % (number, number) for number in range(20))
    cluster.vq_json("produce", topic, "--key-separator", ":", "--tag", "new", stdin=lines)
    cluster.vq_json("produce", topic, "--key", "5", "--key-type", "int", stdin=b"five\n")
    cluster.vq_json("produce", topic, "--key", "00ff", "--key-type", "hex", stdin=b"bytes\n")


def contents(document: dict) -> list[str]:
    return [each["content"] for each in document["messages"]]


def test_messages_are_found_by_key_tag_id_and_time(cluster: ProcessCluster) -> None:
    filled(cluster, "found")
    found = cluster.vq_json("message", "find", "found", "--key", "k7")
    assert contents(found) == ["7"]
    assert (found["complete"], found["stopped"]) == (True, None)
    assert [each["partition"] for each in found["searched"]] == [0, 1]
    (message,) = found["messages"]
    again = cluster.vq_json("message", "find", "found", "--id", message["id"])
    assert again["messages"] == [message]
    assert again["until_s"] - again["since_s"] == pytest.approx(7_200)
    for options, expected in (
        (("--key", "5", "--key-type", "int"), ["five"]),
        (("--key", "00FF", "--key-type", "hex"), ["bytes"]),
        (("--key", "5"), []),
        (("--tag", "old || new", "--key", "k3"), ["3"]),
        (("--tag", "old"), []),
        (("--since", "1h", "--key", "k1"), ["1"]),
        (("--until", "1h", "--key", "k1"), []),
    ):
        assert contents(cluster.vq_json("message", "find", "found", *options)) == expected
    later = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    assert contents(cluster.vq_json("message", "find", "found", "--since", later)) == []


def test_people_read_messages_and_what_was_searched(cluster: ProcessCluster) -> None:
    """Messages on standard output, the search on standard error."""
    filled(cluster, "shown")
    ended = cluster.vq("message", "find", "shown", "--key", "k7")
    assert ended.returncode == 0, ended.stderr
    fields = dict(line.split("\t") for line in ended.stdout.decode().splitlines())
    assert (fields["key"], fields["tag"], fields["content"]) == ("k7", "new", "7")
    told = ended.stderr.decode()
    assert told.startswith("1 message found\n")
    assert "searched shown-0: offsets 0 to" in told
    assert "searched shown-1: offsets 0 to" in told
    ended = cluster.vq("message", "find", "shown", "--tag", "new", "--format", "{key}={content}")
    assert sorted(ended.stdout.split()) == sorted(b"k%d=%d" % (n, n) for n in range(20))
    ended = cluster.vq("message", "find", "shown", "--id", "123456789012345")
    assert b"another range of times may have it" in ended.stderr
    ended = cluster.vq("message", "find", "shown", "--key", "5")
    assert b"searched the text '5': for an integer key, add --key-type int" in ended.stderr


def test_a_search_goes_on_as_it_told(cluster: ProcessCluster) -> None:
    filled(cluster, "paged")
    got, places = [], []
    for _ in range(20):
        found = cluster.vq_json("message", "find", "paged", "--tag", "new", "--limit", "7", *places)
        got += contents(found)
        rest = {each["partition"]: each["next_offset"] for each in found["searched"]}
        left = [each["partition"] for each in found["searched"] if not each["done"]]
        places = [each for n in left for each in ("--go-on", f"{n}:{rest[n]}")]
        if not places:
            break
        assert found["stopped"] == "limit"
    assert sorted(got, key=int) == [str(number) for number in range(20)]
    ended = cluster.vq("message", "find", "paged", "--tag", "new", "--limit", "1")
    assert b"enough messages were found; to go on, add: --go-on 0:" in ended.stderr


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--key-type", "int", "--tag", "a"),
        ("--key", "x", "--key-type", "int"),
        ("--id", "0"),
        ("--id", "soon"),
        ("--since", "soon"),
        ("--tag", "a", "--go-on", "1"),
        ("--tag", "a", "--go-on", "0:5", "--partition", "0"),
        ("--tag", "a", "--timeout", "0"),
        ("--tag", "a", "--limit", "0"),
        ("--tag", "a", "--format", "{x}"),
        ("--tag", "a", "--format", "{key}", "--json"),
    ],
)
def test_an_unusable_option_is_a_wrong_usage(
    cluster: ProcessCluster, options: tuple[str, ...]
) -> None:
    assert cluster.vq("message", "find", "found", *options).returncode == 2


def test_what_a_killed_broker_has_is_told_and_found_later(cluster: ProcessCluster) -> None:
    """The command fails, names the range, and has found what the other broker has."""
    filled(cluster, "killed")
    whole = cluster.vq_json("message", "find", "killed", "--tag", "new")
    assert len(whole["messages"]) == 20
    cluster.brokers["b2"].kill()
    ended = cluster.vq("message", "find", "killed", "--tag", "new", "--json")
    assert ended.returncode == 1
    found = json.loads(ended.stdout)
    assert found["complete"] is False
    (gap,) = [gap for each in found["searched"] for gap in each["gaps"]]
    (lost,) = [each["partition"] for each in found["searched"] if each["gaps"]]
    assert (gap["start"], gap["end"], gap["kind"]) == (0, None, "unreachable")
    assert contents(found) == [
        each["content"] for each in whole["messages"] if each["partition"] != lost
    ]
    ended = cluster.vq("message", "find", "killed", "--tag", "new")
    assert ended.returncode == 1
    assert b"NOT searched, unreachable: killed-%d, offsets 0 to the end" % lost in ended.stderr
    cluster.restart("b2")
    assert contents(cluster.vq_json("message", "find", "killed", "--tag", "new")) == contents(whole)


def test_key_indexes_are_made_used_and_made_again(
    cluster: ProcessCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, too; a damaged one costs a slower search and is made again."""
    monkeypatch.setenv(FASTER, "vq.broker.history.key_indexing.LOOK_S=1")
    settings = tmp_path / "broker.toml"
    settings.write_text(f'[broker]\nblock_bytes = {8 * MIB}\npool = "small"\n')
    cluster.add("b3", "--config", str(settings))
    cluster.vq_json("topic", "create", "indexed", "--pool", "small")
    line = b"x" * 1_000
    lines = b"".join(b"k%d:%s\n" % (number, line) for number in range(10_000))
    cluster.vq_json("produce", "indexed", "--key-separator", ":", stdin=lines)
    index = cluster.directory / "b3" / "indexed" / "0" / f"{0:016d}.keys"
    block_until(index.exists, "the closed block gets its index")

    def search() -> dict:
        found = cluster.vq_json("message", "find", "indexed", "--key", "k17")
        assert [each["key"] for each in found["messages"]] == ["k17"]
        assert found["complete"]
        (searched,) = found["searched"]
        return searched

    first = search()
    assert first["skipped_bytes"] > 6 * MIB
    assert first["read_bytes"] + first["skipped_bytes"] == first["end"]
    cluster.brokers["b3"].kill()
    cluster.restart("b3")
    assert search() == first
    good = index.read_bytes()
    index.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
    assert search()["skipped_bytes"] == 0
    block_until(lambda: index.read_bytes() == good, "it is made again")
    assert search() == first
