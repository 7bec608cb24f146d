"""The page of the lag report: what is wrong in order, with what to do. Without Spark."""

import re
import shlex
from collections.abc import Sequence
from html import unescape
from typing import Any

import click
import pytest
from support.html_page import PageReader

from pyspark_vq.reports.lag import LagReport, Wanted
from pyspark_vq.reports.lag_page import CAUSES, lag_page
from pyspark_vq.reports.lag_rules import PROBLEMS
from pyspark_vq.reports.page import render
from vq.cli.main import cli
from vq.operations.groups import lag_rules
from vq.operations.groups.lag_rules import VERDICTS

GIB = 1 << 30


def cause(verdict: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a row of ``lag_rules.by_cause``."""
    row: dict[str, Any] = {
        "verdict": verdict,
        "cause": name,
        "group": "g",
        "topic": "t",
        "count": 2,
        "partitions": [0, 1],
        "lag_bytes": GIB,
        "lag_messages": 10,
        "lag_seconds": 60.0,
        "lag_is_upper_bound": False,
        "unknown_lags": 0,
        "unknown_messages": 0,
        "trend_bytes_per_s": None,
        "owner": None,
        "owners": 0,
        "detail": None,
        "details": 0,
        "of": 1,
    }
    return {**row, **more}


def page_of(
    *causes: dict[str, Any],
    groups: Sequence[dict[str, Any]] = (),
    history: Sequence[dict[str, Any]] = (),
    **counts: int,
) -> str:
    verdicts = {**dict.fromkeys(VERDICTS, 0), "ok": 1, **counts}
    rows: Any = None
    report = LagReport(
        cluster="c",
        snapshot="20270115T000000Z",
        now_s=1_800_000_000.0,
        took_s=1.0,
        rows=rows,
        groups=1,
        verdicts=verdicts,
        rollups={"group": groups, "topic": [], "broker": [], "pool": []},
        offenders=[],
        causes=causes,
        history=history,
        silent={},
        wanted=Wanted(),
    )
    return render(lag_page(report))


def rows_of(page: str) -> list[str]:
    """Return the rows of the first table, as text."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [PageReader(row + "</tr>").text for row in body.split("</tr>")[:-1]]


def test_a_row_has_its_partitions_its_cause_and_what_to_do() -> None:
    stopped = cause(
        "stopped",
        "owner_error",
        count=12,
        partitions=list(range(8)),
        detail="KeyError: 'x'",
        details=3,
        owner="m1",
        owners=2,
        trend_bytes_per_s=2048.0,
    )
    page = page_of(stopped, stopped=12)
    [row] = rows_of(page)
    assert "12: 0, 1, 2, 3, 4, 5, 6, 7, …" in row
    assert "+2.00 KiB" in row
    assert "its owner does not go on: KeyError: 'x', 2 more (owner: m1, 1 more)" in row
    assert "Repair the listener" in row


def test_rows_keep_the_order_of_the_report_and_say_how_many_there_are() -> None:
    page = page_of(
        cause("stopped", "needs_reset", of=30), cause("warning", "old", of=30), stopped=40
    )
    first, second = rows_of(page)
    assert first.startswith("stopped")
    assert second.startswith("warning")
    assert "28 more are left out" in PageReader(page).text
    assert page.index("What is wrong, and what to do") < page.index("Overview")


def test_small_rows_are_grey_unless_somebody_must_act() -> None:
    page = page_of(
        cause("stopped", "needs_reset", lag_bytes=0),
        cause("stopped", "no_members", lag_bytes=GIB),
        cause("stalled", "unmoved", lag_bytes=GIB // 1_000),
        cause("warning", "old", lag_bytes=GIB // 1_000, unknown_lags=1),
        cause("unknown", "broker_silent", lag_bytes=None, unknown_lags=2),
        stopped=4,
    )
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    grey = [row.startswith('<tr class="small">') for row in body.split("</tr>")[:-1]]
    assert grey == [False, False, True, False, False]


def test_a_lag_that_means_nothing_is_none_and_one_without_a_part_is_a_bound() -> None:
    page = page_of(
        cause("stopped", "owner_error", unknown_lags=1, unknown_messages=1),
        cause("unknown", "no_topics", topic=None, partitions=[], count=1, lag_bytes=None),
        stopped=1,
    )
    bound, nothing = rows_of(page)
    assert "≥ 1.00 GiB" in bound
    assert nothing.startswith("unknowng----")


def test_the_lag_of_a_group_with_a_filter_is_an_upper_bound() -> None:
    """Messages with other tags lie in it, too."""
    row = rows_of(page_of(cause("warning", "old", lag_is_upper_bound=True), warning=1))[0]
    assert row.count("≤") == 3
    assert "≤" not in rows_of(page_of(cause("warning", "old"), warning=1))[0]


def test_sums_and_charts_of_a_group_with_a_filter_show_the_bound_too() -> None:
    def rolled(name: str, *, bound: bool) -> dict[str, Any]:
        lags = {
            "lag_bytes": 732,
            "lag_messages": 3,
            "lag_seconds": 5.0,
            "lag_is_upper_bound": bound,
        }
        unknown = {"unknown_lags": 0, "unknown_messages": 0}
        more = {"partitions": 1, "skew": 1.0, "of": 2, **dict.fromkeys(VERDICTS, 0)}
        return {"name": name, **lags, **unknown, **more}

    history = [
        {"snapshot": f"2027011{day}T000000Z", "group": name, "lag_bytes": 732}
        for day in (4, 5)
        for name in ("picky", "whole")
    ]
    groups = [rolled("picky", bound=True), rolled("whole", bound=False)]
    text = PageReader(page_of(groups=groups, history=history)).text
    assert text.count("≤ 732 B") == 2  # the chart and the table
    assert text.count("732 B") == 10  # with those of the other, two lines over time, four dots
    assert text.count("≤ 3") == 1
    assert "picky (≤)" in text
    assert "whole (≤)" not in text


def test_a_verdict_that_no_row_has_has_no_colour() -> None:
    page = page_of(stopped=0, ok=0)
    assert 'class="tile "' in page
    assert 'class="tile ok"' not in page


def test_every_cause_has_a_meaning_and_says_what_to_do() -> None:
    lines = (lag_rules.__doc__ or "").splitlines()
    words = [line[14:27].strip() for line in lines if line.startswith("    ")]
    causes = {word for word in words if word.isidentifier()}  # the table of rules
    assert len(causes) > 12
    assert causes | {*PROBLEMS, "not_subscribed"} == set(CAUSES)
    for name, (meaning, to_do) in CAUSES.items():
        assert meaning, name
        assert to_do.endswith("."), name


@pytest.mark.parametrize("name", sorted(CAUSES))
def test_each_command_that_is_advised_is_one_of_vq(name: str) -> None:
    """With its options, and with names that a shell would take apart."""
    page = page_of(cause("stopped", name, group="a b", topic="t'; x"), stopped=2)
    for code in re.findall("<code>(.*?)</code>", page):
        words = shlex.split(unescape(re.sub("</?span>", "", code)))
        if words[0] != "vq":
            assert all(word.startswith("--") for word in words)
            continue
        command: click.Command | None = cli
        rest = words[1:]
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None, code
        known = {option for each in command.params for option in each.opts}
        assert {word for word in rest if word.startswith("--")} <= known
        assert {word for word in rest if " " in word} <= {"a b", "t'; x"}
