"""``vq balance`` against real brokers: load, plan, apply, progress, cancel."""

import json
from pathlib import Path

import pytest
from support.cluster import ProcessCluster, drained

from vq.testing.waiting import block_until

pytestmark = pytest.mark.slow


def test_a_plan_is_made_saved_refused_when_old_and_carried_out(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """The capacity report's file is judged in the same way; messages are read across the moves."""
    cluster.vq_json("topic", "create", "bal", "--partitions", "4")
    lines = [f"line {number}" for number in range(200)]
    cluster.vq_json("produce", "bal", stdin="".join(f"{line}\n" for line in lines).encode())

    def loads() -> list[dict[str, object]]:
        found: list[dict[str, object]] = cluster.vq_json("balance", "load")
        return found

    block_until(lambda: all(row["bytes_per_s"] is not None for row in loads()))
    assert [row["group"] for row in loads()] == ["b1", "b2"]
    measured = cluster.vq_json(
        "balance", "load", "--partitions", "--topic", "bal", "--seconds", "0.2"
    )
    assert {row["partition"] for row in measured} == {0, 1, 2, 3}
    assert all(row["bytes_per_s"] == 0 and row["stored_bytes"] for row in measured)
    (topic,) = cluster.vq_json("balance", "load", "--topics", "--topic", "bal", "--seconds", "0.2")
    assert (topic["partitions"], topic["groups"]) == (4, 2)

    report = {"moves": [{"topic": "bal", "partition": 0, "from": "b1", "to": "b2"}]}
    (tmp_path / "capacity.json").write_text(json.dumps(report))
    plan = str(tmp_path / "plan.json")
    ended = ("--seconds", "0.2", "--save", plan)
    made = cluster.vq_json(
        "balance", "plan", "--from", str(tmp_path / "capacity.json"), "--goal", "topics", *ended
    )
    assert [(row["from"], row["to"]) for row in made["moves"]] == [("b1", "b2")]
    assert made["source"] == "capacity.json"
    looked = cluster.vq_json("balance", "apply", plan)
    assert looked == {"done": False, "changes": [], "run": None}
    done = cluster.vq_json("balance", "apply", plan, "--at-a-time", "2", "--yes")
    assert (done["run"]["state"], done["run"]["done"]) == ("done", 1)
    cluster.vq_json("topic", "move", "bal", "--partition", "0", "--to", "b1", "--yes")
    old = cluster.vq("balance", "apply", plan, "--yes", "--json")
    assert old.returncode == 1
    assert b"carried out" in old.stderr or b"bal-0" in old.stderr

    by_hand = cluster.vq_json(
        *("balance", "plan", "--move", "bal-1=b1", "--move", "bal-0=b2", *ended)
    )
    assert {row["partition"] for row in by_hand["moves"]} == {0, 1}
    cluster.vq_json("broker", "drain", "b2")
    refused = cluster.vq("balance", "apply", plan, "--yes", "--json")
    assert refused.returncode == 1
    assert b"takes partitions -> draining" in refused.stderr
    proposed = cluster.vq_json("balance", "plan", "--seconds", "0.2", "--save", plan)
    assert {row["to"] for row in proposed["moves"]} == {"b1"}
    assert {row["goal"] for row in proposed["moves"]} == {"draining"}
    done = cluster.vq_json("balance", "apply", plan, "--yes")
    assert done["run"]["state"] == "done"
    cluster.vq_json("broker", "undrain", "b2")

    newest, *_ = cluster.vq_json("balance", "progress", "--all")
    assert newest["plan"] == proposed["id"]
    shown = cluster.vq_json("balance", "progress")
    assert [row["done"] for row in shown["moves"]] == [True] * shown["total"]
    assert cluster.vq_json("balance", "resume")["plan"] == proposed["id"]
    assert cluster.vq("balance", "cancel").returncode == 1
    assert sorted(drained(cluster, "bal", "g", 200)) == sorted(lines)
