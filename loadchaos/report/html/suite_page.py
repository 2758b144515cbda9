"""Render the verdict page of a suite: one row for each profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadchaos.report.formatting import clean, duration, number, parse_time, plural

_BADGES = {"pass": "pass", "fail": "fail", "unknown": "unknown", "error": "fail"}
_ORDER = {"fail": 0, "error": 1, "unknown": 2, "pass": 3}


def render(suite: Mapping[str, Any]) -> str:
    """Render suite.json as one page without scripts and requests."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    rows = [_row(row) for row in suite["profiles"] if row["state"] == "finished"]
    rows.sort(key=lambda row: _ORDER[row["verdict"]])
    return env.get_template("suite.html.j2").render(
        headline=headline(suite),
        badge=_BADGES.get(suite["verdict"] or "", "unknown"),
        verdict=(suite["verdict"] or "not ended").upper(),
        target=clean(suite["target"], 300),
        server=" ".join(clean(part, 100) for part in suite["server"].values() if part),
        times=_times(suite),
        rows=rows,
        waiting=[row for row in suite["profiles"] if row["state"] in ("waiting", "running")],
        left_out=[row for row in suite["profiles"] if row["state"] == "left out"],
    )


def headline(suite: Mapping[str, Any]) -> str:
    """Summarise the suite in one sentence."""
    finished = [row for row in suite["profiles"] if row["state"] == "finished"]
    if not finished:
        return "no profile was run"
    counts = {name: sum(row["verdict"] == name for row in finished) for name in _ORDER}
    words = {"fail": "failed", "error": "could not be tested", "unknown": "proved nothing", "pass": "passed"}
    said = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
    missing = sum(row["state"] in ("waiting", "running") for row in suite["profiles"])
    left_out = sum(row["state"] == "left out" for row in suite["profiles"])
    more = [f"{missing} not finished"] if missing else []
    more += [f"{left_out} left out"] if left_out else []
    return f"of {plural(len(finished), 'profile')} {said}" + "".join(f"; {text}" for text in more)


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "about": row["about"],
        "verdict": row["verdict"],
        "badge": _BADGES[row["verdict"]],
        "requests": number(row.get("requests") or 0),
        "time": duration(row["seconds"]),
        "worth": row.get("worth") or "",
        "run": row.get("run"),
        "error": clean(row.get("error") or "", 600),
        "failures": [{**f, "title": clean(f["title"], 300), "remedy": clean(f.get("remedy") or "", 600)}
                     for f in row.get("failures") or ()],
        "reasons": [clean(text, 300) for text in (*row.get("broken", ()), *row.get("unknown", ()))],
    }  # fmt: skip


def _times(suite: Mapping[str, Any]) -> str:
    began, ended = parse_time(suite["started"]), parse_time(suite["ended"])
    if began is None:
        return ""
    shown = f"{began:%Y-%m-%d %H:%M:%S} UTC"
    return shown if ended is None else f"{shown}, {duration((ended - began).total_seconds())}"
