"""Compare two loads that were repeated: differences between runs, with intervals (Welch's t)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from loadchaos.core.exit_codes import shown_verdict
from loadchaos.core.stats import welch
from loadchaos.report.formatting import clean, columns, plural
from loadchaos.report.html.compare import CONFIDENCE, Comparison, Difference, Says, incomparable
from loadchaos.report.repeat_result import FAILED, FIGURES, RATES, RepeatResult, name_of, resolution_of, shown

_FEWEST = 3
"""Runs on each side: the interval of two is 12.7 standard errors wide, and says nothing."""


def differences(a: RepeatResult, b: RepeatResult, confidence: float | None = None) -> dict[str, Difference]:
    """Differences by the figure's name, of all figures that both have. `confidence` is that of each interval; None: all
    of them hold together at 95 % (Bonferroni), so that equal servers differ in any figure in at most 5 % of comparisons.
    """
    names = [name for name in FIGURES if a.values(name) and b.values(name)]
    each = 1 - (1 - CONFIDENCE) / max(1, len(names)) if confidence is None else confidence
    found = {name: _difference(name, a.values(name), b.values(name), each) for name in names}
    if not a.changes() and not b.changes():
        return found
    return {name: replace(difference, says="void") for name, difference in found.items()}


def doubts(a: RepeatResult, b: RepeatResult, first: Comparison) -> list[str]:
    """Reasons for which a difference says nothing about two servers: one of the loads had several, or they were other loads.
    `first` compares the first run of each.
    """
    several = [
        f"the server changed between the runs of {letter}: {change}"
        for letter, result in (("A", a), ("B", b))
        for change in result.changes()
    ]
    return several + incomparable(first.a, first.b)


def _difference(name: str, a: tuple[float, ...], b: tuple[float, ...], confidence: float) -> Difference:
    low: float | None = None
    high: float | None = None
    says: Says = "too few"
    if min(len(a), len(b)) >= _FEWEST:
        low, high = welch(a, b, confidence, resolution_of(name))
        says = "higher" if low > 0 else "lower" if high < 0 else "no clear difference"
    return Difference(
        what=name_of(name),
        unit="share" if name == FAILED else "rate" if name in RATES else "s",
        a=sum(a) / len(a),
        b=sum(b) / len(b),
        n_a=len(a),
        n_b=len(b),
        low=low,
        high=high,
        says=says,
    )


def to_json(a: RepeatResult, b: RepeatResult, first: Comparison) -> dict[str, object]:
    found = {name: asdict(difference) for name, difference in differences(a, b).items()}
    return {"schema": 1, "changes": first.changes, "caveats": doubts(a, b, first), "between_runs": found}


def text(a: RepeatResult, b: RepeatResult, first: Comparison) -> str:
    """`first` compares the first run of each: what was changed on the server is known from them."""
    found = differences(a, b)
    lines = [
        f"{letter}  {plural(len(r.runs), 'run')} of {clean(r.profile, 60)}: {shown_verdict(r.exit_code)}, "
        f"{clean(side.target, 60)}"
        for letter, r, side in (("A", a, first.a), ("B", b, first.b))
    ]
    lines += [f"changed  {change}" for change in first.changes]
    lines += ["", _headline(found), *(f"  ! {clean(c, 200)}" for c in doubts(a, b, first))]
    return "\n".join([*lines, "", *table(found, "A", "B")])


def table(found: Mapping[str, Difference], a: str, b: str) -> list[str]:
    """Lines with the figures of two loads that are called `a` and `b`."""
    head = ("", a, b, "change", "interval", f"{b} is")
    title = f"Between runs, {b} against {a} (intervals that all hold together at 95 %)"
    return [title, *columns([head, *(_row(name, difference) for name, difference in found.items())], (0, 5))]


def is_worse(name: str, difference: Difference) -> bool:
    return difference.says == ("lower" if name in RATES else "higher")


def _headline(found: Mapping[str, Difference]) -> str:
    if any(d.says == "void" for d in found.values()):
        return "not compared: a load whose server changed has no figures of one server"
    judged = {name: d for name, d in found.items() if d.says in ("higher", "lower")}
    if not judged:
        few = all(d.says == "too few" for d in found.values())
        return f"too few runs to compare: {_FEWEST} of each are needed" if few else "not told apart from the noise"
    worse = [d.what for name, d in judged.items() if is_worse(name, d)]
    better = [d.what for name, d in judged.items() if not is_worse(name, d)]
    parts = [f"{how} in B: {', '.join(names)}" for how, names in (("worse", worse), ("better", better)) if names]
    return "; ".join(parts)


def _row(name: str, d: Difference) -> tuple[str, ...]:
    a, b = d.a or 0.0, d.b or 0.0
    change = f"{100 * (b / a - 1):+.1f} %" if a and name != FAILED else ""
    interval, says = "", "too few runs"
    if d.low is not None and d.high is not None:
        if name == FAILED:
            interval = f"{100 * d.low:+.2f} to {100 * d.high:+.2f} pp"
        elif a:
            interval = f"{100 * d.low / a:+.1f} to {100 * d.high / a:+.1f} %"
        told = d.says in ("higher", "lower")
        says = ("worse" if is_worse(name, d) else "better") if told else "not told apart"
    if d.says == "void":
        says = "not compared"
    return d.what, shown(name, a), shown(name, b), change, interval, says
