"""The observability kit in deploy/: every metric and label that it names is one that there is."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.promql import named_in
from support.tool import load_tool

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
PAGE = ROOT / "docs" / "howto" / "monitor-brokers.md"
#: Labels that Prometheus gives to every series.
_TARGET = {"job", "instance"}
#: What Prometheus has itself, and its client library on every broker.
_OTHERS = {
    "up": _TARGET,
    "ALERTS": {"alertname", "alertstate"},
    "process_cpu_seconds_total": _TARGET,
    "process_resident_memory_bytes": _TARGET,
    "process_open_fds": _TARGET,
    "process_max_fds": _TARGET,
}


@cache
def known() -> dict[str, set[str]]:
    """Return the labels of every metric, by the name that queries have for it."""
    found = dict(_OTHERS)
    for family in load_tool("broker_metrics").all_families():
        labels = {*family._labelnames, *_TARGET}
        if family.type == "histogram":
            found[f"{family.name}_bucket"] = labels | {"le"}
            found[f"{family.name}_count"] = found[f"{family.name}_sum"] = labels
        else:
            found[family.name + ("_total" if family.type == "counter" else "")] = labels
    return found


def faults(expression: str, legend: str = "") -> list[str]:
    """Return what an expression, and the name of its lines, name that there is not."""
    named = named_in(expression)
    told = []
    has: set[str] = set()
    for metric, labels in named.selectors:
        if metric not in known():
            told.append(f"no metric {metric}")
            continue
        has |= known()[metric]
        told += [f"{metric} has no label {each}" for each in labels - known()[metric]]
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend))
    told += [f"no label {each}" for each in (named.groupings | shown) - has]
    return [f"{each}: {expression}" for each in told]


def dashboards() -> dict[str, Any]:
    folder = ROOT / "deploy" / "grafana" / "dashboards"
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.iterdir())}


def panels(dashboard: Any) -> list[Any]:
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def rules() -> list[Any]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_dashboards_are_fresh() -> None:
    module = load_tool("dashboards")
    files = {path.name: path.read_text() for path in module.TARGET.iterdir()}
    assert files == module.render(), "run `make docs`"


def test_every_query_names_metrics_and_labels_that_there_are() -> None:
    told = []
    for dashboard in dashboards().values():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                told += faults(target["expr"], target["legendFormat"])
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
                assert found is not None, variable["definition"]
                told += faults(found[1], f"{{{{{found[2]}}}}}")
    assert told == []


def test_every_alert_names_metrics_and_labels_that_there_are() -> None:
    told = []
    for rule in rules():
        told += faults(rule["expr"], rule["annotations"]["summary"])
    assert told == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("vq_nothing > 0", "no metric vq_nothing"),
        ("rate(vq_flush_seconds[5m])", "no metric vq_flush_seconds"),
        ('vq_ready{node="n1"}', "vq_ready has no label node"),
        ("sum by (topic) (vq_ready)", "no label topic"),
        ("sum(vq_ready) by (topic)", "no label topic"),
        ("vq_ready * on (job) group_left (rack) vq_node_info", "no label rack"),
    ],
)
def test_a_wrong_name_is_found(expression: str, fault: str) -> None:
    assert faults(expression) == [f"{fault}: {expression}"]


def test_a_text_is_no_name() -> None:
    expression = 'count(up{job="vq_nothing"} == 0) or vector(0) # vq_nothing'
    assert faults(expression) == []


def test_every_dashboard_and_panel_has_an_id_of_its_own_and_says_what_it_shows() -> None:
    found = dashboards()
    assert len({each["uid"] for each in found.values()}) == len(found)
    assert len({each["title"] for each in found.values()}) == len(found)
    for name, dashboard in found.items():
        assert name == f"{dashboard['uid']}.json"
        ids = [each["id"] for each in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        titles = [each["title"] for each in panels(dashboard)]
        assert len(set(titles)) == len(titles)
        for panel in panels(dashboard):
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_no_panel_lies_over_another() -> None:
    for dashboard in dashboards().values():
        taken = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert (x, y) not in taken, panel["title"]
                    taken.add((x, y))


def test_a_variable_that_finds_nothing_leaves_queries_valid() -> None:
    """With an empty Prometheus, "All" stands for `.*`, not for an empty list of names."""
    for dashboard in dashboards().values():
        variables = {each["name"]: each for each in dashboard["templating"]["list"]}
        assert set(variables) == {"datasource", "cluster", "group"}
        for each in ("cluster", "group"):
            assert variables[each]["allValue"] == ".*"
            assert variables[each]["includeAll"]


def test_every_alert_says_how_bad_it_is_and_which_page_helps() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "page"}
        path, _, anchor = rule["annotations"]["page"].partition("#")
        text = (ROOT / path).read_text()
        headings = [
            re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-")
            for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        ]
        assert not anchor or anchor in headings, rule["annotations"]["page"]


def test_the_page_lists_the_alerts_as_they_are() -> None:
    rows = re.findall(r"^\| `(Vq\w+)` \| (\w+) \|.*\| \[.*\]\((.*)\) \|$", PAGE.read_text(), re.M)
    assert rows == [
        (
            rule["alert"],
            rule["labels"]["severity"],
            re.sub(r"^monitor-brokers\.md#", "#", rule["annotations"]["page"].split("/")[-1]),
        )
        for rule in rules()
    ]


def test_every_alert_is_tested() -> None:
    """``promtool test rules`` runs them, in ``tests/integration/test_deploy_files.py``."""
    tests = yaml.safe_load(ALERTS.with_name("alerts_test.yml").read_text())["tests"]
    fired = {each["name"].removesuffix(" fires") for each in tests if each["name"][:2] == "Vq"}
    assert fired == {rule["alert"] for rule in rules()}


def test_the_page_shows_what_is_scraped() -> None:
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    assert f"```yaml\n{text}```\n" in PAGE.read_text()
