"""Write report.html: one file, readable offline and without scripts. The template engine escapes all foreign text. The
page's Content-Security-Policy forbids requests and every script but its own, by its hash (uplot_data.py: interactive
charts instead of the static ones).
"""

from __future__ import annotations

import os
from pathlib import Path

from loadchaos.analysis.failure import SERVER_LOST
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.latency_percentiles import REPORTED_QUANTILES, REPORTED_STATISTICS
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.rows import ConfigurationRow
from loadchaos.core.model import Terms
from loadchaos.core.whole_file import read_json, write_whole
from loadchaos.report import headline, performance, phrases
from loadchaos.report.formatting import clean, number, plural, utc_text
from loadchaos.report.html import templates, uplot_data
from loadchaos.report.html.charts import picture
from loadchaos.report.html.distributions import MOST, distributions
from loadchaos.report.html.heatmaps import heatmaps

_EXCERPT_CHARACTERS = 12_000
_MOST = 200
"""Rows a table shows at most; the ledger has the rest."""


def write(folder: RunFolder, verdict: Verdict, series: Series) -> Path:
    write_whole(folder.report_html, render(verdict, series, folder.path))
    return folder.report_html


def render(verdict: Verdict, series: Series, folder: Path) -> str:
    """Render the page; `folder` holds the incidents with log excerpts."""
    drawn = picture(series, _incident_marks(verdict))
    column, hot = heatmaps(series, drawn)
    script, script_hash = uplot_data.script()
    terms = headline.terms_of(folder)
    return templates.render(
        "report.html.j2",
        v=verdict,
        most=_MOST,
        decision=verdict.verdict,
        profile=clean(verdict.profile or "?", 80),
        head=_head(verdict, terms),
        figures=headline.rows(verdict),
        defects=", ".join(clean(name, 60) for name in series.defects),
        times=utc_text(verdict.started, verdict.ended),
        failures=sorted(verdict.failures, key=phrases.worst_first)[:_MOST],
        excerpt_of=lambda incidents: excerpt(folder / incidents[0]) if incidents else "",
        picture=drawn,
        width=plural(drawn.width_s, "second"),
        heatmaps=hot,
        column=column,
        labels=performance.label_rows(verdict, list(verdict.by_traffic)[:_MOST]),
        statistics=REPORTED_STATISTICS,
        quantiles=list(REPORTED_QUANTILES),
        distributions=distributions(series.answers),
        lengths=[(t, n) for t, n in series.answers.lengths.items() if n.counted or n.images][:MOST],
        facts=[
            *server_facts(folder),
            *_configuration(series.configuration),
            *[("questions", clean(text, 300)) for text in series.remarks[:1]],
        ],
        ending=_ending(verdict),
        script=script,
        script_hash=script_hash,
        canvas_style=uplot_data.style(),
        numbers=uplot_data.numbers(drawn, series.origin_utc_s),
    )


def _head(verdict: Verdict, terms: Terms) -> list[tuple[str, str]]:
    asked = (
        [("asked", clean(terms.load, 600)), ("offered", headline.offered_text(verdict, terms))] if verdict.sent else []
    )
    asked.append(("steady state", headline.steady_text(verdict)))
    cause = ("cause", phrases.worst_cause(verdict))
    return [cause, ("target", phrases.target_text(verdict)), *asked, ("strength", clean(verdict.worth, 800))]


def _incident_marks(verdict: Verdict) -> list[tuple[float, str]]:
    lost = (f for f in verdict.failures[:_MOST] if f.severity in SERVER_LOST)
    return [(f.first_seen_s, clean(f.id, 80)) for f in lost if f.first_seen_s is not None]


def excerpt(incident: Path) -> str:
    """Read the head of an incident's log excerpt, cleaned; empty without one."""
    try:
        with (incident / "server.log.excerpt").open("rb") as f:
            text = f.read(_EXCERPT_CHARACTERS + 1).decode("utf-8", "replace")
    except OSError:  # an incident without a log has no excerpt
        return ""
    lines = [clean(line, 600) for line in text[:_EXCERPT_CHARACTERS].splitlines()]
    return os.linesep.join(lines) + ("\n…" if len(text) > _EXCERPT_CHARACTERS else "")


def server_facts(folder: Path) -> list[tuple[str, str]]:
    facts = read_json(folder / "facts.json")
    images = [f"{clean(size, 20)}: {number(n)} tokens" for size, n in (facts.get("image_tokens") or {}).items()]
    shown = {
        "server": " ".join(clean(facts[k], 60) for k in ("dialect", "version") if facts.get(k)),
        "model": facts.get("model"),
        "context": facts.get("max_model_len"),
        "longest prompt": facts.get("input_limit"),
        "KV cache": facts.get("capacity_tokens"),
        "images": "no" if facts.get("images") is False else "; ".join(images[:6]) or None,
        "speculative decoding": facts.get("speculative_decoding"),
        "development endpoints": facts.get("development_endpoints"),
    }
    return [(name, _fact(value)) for name, value in shown.items() if value not in (None, "")]


def _configuration(row: ConfigurationRow | None) -> list[tuple[str, str]]:
    if row is None:
        return []
    settings = [
        f"{clean(k, 40).replace('_', ' ')} {_fact_or_number(v)}" for k, v in (row.get("settings") or {}).items()
    ]
    shown = {"settings": "; ".join(settings), "flags": clean(row.get("flags") or "", 2000)}
    shown |= {clean(k, 40): clean(v, 300) for k, v in (row.get("system") or {}).items()}
    return [(name, text) for name, text in shown.items() if text]


def _fact_or_number(value: object) -> str:
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else _fact(value)


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{number(value)} tokens" if isinstance(value, int) else clean(value, 300)


def _ending(verdict: Verdict) -> list[tuple[str, str]]:
    facts = [f"{name}: {clean(value, 200)}" for name, value in vars(verdict.target).items() if value]
    rows = [
        ("run again", clean(verdict.replay, 600)),
        ("judge again", "loadchaos judge RUN (from the ledger in this folder, without load)"),
        ("target", ", ".join(facts)),
        ("load generator", phrases.generator_text(verdict)),
    ]
    return [(k, v) for k, v in rows if v]
