"""Render the result of `loadchaos run --audit cache` for a terminal."""

from __future__ import annotations

from pathlib import Path

from loadchaos.core.exit_codes import PASS, shown_verdict
from loadchaos.report.formatting import clean, percent, plural
from loadchaos.report.repeat_compare import differences, table
from loadchaos.report.repeat_result import Audited, name_of, shown

_TOLD = ("ttft_p50", "e2e_p50", "output_tokens_per_s")


def render(distinct: Audited, equal: Audited, exit_code: int, folder: Path) -> str:
    """Make the text: what equal prompts change, whether the noise between runs allows to say so, and all figures."""
    found = differences(distinct.result, equal.result)
    runs = f"{plural(len(distinct.result.runs), 'run')} with distinct prompts, {len(equal.result.runs)} with equal ones"
    lines = [f"{shown_verdict(exit_code).upper()}  cache audit of {clean(equal.result.profile, 60)}: {runs}, by turns"]
    for name in _TOLD:
        if (one := found.get(name)) is not None and one.a and one.b is not None:
            sure = "" if one.says in ("higher", "lower") else f" ({_why(one.says)})"
            lines.append(
                f"      {name_of(name):16}{one.b / one.a:.2f} times with equal prompts: {shown(name, one.b)}, "
                f"{shown(name, one.a)} with distinct ones{sure}"
            )
    lines.append(f"      prefix cache    {_hits(distinct)} of the prompt tokens, {_hits(equal)} with equal prompts")
    if found:
        lines += ["", *table(found, "distinct", "equal")]
    for kind in (distinct, equal):
        for run in kind.result.runs:
            if run.exit_code != PASS:
                lines.append(f"  {shown_verdict(run.exit_code):8} {run.run or ''}: {clean(run.why, 200)}")
    return "\n".join([*lines, "", f"  runs      {folder}/distinct and {folder}/equal"])


def _why(says: str) -> str:
    known = {"too few": "too few runs to be sure", "void": "the server changed between the runs"}
    return known.get(says, "not told apart from the noise")


def _hits(audited: Audited) -> str:
    rates = audited.hit_rates
    return percent(sum(rates) / len(rates), 1) if rates else "an unknown share"
