"""Page of a reduction: what was left out, by which tries, and when."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from loadchaos.report.html.table_page import table_page


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
    body = f"""<h1>Reduction of {html.escape(failure)}</h1>
<p>{whole[0]:,} requests and {whole[1]} launch flags before, {tries} tries, {at_s:.0f} s.</p>
<table><thead><tr><th>level</th><th class=n>requests</th><th style="width: 40%"></th><th class=n>flags</th>
<th class=n>tries</th><th class=n>time</th></tr></thead><tbody>{"".join(rows)}</tbody></table>
<h2>Candidates</h2>
<table><thead><tr><th>level</th><th class=n>requests</th><th class=n>flags</th><th>result</th><th class=n>tries</th>
<th class=n>time</th></tr></thead><tbody>{steps}</tbody></table>
"""
    return table_page(f"Reduction: {failure}", body)


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
