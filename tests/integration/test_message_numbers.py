"""Numbers of messages and the lag in them, in real processes: over moves, archives, restarts."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.cluster import ProcessCluster
from support.json_schema import wrong

from vq.cli.schemas import schemas
from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow

COUNT = 40


def test_numbers_go_on_over_archives_moves_and_restarts(processes: ProcessCluster) -> None:
    """A group's lag is exact, whatever its messages lie in."""
    for name in ("b1", "b2"):
        processes.add(name)
    vq = processes.vq_json
    vq("topic", "create", "t", "--partitions", "1", "--retention-policy", "archive")
    source = vq("topic", "describe", "t")["partitions"][0]["group"]
    target = {"b1": "b2", "b2": "b1"}[source]

    def produce(begin: int) -> None:
        vq("produce", "t", stdin=b"".join(b"%d\n" % (begin + n) for n in range(COUNT)))

    def offset_of(number: int) -> int:
        return int(vq("message", "number", "t", "0", "--number", str(number))["offset"])

    produce(0)
    taken = processes.vq("consume", "t", "--group", "g", "--max", "7", "--from", "earliest")
    assert taken.stdout.split() == [b"%d" % n for n in range(7)]
    as_of = (datetime.now(UTC) + timedelta(hours=30)).isoformat()
    assert vq("archive", "run", "--as-of", as_of)["state"] == "done"
    assert [each["messages"] for each in vq("archive", "list")] == [COUNT]
    vq("topic", "move", "t", "--partition", "0", "--to", target, "--yes")
    produce(COUNT)
    vq("topic", "move", "t", "--partition", "0", "--to", source, "--yes")
    produce(2 * COUNT)
    for name in ("b1", "b2"):
        assert processes.brokers[name].stop() == 0
        processes.restart(name)

    def is_known() -> bool:
        (found,) = json.loads(processes.vq("group", "describe", "g", "--json").stdout)["partitions"]
        return found["number"] is not None

    block_until(is_known, "both groups have masters")
    described = vq("group", "describe", "g")
    (place,) = described["partitions"]
    assert (place["number"], place["end_number"]) == (7, 3 * COUNT)
    assert place["lag_messages"] == described["lag_messages"] == 3 * COUNT - 7
    for number in (0, COUNT - 1, COUNT, 2 * COUNT - 1, 2 * COUNT, 3 * COUNT - 1):
        offset = offset_of(number)
        assert vq("message", "get", "t", "0", str(offset))["content"] == str(number)
        told = vq("message", "number", "t", "0", "--offset", str(offset))
        assert told == {"partition": 0, "number": number, "offset": offset}
        assert not list(wrong(told, schemas()["message number"]))
    ranges = vq("topic", "describe", "t")["partitions"][0]["ranges"]
    assert [each["first_number"] for each in ranges] == [0, COUNT, 2 * COUNT]
    end = place["end"]
    beyond = processes.vq("message", "number", "t", "0", "--offset", str(end + 1))
    assert beyond.returncode == 1
    assert b"is not known" in beyond.stderr
    assert processes.vq("message", "number", "t", "0").returncode == 2
