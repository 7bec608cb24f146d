"""The pages of the capacity report and of the audit: what they show, and that names are harmless.

Without Spark: rows in, a page out.
"""

import math
import re
import runpy
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.html_page import PageReader

from pyspark_vq.options import Connect
from pyspark_vq.reports import audit as audits
from pyspark_vq.reports import audit_page, capacity_page
from pyspark_vq.reports.allocation import Group, Placed, plan
from pyspark_vq.reports.audit import Audit, Wanted
from pyspark_vq.reports.audit_joins import join_splits
from pyspark_vq.reports.audit_splits import Layout
from pyspark_vq.reports.capacity import Capacity
from pyspark_vq.reports.capacity_cells import days_text
from pyspark_vq.reports.capacity_summary import Summary
from pyspark_vq.reports.contents import Finding
from pyspark_vq.reports.disks import Held, disk_rows
from pyspark_vq.reports.holdings import Disk
from pyspark_vq.reports.progress import Progress
from vq import MessageFactoryConfig, TopicSettings
from vq.admin import FaultKind

GIB = 1 << 30
DAY = 86_400.0
NOW = 1_800_057_600.0
HOSTILE = '"><script>alert(1)</script>\u202e'


def capacity(name: str = "orders") -> Capacity:
    """Three disks: one fills, one is steady, one is of a silent node; a plan of two moves."""
    disks = [
        Disk(name, "n1", "/data", 500 * GIB, 90 * GIB, "warn", GIB // 4, 300.0, ""),
        Disk("b2", "n1", "/data", 500 * GIB, 450 * GIB, "ok", None, None, ""),
        Disk("b3", "n1", "", None, None, "unknown", None, None, f"Unreachable: {name}"),
    ]
    history = {
        (name, "n1", "/data"): [
            (NOW - day * DAY, (410 - 6 * day + 3 * math.sin(day)) * GIB) for day in range(20, 0, -1)
        ],
        ("b2", "n1", "/data"): [(NOW - day * DAY, 50.0 * GIB) for day in range(8, 0, -1)],
    }
    held = {(name, "n1", "/data"): Held(300 * GIB, 6.5 * GIB, 320.0 * GIB)}
    rows = disk_rows(disks, history, held, now_s=NOW)
    rates = [Placed(name, n, name, (9 - n) * GIB / 4) for n in range(6)]
    groups = [Group(name, None, 90 * GIB), Group("b2", None, 450 * GIB)]
    return Capacity(
        cluster=name,
        snapshot="20270115T000000Z",
        now_s=NOW,
        tables={},
        disks=rows,
        plan=plan(groups, rates, notes=[f"b3 is left out: {name}"]),
        silent={("b3", "n1"): f"Unreachable: {name}"},
        history={key: [*some, (NOW, some[-1][1] + GIB)] for key, some in history.items()},
        settings={
            name: TopicSettings(retention_hours=72),
            "v": TopicSettings(retention_hours=None),
        },
    )


def summary(name: str = "orders") -> Summary:
    hours = [NOW * 1000 - 3_600_000 * hour for hour in range(200)]
    stored: dict[str, Any] = {
        "bytes": 70 * GIB,
        "disk_bytes": 60 * GIB,
        "copies_disk_bytes": 120 * GIB,
        "messages": 90_000_000,
        "archived_bytes": 20 * GIB,
        "archive_bytes": 5 * GIB,
        "mean_message_bytes": 835.0,
        "bytes_per_day": 6.5 * GIB,
        "messages_per_day": 8_000_000.0,
        "first_ms": 1,
        "last_ms": 2,
    }
    topics = [
        {**stored, "topic": topic, "partitions": 6, "skew": 1.7, "hot": 0, "idle": 0, "unknown": 0}
        for topic in (name, "payments")
    ]
    unknown = dict.fromkeys(stored)
    return Summary(
        topics=[*topics, {**unknown, "topic": "v", "partitions": 1, "skew": None}],
        topic_count=40,
        partitions=[
            {**stored, "verdict": "hot", "topic": name, "partition": 0, "group": name,
             "share": 2.4, "reason": None},
            {**unknown, "verdict": "unknown", "topic": "v", "partition": 0, "group": "b3",
             "share": None, "reason": f"b3/n1: {name}"},
        ],
        verdicts={"hot": 1, "normal": 50, "idle": 0, "unknown": 1},
        what_ifs=[
            {"topic": name, "action": "retention", "hours": 48, "group": name,
             "bytes_freed": 22 * GIB, "blocks": 170, "unknown_blocks": 3, "ratio_of": None},
            {"topic": name, "action": "archive", "hours": 24, "group": name,
             "bytes_freed": 30 * GIB, "blocks": 400, "unknown_blocks": 0, "ratio_of": "cluster"},
            {"topic": "v", "action": "archive", "hours": 24, "group": "b3",
             "bytes_freed": None, "blocks": 4, "unknown_blocks": 0, "ratio_of": None},
        ],
        rates=[{"topic": name, "hours": 72, **{
            f"{what}_per_s_{part}": 90.5 for what in ("messages", "bytes")
            for part in ("p50", "p95", "max")}}],
        sizes=[{"bits": bits, "messages": 10 ** (bits - 6), "bytes": 5000} for bits in (8, 9, 10)],
        topic_hours=[
            {"topic": topic, "hour_ms": int(hour), "bytes": scale * (2 + math.sin(hour / 1.37e7)),
             "messages": 1000.0}
            for topic, scale in ((name, GIB / 6), ("payments", GIB / 9)) for hour in hours],
        group_hours=[
            {"group": group, "hour_ms": int(hour), "bytes": GIB / 4, "messages": 1.0}
            for group in (name, "b2") for hour in hours],
        bytes_per_day=None,
        messages_per_day=None,
    )  # fmt: skip


def audit(name: str = "orders") -> Audit:
    row = {
        "topic": name, "partition": 0, "verdict": "bad", "start": 0, "end": 10**9,
        "bytes": 10**9 - 500, "messages": 1_000_000, "batches": 9_000, "first_ms": 1, "last_ms": 2,
        "producers": 4, "id_falls": 0, "deleted_bytes": 0, "findings": 2,
    }  # fmt: skip
    sizes = [0] * 33
    sizes[8], sizes[9], sizes[11] = 600_000, 399_000, 1_000
    return Audit(
        cluster=name,
        snapshot="20270115T000000Z",
        now_s=NOW,
        findings=[
            Finding(name, 0, 3_000, 3_500, "damaged", "b1/n1", f"the batch fails its CRC {name}"),
            Finding(name, 0, 9_000, None, "duplicate", "", "message id 7 is at offset 3, too"),
        ],
        counts={"damaged": 1, "duplicate": 1, "unreachable": 2},
        partitions=[
            row,
            {**row, "partition": 1, "verdict": "sound", "findings": 0},
            {**row, "partition": 2, "verdict": "unknown", "end": None, "first_ms": None},
        ],
        sizes={name: sizes},
        archives=None,
        notes=[f"archives were not verified: {name}"],
        read_bytes=3 * 10**9,
        compared_bytes=10**9,
    )


def test_the_page_of_capacity_has_its_numbers() -> None:
    page = capacity_page.page(capacity(), summary(), top=10)
    reader = PageReader(page)
    assert reader.open == []
    text = reader.text
    assert "Capacity of orders" in text
    assert "82.0%" in text  # 410 of 500 GiB
    assert "6.00 GiB" in text or "5.9" in text or "6.0" in text  # its growth a day
    assert "vq topic move orders --partition 0" in text
    assert "38 more are left out" in text or "37 more are left out" in text
    assert "with the compression of other topics" in text
    assert "3 blocks tell no times" in text
    assert "no archive shows yet how well messages compress" in text
    assert "Unreachable" in text
    assert "Nothing was moved" in text
    assert reader.values  # of charts


def young(count: int, *, file_system: str = "boot 8:1") -> Capacity:
    """Disks of brokers of which there are two snapshots."""
    disks = [
        Disk(f"b{n}", "n1", f"/d{n}", 9 * GIB, 8 * GIB, "ok", None, None, "", file_system)
        for n in range(count)
    ]
    history = {(each.group, "n1", each.directory): [(NOW - DAY, float(GIB))] for each in disks}
    held = {(each.group, "n1", each.directory): Held(GIB // 8, 8.0, 16.0) for each in disks}
    rows = disk_rows(disks, history, held, now_s=NOW)
    return replace(capacity(), disks=rows, silent={}, history={})


def test_disks_of_which_nothing_is_known_are_not_called_good_and_the_page_says_once_why() -> None:
    page = capacity_page.page(young(3, file_system=""), summary(), top=10)
    reader = PageReader(page)
    assert 'class="tile ok"' not in page
    assert page.count('class="tile unknown"') == 3
    assert "No disk has a forecast yet: it needs 4 more runs with the same --out." in reader.text
    assert reader.text.count("more run") == 1
    assert "run the report again later" not in reader.text
    assert "disks 3" in reader.text


def test_data_directories_on_one_file_system_are_one_disk() -> None:
    """Its size counts once, and what vq has there is the sum."""
    page = capacity_page.page(young(4), summary(), top=10)
    text = PageReader(page).text
    assert "disks 1data directories 4" in text
    assert "b0/n1 /d0, b1/n1 /d1, b2/n1 /d2, b3/n1 /d3" in text
    how_full = page.partition('aria-label="How full each disk is"')[2].partition("</section>")[0]
    assert how_full.count('class="bar') == 1
    assert "512 MiB" in text  # four times an eighth of a GiB
    lost = [*young(2).disks]
    lost[1] = {**lost[1], "vq_bytes": None}
    [one] = capacity_page.file_systems(lost)
    assert (one["vq_bytes"], one["vq_bytes_per_day"]) == (None, 16.0)


def test_a_disk_that_fills_says_which_command_frees_space_and_that_moves_lead_away() -> None:
    page = capacity_page.page(capacity(), summary(), top=10)
    text = PageReader(page).text
    assert "orders/n1 /data is full in 15 d. 1 disk has no forecast yet" in text
    assert "vq topic alter orders --retention-hours 48 frees 22.0 GiB." in text
    assert "Carry out the proposed moves" in text
    alone = replace(summary(), what_ifs=[])
    none = capacity_page.page(replace(capacity(), plan=plan([], [])), alone, top=10)
    assert "Keep less of its topics, or add a disk" in PageReader(none).text


def test_no_disk_that_fills_is_good_only_if_all_are_known() -> None:
    made = capacity()
    known = [row for row in made.disks if row["verdict"] == "steady"]
    good = capacity_page.page(replace(made, disks=known), summary(), top=10)
    assert 'class="tile ok"><div class="figure">0<' in good
    some = [row for row in made.disks if row["verdict"] != "fills"]
    half = capacity_page.page(replace(made, disks=some), summary(), top=10)
    assert 'class="tile unknown"><div class="figure">0 of 1 known<' in half


def test_partitions_of_one_topic_and_group_with_one_reason_are_one_row() -> None:
    unknown = summary().partitions[1]
    rows = [{**unknown, "partition": number} for number in (2, 0, 1)]
    found = replace(summary(), partitions=rows, verdicts={"hot": 0, "unknown": 9, "idle": 0})
    text = PageReader(capacity_page.page(capacity(), found, top=3)).text
    assert "v0, 1, 2b3b3/n1: orders" in text
    assert "6 more are left out" in text


def test_the_page_of_the_audit_has_one_row_for_each_kind_and_place_the_worst_first() -> None:
    damaged = [Finding("orders", 3, n, n + 1, "damaged", "b1/n1", f"why {n}") for n in range(7)]
    lost = Finding("orders", 5, 0, 9, "missing", "b1/n1", "no copy has them")
    found = replace(
        audit(), findings=[*damaged, lost], counts={"damaged": 100, "missing": 1}, notes=[]
    )
    page = audit_page.page(found, top=10)
    text = PageReader(page).text
    assert text.index("missing1bytes are lost") < text.index("damaged100no intact batch")
    assert text.index("missingorders-51[0, 9)") < text.index("damagedorders-37[0, 1)b1/n1why 0")
    assert "why 1" not in text
    assert "vq topic verify orders" in text
    assert "Places are those of the first 8 findings, and 93 more are counted by kind only." in text


def test_an_audit_that_could_not_check_all_has_nothing_green_in_its_tiles() -> None:
    nothing = replace(audit(), findings=[], counts={"unreachable": 2})
    page = audit_page.page(nothing, top=10)
    assert 'class="tile ok"' not in page
    assert "Nothing wrong was found. 2 ranges could not be checked" in PageReader(page).text
    assert 'class="tile ok"' in audit_page.page(replace(nothing, counts={}), top=10)


def test_every_kind_of_finding_says_what_to_do() -> None:
    kinds = {
        *FaultKind,
        "missing",
        "unreadable",
        "differs",
        "unreachable",
        "duplicate",
        "not_readable",
    }
    assert kinds | {"archive"} == set(audit_page.KINDS)
    assert all(meaning and to_do.endswith(".") for meaning, to_do in audit_page.KINDS.values())


def test_the_page_of_the_audit_has_its_findings() -> None:
    reader = PageReader(audit_page.page(audit(), top=10))
    assert reader.open == []
    for told in (
        "damaged",
        "no intact batch",
        "orders-0",
        "[3000, 3500)",
        "[9000, …)",
        "archives were not verified: orders.",
        "128 B to 255 B",
    ):
        assert told in reader.text


def test_a_sound_partition_without_a_message_has_no_times_and_a_damaged_one_has_unknown_ones() -> (
    None
):
    found = audit()
    empty = {"messages": 0, "first_ms": None, "last_ms": None, "end": 0}
    found.partitions[1].update(empty)
    sound = PageReader(audit_page.page(replace(found, partitions=found.partitions[1:2]), top=10))
    assert "--0" in sound.text
    found.partitions[0].update(empty)
    bad = PageReader(audit_page.page(replace(found, partitions=found.partitions[:1]), top=10))
    assert "unknownunknown2" in bad.text


def test_the_capacity_page_counts_the_topics_it_draws_only_when_it_leaves_some_out() -> None:
    few = PageReader(capacity_page.page(capacity(), replace(summary(), topic_count=6), top=10)).text
    many = PageReader(
        capacity_page.page(capacity(), replace(summary(), topic_count=7), top=10)
    ).text
    assert "The topics that get most" in few
    assert "The 6 topics" not in few
    assert "The 6 topics that get most" in many
    assert "Messages of the 6 topics that get most" in many


def test_a_disk_that_is_eight_tenths_full_has_a_bar_of_eight_tenths() -> None:
    page = capacity_page.page(capacity(), summary(), top=10)
    how_full = page.partition('aria-label="How full each disk is"')[2].partition("</section>")[0]
    assert "width:82.00%" in how_full


def test_the_bars_before_and_after_a_plan_have_the_same_scale() -> None:
    made = capacity()
    page = capacity_page.page(made, summary(), top=10)
    after = page.partition("with the plan</h3>")[2].partition("</section>")[0]
    widths = list(map(float, re.findall(r"width:([0-9.]+)%", after)))
    most = max(*made.plan.before.values(), *made.plan.after.values())
    assert max(made.plan.before.values()) > max(made.plan.after.values())
    assert max(widths) == pytest.approx(max(made.plan.after.values()) / most * 100, abs=0.01)


def test_a_forecast_reaches_the_size_of_the_disk_on_the_day_it_is_full_and_stays_there() -> None:
    made = capacity()
    (key,) = [key for key in made.history if key[0] == "orders"]
    row = {
        **made.disks[0],
        "bytes_total": 100,
        "growth_bytes_per_day": 10.0,
        "growth_low": 5.0,
        "growth_high": 20.0,
        "full_in_days": 5.0,
        "full_latest_days": 10.0,
        "horizon_days": 90.0,
    }
    points = [(NOW - DAY, 40.0), (NOW, 50.0)]
    page = capacity_page.page(replace(made, disks=[row], history={key: points}), summary(), top=10)
    chart = page.partition('aria-label="Bytes in use on')[2].partition("</svg>")[0]
    (band,) = re.findall(r'polygon class="band [^"]*" points="([^"]*)"', chart)
    places = [tuple(map(float, place.split(","))) for place in band.split()]
    assert len(places) == 8  # upper and lower edge: now, full at 20, at 10, and at 5 a day
    upper, lower = places[:4], places[:3:-1]
    full, half = upper[-1][1], upper[0][1]
    assert [y for _, y in upper] == [half, full, full, full]
    assert [y for _, y in lower] == pytest.approx(
        [half, half + (full - half) / 4, half + (full - half) / 2, full], abs=0.2
    )


def test_a_line_of_growth_begins_with_the_oldest_block_of_its_topic() -> None:
    """What retention deleted before is not known; an hour between two blocks got nothing."""
    hours = {"old": (48, 47, 2), "young": (5, 2)}
    rows = [
        {"topic": name, "hour_ms": int((NOW - ago * 3600) * 1000), "bytes": 7.0, "messages": 7.0}
        for name, some in hours.items()
        for ago in some
    ]
    page = capacity_page.page(capacity(), replace(summary(), topic_hours=rows), top=10)
    chart = page.partition('aria-label="bytes an hour"')[2].partition("</svg>")[0]
    dots = re.findall(r'data-value="([0-9.]+)"><title>(old|young)', chart)
    assert len([value for value, name in dots if name == "old"]) == 48
    assert [value for value, name in dots if name == "young"] == ["7.0", "0.0", "0.0", "7.0", "0.0"]


def test_archives_that_nobody_verified_leave_an_audit_unknown() -> None:
    """Of a node that is away nothing is known; not to ask for them is no gap."""
    wanted = Wanted(connect=Connect(MessageFactoryConfig(zookeeper="z:1", cluster="c")), now_s=NOW)
    layout = Layout(("t",), {}, [])
    joined = join_splits([], layout)
    made = audits.audit_of(wanted, layout, joined, [], 0, [], ["b1/n2: it is away"])
    assert (made.total, made.unknown, made.archives) == (1, 1, None)
    assert made.notes == ["archives were not verified: b1/n2: it is away"]
    left = audits.audit_of(replace(wanted, archives=False), layout, joined, [], 0, [], [])
    assert (left.total, left.archives) == (0, None)
    assert left.notes == ["archives were not verified: that was not asked for"]
    assert audits.audit_of(wanted, layout, joined, [], 0, [], []).notes == []


def test_an_audit_that_fails_does_not_wait_for_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one that is interrupted: nodes may read them for hours."""
    wait = threading.Event()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(audits, "read_layout", lambda _: Layout(("t",), {}, []))
    monkeypatch.setattr(audits, "verify_archives", lambda *_: (wait.wait(), []))
    monkeypatch.setattr(audits, "_check", fail)
    wanted = Wanted(connect=Connect(MessageFactoryConfig(zookeeper="z:1", cluster="c")), now_s=NOW)
    spark: Any = SimpleNamespace(sparkContext=None)
    try:
        with pytest.raises(KeyboardInterrupt):
            audits.audit(spark, wanted, Progress(None))
        assert not wait.is_set()
    finally:
        wait.set()


def test_axes_of_bytes_on_the_capacity_page_are_round_in_their_units() -> None:
    page = capacity_page.page(capacity(), summary(), top=10)
    marks = re.findall(r'text-anchor="end">([0-9.]+) [KMGT]iB<', page)
    assert marks
    assert all(float(mark) * 10 % 1 < 1e-6 for mark in marks), marks


@pytest.mark.parametrize("name", [HOSTILE, "a" * 300, "\x00\n", "日本語", "' onload='x"])
def test_names_of_others_cannot_act_on_a_page(name: str) -> None:
    for page in (
        capacity_page.page(capacity(name), summary(name), top=10),
        audit_page.page(audit(name), top=10),
    ):
        reader = PageReader(page)
        assert reader.open == []
        assert "script" not in reader.tags
        assert not [attribute for attribute, _ in reader.attributes if attribute.startswith("on")]
        assert "\u202e" not in page
        assert "\x00" not in page


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (None, "later"),
        (0.0, "now"),
        (0.5, "12 h"),
        (1.99, "48 h"),
        (3.25, "3.2 d"),
        (99.6, "100 d"),
    ],
)
def test_days_are_short(days: float | None, text: str) -> None:
    assert days_text(days) == text


@pytest.mark.parametrize(
    ("program", "option"), [("capacity_report", "--plan"), ("content_audit", "--no-copies")]
)
def test_the_programs_for_spark_submit_are_the_commands(
    program: str,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(__file__).resolve().parents[2] / "spark" / f"{program}.py"
    monkeypatch.setattr("sys.argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert option in capsys.readouterr().out


def test_a_report_of_nothing_is_a_page() -> None:
    made = Capacity(cluster="c", snapshot="s", now_s=NOW, tables={}, disks=[], plan=plan([], []))
    empty = Summary(
        topics=[], topic_count=0, partitions=[], verdicts=dict.fromkeys(("hot", "unknown"), 0),
        what_ifs=[], rates=[], sizes=[], topic_hours=[], group_hours=[], bytes_per_day=0.0,
        messages_per_day=0.0,
    )  # fmt: skip
    assert PageReader(capacity_page.page(made, empty, top=5)).open == []
