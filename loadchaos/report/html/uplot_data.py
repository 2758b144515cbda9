"""Provide the interactive charts of report.html: uPlot 1.6.32 (MIT, in uplot/), which report.js drives, and its data.
The numbers are one block of JSON, which no browser executes; the page allows only this one script, by its hash.
plots.py says why report.html has this renderer and a static one.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from pathlib import Path

import orjson

from loadchaos.report.html.charts import ChartSet
from loadchaos.report.html.plots import Plot, Value

_HERE = Path(__file__).parent


@cache
def script() -> tuple[str, str]:
    """Return the script of the page, and its Content-Security-Policy hash."""
    licence, library = _read("uplot/LICENSE"), _read("uplot/uPlot.iife.min.js")
    text = f"/*\n{licence.strip()}\n*/\n{library}\n{_read('report.js')}"
    return text, "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def style() -> str:
    return _read("uplot/uPlot.min.css")


def numbers(picture: ChartSet, utc_s: float | None) -> str:
    """Encode the values of the charts as JSON for a script element. `utc_s` is the Unix time of 0 s. Nulls are gaps."""
    data = {
        "from": picture.from_s, "to": picture.to_s, "width": picture.width_s, "utc": utc_s,
        "start": picture.starts[0] if picture.starts else None, "points": len(picture.starts),
        "shades": [{"css": s.css, "spans": [[_short(a), _short(b)] for a, b in s.spans]} for s in picture.shades],
        "charts": [_chart(p) for p in picture.plots],
    }  # fmt: skip
    # No foreign name may end the element.
    return orjson.dumps(data).decode().replace("<", "\\u003c")


def _chart(plot: Plot) -> dict[str, object]:
    return {
        "unit": plot.unit,
        "top": plot.top,
        "log": plot.log,
        "stacked": plot.stacked,
        "curves": [{"css": c.css, "values": [_digits(v) for v in c.values]} for c in plot.curves],
    }


def _digits(value: Value) -> Value:
    return None if value is None else _whole(float(f"{value:.4g}"))


def _short(at_s: float) -> float:
    return _whole(round(at_s, 3))


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
