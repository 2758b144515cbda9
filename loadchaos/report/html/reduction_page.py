"""Page of a reduction: what was left out, by which tries, and when."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1f2328 }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d0d7de; font-variant-numeric: tabular-nums }
td.n, th.n { text-align: right }
tr.kept td { color: #59636e }
.bar { display: inline-block; height: .8rem; background: #0969da; vertical-align: middle }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } th, td { border-color: #30363d } }
"""


def render(failure: str, levels: Sequence[Mapping[str, Any]], whole: tuple[int, int]) -> str:
    """Render the page.

    Args:
        failure: the failure, for people.
        levels: each with `name`, `requests`, `flags` at its end and its `steps`.
        whole: requests and flags before the first level.
    """
    rows, at_s = [], 0.0
    tries = sum(step["tries"] for level in levels for step in level["steps"])
    for level in levels:
        spent_s = sum(step["seconds"] for step in level["steps"])
        at_s += spent_s
        width = 100 * level["requests"] / max(whole[0], 1)
        rows.append(
            f"<tr><td>{html.escape(level['name'])}</td><td class=n>{level['requests']:,}</td>"
            f'<td><span class=bar style="width: {width:.1f}%"></span></td><td class=n>{level["flags"]}</td>'
            f"<td class=n>{sum(s['tries'] for s in level['steps'])}</td><td class=n>{spent_s:.0f} s</td></tr>"
        )
    steps = "".join(_step(level["name"], step) for level in levels for step in level["steps"])
    return f"""<!doctype html>
<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">
<title>Reduction: {html.escape(failure)}</title><style>{_STYLE}</style></head><body>
<h1>Reduction of {html.escape(failure)}</h1>
<p>{whole[0]:,} requests and {whole[1]} launch flags before, {tries} tries, {at_s:.0f} s.</p>
<table><thead><tr><th>level</th><th class=n>requests</th><th style="width: 40%"></th><th class=n>flags</th>
<th class=n>tries</th><th class=n>time</th></tr></thead><tbody>{"".join(rows)}</tbody></table>
<h2>Candidates</h2>
<table><thead><tr><th>level</th><th class=n>requests</th><th class=n>flags</th><th>result</th><th class=n>tries</th>
<th class=n>time</th></tr></thead><tbody>{steps}</tbody></table>
</body></html>
"""


def _step(level: str, step: Mapping[str, Any]) -> str:
    result = f"fails ({step['successes']} of {step['tries']})" if step["fails"] else "does not fail"
    if not step["tries"]:
        result = "cannot be tried"
    name = html.escape(step.get("step") or level)
    return (
        f"<tr{'' if step['fails'] else ' class=kept'}><td>{name}</td><td class=n>{step['requests']:,}</td>"
        f"<td class=n>{step['flags']}</td><td>{result}</td><td class=n>{step['tries']}</td>"
        f"<td class=n>{step['seconds']:.0f} s</td></tr>"
    )
