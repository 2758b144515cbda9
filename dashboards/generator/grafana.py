"""Build Grafana dashboard JSON from plain functions.

The schema is 39, for Grafana 10.4 and later.

These are not the builders of grafana-foundation-sdk: it marks those of the classic dashboard as deprecated, they set no
panel ids and overflow the 24 columns, and each function here would stay as a wrapper of the same length around them. A
test passes every dashboard through the types of the SDK instead, so a wrong key or value type is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal

Json = dict[str, Any]
COLUMNS = 24
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

STATE_COLORS = {
    "starting": "blue", "healthy": "green", "degraded": "yellow", "hung": "orange", "dying": "dark-orange",
    "dead": "dark-red", "restarting": "blue", "unreachable": "purple", "terminated": "text",
}  # fmt: skip


def target(expr: str, legend: str = "", *, instant: bool = False, form: str = "time_series") -> Json:
    """Build a query; `legend` is Grafana's pattern (`{{traffic}}`)."""
    return {
        "datasource": DATASOURCE,
        "expr": expr,
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": form,
        "refId": "A",
        "editorMode": "code",
    }


def _panel(kind: str, title: str, about: str, targets: Sequence[Json], size: tuple[int, int], options: Json) -> Json:
    """Build a panel; `size`: width (of 24 columns) and height."""
    for letter, t in zip("ABCDEFGHIJKL", targets, strict=False):
        t["refId"] = letter
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "targets": list(targets),
        "gridPos": {"w": size[0], "h": size[1], "x": 0, "y": 0},
        "options": options,
        "fieldConfig": {"defaults": {"unit": "short", "color": {"mode": "palette-classic"}}, "overrides": []},
    }


def _with_unit(panel: Json, unit: str) -> Json:
    panel["fieldConfig"]["defaults"]["unit"] = unit
    return panel


def lines(
    title: str,
    about: str,
    *targets: Json,
    unit: str = "short",
    stack: bool = False,
    points: bool = False,
    top: float | None = None,
) -> Json:
    """Build a chart over time; no line is drawn across a gap of the exporter."""
    legend = {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["lastNotNull", "max"]}
    tooltip = {"mode": "multi", "sort": "desc"}
    options = {"legend": legend, "tooltip": tooltip}
    panel = _with_unit(_panel("timeseries", title, about, targets, (12, 8), options), unit)
    panel["fieldConfig"]["defaults"].update(
        min=0,
        custom={
            "drawStyle": "points" if points else "line",
            "lineWidth": 1,
            "fillOpacity": 40 if stack else 8,
            "showPoints": "always" if points else "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
            "scaleDistribution": {"type": "linear"},
        },
    )
    if top is not None:
        panel["fieldConfig"]["defaults"]["max"] = top
    return panel


def stat(
    title: str,
    about: str,
    query: Json,
    *,
    unit: str = "short",
    bad: Literal["above", "below"] | None = None,
    limit: float = 0,
    name: bool = False,
    decimals: int | None = None,
) -> Json:
    """Build a single number, red if `bad` above or below `limit`; `name` shows the name of the series instead."""
    options: Json = {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""}, "orientation": "auto",
        "textMode": "name" if name else "value", "colorMode": "background" if bad else "value", "graphMode": "area",
        "justifyMode": "auto",
    }  # fmt: skip
    panel = _with_unit(_panel("stat", title, about, [query], (4, 4), options), unit)
    defaults = panel["fieldConfig"]["defaults"]
    defaults["color"] = {"mode": "thresholds"}
    edge = limit if bad == "below" else limit + 1e-9
    good, poor = ("red", "green") if bad == "below" else ("green", "red")
    steps = [{"color": good if bad else "text", "value": None}, *([{"color": poor, "value": edge}] if bad else [])]
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if decimals is not None:
        defaults["decimals"] = decimals
    if name:
        panel["fieldConfig"]["overrides"] = _state_colors()
    return panel


def states(title: str, about: str, query: Json) -> Json:
    """Build bars over time, a row per series, coloured by state."""
    options = {
        "showValue": "never", "rowHeight": 0.8, "mergeValues": True, "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }  # fmt: skip
    panel = _with_unit(_panel("state-timeline", title, about, [query], (COLUMNS, 6), options), "none")
    panel["fieldConfig"]["defaults"]["custom"] = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False}
    panel["fieldConfig"]["overrides"] = _state_colors()
    return panel


def _state_colors() -> list[Json]:
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/.*{state}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for state, color in STATE_COLORS.items()
    ]


def heatmap(title: str, about: str, expr: str) -> Json:
    """Build a heatmap over time from Prometheus buckets in seconds."""
    options = {
        "calculate": False, "yAxis": {"unit": "s", "axisPlacement": "left"}, "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False, "fill": "orange"},
        "rowsFrame": {"layout": "auto"}, "filterValues": {"le": 1e-9}, "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": True}, "showValue": "never",
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    }  # fmt: skip
    query = {**target(expr, "{{le}}", form="heatmap"), "exemplar": True}
    return _with_unit(_panel("heatmap", title, about, [query], (12, 8), options), "s")


def bars(title: str, about: str, query: Json, *, unit: str = "short") -> Json:
    """Build a bar per series: its value over the whole time range."""
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""}, "orientation": "horizontal",
        "displayMode": "gradient", "valueMode": "color", "showUnfilled": True, "minVizWidth": 8, "minVizHeight": 16,
        "namePlacement": "auto", "sizing": "auto", "maxVizHeight": 40,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
    }  # fmt: skip
    panel = _with_unit(_panel("bargauge", title, about, [query], (12, 8), options), unit)
    panel["fieldConfig"]["defaults"]["min"] = 0
    return panel


def table(
    title: str,
    about: str,
    columns: Sequence[tuple[str, str, str]],
    key: str,
    *,
    hide: Sequence[str] = (),
    link: tuple[str, str] | None = None,
) -> Json:
    """Build a table with a row per value of the label `key`.

    Args:
        title: Title of the panel.
        about: Description of the panel.
        columns: (name, query, unit) of each column, joined by their common labels.
        key: The label of the rows.
        hide: Columns that are not shown.
        link: Label and URL of a link in the table.
    """
    targets = [target(expr, instant=True, form="table") for _, expr, _ in columns]
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": key, "desc": True}]}
    panel = _panel("table", title, about, targets, (COLUMNS, 8), options)
    names = {f"Value #{'ABCDEFGHIJKL'[i]}" if len(columns) > 1 else "Value": c[0] for i, c in enumerate(columns)}
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": dict.fromkeys(["Time", "__name__", *hide], True),
                                       "renameByName": names, "indexByName": {key: 0}}},
    ]  # fmt: skip
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, _, unit in columns
    ]
    if link:
        links = [{"title": "known issue", "url": link[1], "targetBlank": True}]
        panel["fieldConfig"]["overrides"].append(
            {"matcher": {"id": "byName", "options": link[0]}, "properties": [{"id": "links", "value": links}]}
        )
    return panel


def curve(
    title: str,
    about: str,
    x: tuple[str, str],
    columns: Sequence[tuple[str, str]],
    *,
    unit: str = "short",
) -> Json:
    """Build a chart over a number in place of time.

    Args:
        title: Title of the panel.
        about: Description of the panel.
        x: (name, query) of the horizontal axis.
        columns: (name, query) of each curve; queries are joined by their common labels.
        unit: Unit of the curves.
    """
    both = [x, *columns]
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "none"}, "xField": x[0]}
    targets = [target(expr, instant=True, form="table") for _, expr in both]
    panel = _with_unit(_panel("trend", title, about, targets, (12, 8), options), unit)
    names = {f"Value #{letter}": name for letter, (name, _) in zip("ABCDEFGHIJKL", both, strict=False)}
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": dict.fromkeys(["Time", "load"], True),
                                       "renameByName": names, "indexByName": {}}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": x[0], "desc": False}]}},
    ]  # fmt: skip
    panel["fieldConfig"]["defaults"].update(
        min=0, custom={"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "always", "spanNulls": True}
    )
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": x[0]}, "properties": [{"id": "unit", "value": "short"}]},
    ]
    return panel


def row(title: str, folded: Sequence[Json] = ()) -> Json:
    """Build a heading; `folded` panels are queried only when it is open."""
    return {
        "type": "row",
        "title": title,
        "collapsed": bool(folded),
        "panels": list(folded),
        "gridPos": {"w": COLUMNS, "h": 1, "x": 0, "y": 0},
    }


def variable(name: str, label: str, about: str, query: str) -> Json:
    """Build a variable with the values of a label.

    It is updated when the time range changes.
    """
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": about,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 1,
        "hide": 0,
        "options": [],
        "regex": "",
        "skipUrlSync": False,
    }


def single(made: Json) -> Json:
    """Change a variable: it has one value, the last one by name."""
    made = {key: value for key, value in made.items() if key != "allValue"}
    return {**made, "multi": False, "includeAll": False, "current": {}, "sort": 2}


def annotation(name: str, expr: str, color: str, title: str) -> Json:
    """Build marks on every chart: a region while the query is above zero."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "expr": expr,
        "step": "1s",
        "enable": True,
        "hide": False,
        "iconColor": color,
        "titleFormat": title,
        "target": {"expr": expr, "refId": "Anno"},
    }


def dashboard(
    uid: str, title: str, about: str, panels: Sequence[Json], annotations: Sequence[Json], since: str
) -> Json:
    """Build a dashboard; panels are placed left to right in order."""
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["loadchaos"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "utc",
        "refresh": "5s",
        "fiscalYearStartMonth": 0,
        "time": {"from": since, "to": "now"},
        "panels": _placed(panels),
        "annotations": {"list": list(annotations)},
        "templating": {"list": _variables()},
        "timepicker": {"refresh_intervals": ["1s", "5s", "30s", "5m"]},
        "liveNow": False,
        "links": [
            {
                "type": "dashboards",
                "title": "loadchaos",
                "tags": ["loadchaos"],
                "asDropdown": False,
                "icon": "",
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "tooltip": "",
                "url": "",
            }
        ],
    }


def data_source() -> Json:
    """Build the variable of the Prometheus that is asked."""
    return {
        "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1,
        "description": "The Prometheus that scrapes loadchaos; set its scrape interval to 1s", "hide": 0,
        "current": {"selected": True, "text": "default", "value": "default"}, "options": [], "regex": "",
        "multi": False, "includeAll": False, "skipUrlSync": False,
    }  # fmt: skip


def _variables() -> list[Json]:
    return [
        data_source(),
        variable("run", "Run", "The run folder's name", "label_values(loadchaos_run_info, run)"),
        variable(
            "traffic", "Traffic", "Kind of traffic", 'label_values(loadchaos_requests_total{run=~"$run"}, traffic)'
        ),
        variable("server", "Server", "Replica", 'label_values(loadchaos_server_state{run=~"$run"}, replica)'),
    ]


def _placed(panels: Sequence[Json], y: int = 0, ids: Iterator[int] | None = None) -> list[Json]:
    x = tallest = 0
    placed, ids = [], ids or count(1)
    for panel in panels:
        at = panel["gridPos"]
        if x + at["w"] > COLUMNS or panel["type"] == "row":
            x, y, tallest = 0, y + tallest, 0
        placed.append({**panel, "id": next(ids), "gridPos": {**at, "x": x, "y": y}})
        if panel.get("panels"):
            placed[-1]["panels"] = _placed(panel["panels"], y + at["h"], ids)
        x, tallest = x + at["w"], max(tallest, at["h"])
    return placed
