"""Draw docs/performance.svg: three rows of dots on logarithmic axes.

The axes are logarithmic because clients differ by a factor of a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from bench.cost.contenders import CONTENDERS
from bench.cost.figures import Figures

_WIDTH, _LEFT, _ROW, _TOP, _GAP = 860, 250, 21, 46, 38
_RIGHT = _WIDTH - 90
_INK, _MUTED, _GRID, _OURS, _OTHER = "#1f2328", "#59636e", "#d1d9e0", "#0969da", "#8c959f"
_ORDER = ("c", "uvloop", "gevent", "loadchaos", "aiohttp", "fast_raw", "fast_lines", "requests", "httpx")
_PANELS = (
    ("CPU microseconds a small request (64 users)", "small", "us"),
    ("CPU microseconds a streamed token (512 streams of 50 tokens/s)", "streams_512", "us"),
    ("TTFT error in ms, 99th percentile (512 streams)", "streams_512", "ttft_p99"),
)


def render(found: Mapping[str, Any]) -> str:
    """Draw the picture, readable on light and dark pages."""
    figures = Figures(found["trials"])
    parts: list[str] = []
    y = 14
    for title, scenario, key in _PANELS:
        values = {n: v for n in _ORDER if (v := figures.median(scenario, n, key)) is not None}
        if values:
            parts += _panel(y, title, values)
            y += _TOP + _ROW * len(values) + _GAP
    height = y - 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13"><rect width="100%" height="100%" rx="8" fill="#ffffff"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _panel(top: int, title: str, values: Mapping[str, float]) -> list[str]:
    low = math.floor(math.log10(max(0.01, min(abs(v) for v in values.values()))))
    high = max(low + 1, math.ceil(math.log10(max(abs(v) for v in values.values()))))

    def x(value: float) -> float:
        share = (math.log10(max(abs(value), 10**low)) - low) / (high - low)
        return _LEFT + share * (_RIGHT - _LEFT)

    bottom = top + _TOP + _ROW * len(values)
    parts = [_text(20, top + 18, title, _INK, weight="600")]
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {top + 32}V{bottom - 4}" stroke="{_GRID}"/>')
        parts.append(_text(at, bottom + 12, f"{10.0**power:,g}", _MUTED, anchor="middle"))
    for row, (name, value) in enumerate(values.items()):
        y = top + _TOP + _ROW * row
        ours = name == "loadchaos"
        colour = _OURS if ours else _OTHER
        label = CONTENDERS[name].title.replace("*", "").replace("`", "")
        parts.append(_text(_LEFT - 12, y + 5, label, _INK, anchor="end", weight="700" if ours else "400"))
        parts.append(f'<path d="M{_LEFT} {y}H{x(value):.1f}" stroke="{colour}" stroke-opacity=".35" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="5.5" fill="{colour}"/>')
        shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
        parts.append(_text(x(value) + 11, y + 5, shown, _INK, weight="700" if ours else "400"))
    return parts


def _text(x: float, y: float, text: str, colour: str, *, anchor: str = "start", weight: str = "400") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
