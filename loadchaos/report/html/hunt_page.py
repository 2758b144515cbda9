"""Page of a hunt: findings, coverage over time, corpus, workloads."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from loadchaos.core.units import spent_time
from loadchaos.report.html.table_page import table_page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 260, 60, 28
_MOST_ENTRIES, _MOST_WORKLOADS = 30, 400


def render(data: Mapping[str, Any]) -> str:
    """Render the page.

    Args:
        data: `settings` of hunt.json, `rows` of the workloads, `entries` of the corpus with their energy, `findings` with
            `text`, `worth` as a sentence, and the number of `features`.
    """
    settings, rows, findings = data["settings"], data["rows"], data["findings"]
    server = settings.get("server") or {}
    named = " ".join(str(server[k]) for k in ("dialect", "version") if server.get(k))
    title = f"Hunt on {named}" if named else "Hunt"
    verdict = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "Nothing found so far"
    body = f"""<h1>{_text(title)}: {_text(verdict)}</h1>
<p>{_text(data["worth"])}.</p>
<p class=dim>Seed {_text(settings.get("seed", 0))}, budget {_text(_duration(settings.get("budget_s")))}. Launch command:
<code>{_text(settings.get("launch", ""))}</code></p>
<h2>Findings</h2>
{"".join(map(_card, findings)) or "<p class=dim>None.</p>"}
<h2>Coverage over time</h2>
{_chart(rows, findings)}
<p class=dim>Features: log templates, extremes and pairs of server counters, states, outcomes, failures. A vertical line is a
new finding.</p>
<h2>Corpus</h2>
<p class=dim>{len(data["entries"])} workloads gave something new; the {_MOST_ENTRIES} with the most energy. Each is a profile
in <code>corpus/</code>.</p>
<div class=scroll><table><thead><tr><th class=n>workload</th><th class=n>new features</th><th class=n>chosen</th>
<th class=n>energy</th><th>genes</th></tr></thead><tbody>{"".join(map(_entry, data["entries"][:_MOST_ENTRIES]))}</tbody>
</table></div>
<h2>Workloads</h2>
<div class=scroll><table><thead><tr><th class=n>workload</th><th>from</th><th class=n>at</th><th class=n>requests</th>
<th class=n>questions</th><th class=n>took</th><th class=n>new features</th><th>result</th></tr></thead>
<tbody>{"".join(map(_row, reversed(rows[-_MOST_WORKLOADS:])))}</tbody></table></div>
"""
    return table_page(title, body)


def _text(value: object) -> str:
    return html.escape(str(value))


def _duration(seconds: Any) -> str:
    return spent_time(float(seconds)) if seconds else "0 s"


def _card(finding: Mapping[str, Any]) -> str:
    failure = finding["failure"]
    links = [f'<a href="{_text(finding["folder"])}/run/report.html">run</a>']
    if failure.get("incident"):
        links.append(f'<a href="{_text(finding["folder"])}/incident.md">incident</a>')
    if finding.get("repro"):
        links.append(f'<a href="{_text(finding["repro"])}/README.md">reproducer</a>')
    line = f"<p><code>{_text(failure['line'])}</code></p>" if failure.get("line") else ""
    return (
        f"<div class=card><strong>{finding['number']}. {_text(failure['id'])}</strong> "
        f"<span class=dim>at {_duration(finding['at_s'])}, workload {finding['workload']}</span>"
        f"<p>{_text(finding['text'])}</p>{line}<p>{' · '.join(links)}</p></div>"
    )


@dataclass(frozen=True)
class _Scale:
    """Scales of the chart: seconds to x, features to y."""

    most_s: float
    most: int

    def x(self, at_s: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 10) * min(at_s, self.most_s) / self.most_s, 1)

    def y(self, n: float) -> float:
        return round(10 + (_HEIGHT - _BOTTOM - 10) * (1 - n / self.most), 1)

    def tick(self, quarter: int) -> str:
        y, n, at_s = self.y(self.most * quarter / 4), round(self.most * quarter / 4), self.most_s * quarter / 4
        anchor = "end" if quarter == 4 else "middle"
        return (
            f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{n}</text>'
            f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}" stroke="#8886" stroke-width=".5"/>'
            f'<text x="{self.x(at_s)}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{_duration(at_s) if quarter else 0}</text>'
        )

    def mark(self, number: int, at_s: float) -> str:
        x = self.x(at_s)
        return (
            f'<line x1="{x}" x2="{x}" y1="10" y2="{_HEIGHT - _BOTTOM}" stroke="#c0232f" stroke-dasharray="4 3"/>'
            f'<text x="{x + 4}" y="{22 + 14 * ((number - 1) % 6)}">{number}</text>'
        )


def _chart(rows: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]]) -> str:
    """Draw the number of features over the time of the hunt."""
    if not rows:
        return "<p class=dim>No workload has ended yet.</p>"
    totals = list(accumulate(len(row.get("news") or ()) for row in rows))
    scale = _Scale(max(float(rows[-1]["at_s"]), 1.0), max(totals[-1], 1))
    path = f"M{scale.x(0)},{scale.y(0)}"
    for row, n in zip(rows, totals, strict=True):
        path += f"H{scale.x(float(row['at_s']))}V{scale.y(n)}"
    marks = "".join(scale.mark(f["number"], f["at_s"]) for f in findings)
    ticks = "".join(map(scale.tick, range(5)))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="features over time">{ticks}{marks}'
        f'<path d="{path}" fill="none" stroke="#0969da" stroke-width="2"/></svg>'
    )


def genes_text(workload: Mapping[str, Any]) -> str:
    """Genes of a workload in one line."""
    parts = [_genes(workload["load"]), *(f"[{_genes(t)}]" for t in workload["traffic"])]
    parts += [f"attack [{_genes(a)}]" for a in workload.get("attacks") or ()]
    return " ".join(parts)


def _genes(genes: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v if isinstance(v, str | int | float) else json.dumps(v)}" for k, v in genes.items())


def _entry(entry: Mapping[str, Any]) -> str:
    known = " <span class=dim>(ended in a known failure)</span>" if entry["known_failure"] else ""
    return (
        f"<tr><td class=n>{entry['n']}</td><td class=n>{entry['news']}</td><td class=n>{entry['chosen']}</td>"
        f"<td class=n>{entry['energy']:.2f}</td><td><code>{_text(genes_text(entry['workload']))}</code>{known}</td></tr>"
    )


def _row(row: Mapping[str, Any]) -> str:
    origin = "drawn" if row.get("parent") is None else f"{row['change']} of {row['parent']}"
    found = ", ".join(str(f["id"]) for f in row.get("failures") or ())
    result = found or ("" if row["proved"] else f"proved nothing: {row['why']}")
    return (
        f"<tr><td class=n>{row['n']}</td><td>{_text(origin)}</td><td class=n>{_duration(row['at_s'])}</td>"
        f"<td class=n>{row['requests']:,}</td><td class=n>{row.get('questions') or 0:,}</td>"
        f"<td class=n>{row['seconds']:.0f} s</td>"
        f"<td class=n>{len(row.get('news') or ())}</td><td>{_text(result)}</td></tr>"
    )
