"""The tables of the capacity report, against tables worked out by hand: no cluster."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.capacity_blocks import NOW, block, frame_of, silent

from pyspark_vq.reports import growth, loads, retention
from pyspark_vq.reports.allocation import Group, Placed, plan
from pyspark_vq.reports.capacity import held_on_disks
from pyspark_vq.reports.growth import DAY_MS, HOUR_MS
from pyspark_vq.reports.holdings import Home
from vq import TopicSettings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def blocks(spark: SparkSession) -> DataFrame:
    """Two groups: b1 with a master and a copy, b2 of which the master is silent; b3 is silent.

    t-0 on b1: 2 400 bytes in the two hours that ended 48 hours ago, archived to a quarter; 1 200
    bytes in the hour before now. t-1 on b2: 4 800 bytes in the last 12 hours. t-2: on b3. u-0 on
    b1: 100 bytes of 100 hours ago. v-0 on b1: nothing yet. w-0 on b1: no times are known. h on b4:
    three partitions that get 900, 150 and 150 bytes in a day. y on b5: 900 bytes in y-0, and three
    partitions that get 1 byte a day.
    """
    archived = {"archive_bytes": 600, "disk_bytes": 600}
    rows = [
        block("b1/n1", "t", 0, 0, 2400, (50, 48), 24, **archived),
        block("b1/n1", "t", 0, 2400, 3600, (1, 0), 6, is_open=True),
        block("b1/n2", "t", 0, 0, 2400, (50, 48), 24),
        block("b1/n2", "t", 0, 2400, 3600, (1, 0), 6, is_open=True),
        silent("b2/n1", "Unreachable: no answer"),
        block("b2/n2", "t", 1, 0, 4800, (12, 0), 48, is_open=True),
        silent("b3/n1", "TimedOut: no answer"),
        block("b1/n1", "u", 0, 0, 100, (100, 100), 1),
        block("b1/n1", "v", 0),
        block("b1/n1", "w", 0, 0, 50),
        *(block("b4/n1", "h", n, 0, size, (24, 0), 1) for n, size in enumerate((900, 150, 150))),
        *(block("b5/n1", "y", n, 0, size, (24, 0), 1) for n, size in enumerate((900, 1, 1, 1))),
    ]
    return frame_of(spark, rows)


def by(rows: DataFrame, *keys: str) -> dict[Any, dict[str, Any]]:
    found = [row.asDict() for row in rows.collect()]
    return {tuple(row[key] for key in keys) if keys[1:] else row[keys[0]]: row for row in found}


def test_growth_is_spread_over_the_hours_of_a_block(blocks: DataFrame) -> None:
    """1 200 bytes in each of two hours; 400 in each of twelve; one node of each group counts."""
    hours = growth.by_hour(growth.chosen(blocks))
    rows = {
        (row["topic"], row["partition"], (NOW - row["hour_ms"]) // HOUR_MS): (
            round(row["bytes"]),
            round(row["messages"], 3),
            row["node"],
        )
        for row in hours.where("topic not in ('h', 'y')").collect()
    }
    expected = {
        ("t", 0, 50): (1200, 12.0, "n1"),
        ("t", 0, 49): (1200, 12.0, "n1"),
        ("t", 0, 1): (1200, 6.0, "n1"),
        ("u", 0, 100): (100, 1.0, "n1"),
        **{("t", 1, hour): (400, 4.0, "n2") for hour in range(1, 13)},
    }
    assert rows == expected
    [rate] = [row for row in loads.rates(hours).collect() if row["topic"] == "t"]
    assert rate["hours"] == 14
    assert rate["bytes_per_s_max"] == pytest.approx(1600 / 3600)  # both, in the last hour
    assert rate["bytes_per_s_p50"] == pytest.approx(400 / 3600)
    assert rate["messages_per_s_max"] == pytest.approx(12 / 3600)


def test_partitions_topics_and_disks_add_up(spark: SparkSession, blocks: DataFrame) -> None:
    """Rates are of the last day, unknown ones are null and have their cause."""
    homes = [
        Home("t", 0, "b1", ("b1",)),
        Home("t", 1, "b2", ("b2",)),
        Home("t", 2, "b3", ("b3",)),
        Home("u", 0, "b1", ("b1",)),
        Home("v", 0, "b1", ("b1",)),
        Home("w", 0, "b1", ("b1",)),
        *(Home("h", number, "b4", ("b4",)) for number in range(3)),
        Home("x", 0, None, (), "the znode is missing"),
        # y-1 to y-3 were on the silent b3 before.
        *(Home("y", number, "b5", ("b3", "b5") if number else ("b5",)) for number in range(4)),
    ]
    one = growth.partitions(growth.chosen(blocks), now_ms=NOW)
    rows = loads.partition_rows(spark, one, homes, {"b3": "b3/n1: TimedOut"}).cache()
    found = by(rows, "topic", "partition")
    t0, t1, t2 = (found["t", number] for number in range(3))
    # 1 200 bytes in the last day: of t-0 there are older blocks, so a whole day counts.
    assert (t0["bytes"], t0["disk_bytes"], t0["messages"]) == (3600, 1800, 30)
    assert t0["bytes_per_day"] == pytest.approx(1200)
    assert t0["messages_per_day"] == pytest.approx(6)
    # 4 800 bytes in the twelve hours that t-1 has existed: twice that in a day.
    assert t1["bytes_per_day"] == pytest.approx(9600)
    assert (t0["verdict"], t1["verdict"], t2["verdict"]) == ("normal", "normal", "unknown")
    assert t0["share"] == pytest.approx(1200 / 5400)
    assert t1["share"] == pytest.approx(9600 / 5400)
    assert (t2["bytes"], t2["bytes_per_day"], t2["reason"]) == (None, None, "b3/n1: TimedOut")
    assert (found["u", 0]["verdict"], found["u", 0]["bytes_per_day"]) == ("idle", 0.0)
    assert (found["v", 0]["verdict"], found["v", 0]["bytes"]) == ("idle", 0)
    assert (found["w", 0]["verdict"], found["w", 0]["bytes_per_day"]) == ("unknown", None)
    assert (found["w", 0]["messages"], found["w", 0]["bytes"]) == (None, 50)
    assert found["w", 0]["reason"] == "blocks are too young, or tell no times"
    assert t0["mean_message_bytes"] == 120
    # h-0 gets 900 of 1 200 bytes, so 2.25 times an even share.
    assert [found["h", number]["verdict"] for number in range(3)] == ["hot", "normal", "normal"]
    assert found["h", 0]["share"] == pytest.approx(2.25)
    assert (found["x", 0]["verdict"], found["x", 0]["reason"]) == (
        "unknown",
        "the znode is missing",
    )

    # What b5 has of y-1 to y-3 is a part of them: it is in no share.
    assert (found["y", 0]["share"], found["y", 0]["verdict"]) == (pytest.approx(1), "normal")
    assert [found["y", number]["verdict"] for number in (1, 2, 3)] == ["unknown"] * 3

    held = growth.on_nodes(blocks)
    topics = by(loads.topic_rows(rows, held, {"u"}), "topic")
    assert topics["u"]["copies_disk_bytes"] is None  # a node that may have copies is silent
    assert (topics["t"]["partitions"], topics["t"]["unknown"]) == (3, 1)
    assert (topics["t"]["bytes"], topics["t"]["bytes_per_day"]) == (None, None)  # t-2 is missing
    assert topics["t"]["copies_disk_bytes"] == 1800 + 3600 + 4800
    assert topics["t"]["skew"] == pytest.approx(9600 / 5400)
    assert (topics["u"]["bytes"], topics["u"]["idle"]) == (100, 1)

    settings = {name: TopicSettings(retention_hours=48) for name in "tuv"}
    settings["h"] = TopicSettings(retention_hours=2**31)
    settings["w"] = TopicSettings(retention_hours=None)
    ratios = retention.ratios(spark, blocks, settings)
    ends = retention.endings(spark, ratios, settings)
    on = held_on_disks(spark, held, one, homes, ends)
    assert on["b4", "n1", "/n1"].settles_at_bytes == pytest.approx(1200 * 2**31 / 24)
    assert on["b1", "n2", "/n2"].disk_bytes == 3600
    assert on["b1", "n2", "/n2"].bytes_per_day == pytest.approx(1200)
    assert on["b1", "n2", "/n2"].settles_at_bytes == pytest.approx(2400)
    # w-0 tells no times, and is kept for ever: neither is known of that disk.
    assert on["b1", "n1", "/n1"].disk_bytes == 600 + 1200 + 100 + 50
    assert on["b1", "n1", "/n1"].bytes_per_day is None
    assert on["b1", "n1", "/n1"].settles_at_bytes is None


def test_what_other_settings_would_free(spark: SparkSession, blocks: DataFrame) -> None:
    """Whole closed blocks that are too old; archives are as good as those that were measured."""
    wished = [
        ("t", "retention", 24),
        ("t", "archive", 24),
        ("u", "archive", 24),
        ("t", "retention", 49),
        ("t", "retention", 2**31),  # the most that a topic can have
    ]
    settings = {name: TopicSettings() for name in "tuvw"}
    ratios = retention.ratios(spark, blocks, settings)
    found = {
        (row["topic"], row["action"], row["hours"], row["group"], row["node"]): row
        for row in retention.what_ifs(blocks, ratios, wished, now_ms=NOW).collect()
    }
    # n1 has it as an archive of 600 bytes, n2 as a block of 2 400.
    assert found["t", "retention", 24, "b1", "n1"]["bytes_freed"] == 600
    assert found["t", "retention", 24, "b1", "n2"]["bytes_freed"] == 2400
    assert found["t", "retention", 49, "b1", "n2"]["bytes_freed"] == 0  # its youngest is 48 h old
    # An archive takes a quarter, measured on n1: n2 would get three quarters of 2 400 back.
    archive = found["t", "archive", 24, "b1", "n2"]
    assert (archive["bytes_freed"], archive["blocks"], archive["ratio_of"]) == (1800, 1, "topic")
    assert found["t", "archive", 24, "b1", "n1"]["bytes_freed"] == 0
    # u has no archive: the ratio of the cluster stands in, and that is told.
    other = found["u", "archive", 24, "b1", "n1"]
    assert (other["bytes_freed"], other["ratio_of"]) == (75, "cluster")
    times = retention.what_ifs(blocks, ratios, [("w", "retention", 24)], now_ms=NOW).collect()
    assert [(row["bytes_freed"], row["unknown_blocks"]) for row in times] == [(None, 1)]
    alone = blocks.where("topic = 'u'")
    none = retention.what_ifs(
        alone,
        retention.ratios(spark, alone, settings),
        [("u", "archive", 24)],
        now_ms=NOW,
    ).collect()
    assert [(row["bytes_freed"], row["ratio_of"]) for row in none] == [(None, None)]
    # At a URL they leave the disk, whatever they take there.
    settings["t"] = TopicSettings(
        retention_policy="archive", archive_after_hours=48, archive_to="file:///mnt/archive"
    )
    [away] = retention.what_ifs(
        blocks.where("node = 'n2'"),
        retention.ratios(spark, blocks, settings),
        [("t", "archive", 24)],
        now_ms=NOW,
    ).collect()
    assert (away["bytes_freed"], away["ratio_of"]) == (2400, "url")


def test_a_disk_settles_at_what_neither_retention_nor_archives_take(spark: SparkSession) -> None:
    """1 000 bytes an hour, kept for 90 days; an archive takes a fifth. Each on a disk of its own.

    What gets nothing goes with its hours; kept for ever, it stays as the archive that it becomes.
    """
    archive: dict[str, Any] = {"retention_policy": "archive"}
    away = {**archive, "archive_to": "file:///mnt/archive"}
    ever: dict[str, Any] = {"retention_hours": None}
    busy: list[tuple[dict[str, Any], float | None]] = [
        ({}, 2_160_000),
        (archive, 24_000 + 2_136_000 / 5),
        (away, 24_000),
        ({"retention_policy": "keep", "archive_after_hours": 48}, 48_000 + 2_112_000 / 5),
        ({"retention_bytes": 100_000}, 100_000),
        ({"retention_bytes": 100_000, **archive}, 24_000 + 76_000 / 5),
        ({"retention_bytes": 10_000, **archive}, 10_000),
        ({"retention_bytes": 2**63, **ever}, float(2**63)),
        (ever, None),
        ({**ever, **away}, None),
    ]
    idle: list[tuple[dict[str, Any], float | None]] = [
        ({}, 0),
        (ever, 6000),
        ({**ever, **archive}, 1200),
        ({**ever, **away}, 0),
    ]
    archived = {"archive_bytes": 1000, "disk_bytes": 1000}
    rows, settings = [], {}
    for number, (given, _) in enumerate([*busy, *idle]):
        node, topic = f"b{number}/n1", f"t{number}"
        settings[topic] = TopicSettings(**{"retention_hours": 90 * 24, **given})
        rows.append(block(node, topic, 0, 0, 5000, (100, 95), 1, **archived))
        if number < len(busy):
            rows.append(block(node, topic, 0, 5000, 100_000, (95, 0), 1, is_open=True))
        else:
            rows.append(block(node, topic, 0, 5000, 6000, (95, 94), 1))
    blocks = frame_of(spark, rows)
    ends = retention.endings(spark, retention.ratios(spark, blocks, settings), settings)
    grown = growth.partitions(growth.chosen(blocks), now_ms=NOW)
    homes = [
        Home(f"t{number}", 0, f"b{number}", (f"b{number}",)) for number in range(len(settings))
    ]
    found = held_on_disks(spark, growth.on_nodes(blocks), grown, homes, ends)
    for number, (given, settles) in enumerate([*busy, *idle]):
        told = found[f"b{number}", "n1", "/n1"]
        assert told.bytes_per_day == pytest.approx(24_000 if number < len(busy) else 0)
        expected = None if settles is None else pytest.approx(settles)
        assert told.settles_at_bytes == expected, given


@pytest.mark.parametrize("moved", [0.5, pytest.param(12.0, marks=pytest.mark.long)])
def test_a_partition_that_moved_counts_once(spark: SparkSession, moved: float) -> None:
    """a-0 and b-0 get 1 000 bytes an hour; a-0 moved from b1 to b2, b-0 from b2 to b1."""
    rows = []
    for topic, before, after in (("a", "b1/n1", "b2/n1"), ("b", "b2/n1", "b1/n1")):
        cut = int((48 - moved) * 1000)
        rows += [
            block(before, topic, 0, 0, cut, (48, moved), cut),
            block(after, topic, 0, cut, 48_000, (moved, 0), 48_000 - cut, is_open=True),
        ]
    blocks = frame_of(spark, [*rows, block("b1/n1", "c", 0, 0, 48_000, (48, 0), 48_000)])
    homes = [
        Home("a", 0, "b2", ("b1", "b2")),
        Home("b", 0, "b1", ("b2", "b1")),
        Home("c", 0, "b1", ("b1",)),
    ]
    grown = growth.partitions(growth.chosen(blocks), now_ms=NOW)
    found = by(loads.partition_rows(spark, grown, homes, {}), "topic")
    for topic in "abc":
        assert found[topic]["bytes_per_day"] == pytest.approx(24_000)
        assert found[topic]["messages_per_day"] == pytest.approx(24_000)
        assert (found[topic]["bytes"], found[topic]["verdict"]) == (48_000, "normal")
    settings = {name: TopicSettings(retention_hours=72) for name in "abc"}
    ends = retention.endings(spark, retention.ratios(spark, blocks, settings), settings)
    on = held_on_disks(spark, growth.on_nodes(blocks), grown, homes, ends)
    assert on["b1", "n1", "/n1"].bytes_per_day == pytest.approx(48_000)
    assert on["b1", "n1", "/n1"].settles_at_bytes == pytest.approx(3 * 48_000)
    assert on["b2", "n1", "/n1"].bytes_per_day == pytest.approx(24_000)
    assert on["b2", "n1", "/n1"].settles_at_bytes == pytest.approx(3 * 24_000)
    # Loads are even: b1 has twice the space.
    placed = [
        Placed(row["topic"], row["partition"], row["group"], row["bytes_per_day"])
        for row in found.values()
    ]
    assert plan([Group("b1", None, 2_000_000), Group("b2", None, 1_000_000)], placed).moves == ()


def test_sizes_are_of_the_mean_message_of_a_block(blocks: DataFrame) -> None:
    """100 bytes have 7 bits, 200 have 8."""
    found = by(growth.sizes(growth.chosen(blocks)), "topic", "bits")
    assert (found["t", 7]["messages"], found["t", 7]["bytes"]) == (72, 7200)
    assert (found["t", 8]["messages"], found["t", 8]["bytes"]) == (6, 1200)
    assert found["u", 7]["messages"] == 1


def test_settings_are_tried_below_those_of_each_topic() -> None:
    settings = {
        "a": TopicSettings(retention_hours=72),
        "b": TopicSettings(retention_hours=None, retention_policy="keep"),
        "c": TopicSettings(retention_hours=12, retention_policy="archive", archive_after_hours=7),
    }
    wished = retention.wishes(settings)
    assert [each for each in wished if each[:2] == ("a", "retention")] == [
        ("a", "retention", hours) for hours in (12, 24, 48)
    ]
    assert [each[2] for each in wished if each[:2] == ("b", "retention")] == [168, 336, 720]
    assert [each for each in wished if each[0] == "c"] == [
        ("c", "retention", 6),
        ("c", "archive", 6),
    ]
    assert retention.wishes(settings, [10, 10, 100])[:2] == [
        ("a", "retention", 10),
        ("a", "archive", 10),
    ]
    assert DAY_MS == 24 * HOUR_MS
