"""Dashboards of Grafana as plain values, and the files that it reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Of the files; 39 is read by Grafana 10.4 and later.
_SCHEMA_VERSION: Final = 39
_WIDTH: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """An expression of PromQL, and the name of its lines."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title, description: What it shows, and how to read it.
        unit: As Grafana calls it.
        queries: What it shows.
        kind: Of panel.
        width, height: Of the 24 columns, in rows.
        red: From which value on the number is red; None: never. Below it is green.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    red: float | None = None


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard."""

    name: str
    label: str
    query: str


@dataclass(frozen=True)
class Dashboard:
    """One file."""

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[tuple[str, Sequence[Panel]]]


def stat(title: str, description: str, unit: str, expression: str, red: float | None) -> Panel:
    """Return a number; it is red from a value on."""
    return Panel(
        title, description, unit, (Query(expression, "now"),), "stat", width=4, height=4, red=red
    )


def lines(title: str, description: str, unit: str, *queries: tuple[str, str]) -> Panel:
    """Return lines over time."""
    return Panel(title, description, unit, tuple(Query(*each) for each in queries))


def text_of(dashboard: Dashboard) -> str:
    """Return the text of the file of a dashboard."""
    return json.dumps(_dashboard(dashboard), indent=1, ensure_ascii=False) + "\n"


def _dashboard(given: Dashboard) -> dict[str, Any]:
    return {
        "uid": given.uid,
        "title": given.title,
        "description": given.description,
        "tags": ["vq"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {
                "title": "vq",
                "type": "dashboards",
                "tags": ["vq"],
                "asDropdown": True,
                "includeVars": False,
                "keepTime": True,
                "icon": "external link",
                "url": "",
                "targetBlank": False,
                "tooltip": "",
            }
        ],
        "templating": {"list": [_data_source(), *map(_variable, given.variables)]},
        "panels": _panels(given.rows),
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
        "regex": "",
    }


def _variable(given: Variable) -> dict[str, Any]:
    return {
        "name": given.name,
        "label": given.label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": given.query,
        "query": {"query": given.query, "refId": "variable"},
        "current": {"text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "allValue": ".*",  # so that queries are valid where nothing is known
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "hide": 0,
    }


def _panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, some in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
            }
        )
        y, x, height = y + 1, 0, 0
        for panel in some:
            if x + panel.width > _WIDTH:
                y, x, height = y + height, 0, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append(_panel(len(panels) + 1, panel, place))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return panels


def _panel(number: int, given: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if given.red is not None:
        steps.append({"color": "red", "value": given.red})
    is_table = given.kind == "table"
    return {
        "id": number,
        "type": given.kind,
        "title": given.title,
        "description": given.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": given.unit,
                "min": 0 if given.kind == "timeseries" and given.unit != "s" else None,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": _OPTIONS[given.kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "instant": is_table,
                "range": not is_table,
                "format": "table" if is_table else "time_series",
            }
            for index, query in enumerate(given.queries)
        ],
    }


_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background",
        "graphMode": "none",
        "textMode": "value",
    },
    "table": {"showHeader": True},
}
