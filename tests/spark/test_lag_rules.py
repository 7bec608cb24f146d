"""Lags, trends, verdicts and rollups against tables made by hand."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_vq.reports import lag, lag_reading, lag_rules
from pyspark_vq.reports.lag_rules import SCHEMA
from pyspark_vq.reports.outputs import snapshot_name
from pyspark_vq.reports.progress import tasks_of
from vq.admin import GroupContract, GroupView, LagFacts, LagThresholds, TopicState
from vq.errors import InvalidArgument
from vq.operations.groups.lag_rules import VERDICTS
from vq.testing.waiting import block_until

NOW_S = 1_795_700_000.0
FACTS = {
    "needs_reset": False,
    "other_topic": True,
    "owner_error": True,
    "no_placement": False,
    "committed": 1,
    "start": 2,
    "end": 3,
    "lag_bytes": 4,
    "lag_messages": 5,
    "lag_s": 6.5,
    "members": 7,
    "has_owner": True,
    "committed_ms": 8,
    "unmoved_s": 9.5,
    "by_stream": True,
    "problem": None,
}
COLUMNS = (
    "n int, problem string, held string, other_topic boolean, stopped string, "
    "placement_error string, committed bigint, start bigint, `end` bigint, lag_bytes bigint, "
    "lag_messages bigint, lag_seconds double, members int, owner string, committed_ms bigint, "
    "unmoved_s double, by_stream boolean, model string"
)


def test_facts_are_those_of_the_columns() -> None:
    cells = (None, None, True, "why", None, 1, 2, 3, 4, 5, 6.5, 7, "m", 8, 9.5, True, "clustering")
    assert lag_rules.facts_of(*cells) == LagFacts(**FACTS)  # type: ignore[arg-type]
    none = lag_rules.facts_of(*[None] * len(lag_rules.JUDGED))
    assert none == LagFacts()
    assert lag_rules.facts_of("gone", "held", *[None] * 2, "lost", *[None] * 12) == LagFacts(
        problem="gone", needs_reset=True, no_placement=True
    )
    assert lag_rules.facts_of(*[None] * (len(lag_rules.JUDGED) - 1), "shared").has_owner


@pytest.mark.slow
def test_rows_are_judged_by_the_rules_of_vq(spark: SparkSession) -> None:
    """A row for each kind of verdict; the bounds are in ``tests/unit/operations``."""
    nothing: tuple[Any, ...] = (None,) * 17
    fine = (
        *(None, None, False, None, None, 10, 0, 30, 20, 2, 9.0, 1, "m", int(NOW_S) * 1000),
        *(None, False, "clustering"),
    )
    rows = [
        nothing,
        ("broadcasting", *nothing[1:]),
        (None, "held", *nothing[2:]),
        fine,
        (*fine[:6], 11, *fine[7:]),
        (*fine[:10], 99.0, *fine[11:]),
        (*fine[:14], 300.0, *fine[15:]),
        (*fine[:11], 0, *fine[12:]),
        (*fine[:11], 0, None, *fine[13:15], True, *fine[16:]),
        (*fine[:10], None, *fine[11:]),
        (*fine[:12], None, *fine[13:]),
        (*fine[:12], None, *fine[13:16], "shared"),
    ]
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], COLUMNS)
    limits = LagThresholds(warn_s=99)
    judged = lag_rules.with_verdicts(frame, limits, now_s=NOW_S).orderBy("n").collect()
    assert [(row["verdict"], row["cause"]) for row in judged] == [
        ("unknown", "broker_silent"),
        ("unknown", "broadcasting"),
        ("stopped", "needs_reset"),
        ("ok", None),
        ("warning", "overtaken"),
        ("warning", "old"),
        ("stalled", "unmoved"),
        ("stopped", "no_members"),
        ("ok", None),
        ("unknown", "not_measured"),
        ("warning", "no_owner"),
        ("ok", None),
    ]


@pytest.mark.parametrize("given", [{"zookeeper_tasks": 0}, {"broker_requests": 257}])
def test_a_load_out_of_bounds_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="is outside"):
        lag_reading.Load(**given)


# From what was read to lags -------------------------------------------------------------------
def placement(number: int, *spans: tuple[str, int, int | None]) -> tuple[Any, ...]:
    brokers, starts, ends = zip(*spans, strict=True)
    return "t", number, list(brokers), list(starts), list(ends), None


@pytest.mark.slow
def test_a_lag_is_what_lies_between_the_place_and_the_end(spark: SparkSession) -> None:
    """Moved, silent and deleted partitions; groups with and without a committed offset."""
    placements = spark.createDataFrame(
        [
            placement(0, ("b1", 0, None)),
            placement(1, ("b1", 0, 500), ("b2", 500, None)),
            placement(2, ("b1", 0, 100), ("b2", 100, None)),  # what b1 had is deleted
            placement(3, ("down", 0, None)),
            placement(4, ("b2", 0, None)),  # b2 cannot read it
            placement(5, ("b1", 0, None)),  # b1 does not know it
            ("t", 6, [], [], [], "znode is damaged"),
        ],
        lag_reading.PLACEMENTS,
    )
    bounds = spark.createDataFrame(
        [
            ("b1", "t", 0, 100, 1_000, None),
            ("b1", "t", 1, 200, 500, None),
            ("b2", "t", 1, 500, 900, None),
            ("b1", "t", 2, 100, 100, None),
            ("b2", "t", 2, 300, 700, None),
            ("b2", "t", 4, None, None, "cannot read its log"),
            ("down", None, None, None, None, "no answer"),
        ],
        lag_reading.BOUNDS,
    )
    pairs = spark.createDataFrame(
        [
            ("g", "t", "id", 7, 1, "clustering", "earliest", False, "a || b"),
            ("late", "t", "id", 7, 1, "clustering", "latest", False, None),
            ("all", "t", "id", 7, 1, "broadcasting", "earliest", False, None),
        ],
        lag_reading.PAIRS,
    )

    def place(group: str, number: int, at: int | None, **more: Any) -> tuple[Any, ...]:
        held, younger = more.get("held"), more.get("younger", False)
        topic_id, error = more.get("topic_id", "id"), more.get("error")
        is_copy = group == "late"
        return group, "t", number, "m", at, None, topic_id, held, None, younger, error, is_copy

    places = spark.createDataFrame(
        [
            place("g", 0, 600),
            place("g", 1, 150),
            place("g", 2, None),
            place("g", 3, 5),
            place("g", 5, 5),
            place("late", 0, None),
            place("late", 1, None, younger=True),
            place("late", 2, 300, topic_id="before"),
            place("late", 4, 9, error="damaged"),
            place("all", 0, 600),
        ],
        lag_reading.PLACES,
    )
    ends = lag_rules.partition_ends(placements, bounds)
    rows = lag_rules.lags(pairs, places, ends).persist()
    found = {
        (row["group"], row["partition"]): (row["begin"], row["end"], row["lag_bytes"])
        for row in rows.collect()
    }
    assert len(found) == 21
    assert {key: value for key, value in found.items() if key[0] == "g"} == {
        ("g", 0): (600, 1_000, 400),
        ("g", 1): (200, 900, 700),
        ("g", 2): (300, 700, 400),
        ("g", 3): (None, None, None),
        ("g", 4): (None, None, None),
        ("g", 5): (None, None, None),
        ("g", 6): (None, None, None),
    }
    assert found["late", 0] == (1_000, 1_000, 0)
    assert found["late", 1] == (200, 900, 700)
    assert found["late", 2] == (None, 700, None)
    assert found["all", 0] == (None, 1_000, None)
    filters = {(row["group"], row["filter"]) for row in rows.collect()}
    assert filters == {("g", "a || b"), ("late", None), ("all", None)}
    copies = {row["group"] for row in rows.collect() if row["committed_is_copy"]}
    assert copies == {"late"}
    whys = {row["partition"]: row["ends_error"] for row in ends.collect()}
    assert whys == {
        0: None,
        1: None,
        2: None,
        3: "no answer",
        4: "cannot read its log",
        5: "broker group b1 does not have it",
        6: None,
    }
    asked = {
        (row["partition"], row["begin"], row["asked"])
        for row in lag_rules.to_measure(rows).collect()
    }
    assert asked == {(0, 600, "b1"), (1, 200, "b1"), (2, 300, "b2")}
    rows.unpersist()


# Trends and rollups ---------------------------------------------------------------------------
def row_of(snapshot: str, group: str, **values: Any) -> tuple[Any, ...]:
    given = {"snapshot": snapshot, "group": group, "topic": "t", "partition": 0, **values}
    return tuple(given.get(name) for name in SCHEMA.names)


@pytest.mark.slow
def test_a_trend_is_the_change_since_the_oldest_snapshot(spark: SparkSession) -> None:
    """Snapshots 600 s, 300 s and 60 s ago."""
    ago = {seconds: snapshot_name(NOW_S - seconds) for seconds in (600, 300, 60)}
    history = {
        "rising": [(1_000, 0), (2_000, 0), (3_000, 0)],
        "falling": [(5_000, 0), (4_000, 10), (3_000, 20)],
        "steady": [(1_000, 5), (3_000, 6), (1_000, 7)],
        "unknown then": [(None, 0), (None, 0), (500, 0)],
        "unmoved": [(10, 3), (10, 4), (10, 4)],
        "reset": [(10, 4), (4, 10), (10, 4)],
        "reset just now": [(10, 4), (10, 4), (4, 10)],
        "caught up": [(10, 4), (0, 4), (10, 4)],
        "unreadable": [(10, 4), (None, None), (10, 4)],
        "gone": [(1, 1), (1, 1), (1, 1)],
    }
    earlier = spark.createDataFrame(
        [
            row_of(name, group, lag_bytes=lag, committed=committed)
            for group, told in history.items()
            for name, (lag, committed) in zip(ago.values(), told, strict=True)
        ],
        SCHEMA,
    )
    now = [
        ("rising", 4_000, 0),
        ("falling", 2_000, 30),
        ("steady", 1_040, 8),
        ("unknown then", 1_100, 0),
        ("unmoved", 10, 4),
        ("reset", 10, 4),
        ("reset just now", 10, 4),
        ("caught up", 10, 4),
        ("unreadable", 10, 4),
        ("new", 7, 1),
        ("silent", None, 1),
    ]
    rows = spark.createDataFrame(
        [(group, "t", 0, lag, at) for group, lag, at in now],
        "`group` string, topic string, `partition` int, lag_bytes bigint, committed bigint",
    )
    found = {
        row["group"]: (row["trend"], row["trend_bytes_per_s"], row["unmoved_s"])
        for row in lag_rules.with_trend(rows, earlier, now_s=NOW_S).collect()
    }
    assert found == {
        "rising": ("rising", 5.0, 600.0),
        "falling": ("falling", -5.0, None),
        "steady": ("steady", 40 / 600, None),
        "unknown then": ("rising", 10.0, 60.0),
        "unmoved": ("steady", 0.0, 300.0),
        "reset": ("steady", 0.0, 60.0),
        "reset just now": ("steady", 0.0, None),
        "caught up": ("steady", 0.0, 60.0),
        "unreadable": ("steady", 0.0, 600.0),
        "new": (None, None, None),
        "silent": (None, None, None),
    }
    [row] = lag_rules.with_trend(rows.where("`group` = 'new'"), None, now_s=NOW_S).collect()
    assert (row["trend"], row["unmoved_s"]) == (None, None)


@pytest.mark.slow
def test_rollups_add_what_is_known_and_count_what_is_not(spark: SparkSession) -> None:
    def row(
        group: str, topic: str, broker: str, lag: int | None, verdict: str, **more: str
    ) -> tuple[Any, ...]:
        seconds = None if lag is None else float(lag)
        lags = {"lag_bytes": lag, "lag_messages": lag, "lag_seconds": seconds}
        return row_of(
            "s", group, topic=topic, broker=broker, pool="fast", verdict=verdict, **lags, **more
        )

    rows = spark.createDataFrame(
        [
            row("g", "t", "b1", 100, "ok"),
            row("g", "t", "b2", 500, "warning"),
            row("g", "u", "b1", None, "unknown"),
            row("h", "u", "b2", 0, "ok", filter="paid"),
            row("i", "u", "b9", None, "unknown"),
            row_of("s", "j", topic=None, partition=None, verdict="unknown"),
        ],
        SCHEMA,
    )
    rolled = lag_rules.rollups(rows, "c").persist()
    found = {
        (each["by"], each["name"]): (
            each["partitions"],
            [each[name] for name in VERDICTS],
            each["lag_bytes"],
            each["lag_seconds"],
            each["unknown_lags"],
            each["skew"],
        )
        for each in rolled.collect()
    }
    bounds = {(row["by"], row["name"]) for row in rolled.collect() if row["lag_is_upper_bound"]}
    assert bounds == {
        ("cluster", "c"),
        ("group", "h"),
        ("topic", "u"),
        ("broker", "b2"),
        ("pool", "fast"),
    }
    assert found == {
        ("cluster", "c"): (5, [0, 0, 1, 3, 2], 600, 500.0, 3, 2.5),
        ("group", "g"): (3, [0, 0, 1, 1, 1], 600, 500.0, 1, 500 / 300),
        ("group", "h"): (1, [0, 0, 0, 0, 1], 0, 0.0, 0, None),
        ("group", "i"): (1, [0, 0, 0, 1, 0], None, None, 1, None),
        ("group", "j"): (0, [0, 0, 0, 1, 0], None, None, 1, None),
        ("topic", "t"): (2, [0, 0, 1, 0, 1], 600, 500.0, 0, 500 / 300),
        ("topic", "u"): (3, [0, 0, 0, 2, 1], 0, 0.0, 2, None),
        ("broker", "b1"): (2, [0, 0, 0, 1, 1], 100, 100.0, 1, 1.0),
        ("broker", "b2"): (2, [0, 0, 1, 0, 1], 500, 500.0, 0, 2.0),
        ("broker", "b9"): (1, [0, 0, 0, 1, 0], None, None, 1, None),
        ("pool", "fast"): (5, [0, 0, 1, 2, 2], 600, 500.0, 2, 2.5),
    }
    tops = [
        (row["by"], row["name"], row["of"]) for row in lag_rules.top_rollups(rolled, 1).collect()
    ]
    assert tops == [
        ("broker", "b2", 3),
        ("cluster", "c", 1),
        ("group", "g", 4),
        ("pool", "fast", 1),
        ("topic", "t", 2),
    ]
    worst = [
        (each["group"], each["topic"], each["verdict"])
        for each in lag_rules.offenders(rows, 2).collect()
    ]
    assert worst == [("g", "t", "warning"), ("g", "u", "unknown")]
    rolled.unpersist()
    nothing = lag_rules.rollups(rows.where("false"), "c")
    assert lag_rules.top_rollups(nothing, 1).collect() == []


@pytest.mark.slow
def test_what_is_wrong_has_one_row_for_each_group_topic_and_cause_the_worst_first(
    spark: SparkSession,
) -> None:
    """Ten partitions of one cause are one row; a sum that lacks an unknown part says so."""

    def row(group: str, number: int, verdict: str, cause: str | None, **more: Any) -> Any:
        return row_of("s", group, partition=number, verdict=verdict, cause=cause, **more)

    rows = spark.createDataFrame(
        [
            *(row("w", n, "warning", "old", lag_bytes=9, lag_seconds=900.0) for n in range(10)),
            row("s", 7, "stopped", "owner_error", detail="b", owner="m2", lag_bytes=5),
            row("s", 3, "stopped", "owner_error", detail="a", owner="m1", lag_bytes=None),
            row("s", 4, "warning", "old", lag_bytes=2, lag_seconds=9_000.0),
            row("fine", 0, "ok", None, lag_bytes=0),
            row_of("s", "gone", topic=None, partition=None, verdict="unknown", cause="no_topics"),
        ],
        SCHEMA,
    )
    found = lag_rules.by_cause(rows, 3).collect()
    assert [(each["group"], each["cause"], each["count"], each["of"]) for each in found] == [
        ("s", "owner_error", 2, 4),
        ("s", "old", 1, 4),
        ("w", "old", 10, 4),
    ]
    stopped, _, many = found
    assert stopped["partitions"] == [3, 7]
    assert (stopped["lag_bytes"], stopped["unknown_lags"]) == (5, 1)
    assert (stopped["detail"], stopped["details"]) == ("a", 2)
    assert (stopped["owner"], stopped["owners"]) == ("m1", 2)
    assert many["partitions"] == list(range(lag_rules.PARTITIONS_NAMED))
    assert (many["lag_bytes"], many["lag_seconds"]) == (90, 900.0)
    [gone] = lag_rules.by_cause(rows.where("`group` = 'gone'"), 3).collect()
    assert (gone["partitions"], gone["count"], gone["topic"]) == ([], 1, None)


@pytest.mark.slow
def test_no_sum_over_something_unknown_looks_whole(spark: SparkSession) -> None:
    """In the second snapshot of g a broker was silent: it did not fall. h never had a whole lag."""
    rows = spark.createDataFrame(
        [
            row_of("1", "g", partition=0, lag_bytes=500, lag_messages=None),
            row_of("1", "g", partition=1, lag_bytes=100, lag_messages=3),
            row_of("2", "g", partition=0, cause="broker_silent"),
            row_of("2", "g", partition=1, lag_bytes=100, lag_messages=3),
            row_of("2", "h", partition=0, cause="other_topic"),
            row_of("2", "h", partition=1, cause="beyond_end"),
            row_of("2", "h", topic=None, partition=None, cause="topic_deleted"),
            row_of("2", "h", partition=2, lag_bytes=7),
        ],
        SCHEMA,
    )
    found = lag_rules.over_time(rows.where("snapshot = 1"), rows.where("snapshot = 2")).collect()
    lags = {(row["snapshot"], row["group"]): row["lag_bytes"] for row in found}
    assert lags == {("1", "g"): 600, ("2", "g"): None, ("2", "h"): 7}
    [whole] = lag_rules.rollups(rows.where("snapshot = 1"), "c").where("by = 'cluster'").collect()
    assert (whole["lag_bytes"], whole["unknown_lags"]) == (600, 0)
    assert (whole["lag_messages"], whole["unknown_messages"]) == (3, 1)


@pytest.mark.slow
def test_progress_counts_the_tasks_of_a_step(spark: SparkSession) -> None:
    """Spark's own account of them is a moment late."""
    context = spark.sparkContext
    context.setJobGroup("a step", "x")
    assert context.parallelize(range(6), 3).count() == 6
    context.setJobGroup("", "")
    block_until(lambda: tasks_of(context, "a step") == (3, 3))
    assert tasks_of(context, "no step") == (0, 0)


# What the driver decides ----------------------------------------------------------------------
def test_what_has_no_partitions_to_tell_of_has_a_row_of_its_own() -> None:
    topics = [
        TopicState(topic="t", id="x", partitions=2),
        TopicState(topic="closed", id="y", partitions=1, writable=False),
        TopicState(topic="deleted", partitions=1, phase="deleted"),
        TopicState(topic="half", partitions=1, phase="creating"),
        TopicState(topic="broken", error="damaged"),
        TopicState(topic="shut", id="z", partitions=1, readable=False),
    ]
    read = dict.fromkeys(("t", "closed", "deleted", "half", "broken", "never", "shut"), "") | {
        "t": "a"
    }
    contracts = [
        GroupContract(group="g", members=2, topics=read),
        GroupContract(group="empty", members=1),
        GroupContract(group="odd", error="unreadable"),
    ]
    pairs, problems = lag.pairs_of(contracts, topics)
    assert pairs == [
        ("g", "closed", "y", 1, 2, "clustering", "earliest", False, ""),
        ("g", "t", "x", 2, 2, "clustering", "earliest", False, "a"),
    ]
    assert [(row[0], row[1], row[3]) for row in problems] == [
        ("g", "broken", "topic_unreadable"),
        ("g", "deleted", "topic_deleted"),
        ("g", "half", "topic_not_ready"),
        ("g", "never", "topic_deleted"),
        ("g", "shut", "not_readable"),
        ("empty", None, "no_topics"),
        ("odd", None, "group_unreadable"),
    ]
    assert {row[3] for row in problems} <= set(lag_rules.PROBLEMS)
    assert lag.pairs_of([], topics) == ([], [])
    views = [GroupView(group="b1"), GroupView(group="b2", pool="fast")]
    assert lag.broker_rows(views) == [("b1", "common"), ("b2", "fast")]
