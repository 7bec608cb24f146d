"""Pages, charts, numbers and files of a report: pure, so without Spark."""

import csv
import io
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.html_page import PageReader

from pyspark_vq.reports import charts, outputs
from pyspark_vq.reports.charts import Band, Bar, Html, Limit, Line, Share
from pyspark_vq.reports.figures import (
    count_text,
    moment_text,
    seconds_text,
    size_text,
    visible,
)
from pyspark_vq.reports.page import (
    POLICY,
    Page,
    Section,
    Tile,
    advice,
    card,
    pair,
    render,
    table,
    tag,
)
from pyspark_vq.reports.progress import Progress, bar_text
from vq.testing.waiting import block_until

HOSTILE = "</style><script>alert(1)</script>\u202e\x1b[31m\"'&"


def page_of(*blocks: Html) -> PageReader:
    return PageReader(
        render(Page(title="t", lead="l", sections=[Section(title="s", blocks=blocks)]))
    )


# Numbers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (count_text(1_234_567), "1\u202f234\u202f567"),
        (count_text(0.5), "0.50"),
        (count_text(2**53 + 1), "9\u202f007\u202f199\u202f254\u202f740\u202f993"),
        (count_text(2.0), "2"),
        (count_text(None), "unknown"),
        (size_text(0), "0 B"),
        (size_text(999), "999 B"),
        (size_text(1_000), "0.98 KiB"),
        (size_text(1_536 * 1_024), "1.50 MiB"),
        (size_text(-2 * 1_024**3), "-2.00 GiB"),
        (size_text(2**63 - 1), "8.00 EiB"),
        (size_text(None), "unknown"),
        (seconds_text(0), "0 s"),
        (seconds_text(3.25), "3.2 s"),
        (seconds_text(75), "1 min 15 s"),
        (seconds_text(7_200), "2 h"),
        (seconds_text(90_000), "1 d 1 h"),
        (seconds_text(-75), "-1 min 15 s"),
        (seconds_text(None), "unknown"),
        (moment_text(0), "1970-01-01 00:00:00 UTC"),
        (moment_text(1e20), "100000000000000000000 s"),
        (visible("a\u202eb\x1bc\n\ud800ü"), "a\\u202eb\\u001bc\\u000a\\ud800ü"),
    ],
)
def test_a_number_is_read_at_first_sight(found: str, wanted: str) -> None:
    assert found == wanted


# The page -------------------------------------------------------------------------------------
def test_hostile_texts_are_shown_and_do_nothing() -> None:
    """In every place that a text of others can get to."""
    line = Line(label=HOSTILE, points=[(0.0, 1.0), (60.0, 1.0)])
    once = Line(label=HOSTILE, points=[(0.0, 1.0)])
    page = render(
        Page(
            title=HOSTILE,
            lead=HOSTILE,
            facts=[(HOSTILE, HOSTILE)],
            tiles=[Tile(label=HOSTILE, figure=HOSTILE, kind=HOSTILE)],
            footer=HOSTILE,
            sections=[
                Section(
                    title=HOSTILE,
                    note=HOSTILE,
                    blocks=[
                        card(HOSTILE, table([[HOSTILE]], columns=[HOSTILE], total=2, rest=HOSTILE)),
                        charts.bars(
                            [
                                Bar(
                                    label=HOSTILE,
                                    value=1,
                                    shown=HOSTILE,
                                    kind=HOSTILE,
                                    note=HOSTILE,
                                )
                            ],
                            about=HOSTILE,
                        ),
                        charts.shares([Share(label=HOSTILE, count=1, kind=HOSTILE)], about=HOSTILE),
                        charts.lines(
                            [line],
                            about=HOSTILE,
                            bands=[Band(label=HOSTILE, points=[(0.0, 0.0, 1.0)], kind=HOSTILE)],
                            limits=[Limit(label=HOSTILE, value=2.0)],
                        ),
                        charts.lines([once], about=HOSTILE),
                        tag(HOSTILE, HOSTILE),
                        advice("{name} `{name}`", name=HOSTILE),
                    ],
                )
            ],
        )
    )
    reader = PageReader(page)
    assert not {"script", "a", "img", "link", "iframe"} & set(reader.tags)
    assert reader.tags.count("style") == 1
    assert not [name for name, _ in reader.attributes if name.startswith("on")]
    assert ("content", POLICY) in reader.attributes
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert page.count("alert(1)") > 20
    assert "http://" not in page
    assert "https://" not in page


def test_a_page_needs_no_other_file() -> None:
    reader = page_of(pair(card("", Html("x")), card("t", Html(""))))
    assert not [name for name, _ in reader.attributes if name in {"src", "href"}]
    assert not reader.open


def test_a_wide_table_scrolls_by_itself_and_its_last_text_keeps_a_readable_width() -> None:
    page = render(
        Page(
            title="t", lead="l", sections=[Section(title="s", blocks=[table([["a"]], columns="n")])]
        )
    )
    assert '<div class="scroll"><table>' in page
    assert ".scroll{overflow-x:auto}" in page
    assert "td:last-child:not(.n){min-width:30ch" in page
    assert "td::before{content:attr(data-label)" in page  # a narrow window has a line for each cell
    assert '<td class="" data-label="n">' in page


def test_a_table_tells_how_many_rows_it_leaves_out() -> None:
    reader = page_of(table([["a", 1], ["b", 2]], columns=["n", "m"], total=12_000, rest="; see X"))
    assert "11\u202f998 more are left out; see X." in reader.text
    assert reader.tags.count("td") == 4
    assert "There are none." in page_of(table([], columns=["n"])).text


def test_a_column_that_says_nothing_is_left_out_where_that_is_allowed() -> None:
    rows = [["a", "-", "unknown", ""], ["b", "-", "unknown", "-"]]
    reader = page_of(table(rows, columns=["n", "p", "q", "r"], optional=["q", "r"]))
    heads = [value for name, value in reader.attributes if name == "data-label"]
    assert heads == ["n", "p", "n", "p"]
    some = page_of(table([*rows, ["c", "", "", "x"]], columns="npqr", optional="qr"))
    assert {value for name, value in some.attributes if name == "data-label"} == set("npr")


def test_rows_that_matter_less_are_grey() -> None:
    found = table([["large"], ["small"]], columns=["n"], small=[1])
    assert found.count('<tr class="small">') == 1
    assert found.index('<tr class="small">') > found.index("large")


def test_a_command_is_one_that_a_shell_reads_as_it_is_meant() -> None:
    """Names come from ZooKeeper: none of them ends a word, or an element."""
    found = advice("Stop {name}: `vq group delete {name}`.", name="a b; rm -rf <i>'$(x)`")
    [command] = re.findall("<code>(.*?)</code>", found)
    text = unescape(re.sub("</?span>", "", command))
    assert shlex.split(text) == ["vq", "group", "delete", "a b; rm -rf <i>'$(x)`"]
    assert "<i>" not in found
    assert "vq doctor, then wait" in page_of(advice("`vq doctor`, then wait")).text


def test_a_verdict_may_have_a_name_of_its_own() -> None:
    assert tag("ok", "steady") == '<span class="tag ok">steady</span>'


# Charts ---------------------------------------------------------------------------------------
def test_a_bar_is_the_part_of_its_whole() -> None:
    half = charts.bars([Bar(label="a", value=0.5, shown="50 %")], about="x", whole=1.0)
    assert "width:50.00%" in half
    assert "width:100.00%" in charts.bars([Bar(label="a", value=0.5, shown="50 %")], about="x")


def test_every_number_of_a_chart_is_told_and_an_unknown_one_is_none() -> None:
    bars = [
        Bar(label="a", value=10, shown="ten"),
        Bar(label="b", value=0, shown="none"),
        Bar(label="c", value=None, shown="unknown"),
    ]
    reader = page_of(charts.bars(bars, about="x"))
    assert reader.values == [10, 0]
    widths = [value for name, value in reader.attributes if name == "style" and value]
    assert widths == ["width:100.00%", "width:0.00%", "width:0.00%"]
    assert "unknown" in reader.text
    shares = [Share(label=f"n{count}", count=count, kind="ok") for count in (1, 0, 999)]
    reader = page_of(charts.shares(shares, about="x"))
    assert reader.values == [1, 999]
    assert "under 1 %" in reader.text
    assert "over 99 %" in reader.text


def test_a_line_of_a_clock_that_was_set_to_any_time_is_drawn() -> None:
    svg = charts.lines([Line(label="l", points=[(-1e13, 1.0), (4e11, 2.0)])], about="a")
    assert "400000000000 s" in svg


def test_a_line_is_interrupted_where_a_value_is_unknown() -> None:
    points = [(0.0, 1.0), (60.0, 2.0), (120.0, None), (180.0, 4.0), (240.0, 5.0)]
    drawn = charts.lines([Line(label="a", points=points)], about="x")
    assert drawn.count("<polyline") == 2
    assert page_of(drawn).values == [1.0, 2.0, 4.0, 5.0]
    assert charts.lines([], about="x") == ""
    assert charts.lines([Line(label="a", points=[(0.0, None)])], about="x") == ""


def test_a_chart_is_as_wide_as_its_card() -> None:
    """Places across are shares of it, so that texts keep their size."""
    drawn = charts.lines([Line(label="a", points=[(0.0, 0.0), (60.0, 4.0)])], about="x")
    assert re.findall(r'cx="([^"]*)" cy="([^"]*)"', drawn) == [
        ("0.00%", "212.0"),
        ("100.00%", "42.4"),
    ]
    rule = render(Page(title="t", lead="l")).partition("svg.lines{")[2].partition("}")[0]
    assert rule.startswith("width:100%")
    assert "max-width" not in rule


def test_one_moment_is_a_bar_for_each_line_and_no_empty_frame() -> None:
    series = [
        Line(label="a", points=[(0.0, 5.0)]),
        Line(label="b", points=[(0.0, None)]),
    ]
    drawn = charts.lines(series, about="x", limits=[Limit(label="size", value=10.0)])
    assert "<svg" not in drawn
    assert "width:50.00%" in drawn
    reader = page_of(drawn)
    assert reader.values == [5.0]
    assert "bunknown" in reader.text
    assert "At 1970-01-01 00:00:00 UTC only" in reader.text


@pytest.mark.parametrize(
    ("most", "base", "marks"),
    [
        (1 << 30, 1024, ["0.0 GiB", "0.2 GiB", "0.4 GiB", "0.6 GiB", "0.8 GiB", "1.0 GiB"]),
        (900, 1024, ["0 B", "200 B", "400 B", "600 B", "800 B", "1\u202f000 B"]),
        (2_400 << 20, 1024, ["0.0 GiB", "0.5 GiB", "1.0 GiB", "1.5 GiB", "2.0 GiB", "2.5 GiB"]),
        (2.5, 10, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]),
        (24_000, 10, ["0", *(f"{n}\u202f000" for n in (5, 10, 15, 20, 25))]),
        (0.0, 10, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_the_marks_of_an_axis_have_one_unit_and_as_many_digits(
    most: float, base: int, marks: list[str]
) -> None:
    line = Line(label="a", points=[(0.0, 0.0), (60.0, most)])
    drawn = charts.lines([line], about="x", shown=size_text, base=base)
    assert re.findall(r'x="-8"[^>]*>([^<]*)<', drawn) == marks


# Files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        (" =1", "' =1"),
        ("\uff1d1", "'\uff1d1"),
        ("\t=1", "\\u0009=1"),
        ("\r=1", "\\u000d=1"),
        ("a\nb", "a\\u000ab"),
    ],
)
def test_a_text_in_csv_is_no_formula(tmp_path: Path, text: str, cell: str) -> None:
    path = tmp_path / "below" / "x.csv"
    rows = [{"name": text, "lag": -5}, {"name": 'a,"b', "lag": None}]
    assert outputs.write_csv(rows, ["name", "lag"], path) == 2
    found = list(csv.reader(io.StringIO(path.read_text(), newline="")))
    assert found == [["name", "lag"], [cell, "-5"], ['a,"b', ""]]
    assert [each.name for each in path.parent.iterdir()] == ["x.csv"]


def test_a_file_is_whole_or_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    outputs.write_text("before", path)
    with pytest.raises(KeyError):
        outputs.write_csv([{"a": 1}, {}], ["a"], path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_a_name_may_be_as_long_as_names_are(tmp_path: Path) -> None:
    path, link = tmp_path / ("x" * 255), tmp_path / "link"
    link.symlink_to(path)
    outputs.write_text("page", link)
    assert (link.is_symlink(), path.read_text()) == (True, "page")
    assert set(tmp_path.iterdir()) == {path, link}


def test_what_is_no_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    """As `--csv /dev/stdout` is: a link to a pipe."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read_text)
        outputs.write_text("page", link)
        assert reading.result(timeout=30) == "page"
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)


def test_snapshots_are_named_by_their_moment_and_sort_by_it() -> None:
    names = [outputs.snapshot_name(seconds) for seconds in (0, 1_795_700_000, 1_795_700_001.9)]
    assert names == ["19700101T000000Z", "20261126T133320Z", "20261126T133321Z"]
    assert [outputs.snapshot_seconds(each) for each in names] == [0, 1_795_700_000, 1_795_700_001]
    with pytest.raises(ValueError, match="does not match"):
        outputs.snapshot_seconds("yesterday")


# Progress -------------------------------------------------------------------------------------
def test_a_bar_fits_on_one_line_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream, ends = io.StringIO(), iter([False, True])
    done: Any = SimpleNamespace(wait=lambda _: next(ends))
    Progress(stream)._draw(stream, "asking brokers where partitions end", "g", None, done, 0.0)
    assert stream.getvalue() == "\r\x1b[Kasking brokers where partitio"


def test_progress_is_a_line_for_each_step_or_nothing() -> None:
    stream, now = io.StringIO(), iter([1.0, 3.5])
    with Progress(stream, clock=lambda: next(now)).step("reading"):
        pass
    assert stream.getvalue() == "reading: 2.5 s\n"
    with Progress(None).step("reading"):
        pass


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_is_drawn_and_erased() -> None:
    stream = Terminal()
    with Progress(stream).step("reading"):
        block_until(lambda: "░ 0/? " in stream.getvalue())
    drawn = stream.getvalue()
    assert drawn.startswith("\r\x1b[Kreading ░")
    assert re.search(r"\r\x1b\[Kreading: [0-9.]+ s\n\Z", drawn)


def test_a_bar_shows_how_many_tasks_have_ended() -> None:
    assert bar_text("reading", 6, 12, 3.4) == f"reading {'█' * 12}{'░' * 12} 6/12 3 s"
    assert bar_text("reading", 0, 0, 0) == f"reading {'░' * 24} 0/? 0 s"
