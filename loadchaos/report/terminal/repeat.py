"""Render the result of `loadchaos run --repeat` for a terminal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from loadchaos.core.exit_codes import PASS, shown_verdict
from loadchaos.report.formatting import clean, columns, percent, plural
from loadchaos.report.repeat_result import FILE, BetweenRuns, RepeatResult, name_of, shown

_HEAD = ("", "mean", "95 % interval", "", "least", "most")


def render(result: RepeatResult, folder: Path) -> str:
    figures, counted = result.between_runs(), sum(run.counts for run in result.runs)
    verdict, runs = shown_verdict(result.exit_code), Counter(shown_verdict(run.exit_code) for run in result.runs)
    ends = ", ".join(f"{n} {end}" for end, n in runs.items())
    lines = [f"{verdict.upper()}  {plural(len(result.runs), 'run')} of {clean(result.profile, 60)}: {ends}"]
    if counted < len(result.runs):
        lines.append(f"      figures: {plural(counted, 'run')} whose load was sent as planned")
    lines += [f"      not one server: {change}" for change in result.changes()]
    if (widest := result.widest()) is not None and widest.relative is not None:
        lines.append(f"      widest interval: {name_of(widest.name)}, ±{percent(widest.relative, 1)} of its mean")
    if figures:
        lines += ["", f"Between {plural(counted, 'run')}", *columns([_HEAD, *map(_row, figures)])]
    for run in result.runs:
        if run.exit_code != PASS:
            parts = [*([str(folder / run.run)] if run.run else []), clean(run.why, 200)]
            lines.append(f"  {shown_verdict(run.exit_code):8} {': '.join(filter(None, parts))}")
    compare = [f"  compare   loadchaos compare {folder} OTHER"] if figures else []
    return "\n".join([*lines, "", f"  json      {folder / FILE}", *compare])


def _row(figure: BetweenRuns) -> tuple[str, ...]:
    def show(value: float) -> str:
        return shown(figure.name, value)

    half = figure.half_width
    interval = "one run" if half is None else f"{show(max(0.0, figure.mean - half))} to {show(figure.mean + half)}"
    relative = "" if figure.relative is None else f"±{percent(figure.relative, 1)}"
    return (
        name_of(figure.name),
        show(figure.mean),
        interval,
        relative,
        show(min(figure.values)),
        show(max(figure.values)),
    )
