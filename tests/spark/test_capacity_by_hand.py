"""Every figure of the capacity report, over random clusters, against plain loops over the blocks.

The loops know nothing of the report's code: they walk over blocks and hours one by one. Each
cluster has partitions that moved, archives beside the log and at URLs, blocks without times, nodes
and groups that are silent, and topics of every kind of retention.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.capacity_blocks import NOW, block, frame_of, silent

from pyspark_vq.reports import growth, loads, retention
from pyspark_vq.reports.capacity import held_on_disks
from pyspark_vq.reports.growth import HOUR_MS
from pyspark_vq.reports.holdings import Home
from vq import TopicSettings

pytestmark = pytest.mark.slow

DAY_MS = 24 * HOUR_MS
Row = dict[str, Any]


@dataclass
class Random:
    """A cluster: what nodes tell, where partitions are, what topics keep."""

    rows: list[Row] = field(default_factory=list)
    homes: list[Home] = field(default_factory=list)
    settings: dict[str, TopicSettings] = field(default_factory=dict)
    silent_groups: dict[str, str] = field(default_factory=dict)


def random_settings(rng: random.Random, *, known: bool) -> TopicSettings:
    policy = rng.choice(["delete", "delete", "archive", "keep"])
    after = {"delete": None, "archive": rng.choice([1, 3]), "keep": rng.choice([None, 30])}[policy]
    away = after is not None and rng.random() < 0.4
    return TopicSettings(
        retention_policy=policy,
        retention_hours=rng.choice([6, 20, 48, 72 if known else None]),
        retention_bytes=rng.choice([None, None, 3_000, 50_000]),
        archive_after_hours=after,
        archive_to="file:///mnt/archive" if away else None,
    )


def random_cluster(seed: int) -> Random:
    """Half of it is silent here and there; nothing is hidden in the other, so all is known."""
    made = Random()
    add_half(random.Random(seed), made, "k", known=True)
    add_half(random.Random(seed + 1), made, "u", known=False)
    return made


def add_half(rng: random.Random, made: Random, mark: str, *, known: bool) -> None:
    """Add groups and topics whose names begin with ``mark``; ``known``: nothing is hidden."""
    groups = {f"{mark}g{n}": [f"n{node}" for node in range(1, rng.randint(2, 3))] for n in range(4)}
    nodes = [f"{group}/{node}" for group in groups for node in groups[group]]
    quiet = {node for node in nodes if rng.random() < 0.12 and not known}
    for node in sorted(quiet):
        made.rows.append(silent(node, "TimedOut: no answer"))
    for group in groups:
        if all(f"{group}/{node}" in quiet for node in groups[group]):
            made.silent_groups[group] = f"{group} is silent"
    for topic in (mark + letter for letter in "abcde"):
        made.settings[topic] = random_settings(rng, known=known)
        for number in range(rng.randint(1, 4)):
            fill(rng, made, groups, quiet, topic, number, known=known)


def fill(
    rng: random.Random,
    made: Random,
    groups: dict[str, list[str]],
    quiet: set[str],
    topic: str,
    number: int,
    *,
    known: bool,
) -> None:
    """Add the blocks of a partition: a line of time that may move from group to group."""
    place = [rng.choice(sorted(groups))]
    moment = rng.choice([3.0 if known else 0.4, 3.0, 30.0, 90.0]) * rng.uniform(
        0.8, 1.2
    )  # hours ago
    offset, knows_times = 0, known or rng.random() > 0.1
    away = made.settings[topic].archive_to is not None
    if rng.random() < 0.08:
        moment = 0.0  # nothing came yet
        made.rows += [
            block(f"{place[0]}/{node}", topic, number)
            for node in groups[place[0]]
            if f"{place[0]}/{node}" not in quiet
        ]
    while moment > 0.01:
        until = max(0.0, moment - rng.choice([0.0, 0.3, 2.0, 26.0]) * rng.uniform(0.5, 1.5))
        messages = rng.randint(1, 50)
        size = messages * rng.randint(20, 900)
        for node in groups[place[-1]]:
            zipped = moment > 5 and rng.random() < 0.4
            zip_bytes = size // rng.randint(2, 9) if zipped else None
            times = (moment, until) if knows_times else None
            if f"{place[-1]}/{node}" not in quiet:
                made.rows.append(block(
                    f"{place[-1]}/{node}", topic, number, offset, offset + size, times,
                    messages if knows_times else None,
                    is_open=until == 0.0,
                    archive_bytes=zip_bytes,
                    is_elsewhere=zipped and away,
                    disk_bytes=size if zip_bytes is None else 0 if away else zip_bytes,
                ))  # fmt: skip
        offset += size
        moment = until - rng.choice([0.0, 0.0, 0.1, 8.0])
        if rng.random() < 0.25:
            place.append(rng.choice(sorted(groups)))
    if rng.random() < 0.05 and not known:
        made.homes.append(Home(topic, number, None, (), "the znode cannot be read"))
    else:
        made.homes.append(Home(topic, number, place[-1], tuple(dict.fromkeys(place))))


# By hand --------------------------------------------------------------------------------------
def one_node_each(rows: list[Row]) -> list[Row]:
    """The blocks of a master, else of the node that has most, else of the first by name."""
    best: dict[str, tuple[Any, ...]] = {}
    nodes = {(row["group"], row["node"]) for row in rows if row["error"] is None}
    for group, node in sorted(nodes):
        mine = [row for row in rows if (row["group"], row["node"]) == (group, node)]
        rank = (any(row["leads"] for row in mine), sum(row["end"] or 0 for row in mine))
        if group not in best or rank > best[group][0]:
            best[group] = (rank, node)
    return [row for row in rows if row["group"] in best and row["node"] == best[row["group"]][1]]


def share_between(row: Row, low: int, high: int) -> float:
    """The share of a block's bytes that came in [low, high)."""
    first, last = row["first_ms"], row["last_ms"]
    if first == last:
        return float(low <= first < high)
    return max(0, min(last, high) - max(first, low)) / (last - first)


def rate_of(rows: list[Row], name: Callable[[Row], int]) -> float | None:
    """What came in the last day, or since the oldest block, for a day; None: not known."""
    if not rows:
        return 0.0
    if any(row["first_ms"] is None for row in rows):
        return None
    oldest = min(row["first_ms"] for row in rows)
    age = min(DAY_MS, NOW - oldest)
    if age < HOUR_MS:
        return None
    came = sum(share_between(row, NOW - DAY_MS, 2**62) * name(row) for row in rows)
    return came * DAY_MS / age


def size(row: Row) -> int:
    return row["end"] - row["start"]


def blocks_of(rows: Iterable[Row], topic: str, number: int) -> list[Row]:
    return [
        row for row in rows
        if row["topic"] == topic and row["partition"] == number and row["start"] is not None
    ]  # fmt: skip


def partitions_by_hand(made: Random) -> dict[tuple[str, int], Row]:
    chosen = one_node_each(made.rows)
    found = {}
    for home in made.homes:
        mine = blocks_of(chosen, home.topic, home.partition)
        is_held = any(
            (row["topic"], row["partition"]) == (home.topic, home.partition) for row in chosen
        )
        hidden = bool(home.error) or any(group in made.silent_groups for group in home.groups)
        archived = [row for row in mine if row["archive_bytes"] is not None]
        timed = all(row["first_ms"] is not None for row in mine)
        found[home.topic, home.partition] = row = {
            "group": home.group,
            "bytes": sum(size(row) for row in mine),
            "disk_bytes": sum(row["disk_bytes"] for row in mine),
            "blocks": len(mine),
            "archived_blocks": len(archived),
            "archived_bytes": sum(size(row) for row in archived),
            "archive_bytes": sum(row["archive_bytes"] for row in archived),
            "messages": sum(row["messages"] for row in mine) if timed else None,
            "bytes_per_day": rate_of(mine, size),
            "messages_per_day": rate_of(mine, lambda row: row["messages"]),
        }
        if hidden or not is_held:
            row.update(dict.fromkeys(set(row) - {"group"}))
        row["first_ms"] = min((each["first_ms"] for each in mine), default=None) if timed else None
        row["last_ms"] = max((each["last_ms"] for each in mine), default=None) if timed else None
        row["mean_message_bytes"] = row["bytes"] / row["messages"] if row["messages"] else None
    for topic in made.settings:
        mine = [row for (name, _), row in found.items() if name == topic]
        rates = [row["bytes_per_day"] for row in mine if row["bytes_per_day"] is not None]
        even = sum(rates) / len(rates) if rates else 0.0
        for row in mine:
            rate = row["bytes_per_day"]
            share = row["share"] = None if rate is None or not even else rate / even
            row["verdict"] = (
                "unknown" if rate is None
                else "idle" if rate == 0
                else "hot" if share is not None and share > 2
                else "normal"
            )  # fmt: skip
    return found


def topics_by_hand(made: Random, partitions: dict[tuple[str, int], Row]) -> dict[str, Row]:
    found = {}
    for topic in made.settings:
        mine = [row for (name, _), row in partitions.items() if name == topic]

        def total(name: str, mine: list[Row] = mine) -> Any:
            values = [row[name] for row in mine]
            return None if None in values else sum(values)

        sums = (
            "bytes", "disk_bytes", "messages", "archived_bytes", "archive_bytes",
            "bytes_per_day", "messages_per_day",
        )  # fmt: skip
        found[topic] = {
            "partitions": len(mine),
            **{name: sum(row["verdict"] == name for row in mine)
               for name in ("unknown", "hot", "idle")},
            **{name: total(name) for name in sums},
            "skew": max((row["share"] for row in mine if row["share"] is not None), default=None),
            "first_ms": min((row["first_ms"] for row in mine if row["first_ms"]), default=None),
            "last_ms": max((row["last_ms"] for row in mine if row["last_ms"]), default=None),
            "copies_disk_bytes": sum(
                row["disk_bytes"] or 0 for row in made.rows if row["topic"] == topic
            ),
        }  # fmt: skip
        messages = found[topic]["messages"]
        found[topic]["mean_message_bytes"] = found[topic]["bytes"] / messages if messages else None
        if not any(row["topic"] == topic for row in made.rows):
            found[topic]["copies_disk_bytes"] = None
    return found


def ratio_by_hand(made: Random, topic: str) -> tuple[float | None, str | None]:
    if made.settings[topic].archive_to is not None:
        return 0.0, "url"
    zips = [row for row in made.rows if row["archive_bytes"] is not None]
    own = [row for row in zips if row["topic"] == topic]
    for source, rows in (("topic", own), ("cluster", zips)):
        if rows:
            taken = sum(row["archive_bytes"] for row in rows)
            return taken / sum(size(row) for row in rows), source
    return None, None


def settled_by_hand(made: Random, topic: str, rate: float | None, there: int) -> float | None:
    """Walk from now back in time, hour by hour, over what is still there."""
    kept = made.settings[topic]
    if rate is None:
        return None
    after, ratio = kept.archived_after_hours, ratio_by_hand(made, topic)[0]
    most = math.inf if kept.retention_bytes is None else kept.retention_bytes
    if rate == 0:
        left = 0 if kept.retention_hours is not None else min(there, most)
        if after is None or not left:
            return left
        return None if ratio is None else left * ratio
    if kept.retention_hours is None and most == math.inf:
        return None
    disk, log, hour = 0.0, 0.0, 0
    while log < most and (kept.retention_hours is None or hour < kept.retention_hours):
        came = min(rate / 24, most - log)
        log += came
        # The hour in which the size ends it is younger than an archive, or older: whole.
        if after is not None and hour >= after:
            if ratio is None:
                return None
            came *= ratio
        disk += came
        hour += 1
    return disk


def disks_by_hand(
    made: Random,
) -> dict[tuple[str, str, str], tuple[int, float | None, float | None]]:
    homes = {(home.topic, home.partition): home for home in made.homes}
    chosen = one_node_each(made.rows)
    sums: dict[tuple[str, str, str], list[tuple[int, float | None, float | None]]]
    sums = defaultdict(list)
    seen = {
        (row["group"], row["node"], row["directory"], row["topic"], row["partition"])
        for row in made.rows
        if row["topic"] is not None
    }
    for group, node, directory, topic, number in seen:
        there = blocks_of(
            [row for row in made.rows if (row["group"], row["node"]) == (group, node)],
            topic,
            number,
        )
        home = homes[topic, number]
        rate = None if home.error else 0.0
        if home.group == group:
            rate = rate_of(blocks_of(chosen, topic, number), size)
        ends = settled_by_hand(made, topic, rate, sum(size(row) for row in there))
        sums[group, node, directory].append((sum(row["disk_bytes"] for row in there), rate, ends))
    return {
        key: (
            sum(part[0] for part in parts),
            None if any(part[1] is None for part in parts) else sum(part[1] or 0 for part in parts),
            None if any(part[2] is None for part in parts) else sum(part[2] or 0 for part in parts),
        )
        for key, parts in sums.items()
    }


def what_ifs_by_hand(made: Random, wished: list[retention.Wish]) -> dict[Any, Row]:
    found: dict[Any, Row] = {}
    for topic, action, hours in wished:
        ratio, source = ratio_by_hand(made, topic)
        closed: dict[Any, list[Row]] = defaultdict(list)
        for row in made.rows:
            if row["topic"] == topic and row["start"] is not None and not row["is_open"]:
                closed[row["group"], row["node"], row["directory"]].append(row)
        for disk, rows in closed.items():
            timeless = [row for row in rows if row["last_ms"] is None]
            going = [
                row for row in rows
                if row["last_ms"] is not None and row["last_ms"] < NOW - hours * HOUR_MS
                and (action == "retention" or row["archive_bytes"] is None)
            ]  # fmt: skip
            freed: float | None = 0.0
            if action == "retention":
                freed = float(sum(row["disk_bytes"] for row in going))
            elif going:
                freed = None if ratio is None else sum(size(row) * (1 - ratio) for row in going)
            if action == "archive":
                timeless_counts = [row for row in timeless if row["archive_bytes"] is None]
            else:
                timeless_counts = timeless
            found[topic, action, hours, *disk] = {
                "blocks": len(going),
                "unknown_blocks": len(timeless),
                "bytes_freed": None if timeless_counts or freed is None else freed,
                "ratio": ratio if action == "archive" else None,
                "ratio_of": source if action == "archive" else None,
            }
    return found


def hours_by_hand(rows: list[Row]) -> dict[Any, tuple[float, float]]:
    found: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row["first_ms"] is None or row["start"] is None:
            continue
        hour = row["first_ms"] - row["first_ms"] % HOUR_MS
        while hour <= row["last_ms"]:
            part = share_between(row, hour, hour + HOUR_MS)
            key = (row["group"], row["node"], row["topic"], row["partition"], hour)
            found[key][0] += part * size(row)
            found[key][1] += part * row["messages"]
            hour += HOUR_MS
    return {key: (sums[0], sums[1]) for key, sums in found.items() if sums[0] > 0}


def percentile(values: list[float], share: float) -> float:
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


# Compared -------------------------------------------------------------------------------------
def same(
    found: DataFrame, keys: tuple[str, ...], expected: dict[Any, Row], names: str = ""
) -> None:
    rows = {tuple(row[key] for key in keys): row.asDict() for row in found.collect()}
    expected = {key if isinstance(key, tuple) else (key,): row for key, row in expected.items()}
    assert rows.keys() == expected.keys()
    for key, wanted in expected.items():
        for name, value in wanted.items():
            told = rows[key][name]
            if isinstance(value, float):
                assert told == pytest.approx(value, rel=1e-9, abs=1e-6), (key, name)
            else:
                assert told == value, (key, name)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 6, 2))]
)
def test_every_table_is_the_one_worked_out_by_hand(spark: SparkSession, seed: int) -> None:
    made = random_cluster(seed)
    blocks = frame_of(spark, made.rows).cache()
    one = growth.chosen(blocks)
    grown = growth.partitions(one, now_ms=NOW).cache()
    held = growth.on_nodes(blocks)

    partitions = loads.partition_rows(spark, grown, made.homes, made.silent_groups).cache()
    by_partition = partitions_by_hand(made)
    same(partitions, ("topic", "partition"), by_partition)
    same(loads.topic_rows(partitions, held), ("topic",), topics_by_hand(made, by_partition))

    ratios = retention.ratios(spark, blocks, made.settings).cache()
    ends = retention.endings(spark, ratios, made.settings)
    on_disks = held_on_disks(spark, held, grown, made.homes, ends)
    expected = disks_by_hand(made)
    assert on_disks.keys() == expected.keys()
    for key, (disk_bytes, rate, settles) in expected.items():
        told = on_disks[key]
        assert told.disk_bytes == disk_bytes
        assert told.bytes_per_day == (None if rate is None else pytest.approx(rate))
        assert told.settles_at_bytes == (None if settles is None else pytest.approx(settles))

    wished = retention.wishes(made.settings, [1, 4, 12])
    what_ifs = retention.what_ifs(blocks, ratios, wished, now_ms=NOW)
    keys = ("topic", "action", "hours", "group", "node", "directory")
    freed = what_ifs_by_hand(made, wished)
    for row in freed.values():
        if row["bytes_freed"] is not None:
            row["bytes_freed"] = round(row["bytes_freed"])
    same(what_ifs, keys, freed)

    chosen = one_node_each(made.rows)
    hours = growth.by_hour(one).cache()
    by_hour = hours_by_hand(chosen)
    same(
        hours,
        ("group", "node", "topic", "partition", "hour_ms"),
        {key: {"bytes": sums[0], "messages": sums[1]} for key, sums in by_hour.items()},
    )
    per_topic: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for (_, _, topic, _, hour), sums in by_hour.items():
        per_topic[topic][hour][0] += sums[0] / 3600
        per_topic[topic][hour][1] += sums[1] / 3600
    same(loads.rates(hours), ("topic",), {
        topic: {"hours": len(found), **{
            f"{name}_per_s_{label}": percentile([sums[at] for sums in found.values()], share)
            for at, name in enumerate(("bytes", "messages"))
            for label, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
        }}
        for topic, found in per_topic.items()
    })  # fmt: skip
    sizes: dict[Any, Row] = defaultdict(lambda: {"messages": 0, "bytes": 0})
    for row in chosen:
        if row["messages"]:
            sizes[row["topic"], (size(row) // row["messages"]).bit_length()]["messages"] += row[
                "messages"
            ]
            sizes[row["topic"], (size(row) // row["messages"]).bit_length()]["bytes"] += size(row)
    same(growth.sizes(one), ("topic", "bits"), dict(sizes))
