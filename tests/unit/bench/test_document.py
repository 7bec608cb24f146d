"""Figures written into the page: only between its markers, the latest of each scenario."""

import re

import pytest

from bench import sends
from bench.document import BLOCKS, PAGE, merged, updated
from bench.features import FEATURES, FIGURES, SIZES, name_of
from bench.figures import Figure, Target, rows_of


def result(name: str, value: float) -> dict[str, object]:
    """A result file with one scenario of one figure."""
    (row,) = rows_of(name, [Figure("f", value, "s")], {"f": Target(value_max=2)})
    return {
        "rows": [row.as_json()],
        "failures": {},
        "profiles": {},
        "busy_before": {name: 0.5},
        "machine": dict.fromkeys(
            ("processor", "cores", "memory_gb", "kernel", "file_system", "python", "client_loops"),
            1,
        ),
    }


def test_the_latest_result_of_a_scenario_counts() -> None:
    found = merged([result("small", 1), result("sync", 2), result("small", 3)])
    assert found["small"]["rows"][0]["value"] == 3
    assert found["sync"]["rows"][0]["value"] == 2


def test_a_failed_scenario_does_not_replace_a_good_one() -> None:
    failed = {**result("small", 3), "failures": {"small": "lost a message"}}
    assert merged([result("small", 1), failed])["small"]["rows"][0]["value"] == 1


def test_features_are_shown_beside_plain_messages() -> None:
    """One line for each size and feature; the ratio is that of the rounds."""
    found = [
        Figure(name_of(size, feature, figure), 3.0 * size, unit, 1.5 * size)
        for size in SIZES
        for feature in FEATURES
        for figure, unit in FIGURES.items()
    ]
    own = {
        **result("features", 1),
        "rows": [row.as_json() for row in rows_of("features", found, {})],
    }
    text = BLOCKS["features"](merged([own]))
    assert text.count("\n| ") == 1 + len(SIZES) * len(FEATURES) + 1
    assert "| 128 bytes | zstd | 384 (2.00) | 384 (2.00) | 384 (2.00) | 384 (2.00) |" in text
    assert "features 50%. Medians of 1 rounds." in text
    assert "zstd" not in BLOCKS["figures"](merged([own]))
    assert BLOCKS["features"]({}) == "Not measured."


def test_systems_of_three_nodes_are_shown_with_those_that_are_missing() -> None:
    """A short run says that it was one."""
    details = {"acknowledged_by": "2 of 3", "flushed": "never", "detection": "5 s"}
    found = [Figure("fsync | it 1.0 | pipelined", 500.0, "msg/s", details=details)]
    own = {
        **result("replicated_peers", 1),
        "rows": [row.as_json() for row in rows_of("replicated_peers", found, {})],
        "replicated_peers": [{"name": "that", "missing": "not installed"}],
        "quick": False,
    }
    text = BLOCKS["replicated_peers"](merged([own]))
    assert "| fsync | it 1.0 | 2 of 3 | never | – | 500 |" in text
    assert "Medians of 1 rounds." in text
    assert text.endswith("Not found here: that: not installed.")
    assert "Preliminary" in BLOCKS["replicated_peers"](merged([{**own, "quick": True}]))


def test_ways_to_send_are_shown_beside_callbacks() -> None:
    """One line for each way; the ratio is that of the rounds."""
    found = [Figure(way, 3.0, sends.UNIT, 1.5) for way in sends.WAYS]
    own = {**result("sends", 1), "rows": [row.as_json() for row in rows_of("sends", found, {})]}
    text = BLOCKS["ways_to_send"](merged([own]))
    assert text.count("\n| ") == 1 + len(sends.WAYS) + 1
    assert "| send_oneway | 3.00 (2.00) |" in text
    assert "send_oneway" not in BLOCKS["figures"](merged([own]))
    assert BLOCKS["ways_to_send"]({}) == "Not measured."


def test_only_what_is_between_the_markers_changes() -> None:
    page = "before\n<!-- begin figures -->\nold\n<!-- end figures -->\nafter\n"
    once = updated(page, merged([result("small", 1)]))
    assert once.startswith("before\n<!-- begin figures -->\n")
    assert once.endswith("<!-- end figures -->\nafter\n")
    assert "old" not in once
    assert "| f | 1.00 s |" in once
    assert "small 50%" in once
    assert updated(once, merged([result("small", 1)])) == once


def test_results_of_some_scenarios_leave_the_rest_of_the_page_as_it_is() -> None:
    """One table of ``figures`` is replaced; every other table and block is kept."""
    page = PAGE.read_text()
    assert updated(page, {}) == page
    once = updated(page, merged([result("restart", 1)]))
    before, after = (text.splitlines() for text in (page, once))
    changed = [line for line in before if line not in after]
    assert changed
    assert all(line.startswith("| first ack") for line in changed)
    added = [line for line in after if line not in before]
    assert len(added) == 2
    assert "restart 50%" in added[0]
    assert added[1].startswith("| f | 1.00 s |")


def test_systems_of_one_node_are_shown_with_their_machine() -> None:
    """Tables of two days are of machines of two speeds: each says its own."""
    found = [Figure("fsync | it 1.0 | pipelined", 500.0, "msg/s")]
    own = {
        **result("peers", 1),
        "rows": [row.as_json() for row in rows_of("peers", found, {})],
        "peers": [{"name": "that", "missing": "not installed"}],
    }
    text = BLOCKS["peers"](merged([own]))
    assert "peers 50%. Medians of 1 rounds." in text
    assert "| fsync | it 1.0 | – | 500 | – |" in text
    assert text.endswith("Not found here: that: not installed.")


def test_every_section_stands_in_the_table_of_the_page() -> None:
    """Who asks something finds the section that answers it."""
    head, *sections = PAGE.read_text().split("\n## ")
    titles = [section.split("\n", 1)[0] for section in sections]
    anchors = [re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles]
    missing = [anchor for anchor in anchors if f"](#{anchor})" not in head]
    assert not missing, f"name these in the first table of {PAGE.name}, with the day: {missing}"


def test_a_block_that_nobody_writes_is_an_error() -> None:
    with pytest.raises(KeyError):
        updated("<!-- begin nothing --><!-- end nothing -->", {})


def test_the_page_has_every_block_once() -> None:
    page = PAGE.read_text()
    for name in BLOCKS:
        assert page.count(f"<!-- begin {name} -->") == page.count(f"<!-- end {name} -->") == 1
