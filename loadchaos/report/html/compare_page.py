"""A comparison of two runs as text for a terminal and as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadchaos.report.formatting import clean, duration, number
from loadchaos.report.html.compare import Comparison, Difference

_WORDS = {"higher": "worse", "lower": "better", "no clear difference": "=", "too few": "too few"}


def text(found: Comparison) -> str:
    """For a terminal: what changed first, then the tables."""
    lines = [
        f"A  {found.a.name}: {found.a.verdict}, {clean(found.a.target, 60)}, {number(found.a.sent)} requests",
        f"B  {found.b.name}: {found.b.verdict}, {clean(found.b.target, 60)}, {number(found.b.sent)} requests",
        "", headline(found),
    ]  # fmt: skip
    lines += [f"  ! {clean(c, 200)}" for c in found.caveats]
    lines += ["", "Latency of answered requests, B against A (95 % interval)", *_table(found.latency)]
    lines += ["", "Failures, share of the requests sent", *_table(found.rates)]
    if chance := by_chance(found):
        lines += ["", chance]
    return "\n".join(lines)


def headline(found: Comparison) -> str:
    """One sentence."""
    both = [*found.latency, *found.rates]
    worse = [d.what for d in both if d.says == "higher"]
    better = [d.what for d in both if d.says == "lower"]
    if not worse and not better:
        few = bool(both) and all(d.says == "too few" for d in found.latency)
        return "too few answers to compare" if few else "no clear difference"
    parts = [f"worse in B: {_few(worse)}"] if worse else []
    parts += [f"better in B: {_few(better)}"] if better else []
    return "; ".join(parts)


def by_chance(found: Comparison) -> str:
    """How many of so many comparisons look different although nothing is: each has a chance of 5 %."""
    n = sum(d.says != "too few" for d in (*found.latency, *found.rates))
    return f"Of {n} comparisons about {max(1, round(n * 0.05))} would look different by chance alone." if n > 4 else ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(clean(n, 60) for n in names[:4]) + more


def _cells(d: Difference) -> tuple[str, ...]:
    show = duration if d.unit == "s" else _percent
    a, b = show(d.a), show(d.b)
    if d.low is None or d.high is None or d.a is None or d.b is None:
        return clean(d.what, 44), a, b, "", "", _WORDS[d.says]
    change = f"{100 * (d.b - d.a) / d.a:+.1f}%" if d.unit == "s" and d.a else _signed(d.b - d.a, d.unit)
    return clean(d.what, 44), a, b, change, f"{_signed(d.low, d.unit)} to {_signed(d.high, d.unit)}", _WORDS[d.says]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f}%"


def _signed(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:+.2f} pp"
    return ("+" if value >= 0 else "") + duration(value)


_HEAD = ("", "A", "B", "change", "interval", "B is")


def _table(rows: Sequence[Difference]) -> list[str]:
    if not rows:
        return ["  nothing that both runs measured"]
    cells = [_HEAD, *map(_cells, rows)]
    widths = [max(len(c[i]) for c in cells) for i in range(len(_HEAD))]
    lines = (
        (c.ljust(w) if i in (0, 5) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    )
    return ["  " + "  ".join(line).rstrip() for line in lines]


def html(found: Comparison) -> str:
    """One page, without scripts and requests; every difference with its interval drawn around zero."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    tables = [
        ("Latency of answered requests", found.latency),
        ("Failures, as share of the requests sent", found.rates),
    ]
    return env.get_template("compare.html.j2").render(
        a=found.a,
        b=found.b,
        headline=headline(found),
        chance=by_chance(found),
        caveats=[clean(c, 300) for c in found.caveats],
        head=_HEAD[1:],
        tables=[
            (title, [{"cells": _cells(d), "css": d.says.split()[0], **_drawn(d)} for d in rows])
            for title, rows in tables
        ],
    )


def _drawn(d: Difference) -> dict[str, float | None]:
    """The interval on a scale from -100 % to +100 % of A (of the larger bound where A is 0), in per cent of the width."""
    if d.low is None or d.high is None or d.a is None:
        return {"left": None, "width": None}
    whole = d.a if d.unit == "s" and d.a else max(abs(d.low), abs(d.high), 1e-9)
    left, right = (min(1.0, max(-1.0, x / whole)) for x in (d.low, d.high))
    return {"left": round(50 + 50 * left, 2), "width": round(max(0.8, 50 * (right - left)), 2)}
