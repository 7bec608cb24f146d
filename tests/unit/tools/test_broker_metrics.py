"""docs/reference/broker-metrics.md has every metric that a broker and the exporter export."""

import re

from support.tool import load_tool


def test_the_reference_is_fresh() -> None:
    module = load_tool("broker_metrics")
    assert module.TARGET.read_text() == module.render(), "run `make docs`"


def test_the_page_names_metrics_that_there_are() -> None:
    page = (load_tool("broker_metrics").ROOT / "docs/howto/monitor-brokers.md").read_text()
    reference = load_tool("broker_metrics").render()
    named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\bvq_\w+", page)}
    assert len(named) > 10
    assert [name for name in sorted(named) if f"| `{name}` |" not in reference] == []


def test_names_and_units_follow_the_conventions_of_prometheus() -> None:
    """Base units at the end, counters end in `_total`, all begin with the name of the system."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+)", load_tool("broker_metrics").render(), re.MULTILINE)
    assert len(rows) > 50
    assert len({name for name, _ in rows}) == len(rows)
    for name, kind in rows:
        assert name.startswith("vq_")
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|millis|kb|mb|percent|count)(_|$)", name), name
        if kind == "histogram":
            assert name.endswith("_seconds")
