"""Render a comparison of two runs as text and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence

from loadchaos.report.formatting import clean, columns, duration, percent, plural
from loadchaos.report.html import templates
from loadchaos.report.html.compare import Comparison, Difference

_JUDGEMENT = {
    "higher": "worse",
    "lower": "better",
    "no clear difference": "no clear difference",
    "too few": "too few answers",
    "void": "means nothing",
}

_ONE_RUN_EACH = (
    "One run of each: the intervals leave out what differs from run to run, which loadchaos run --repeat 5 measures."
)


def text(found: Comparison) -> str:
    lines = [
        f"A  {found.a.name}: {found.a.verdict}, {clean(found.a.target, 60)}, {plural(found.a.sent, 'request')}",
        f"B  {found.b.name}: {found.b.verdict}, {clean(found.b.target, 60)}, {plural(found.b.sent, 'request')}",
        *(f"changed  {change}" for change in found.changes),
        "",
        headline(found),
    ]
    lines += [f"  ! {clean(c, 200)}" for c in found.caveats]
    for title, rows in found.tables:
        how = ", B against A (95 % interval)" if rows is found.latency else ""
        lines += ["", f"{title}{how}", *_table(rows)]
    if figures := _figures(found):
        lines += [
            "",
            "Throughput and efficiency, without intervals",
            *columns([("", "A", "B", "change"), *figures]),
        ]
    return "\n".join([*lines, "", *([chance] if (chance := by_chance(found)) else []), _ONE_RUN_EACH])


def headline(found: Comparison) -> str:
    worse = [d.what for d in found.differences if d.says == "higher"]
    better = [d.what for d in found.differences if d.says == "lower"]
    if not worse and not better:
        few = bool(found.differences) and all(d.says in ("too few", "void") for d in found.latency)
        return "too few answers to compare" if few else "no clear difference"
    parts = [f"worse in B: {_few(worse)}"] if worse else []
    parts += [f"better in B: {_few(better)}"] if better else []
    return f"between these two runs: {'; '.join(parts)}"


def by_chance(found: Comparison) -> str:
    """Say how many comparisons would differ by chance alone: each has a chance of 5 %."""
    n = sum(d.says not in ("too few", "void") for d in found.differences)
    return f"Of {n} comparisons about {max(1, round(n * 0.05))} would differ by chance alone." if n > 4 else ""


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(clean(n, 60) for n in names[:4]) + more


def _cells(d: Difference) -> tuple[str, ...]:
    show = duration if d.unit == "s" else _percent
    a, b = show(d.a), show(d.b)
    if d.low is None or d.high is None or d.a is None or d.b is None:
        return clean(d.what, 44), a, b, "", "", _JUDGEMENT[d.says]
    change = f"{100 * (d.b - d.a) / d.a:+.1f} %" if d.unit == "s" and d.a else _signed(d.b - d.a, d.unit)
    return clean(d.what, 44), a, b, change, f"{_signed(d.low, d.unit)} to {_signed(d.high, d.unit)}", _JUDGEMENT[d.says]


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share, 2)


def _signed(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:+.2f} pp"
    return ("+" if value >= 0 else "") + duration(value)


_SHARES = ("prefix cache hits", "drafts accepted")
"""Figures that are shares."""
_HEAD = ("", "A", "B", "change", "interval", "B is")


def _table(rows: Sequence[Difference]) -> list[str]:
    if not rows:
        return ["  no figure that both runs have"]
    return columns([_HEAD, *map(_cells, rows)], (0, 5))


def _figures(found: Comparison) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, a in found.a.figures.items():
        if (b := found.b.figures.get(name)) is not None:
            if name in _SHARES:
                rows.append((name, percent(a, 1), percent(b, 1), f"{100 * (b - a):+.1f} pp"))
            else:
                rows.append((name, _figure(a), _figure(b), f"{100 * (b - a) / a:+.1f} %" if a else "–"))
    return rows


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def html(found: Comparison) -> str:
    return templates.render(
        "compare.html.j2",
        a=found.a,
        b=found.b,
        headline=headline(found),
        chance=f"{by_chance(found)} {_ONE_RUN_EACH}".strip(),
        changes=found.changes,
        caveats=[clean(c, 300) for c in found.caveats],
        head=_HEAD[1:],
        figures=_figures(found),
        tables=[
            (title, [{"cells": _cells(d), "css": d.says.split()[0], **_interval_bar(d)} for d in rows])
            for title, rows in found.tables
        ],
    )


def _interval_bar(d: Difference) -> dict[str, float | None]:
    """Place an interval in per cent of its bar: -100 % to +100 % of A, or of the larger bound where A is 0."""
    if d.low is None or d.high is None or d.a is None:
        return {"left": None, "width": None}
    scale = d.a if d.unit == "s" and d.a else max(abs(d.low), abs(d.high), 1e-9)
    left, right = (min(1.0, max(-1.0, x / scale)) for x in (d.low, d.high))
    return {"left": round(50 + 50 * left, 2), "width": round(max(0.8, 50 * (right - left)), 2)}
