"""The real ``vq`` command against real brokers: one story per command group.

vq produce ──▶ b1, b2 (processes) ──▶ vq consume        ZooKeeper: shared, cluster name of its own
"""

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.cluster import ProcessCluster, consumed, drained
from support.zookeeper import admin

import vq

pytestmark = pytest.mark.slow
LINES = [f"line {number}" for number in range(500)]
INPUT = "".join(line + "\n" for line in LINES).encode()


def test_every_line_of_a_file_comes_out_once(cluster: ProcessCluster, tmp_path: Path) -> None:
    """topic create, produce a file, consume in two parts: all lines, none twice."""
    made = cluster.vq_json("topic", "create", "story", "--partitions", "3")
    assert [row["group"] for row in made["partitions"]] == ["b1", "b2", "b1"]
    (tmp_path / "input").write_bytes(INPUT)
    sent = cluster.vq_json("produce", "story", str(tmp_path / "input"))
    assert (sent["sent"], sent["acknowledged"]) == (500, 500)
    first = consumed(cluster, "story", "g", 10)
    rest = drained(cluster, "story", "g", 490)
    assert len(first) == 10
    assert sorted(first + rest) == sorted(LINES)
    state = cluster.vq_json("group", "describe", "g")
    assert (state["lag_bytes"], state["lag_messages"]) == (0, 0)
    assert state["members"] == []


def test_lag_is_shown_in_bytes_and_messages(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "lag")
    cluster.vq_json("produce", "lag", stdin=b"1\n2\n3\n")
    assert consumed(cluster, "lag", "lagging", 1) == ["1"]
    state = cluster.vq_json("group", "describe", "lagging")
    assert state["lag_messages"] == 2
    assert state["lag_bytes"] > 0
    assert [row["group"] for row in cluster.vq_json("group", "list")].count("lagging") == 1


def test_keys_tags_and_positions(cluster: ProcessCluster) -> None:
    """One key goes to one partition; a tag filters; a message is found by its offset."""
    cluster.vq_json("topic", "create", "keyed", "--partitions", "4")
    data = b"".join(b"k%d=v%d\n" % (n % 3, n) for n in range(30))
    cluster.vq_json("produce", "keyed", "--key-separator", "=", "--tag", "red", stdin=data)
    options = (
        "--partition",
        "1",
        "--tag",
        "blue",
        "--header",
        "a=1",
        "--header",
        "b=",
        "--rate",
        "9",
    )
    cluster.vq_json("produce", "keyed", *options, stdin=b"one\n")
    lines = drained(cluster, "keyed", "k", 31, "--json")
    messages = [json.loads(line) for line in lines]
    places: dict[str, set[int]] = {}
    for each in messages:
        if each["tag"] == "red":
            places.setdefault(each["key"], set()).add(each["partition"])
    assert sorted(places) == ["k0", "k1", "k2"]
    assert all(len(partitions) == 1 for partitions in places.values())
    assert drained(cluster, "keyed", "blue-only", 1, "--tag", "blue") == ["one"]
    blue = next(each for each in messages if each["tag"] == "blue")
    assert blue["headers"] == {"a": "1", "b": ""}
    at = cluster.vq("message", "get", "keyed", "1", str(blue["offset"]), "--raw")
    assert at.stdout == b"one"
    assert blue["partition"] == 1


def test_a_pipe_of_two_commands_copies_messages_exactly(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """Any bytes, keys of each type, tags and headers; in order for each key.

    vq consume from --json ──pipe──▶ vq produce to --input json
    """
    for topic in ("from", "to"):
        cluster.vq_json("topic", "create", topic, "--partitions", "3")
    rng = random.Random(38)
    keys = ["k\n1", "7", 7, 2**60, b"7", b"\xff\n", None]
    tags = [None, "red", "é"]
    with vq.MessageFactory(
        vq.MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name)
    ) as factory:
        producer = factory.create_producer()
        for number in range(200):
            content = b"%d\n" % number + rng.randbytes(rng.randrange(300))
            headers = None if number % 3 else {"n": str(number), "odd\n": "\x1b\u2028"}
            key, tag = rng.choice(keys), rng.choice(tags)
            producer.send_async(vq.Message("from", content, tag=tag, key=key, headers=headers))
        producer.send_async(vq.Message("from", b"\x01" * 2**20, key="large"))
        producer.flush()
    reading = subprocess.Popen(
        cluster.command("consume", "from", "--json"), stdout=subprocess.PIPE, env=cluster.environ
    )
    with reading:
        copied = subprocess.run(
            cluster.command("produce", "to", "--input", "json", "--json"),
            stdin=reading.stdout,
            capture_output=True,
            check=True,
            env=cluster.environ,
        )
    assert reading.returncode == 0
    assert json.loads(copied.stdout)["acknowledged"] == 201
    assert _by_key(cluster, "to") == _by_key(cluster, "from")
    lines = cluster.vq("consume", "from", "--json").stdout.splitlines(keepends=True)
    cut = cluster.vq("produce", "to", "--input", "json", stdin=b"".join(lines[:5])[:-9])
    assert cut.returncode == 1
    assert b"line 5: InvalidArgument: the input ends within this message, after " in cut.stderr
    plain = cluster.vq("consume", "from")
    assert (
        b" has a newline: a program that reads lines of text does not get it back" in plain.stderr
    )
    assert b"of 201 messages, 200 have newlines" in plain.stderr


def _by_key(cluster: ProcessCluster, topic: str) -> dict[str, list[Any]]:
    """Return what the messages of a topic have, for each key in order; those without in any."""
    found: dict[str, list[Any]] = {}
    for each in map(json.loads, cluster.vq("consume", topic, "--json").stdout.splitlines()):
        key = repr((each.get("key"), each.get("key_hex"), each["key_type"]))
        body = (each.get("content"), each.get("content_base64"))
        found.setdefault(key, []).append((body, each["tag"], each["headers"]))
    found["(None, None, None)"].sort(key=repr)
    assert len(found) == 8
    return found


def test_keys_of_three_types(cluster: ProcessCluster) -> None:
    """Each goes to its partition and is shown as what it is; a line without a key is refused."""
    cluster.vq_json("topic", "create", "items", "--partitions", "5")
    cluster.vq_json("produce", "items", "--key", "1001", "--key-type", "int", stdin=b"int\n")
    cluster.vq_json("produce", "items", "--key", "1001", stdin=b"text\n")
    by_line = ("--key-separator", ":", "--key-type", "hex")
    ended = cluster.vq("produce", "items", *by_line, stdin=b"31303031:hex\nno:x\n")
    assert ended.returncode == 1
    assert b"line 2: InvalidArgument: key 'no' is not bytes" in ended.stderr
    lines = drained(cluster, "items", "readers", 3, "--json")
    found = {each["content"]: each for each in map(json.loads, lines)}
    assert (found["int"]["key"], found["int"]["partition"]) == (1001, 1)
    assert found["text"]["key"] == "1001"
    assert found["hex"]["key_hex"] == "31303031"
    assert found["text"]["partition"] == found["hex"]["partition"]
    place = (str(found["int"]["partition"]), str(found["int"]["offset"]))
    assert cluster.vq_json("message", "get", "items", *place)["key"] == 1001
    refused = cluster.vq("produce", "items", "--key", "x", "--key-type", "int")
    assert b"key 'x' is not an integer" in refused.stderr


def test_lines_without_a_key_are_refused_by_number_or_counted(cluster: ProcessCluster) -> None:
    """Such a line would go to any partition; so would one whose key was altered."""
    cluster.vq_json("topic", "create", "keyless", "--partitions", "2")
    data = b"a=1\nno key\n\xff=3\nb=4\n"
    refused = cluster.vq("produce", "keyless", "--key-separator", "=", "--json", stdin=data)
    told = json.loads(refused.stdout)
    assert refused.returncode == 1
    assert (told["sent"], told["acknowledged"], told["refused"]) == (4, 2, 2)
    assert told["failures"] == {"InvalidArgument": 2}
    second, third, _ = map(json.loads, refused.stderr.splitlines())
    assert (second["line"], third["line"]) == (2, 3)
    assert second["message"].startswith("no '=' in this line")
    assert third["message"].startswith("key b'\\xff' is not UTF-8")
    options = ("--key-separator", "=", "--allow-no-key")
    told = cluster.vq_json("produce", "keyless", *options, stdin=b"a=5\nno key\n")
    assert (told["acknowledged"], told["without_key"]) == (2, 1)
    lines = drained(cluster, "keyless", "g", 4, "--json")
    found = {each["content"]: each["key"] for each in map(json.loads, lines)}
    assert found == {"1": "a", "4": "b", "5": "a", "no key": None}


def test_a_key_that_no_message_can_have_does_not_end_the_others(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "wide-keys")
    data = b"1:a\n99999999999999999999:b\n3:c\n"
    options = ("--key-separator", ":", "--key-type", "int", "--json")
    ended = cluster.vq("produce", "wide-keys", *options, stdin=data)
    told = json.loads(ended.stdout)
    assert (ended.returncode, told["acknowledged"], told["refused"]) == (1, 2, 1)
    line = json.loads(ended.stderr.splitlines()[0])
    assert (line["line"], line["error"]) == (2, "InvalidArgument")
    assert line["message"].startswith("key 99999999999999999999 is outside")


UNFIT = [
    (("--tag", "a||b"), "tag 'a||b' has '||', which separates the tags of a filter"),
    (("--tag", " a"), "tag ' a' begins or ends with white space"),
    (("--tag", "a\t"), "tag 'a\\t' begins or ends with white space"),
    (("--tag", ""), "tag '' of 0 bytes is outside [1, 255]"),
    (("--header", "a"), "header 'a' is not NAME=VALUE"),
    (("--partition", "7"), "--partition 7 is outside [0, 1), the partitions of topic unfit"),
    (("--key-type", "int"), "--key-type int has no effect without --key or --key-separator"),
]


def test_options_that_suit_no_line_are_refused_before_the_first_one(
    cluster: ProcessCluster,
) -> None:
    """Exit code 2 as for all usage errors, also if there is no line; nothing is stored."""
    cluster.vq_json("topic", "create", "unfit")
    for number, (options, error) in enumerate(UNFIT):
        ended = cluster.vq("produce", "unfit", *options, stdin=b"1\n" * (number % 2))
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert error in ended.stderr.decode()
    assert cluster.vq_json("topic", "describe", "unfit")["partitions"][0]["bytes"] == 0


@pytest.mark.parametrize("compression", ["zlib", "zstd", "lz4"])
def test_compressed_lines_are_read_like_others(cluster: ProcessCluster, compression: str) -> None:
    """By a group, by a group with a filter, and by their offset; the topic has other defaults."""
    topic = f"compressed-{compression}"
    options = ("--compression", "zstd", "--compression-threshold", "64K")
    cluster.vq_json("topic", "create", topic, *options)
    data = b"".join(b"%d " % number * 300 + b"\n" for number in range(40))
    options = ("--compression", compression, "--compression-threshold", "500")
    told = cluster.vq_json("produce", topic, *options, "--tag", "red", stdin=data)
    assert told["bytes"] == len(data) - 40
    assert told["stored_bytes"] < told["bytes"] / 3
    assert told["compression_ratio"] > 3
    told = cluster.vq_json("produce", topic, *options, stdin=b"short\n")
    assert (told["stored_bytes"], told["compression_ratio"]) == (5, None)
    described = cluster.vq_json("topic", "describe", topic)
    assert (described["compression"], described["compression_threshold_bytes"]) == ("zstd", 65_536)
    assert described["partitions"][0]["bytes"] < len(data) / 3
    lines = drained(cluster, topic, "all", 41, "--json")
    messages = [json.loads(line) for line in lines]
    assert "".join(each["content"] + "\n" for each in messages[:40]).encode() == data
    assert drained(cluster, topic, f"red-{compression}", 40, "--tag", "red") == [
        each["content"] for each in messages[:40]
    ]
    at = cluster.vq("message", "get", topic, "0", str(messages[7]["offset"]), "--raw")
    assert at.stdout == messages[7]["content"].encode()


def test_an_offset_inside_a_record_is_refused_with_the_next_one(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "inside")
    cluster.vq_json("produce", "inside", stdin=b"first\nsecond\n")
    first = cluster.vq_json("message", "get", "inside", "0", "0")
    refused = cluster.vq("message", "get", "inside", "0", str(first["offset"] + 1), "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stderr.splitlines()[-1])
    assert error["error"] == "OffsetNotBoundary"
    assert error["details"]["next"] == first["next_offset"]
    after = cluster.vq_json("message", "get", "inside", "0", str(first["offset"] + 1), "--next")
    assert after["content"] == "second"


def test_a_moved_partition_keeps_its_messages_and_takes_new_ones(cluster: ProcessCluster) -> None:
    """produce 1, move b1 -> b2, produce 2: a new group reads all of it in order."""
    cluster.vq_json("topic", "create", "moving", "--partitions", "1")
    source = cluster.vq_json("topic", "describe", "moving")["partitions"][0]["group"]
    target = {"b1": "b2", "b2": "b1"}[source]
    cluster.vq_json("produce", "moving", stdin=b"1\n2\n")
    assert consumed(cluster, "moving", "before", 1) == ["1"]
    plan = cluster.vq("topic", "move", "moving", "--partition", "0", "--to", target)
    assert plan.returncode == 0
    assert b"nothing was changed; add --yes" in plan.stderr
    arguments = ("topic", "move", "moving", "--partition", "0", "--to", target, "--yes")
    planned = cluster.vq_json(*arguments[:-1])
    moved = cluster.vq_json(*arguments)
    for found, is_done in ((planned, False), (moved, True)):
        assert found["done"] is is_done
        assert [(row["from"], row["to"]) for row in found["moves"]] == [(source, target)]
    assert cluster.vq_json(*arguments)["moves"] == []
    cluster.vq_json("produce", "moving", stdin=b"3\n")
    assert drained(cluster, "moving", "after", 3) == ["1", "2", "3"]
    assert drained(cluster, "moving", "before", 2) == ["2", "3"]
    row = cluster.vq_json("topic", "describe", "moving")["partitions"][0]
    assert row["group"] == target
    assert row["earliest"] == 0
    assert cluster.vq_json("group", "describe", "after")["lag_messages"] == 0


def test_deleting_a_topic_needs_yes(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "gone")
    assert cluster.vq_json("topic", "delete", "gone")["done"] is False
    assert "gone" in [row["topic"] for row in cluster.vq_json("topic", "list")]
    deleted = cluster.vq_json("topic", "delete", "gone", "--yes")
    assert (deleted["done"], deleted["grace_s"], deleted["deleted"]) == (True, 72 * 3600, False)
    assert "gone" not in [row["topic"] for row in cluster.vq_json("topic", "list")]
    again = cluster.vq_json("topic", "delete", "gone", "--yes")
    assert again["deleted"] is True
    assert 0 < again["grace_s"] <= 72 * 3600


def test_a_deleted_topic_is_listed_brought_back_and_removed(cluster: ProcessCluster) -> None:
    """The grace period is a setting of the cluster, and counts for what is deleted later."""
    cluster.vq_json("topic", "create", "back")
    cluster.vq_json("produce", "back", stdin=b"1\n2\n")
    made = cluster.vq_json("topic", "describe", "back")
    cluster.vq_json("topic", "delete", "back", "--yes")
    found = {row["topic"]: row for row in cluster.vq_json("topic", "list", "--deleted")}
    assert (found["back"]["id"], found["back"]["grace_s"]) == (made["id"], 72 * 3600)
    assert b"back" in cluster.vq("topic", "list", "--deleted").stdout
    for command in ("describe", "drain", "close"):
        ended = cluster.vq("topic", command, "back")
        assert ended.returncode == 1
        assert b"vq topic undelete back" in ended.stderr, command
    refused = cluster.vq("topic", "create", "back")
    assert (refused.returncode, b"its name is not free" in refused.stderr) == (1, True)

    settings = cluster.vq_json("cluster", "settings", "--delete-grace-hours", "0")
    assert settings["delete_grace_s"] == 0
    assert cluster.vq("topic", "delete", "back", "--yes").returncode == 0
    assert cluster.vq_json("topic", "undelete", "back")["changed"] is True
    assert cluster.vq_json("topic", "undelete", "back")["changed"] is False
    assert drained(cluster, "back", "b", 2) == ["1", "2"]
    planned = cluster.vq("topic", "delete", "back")
    assert b"this cannot be undone" in planned.stderr
    assert cluster.vq("topic", "delete", "back", "--yes").returncode == 0
    gone = cluster.vq("topic", "undelete", "back")
    assert gone.returncode == 1
    assert b"there is no topic" in gone.stderr
    cluster.vq_json("topic", "create", "back")
    assert cluster.vq_json("cluster", "settings", "--delete-grace-hours", "72")
    assert cluster.vq("cluster", "settings", "--delete-grace-hours", "9999").returncode == 2


def test_a_line_that_is_too_long_is_refused_by_number_and_the_others_are_sent(
    cluster: ProcessCluster,
) -> None:
    cluster.vq_json("topic", "create", "long", "--max-message-bytes", "10")
    ended = cluster.vq("produce", "long", "--json", stdin=b"1\n" + b"x" * 11 + b"\n3\n")
    assert ended.returncode == 1
    counts = json.loads(ended.stdout)
    assert (counts["sent"], counts["acknowledged"], counts["refused"]) == (3, 2, 1)
    line, error = map(json.loads, ended.stderr.splitlines())
    assert (line["line"], line["outcome"], line["error"]) == (2, "refused", "MessageTooLarge")
    assert (error["error"], error["outcome"]) == ("CommandFailed", "refused")
    assert error["details"]["failures"] == {"MessageTooLarge": 1}
    assert drained(cluster, "long", "l", 2) == ["1", "3"]


def test_all_lines_that_failed_can_be_had(cluster: ProcessCluster, tmp_path: Path) -> None:
    """Five are listed, the others counted; the files have all, unchanged and with numbers."""
    cluster.vq_json("topic", "create", "bad")
    stdin = b"".join(b"bad %d\n" % n for n in range(60)) + b"k\\tv\n"
    by_tab = ("produce", "bad", "--key-separator", "\\t")
    ended = cluster.vq(*by_tab, stdin=stdin)
    assert ended.returncode == 1
    said = ended.stderr.decode().splitlines()
    assert "for a tab give $'\\t'" in said[0]
    assert [line.partition(":")[0] for line in said[1:6]] == [f"line {n}" for n in range(1, 6)]
    assert said[6].startswith("and 55 more; with --unacknowledged FILE")
    lines, rows = tmp_path / "lines", tmp_path / "rows"
    files = ("--unacknowledged", str(lines), "--errors", str(rows))
    again = cluster.vq(*by_tab, *files, "--json", stdin=stdin)
    assert all(map(json.loads, again.stderr.splitlines())), "only JSON, one object a line"
    assert lines.read_bytes() == b"".join(stdin.splitlines(keepends=True)[:60])
    told = [json.loads(row)["line"] for row in rows.read_text().splitlines()]
    assert told == list(range(1, 61))


def test_hints_name_the_topic(cluster: ProcessCluster) -> None:
    cluster.vq("topic", "create", "named")
    for arguments in (("create", "named"), ("move", "named", "--partition", "7", "--to", "b1")):
        said = cluster.vq("topic", *arguments).stderr.decode()
        assert "`vq topic describe named`" in said
    assert "`vq topic create nix --p" in cluster.vq("produce", "nix", "--json").stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("produce", "nowhere"), "UnknownTopic"),
        (("consume", "nowhere", "--group", "g", "--timeout", "1"), "UnknownTopic"),
        (("topic", "describe", "nowhere"), "UnknownTopic"),
        (("group", "describe", "nobody"), "UnknownGroup"),
        (
            ("topic", "move", "refusals", "--partition", "0", "--to", "b9", "--yes"),
            "InvalidArgument",
        ),
        (("topic", "move", "refusals", "--partition", "7", "--to", "b2"), "UnknownPartition"),
        (("topic", "create", "refusals"), "TopicExists"),
        (("message", "get", "refusals", "0", "999999"), "OffsetOutOfRange"),
    ],
)
def test_refusals_name_their_error_and_say_what_to_do(
    cluster: ProcessCluster, arguments: tuple[str, ...], error: str
) -> None:
    cluster.vq("topic", "create", "refusals")
    ended = cluster.vq(*arguments, "--json", stdin=b"x\n")
    assert ended.returncode in {1, 2}
    said = json.loads(ended.stderr.splitlines()[-1])
    assert said["error"] == error
    assert said["outcome"] != "unknown"


def test_a_pipe_gets_plain_columns(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "plain")
    ended = cluster.vq("topic", "list")
    header, *rows = ended.stdout.decode().splitlines()
    assert header.split("\t")[:4] == ["topic", "partitions", "flush", "replication"]
    assert header.split("\t")[4:] == ["retention", "writes", "broker_groups"]
    assert any(row.split("\t")[:4] == ["plain", "1", "sync", "sync, min 1"] for row in rows)


def test_a_list_of_topics_says_which_may_lose_messages(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "loose", "--replication", "async")
    refused = cluster.vq("topic", "alter", "loose", "--min-insync", "2")
    assert refused.returncode == 2
    assert b"has 1 node(s), and the topic's min_insync is 2: topic 'loose' would" in refused.stderr
    (row,) = [each for each in cluster.vq_json("topic", "list") if each["topic"] == "loose"]
    assert (row["flush"], row["replication"], row["min_insync"]) == ("sync", "async", 1)
    cluster.vq_json("topic", "delete", "loose", "--yes")  # status and doctor call it unsafe


def test_nodes_say_when_they_verify_all_that_they_store(cluster: ProcessCluster) -> None:
    """No pass is due in the first minutes: none began, and the next one is a week away."""
    rows = cluster.vq_json("cluster", "scrub")
    assert [(row["group"], row["running"], row["begun_s"]) for row in rows] == [
        ("b1", False, None),
        ("b2", False, None),
    ]
    day_s = 86_400
    assert all(6 * day_s < row["next_s"] - time.time() < 7 * day_s for row in rows)
    ended = cluster.vq("cluster", "scrub")
    assert ended.returncode == 0
    assert "next" in ended.stdout.decode().splitlines()[0].split("\t")


def test_nodes_say_what_they_do_again_and_again(cluster: ProcessCluster) -> None:
    """A job that has run shows when; one that waits says until when; off ones say why."""
    [node] = cluster.vq_json("broker", "jobs", "b1/n1")
    assert (node["group"], node["node"], node["error"]) == ("b1", "n1", None)
    jobs = {each["name"]: each for each in node["jobs"]}
    assert {"daily archive", "load", "relief", "retention", "scrub", "trash"} <= jobs.keys()
    assert all(each["why_off"] for each in jobs.values() if each["state"] == "off")
    load = jobs["load"]
    assert load["runs"] > 0
    assert load["begun_s"] <= time.time() + 1
    waits = [each for each in jobs.values() if each["state"] == "waits"]
    assert all(time.time() - 5 < each["next_s"] < time.time() + 90_000 for each in waits)
    assert len(cluster.vq_json("broker", "jobs")) == 2
    refused = cluster.vq("broker", "jobs", "b9")
    assert refused.returncode == 2
    assert b"no broker 'b9' is registered; these are: b1/n1, b2/n1" in refused.stderr


def test_cluster_status_and_doctor_find_the_brokers(cluster: ProcessCluster) -> None:
    rows = cluster.vq_json("cluster", "status")
    assert [(row["group"], row["role"], row["answers"]) for row in rows] == [
        ("b1", "master", True),
        ("b2", "master", True),
    ]
    findings = {each["check"]: each for each in cluster.vq_json("doctor")}
    assert {"zookeeper", "session", "broker b1/n1", "broker b2/n1", "clocks"} <= set(findings)
    broker = findings["broker b1/n1"]
    # Whoever runs the tests may have a disk that is nearly full.
    assert broker["level"] == "ok" or ("disk" in broker["detail"] and broker["level"] == "warn")


def test_a_cluster_of_a_mistyped_name_is_named_where_nothing_is_found(
    cluster: ProcessCluster,
) -> None:
    """With the clusters that there are; looking leaves no tree of the wrong name behind."""
    for command in (
        ["cluster", "status"],
        ["topic", "list"],
        ["consume", "t"],
        ["consume", "t", "--group", "g"],
        ["message", "get", "t", "0", "0"],
        ["produce", "t"],
    ):
        assert_names_the_clusters(cluster, *command)
        with admin(cluster.zookeeper) as client:
            assert client.exists("/vq/prodd") is None, command
    said = cluster.vq("doctor", "--cluster", "prodd").stdout.decode()
    assert "--cluster" in said
    assert (
        cluster.name in said.partition("none has ever registered in this cluster; there are: ")[2]
    )
    with admin(cluster.zookeeper) as client:
        assert client.exists("/vq/prodd") is None


def assert_names_the_clusters(cluster: ProcessCluster, *command: str) -> None:
    ended = cluster.vq(*command, "--cluster", "prodd")
    assert ended.returncode == 1
    said = ended.stderr.decode()
    assert "there is no cluster 'prodd' at" in said
    assert cluster.name in said.partition("there are: ")[2]


def test_producers_create_topics_where_an_operator_allows_it(cluster: ProcessCluster) -> None:
    assert cluster.vq_json("cluster", "settings")["auto_create"] is False
    refused = cluster.vq("cluster", "settings", "--partitions", "3")
    assert b"auto-create is off" in refused.stderr
    on = cluster.vq_json("cluster", "settings", "--auto-create", "on", "--partitions", "3")
    assert (on["auto_create"], on["partitions"], on["flush"]) == (True, 3, "sync")
    unknown = cluster.vq("cluster", "settings", "--pool", "fast")
    assert b"the pools are common (b1, b2)" in unknown.stderr
    try:
        empty = cluster.vq("produce", "made-by-nobody", stdin=b"")
        large = cluster.vq("produce", "made-by-nobody", stdin=b"x" * 1_100_000)
        outside = cluster.vq("produce", "made-by-nobody", "--partition", "3", stdin=b"1\n")
        assert (empty.returncode, large.returncode, outside.returncode) == (0, 1, 2)
        assert b"--partition 3 is outside [0, 3)" in outside.stderr
        cluster.vq_json("produce", "made-by-a-producer", stdin=b"1\n")
        assert cluster.vq_json("cluster", "settings", "--flush", "async")["partitions"] == 3
    finally:
        off = cluster.vq_json("cluster", "settings", "--auto-create", "off")
        assert (off["auto_create"], off["partitions"], off["flush"]) == (False, 3, "async")
    found = cluster.vq_json("topic", "describe", "made-by-a-producer")
    assert len(found["partitions"]) == 3
    assert b"made-by-nobody" not in cluster.vq("topic", "list").stdout
