"""Render a soak trend as text and as trend.html."""

from __future__ import annotations

from pathlib import Path

from loadchaos.core.whole_file import write_json, write_whole
from loadchaos.report.formatting import clean, duration, number, parse_time, plural
from loadchaos.report.html import templates
from loadchaos.report.html.trend import Figure, SoakTrend, TrendRun, read

_WIDTH, _HEIGHT = 600.0, 60.0
_MOST = 120
"""Runs that a page draws, the newest ones."""
_PROFILE_MARKS = 6


def write(home: Path, profile: str) -> SoakTrend:
    found = read(home, profile)
    write_json(home / "trend.json", found.to_json())
    write_whole(home / "trend.html", html(found))
    return found


def headline(trend: SoakTrend) -> str:
    if not trend.runs:
        return f"no judged run of {trend.profile or 'any profile'} here"
    last = trend.runs[-1]
    base = max([f.of_nights for f in last.figures.values()], default=sum(n.good for n in trend.runs[:-1][-7:]))
    if last.unusual:
        compared = f"higher than in the {base} good runs: {', '.join(last.unusual[:6])}"
    elif base < 3:
        compared = f"no baseline yet ({plural(base, 'good run')} before it, 3 needed)"
    else:
        compared = f"latency and failures like the {base} good runs"
    return f"{trend.profile}: {plural(len(trend.runs), 'run')}; last run {str(last.verdict).upper()}; {compared}"


def text(trend: SoakTrend) -> str:
    if not trend.runs:
        return headline(trend)
    lines = [headline(trend), ""]
    last = trend.runs[-1]
    for name, f in last.figures.items():
        lines.append(f"  {name:28} {duration(f.value):>9}  {_band(f):38} {f.says}")
    lines += [
        f"  {name:28} {r.text()}  {'' if r.says == 'no baseline' else r.says}".rstrip()
        for name, r in last.rates.items()
    ]
    since = f"since the server or the profile changed ({_day(trend.changed)})" if trend.changed else "over all runs"
    lines += ["", since, *(f"  {name:28} {r.text()}" for name, r in trend.since_change.items()), ""]
    lines += [_line(n) for n in trend.runs[-14:]]
    if trend.others:
        lines += ["", f"other profiles here: {', '.join(trend.others)} (--profile)"]
    return "\n".join(lines)


def _line(n: TrendRun) -> str:
    marks = "".join(f"\n    change: {m}" for m in n.marks[:_PROFILE_MARKS])
    higher = f"; higher: {', '.join(n.unusual[:4])}" if n.unusual else ""
    failures = f"; {', '.join(n.failures[:4])}" if n.failures else ""
    return f"  {_day(n.started)}  {n.verdict or '?':7}  {number(n.requests):>9} requests{failures}{higher}{marks}"


def _day(text: str | None) -> str:
    at = parse_time(text)
    return f"{at:%Y-%m-%d %H:%M}" if at else "at an unknown time"


def _band(f: Figure) -> str:
    if f.low is None or f.high is None:
        return f"({plural(f.of_nights, 'good run')} before it)"
    return f"usual {duration(f.low)} to {duration(f.high)}"


def html(trend: SoakTrend) -> str:
    runs = trend.runs[-_MOST:]
    names = list(dict.fromkeys(n for run in reversed(runs) for n in run.figures))
    rates = list(dict.fromkeys(n for run in reversed(runs) for n in run.rates))
    return templates.render(
        "trend.html.j2",
        headline=headline(trend),
        profile=clean(trend.profile, 80),
        width=_WIDTH,
        height=_HEIGHT,
        figures=[_figure_chart(name, runs) for name in names],
        rates=rates,
        last=runs[-1].rates if runs else {},
        trend=trend,
        since=f"since {_day(trend.changed)}, when the server or the profile changed"
        if trend.changed
        else "over all runs",
        runs=runs,
        day=_day,
    )


def _figure_chart(name: str, runs: tuple[TrendRun, ...]) -> dict[str, object]:
    figures = [n.figures.get(name) for n in runs]
    top = max([max(f.value, f.high or 0.0) for f in figures if f is not None], default=1.0) * 1.05 or 1.0
    xs = [(i + 0.5) * _WIDTH / len(runs) for i in range(len(runs))]

    def y(value: float) -> float:
        return round(_HEIGHT * (1 - value / top), 2)

    half = _WIDTH / len(runs) / 2
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
            for x, f, n in zip(xs, figures, runs, strict=True)
            if f is not None
        ],
        "bands": [
            {"x": round(x - half, 2), "w": round(2 * half, 2), "y": y(f.high), "h": round(y(f.low) - y(f.high), 2)}
            for x, f in zip(xs, figures, strict=True)
            if f is not None and f.low is not None and f.high is not None
        ],
        "marks": [
            {"x": round(x - half, 2), "title": f"{_day(n.started)}: {'; '.join(n.marks[:6])}"}
            for x, n in zip(xs, runs, strict=True)
            if n.marks
        ],
    }
