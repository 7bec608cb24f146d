"""What an operator does with the real ``vq`` command: read, alter, reset, delete, drain, complete.

Every JSON document is compared with the schema of its command (``ProcessCluster.vq_json``).
"""

import json
import subprocess
import time
from datetime import UTC, datetime

import pytest
from support.cluster import ProcessCluster
from support.faults import client_of
from support.json_schema import schema_of, wrong
from support.zookeeper import admin

from vq.cli.schemas import schemas
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


def lines(cluster: ProcessCluster, *arguments: str) -> list[str]:
    ended = cluster.vq("consume", *arguments)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode().splitlines()


def test_a_topic_is_read_without_a_group(cluster: ProcessCluster) -> None:
    """All of it, the last ones, since a time, from an offset, by tag; no group is made."""
    cluster.vq_json("topic", "create", "alone", "--partitions", "3")
    for number in range(6):
        tag = ("--tag", "even") if number % 2 == 0 else ()
        options = ("--key", f"k{number}", "--header", f"n={number}", *tag)
        cluster.vq_json("produce", "alone", *options, stdin=b"%d\n" % number)
    assert lines(cluster, "alone") == [str(number) for number in range(6)]
    assert lines(cluster, "alone", "--last", "2") == ["4", "5"]
    assert lines(cluster, "alone", "--tag", "even", "--last", "2") == ["2", "4"]
    assert lines(cluster, "alone", "--since", "1h", "--max", "3") == ["0", "1", "2"]
    later = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    assert lines(cluster, "alone", "--since", later) == []
    messages = [json.loads(line) for line in lines(cluster, "alone", "--json")]
    assert not [each for message in messages for each in wrong(message, schemas()["consume"])]
    third = messages[2]
    place = ("--partition", str(third["partition"]), "--offset", str(third["offset"]))
    assert lines(cluster, "alone", *place)[0] == "2"
    formed = lines(cluster, "alone", "--last", "1", "--format", "{key} {headers[n]} {content}")
    assert formed == ["k5 5 5"]
    assert "alone" not in json.dumps(cluster.vq_json("group", "list"))


def test_what_comes_is_followed(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "followed", "--partitions", "2")
    cluster.vq_json("produce", "followed", stdin=b"before\n")
    with subprocess.Popen(
        cluster.command("consume", "followed", "--last", "1", "--follow", "--max", "3"),
        stdout=subprocess.PIPE,
        env=cluster.environ,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"before\n"
        cluster.vq_json("produce", "followed", stdin=b"1\n2\n")
        assert sorted(running.stdout.read().split()) == [b"1", b"2"]
    assert running.returncode == 0


def test_a_topic_is_made_once_and_altered(cluster: ProcessCluster) -> None:
    made = cluster.vq_json("topic", "create", "altered", "--if-not-exists")
    assert made["created"] is True
    again = cluster.vq("topic", "create", "altered", "--partitions", "9", "--if-not-exists")
    assert (again.returncode, b"left as it is, with other settings" in again.stderr) == (0, True)
    found = cluster.vq_json("topic", "alter", "altered", "--partitions", "3", "--min-insync", "1")
    assert found["partitions"] == 3
    refused = cluster.vq("topic", "alter", "altered", "--partitions", "2")
    assert (refused.returncode, b"can grow, not fall to 2" in refused.stderr) == (2, True)
    (row,) = (row for row in cluster.vq_json("topic", "list") if row["topic"] == "altered")
    assert row["broker_groups"] == ["b1", "b2"]
    ranges = cluster.vq("topic", "describe", "altered").stdout.decode().splitlines()[-1]
    assert ranges.endswith(" from 0")


@pytest.mark.parametrize(
    "command",
    [("consume", "oders", "--group", "g"), ("produce", "oders"), ("topic", "describe", "oders")],
    ids=" ".join,
)
def test_a_misspelt_topic_is_told_the_nearest_one(
    cluster: ProcessCluster, command: tuple[str, ...]
) -> None:
    """Whoever makes a typing error is not to create another topic."""
    assert cluster.vq("topic", "create", "orders", "--if-not-exists").returncode == 0
    ended = cluster.vq(*command, stdin=b"one\n")
    assert ended.returncode == 1
    assert "did you mean 'orders'? `vq topic list` shows all topics" in ended.stderr.decode()
    told = json.loads(cluster.vq(*command, "--json", stdin=b"one\n").stderr.splitlines()[-1])
    assert (told["error"], told["hint"][:21]) == ("UnknownTopic", "did you mean 'orders'")


def test_a_group_is_shifted_and_deleted(cluster: ProcessCluster) -> None:
    """A dry run ends with 0 and gives the plan; numbers of tables are accepted by commands."""
    cluster.vq_json("topic", "create", "shifted")
    cluster.vq_json("produce", "shifted", stdin=b"".join(b"%d\n" % n for n in range(2_000)))
    assert len(lines(cluster, "shifted", "--group", "s", "--max", "5")) == 5
    before = cluster.vq_json("group", "describe", "s")
    assert (before["lag_messages"], before["members"]) == (1_995, [])
    assert before["lag_s"] > 0
    planned = cluster.vq_json("group", "reset", "s", "--shift", "-2")
    assert (planned["done"], planned["partitions"][0]["repeats"]) == (False, 2)
    assert cluster.vq_json("group", "describe", "s")["lag_messages"] == 1_995
    assert cluster.vq_json("group", "reset", "s", "--shift", "-2", "--yes")["done"] is True
    assert lines(cluster, "shifted", "--group", "s", "--max", "1") == ["3"]
    cluster.vq_json("group", "reset", "s", "--to-time", "1h", "--yes")
    assert lines(cluster, "shifted", "--group", "s", "--max", "1") == ["0"]
    assert cluster.vq_json("group", "delete", "s")["done"] is False
    assert cluster.vq_json("group", "delete", "s", "--yes")["partitions"] == 1
    gone = cluster.vq("group", "describe", "s")
    assert (gone.returncode, b"no consumer group 's'" in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    "command",
    [
        ("describe", "shpo"),
        ("delete", "shpo"),
        ("reset", "shpo", "--to-latest"),
        ("forget", "shpo", "--topic", "spelt"),
    ],
    ids=" ".join,
)
def test_a_misspelt_group_is_told_the_nearest_one(
    cluster: ProcessCluster, command: tuple[str, ...]
) -> None:
    if cluster.vq("topic", "create", "spelt").returncode == 0:
        cluster.vq_json("produce", "spelt", stdin=b"1\n")
        assert lines(cluster, "spelt", "--group", "shop", "--max", "1") == ["1"]
    ended = cluster.vq("group", *command)
    assert ended.returncode == 1
    assert "did you mean 'shop'? `vq group list` shows all groups" in ended.stderr.decode()


def test_groups_are_listed_with_their_lag(cluster: ProcessCluster) -> None:
    """With the worst verdict of each; the lag of one that filters by tag is an upper bound."""
    cluster.vq_json("topic", "create", "lagging", "--partitions", "2")
    cluster.vq_json("produce", "lagging", "--tag", "a", stdin=b"1\n")
    assert lines(cluster, "lagging", "--group", "all-tags", "--max", "1") == ["1"]
    assert lines(cluster, "lagging", "--group", "one-tag", "--tag", "a", "--max", "1") == ["1"]
    cluster.vq_json("produce", "lagging", "--tag", "b", stdin=b"2\n3\n")

    def listed(*options: str) -> dict[str, dict[str, object]]:
        return {each["group"]: each for each in cluster.vq_json("group", "list", *options)}

    found = listed("--lag")
    for name, is_bound in (("all-tags", False), ("one-tag", True)):
        row = found[name]
        assert (row["lag_messages"], row["lag_is_upper_bound"]) == (2, is_bound)
        assert (row["verdict"], row["cause"]) == ("stopped", "no_members")
        assert row["lag_bytes"] == cluster.vq_json("group", "describe", name)["lag_bytes"]
    assert listed()["all-tags"]["lag_bytes"] is None
    table = cluster.vq("group", "list", "--lag").stdout.decode().splitlines()
    assert any(line.startswith("one-tag\t") and "\t<= 2\t" in line for line in table)
    shown = cluster.vq("group", "describe", "one-tag")
    assert b"messages that it leaves out lie in its lag, too: it is an upper bound" in shown.stderr
    assert b"upper bound" not in cluster.vq("group", "describe", "all-tags").stderr


def test_a_broker_group_is_taken_out_of_the_cluster(cluster: ProcessCluster) -> None:
    broker = cluster.add("b3")
    cluster.vq_json("topic", "create", "leaves", "--partitions", "6")
    try:
        cluster.vq_json("broker", "drain", "b3")
        shown = cluster.vq("cluster", "status").stdout.decode().splitlines()
        assert "draining" in shown[0]
        assert [line.split("\t")[4] for line in shown[1:]] == ["-", "-", "group"]
        planned = cluster.vq_json("broker", "drain", "b3", "--move")
        assert (planned["done"], len(planned["moves"])) == (False, 2)
        moved = cluster.vq_json("broker", "drain", "b3", "--move", "--yes")
        assert (moved["done"], moved["partitions"]) == (True, 0)
        runs = cluster.vq("broker", "remove", "b3", "--json")
        assert runs.returncode == 1
        assert json.loads(runs.stdout)["obstacle"] == "b3/n1 runs: stop it first"
        assert not list(wrong(json.loads(runs.stdout), schemas()["broker remove"]))
    finally:
        broker.stop()
    block_until(lambda: cluster.vq("broker", "remove", "b3").returncode == 0)
    assert cluster.vq_json("broker", "remove", "b3", "--yes")["done"] is True
    assert [row["group"] for row in cluster.vq_json("cluster", "status")] == ["b1", "b2"]
    cluster.vq_json("broker", "drain", "b2")
    assert cluster.vq_json("broker", "undrain", "b2")["draining"] is False


def test_what_cannot_be_read_is_named_beside_a_list_and_can_be_deleted(
    cluster: ProcessCluster,
) -> None:
    """The list is whole otherwise; exit code 1 tells a script that it is not."""
    cluster.vq_json("topic", "create", "sound")
    cluster.vq_json("topic", "create", "unsound")
    assert lines(cluster, "sound", "--group", "sound", "--timeout", "0.5") == []
    assert lines(cluster, "sound", "--group", "unsound", "--timeout", "0.5") == []
    with admin(cluster.zookeeper) as client:
        for kind in ("topics", "consumers"):
            client.set(f"/vq/{cluster.name}/{kind}/unsound", b"{")
    for kind in ("topic", "group"):
        ended = cluster.vq(kind, "list", "--json")
        assert ended.returncode == 1
        found = [row[kind] for row in json.loads(ended.stdout)]
        assert "sound" in found
        assert "unsound" not in found
        (told,) = (json.loads(line) for line in ended.stderr.splitlines() if b"left out" in line)
        assert told["details"]["unreadable"] == ["unsound"]
    refused = cluster.vq("topic", "delete", "unsound", "--yes")
    assert (refused.returncode, b"could not be brought back" in refused.stderr) == (1, True)
    planned = cluster.vq_json("topic", "delete", "unsound", "--now")
    assert (planned["done"], planned["keeps_data"]) == (False, True)
    assert cluster.vq_json("topic", "delete", "unsound", "--now", "--yes")["done"] is True
    assert cluster.vq_json("group", "delete", "unsound", "--yes")["done"] is True
    assert "unsound" not in [row["topic"] for row in cluster.vq_json("topic", "list")]
    assert "unsound" not in [row["group"] for row in cluster.vq_json("group", "list")]


def completions(cluster: ProcessCluster, *words: str) -> list[str]:
    """Return what bash would offer behind these words."""
    environ = {
        **cluster.environ,
        "_VQ_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("vq", *words)),
        "COMP_CWORD": str(len(words)),
    }
    ended = subprocess.run(cluster.command(), env=environ, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return [line.partition(",")[2] for line in ended.stdout.decode().splitlines() if line]


def test_a_shell_completes_topics_groups_and_brokers(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "completed-1")
    cluster.vq_json("topic", "create", "completed-2")
    assert lines(cluster, "completed-1", "--group", "completes", "--timeout", "0.5") == []
    assert completions(cluster, "topic", "describe", "comp") == ["completed-1", "completed-2"]
    assert completions(cluster, "consume", "completed-2") == ["completed-2"]
    assert completions(cluster, "consume", "completed-1", "--group", "comp") == ["completes"]
    assert completions(cluster, "group", "reset", "comp") == ["completes"]
    assert completions(cluster, "broker", "drain", "b1") == ["b1", "b1/n1"]
    assert completions(cluster, "gr") == ["group"]
    assert completions(cluster, "topic", "describe", "--cluster", "mistyped", "comp") == []
    with admin(cluster.zookeeper) as client:
        assert client.exists("/vq/mistyped") is None


def test_a_shell_waits_only_shortly_for_names(cluster: ProcessCluster) -> None:
    """Without ZooKeeper there are none, and no error beside the line that is typed."""
    nowhere = ("topic", "describe", "--zookeeper", "127.0.0.1:1", "x")
    started = time.monotonic()
    assert completions(cluster, *nowhere) == []
    assert time.monotonic() - started < 30  # the wait itself is 1.5 s


def test_a_write_that_was_given_up_is_listed_and_ended(cluster: ProcessCluster) -> None:
    with client_of(cluster) as factory:
        factory.admin.begin_write("nightly")
    assert cluster.vq_json("write", "list") == [{"write": "nightly"}]
    missing = cluster.vq("write", "end", "nightli", "--yes")
    assert (missing.returncode, b"no write 'nightli'" in missing.stderr) == (1, True)
    assert cluster.vq_json("write", "end", "nightly")["done"] is False
    assert cluster.vq_json("write", "end", "nightly", "--yes")["done"] is True
    assert cluster.vq_json("write", "list") == []


def test_other_documents_are_what_their_schemas_say(cluster: ProcessCluster) -> None:
    """Those of commands that end with 1, and lines of standard error."""
    cluster.vq_json("topic", "create", "looked-at")
    cluster.vq_json("produce", "looked-at", "--key", "9007199254740993", stdin=b"1\n")
    for command in (
        ("topic", "verify", "looked-at"),
        ("cluster", "settings"),
        ("cluster", "diverged"),
    ):
        cluster.vq_json(*command)
    cluster.vq_json("topic", "move", "looked-at", "--partition", "0", "--to", "b1")
    cluster.vq_json("topic", "heal-clock", "looked-at")
    cluster.vq_json("cluster", "switch", "b1", "--to", "n1")
    (line,) = cluster.vq("message", "get", "looked-at", "0", "0", "--json").stdout.splitlines()
    assert not list(wrong(json.loads(line), schema_of(["message", "get"])))
    failed = cluster.vq("topic", "describe", "nowhere", "--json")
    assert not list(wrong(json.loads(failed.stderr), schemas()["error"]))


def test_a_topic_is_closed_drained_and_opened(cluster: ProcessCluster) -> None:
    """A send is refused with the code that names it; a group that is behind is named."""
    cluster.vq_json("topic", "create", "worn", "--partitions", "2")
    cluster.vq_json("produce", "worn", stdin=b"".join(b"%d\n" % n for n in range(100)))
    assert len(lines(cluster, "worn", "--group", "slow", "--max", "5")) == 5
    closed = cluster.vq_json("topic", "close", "worn")
    assert (closed["changed"], closed["unconfirmed"], closed["writable"]) == (True, [], False)
    assert cluster.vq_json("topic", "close", "worn")["changed"] is False
    refused = cluster.vq("produce", "worn", "--json", stdin=b"late\n")
    assert refused.returncode == 1
    told = json.loads(refused.stderr.splitlines()[-1])
    assert (told["error"], told["status"]) == ("TopicClosed", 49)
    assert "vq topic open" in told["hint"]
    (row,) = (row for row in cluster.vq_json("topic", "list") if row["topic"] == "worn")
    assert row["writable"] is False
    described = cluster.vq_json("topic", "describe", "worn")
    assert [each["state"] for each in described["partitions"]] == ["closed", "closed"]
    assert described["writable"] is False
    assert b"closed for writes: worn" in cluster.vq("cluster", "status").stderr
    ends = {each["partition"]: each["end"] for each in closed["partitions"]}
    assert ends == {each["partition"]: each["latest"] for each in described["partitions"]}

    behind = cluster.vq("topic", "drain", "worn", "--timeout", "0", "--json")
    document = json.loads(behind.stdout)
    assert not list(wrong(document, schemas()["topic drain"]))
    assert (behind.returncode, document["drained"]) == (1, False)
    (group,) = document["groups"]
    assert (group["group"], group["members"], group["done"]) == ("slow", 0, False)
    assert sum(each["lag_messages"] for each in group["behind"]) == 95
    text = cluster.vq("topic", "drain", "worn", "--timeout", "0").stderr.decode()
    assert "group slow:" in text
    assert "and it has no members" in text

    with subprocess.Popen(
        cluster.command("topic", "drain", "worn", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environ,
    ) as draining:
        assert draining.stderr is not None
        assert b"waiting for group slow" in draining.stderr.readline()
        assert len(lines(cluster, "worn", "--group", "slow", "--max", "95")) == 95
        stdout, _ = draining.communicate()
    assert (draining.returncode, json.loads(stdout)["drained"]) == (0, True)
    assert cluster.vq_json("topic", "open", "worn")["changed"] is True
    assert cluster.vq_json("topic", "open", "worn")["changed"] is False
    block_until(lambda: cluster.vq("produce", "worn", stdin=b"1\n").returncode == 0)


def test_a_closed_topic_is_refused_with_a_plain_text_too(cluster: ProcessCluster) -> None:
    cluster.vq_json("topic", "create", "shut")
    ended = cluster.vq("topic", "close", "shut")
    assert ended.returncode == 0
    assert b"shut is closed for writes\nnothing is appended to it since 2" in ended.stderr
    assert b"was closed already" in cluster.vq("topic", "close", "shut").stderr
    assert b"is open for writes" in cluster.vq("topic", "open", "shut").stderr
