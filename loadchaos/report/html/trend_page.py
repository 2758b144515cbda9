"""A trend as text for a terminal and as a page without scripts: points a figure, their band, the server's changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadchaos.report.formatting import clean, duration, number, parse_time, plural
from loadchaos.report.html.trend import Figure, SoakTrend, TrendRun

_WIDTH, _HEIGHT = 600.0, 60.0
_MOST = 120
"""Nights a page draws, the newest."""
_PROFILE_MARKS = 6


def headline(trend: SoakTrend) -> str:
    """The newest night in a sentence."""
    if not trend.nights:
        return f"no judged run of {trend.profile or 'any profile'} here"
    last = trend.nights[-1]
    base = max([f.of_nights for f in last.figures.values()], default=sum(n.good for n in trend.nights[:-1][-7:]))
    if last.unusual:
        told = f"higher than the {base} good nights before: {', '.join(last.unusual[:6])}"
    elif base < 3:
        told = f"{plural(base, 'good night')} before it, 3 make a baseline"
    else:
        told = f"as the {base} good nights before"
    return f"{trend.profile}: {plural(len(trend.nights), 'night')}; the last one {str(last.verdict).upper()}, {told}"


def text(trend: SoakTrend) -> str:
    """The last night's figures against their bands, rates with their bounds, and a line a night."""
    if not trend.nights:
        return headline(trend)
    lines = [headline(trend), ""]
    last = trend.nights[-1]
    for name, f in last.figures.items():
        lines.append(f"  {name:28} {duration(f.value):>9}  {_band(f):38} {f.says}")
    lines += [
        f"  {name:28} {r.text()}  {'' if r.says == 'no baseline' else r.says}".rstrip()
        for name, r in last.rates.items()
    ]
    since = f"since the server or the profile changed ({_day(trend.changed)})" if trend.changed else "over all nights"
    lines += ["", since, *(f"  {name:28} {r.text()}" for name, r in trend.since_change.items()), ""]
    lines += [_line(n) for n in trend.nights[-14:]]
    if trend.others:
        lines += ["", f"other profiles here: {', '.join(trend.others)} (--profile)"]
    return "\n".join(lines)


def _line(n: TrendRun) -> str:
    marks = "".join(f"\n    mark: {m}" for m in n.marks[:_PROFILE_MARKS])
    what = f"; higher: {', '.join(n.unusual[:4])}" if n.unusual else ""
    failures = f"; {', '.join(n.failures[:4])}" if n.failures else ""
    return f"  {_day(n.started)}  {n.verdict or '?':7}  {number(n.requests):>9} requests{failures}{what}{marks}"


def _day(text: str | None) -> str:
    at = parse_time(text)
    return f"{at:%Y-%m-%d %H:%M}" if at else "at an unknown time"


def _band(f: Figure) -> str:
    if f.low is None or f.high is None:
        return f"({plural(f.of_nights, 'good night')} before it)"
    return f"usual {duration(f.low)} to {duration(f.high)}"


def html(trend: SoakTrend) -> str:
    """One page, without scripts and requests."""
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    nights = trend.nights[-_MOST:]
    names = list(dict.fromkeys(n for night in reversed(nights) for n in night.figures))
    rates = list(dict.fromkeys(n for night in reversed(nights) for n in night.rates))
    return env.get_template("trend.html.j2").render(
        headline=headline(trend),
        profile=clean(trend.profile, 80),
        width=_WIDTH,
        height=_HEIGHT,
        figures=[_drawn(name, nights) for name in names],
        rates=[
            {
                "name": n,
                "last": nights[-1].rates[n].text() if n in nights[-1].rates else "not met",
                "css": nights[-1].rates[n].says.split()[0] if n in nights[-1].rates else "no",
                "since": trend.since_change[n].text() if n in trend.since_change else "",
            }
            for n in rates
        ],
        since=f"since {_day(trend.changed)}, when the server or the profile changed"
        if trend.changed
        else "over all nights",
        nights=[_row(n) for n in reversed(nights)],
        others=trend.others,
    )


def _row(n: TrendRun) -> dict[str, Any]:
    return {
        "day": _day(n.started),
        "folder": n.folder,
        "deleted": n.deleted,
        "verdict": n.verdict or "?",
        "requests": number(n.requests),
        "failures": ", ".join(n.failures[:10]),
        "unusual": ", ".join(n.unusual[:10]),
        "marks": n.marks[:20],
        "server": " ".join(n.server[k] for k in ("dialect", "version", "model") if k in n.server),
    }


def _drawn(name: str, nights: tuple[TrendRun, ...]) -> dict[str, Any]:
    """Points and band on a plane of 600 x 60, from 0 to the highest of them."""
    figures = [n.figures.get(name) for n in nights]
    top = max([max(f.value, f.high or 0.0) for f in figures if f is not None], default=1.0) * 1.05 or 1.0
    xs = [(i + 0.5) * _WIDTH / len(nights) for i in range(len(nights))]

    def y(value: float) -> float:
        return round(_HEIGHT * (1 - value / top), 2)

    half = _WIDTH / len(nights) / 2
    last = next(f for f in reversed(figures) if f is not None)
    return {
        "name": name,
        "value": duration(last.value),
        "band": _band(last),
        "says": last.says,
        "css": last.says.split()[0],
        "points": [
            {
                "x": round(x, 2),
                "y": y(f.value),
                "css": f.says.split()[0],
                "title": f"{_day(n.started)}: {duration(f.value)}, {f.says}",
            }
            for x, f, n in zip(xs, figures, nights, strict=True)
            if f is not None
        ],
        "bands": [
            {"x": round(x - half, 2), "w": round(2 * half, 2), "y": y(f.high), "h": round(y(f.low) - y(f.high), 2)}
            for x, f in zip(xs, figures, strict=True)
            if f is not None and f.low is not None and f.high is not None
        ],
        "marks": [
            {"x": round(x - half, 2), "title": f"{_day(n.started)}: {'; '.join(n.marks[:6])}"}
            for x, n in zip(xs, nights, strict=True)
            if n.marks
        ],
    }
