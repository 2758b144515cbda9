"""Write report.html: one file, readable offline and without scripts.

The template engine escapes all foreign text. The page's Content-Security-Policy forbids requests and every script but
its own, by its hash (uplot_data.py: interactive charts instead of the static ones).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from loadchaos.analysis.figures.answer_labels import sum_of_labels
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.model import CheckResult, FailureResult, StateChange, Verdict
from loadchaos.core.answer_labels import LABELS
from loadchaos.core.latency_names import REPORTED_QUANTILES, REPORTED_STATISTICS
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import OUTCOMES
from loadchaos.core.whole_file import write_whole
from loadchaos.report.formatting import clean, duration, number, parse_time, plural, since_load
from loadchaos.report.html import uplot_data
from loadchaos.report.html.charts import picture
from loadchaos.report.html.distributions import distributions, lengths
from loadchaos.report.html.heatmaps import heatmaps
from loadchaos.report.performance import (
    ENDPOINT_HEADS,
    SESSION_COLUMNS,
    SHORT_HEADS,
    efficiency_texts,
    endpoint_rows,
    goodput_text,
    latency_rows,
    session_rows,
    sessions_text,
    throughput_text,
    warm_up_text,
)
from loadchaos.report.phrases import (
    SECTIONS,
    accepted_text,
    advice_text,
    candidate_texts,
    cause_text,
    failure_evidence,
    generator_text,
    incident_paths,
    is_server_fault,
    known_text,
    lost_text,
    lower_bounds_text,
    one_line,
    outcome_text,
    remedy_text,
    requests_text,
    rule_text,
    severity_text,
    state_text,
    target_text,
    when_text,
    worst_first,
    wrong_answer_texts,
)

_EXCERPT_CHARACTERS = 12_000
_MOST = 200
"""Rows a table shows at most; the ledger has the rest."""


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).parent)
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return env.get_template("report.html.j2")


def write(folder: RunFolder, verdict: Verdict, series: Series) -> Path:
    """Write report.html into the run folder, whole or not at all."""
    write_whole(folder.report_html, render(verdict, series, folder.path))
    return folder.report_html


def render(verdict: Verdict, series: Series, folder: Path) -> str:
    """Render the page; `folder` holds the incidents with log excerpts."""
    decision = verdict.verdict if verdict.verdict in {"pass", "fail"} else "unknown"
    drawn = picture(series, _incident_marks(verdict))
    names = list(verdict.by_traffic)[:_MOST]
    states = verdict.states
    column, hot = heatmaps(series, drawn)
    return _template().render(
        sections=SECTIONS,
        decision=decision,
        result=decision.upper(),
        profile=clean(verdict.profile or "?", 80),
        headline=one_line(verdict),
        target=target_text(verdict),
        times=_times(verdict),
        exit_code=verdict.exit_code,
        embedded=verdict.target.kind == "embedded",
        notes=[clean(n, 400) for n in verdict.notes],
        failures=[_failure(verdict, f, folder) for f in sorted(verdict.failures, key=worst_first)[:_MOST]],
        rules=[_rule(r) for r in verdict.expectations],
        checks=[{**_rule(r), "advice": advice_text(r)} for r in verdict.checks],
        worth=[clean(verdict.worth, 800)] if verdict.worth else [],
        picture=drawn,
        width=plural(drawn.width_s, "second"),
        heatmaps=hot,
        column=column,
        traffics=[clean(n, 40) for n in names],
        outcomes=_outcomes(verdict, names),
        labels=_labels(verdict, names),
        latency=latency_rows(verdict)[: 4 * _MOST],
        statistics=REPORTED_STATISTICS,
        endpoints=endpoint_rows(verdict),
        endpoint_heads=list(ENDPOINT_HEADS),
        short_heads=SHORT_HEADS,
        quantiles=list(REPORTED_QUANTILES),
        throughput=throughput_text(verdict),
        efficiency=efficiency_texts(verdict),
        warm_up=warm_up_text(verdict),
        sessions=session_rows(verdict)[:_MOST],
        session_columns=list(SESSION_COLUMNS.values()),
        sessions_text=sessions_text(verdict),
        goodput=goodput_text(verdict),
        lower_bounds=lower_bounds_text(verdict),
        distributions=distributions(series.answers),
        lengths=lengths(series.answers),
        limited=verdict.generator.limited,
        facts=[*server_facts(folder), *_configuration(series.configuration)],
        states=[_state(verdict, s) for s in states[:_MOST]],
        several=len({s.replica for s in states}) > 1,
        attacks=_attacks(series),
        ending=_ending(verdict),
        script=uplot_data.script()[0],
        script_hash=uplot_data.script()[1],
        canvas_style=uplot_data.style(),
        numbers=uplot_data.numbers(drawn, series.origin_utc_s),
    )


def _times(verdict: Verdict) -> str:
    started, ended = parse_time(verdict.started), parse_time(verdict.ended)
    if started is None:
        return "at an unknown time"
    lasted = f", {duration((ended - started).total_seconds())}" if ended else ""
    return f"{started:%Y-%m-%d %H:%M:%S} UTC{lasted}"


def _incident_marks(verdict: Verdict) -> list[tuple[float, str]]:
    begun = parse_time(verdict.started)
    marks = []
    for f in verdict.failures[:_MOST]:
        if f.severity not in {"engine_death", "hang", "startup", "node"}:
            continue
        first = parse_time(f.first_seen)
        at = f.first_seen_s
        if at is None and first is not None and begun is not None:
            at = (first - begun).total_seconds()
        if at is not None:
            marks.append((at, clean(f.id, 80)))
    return marks


def _failure(verdict: Verdict, f: FailureResult, folder: Path) -> dict[str, Any]:
    context = [
        ("when", when_text(verdict, f)),
        ("in flight", requests_text(f.in_flight_at_death)),
        ("lost", lost_text(f)),
        ("cause", cause_text(f)),
        *(("wrong answer", text) for text in wrong_answer_texts(f)),
        *(("unexplained line", text) for text in candidate_texts(f.candidates)),
    ]
    advice = [
        ("what to do", remedy_text(f.remedy)),
        ("accepted", accepted_text(f)),
        ("also seen", "; ".join(clean(a, 200) for a in f.alt[:10])),
    ]
    incidents = incident_paths(f)
    incident = incidents[0] if incidents else ""
    log = excerpt(folder / incident / "server.log.excerpt") if incident else ""
    return {
        "id": clean(f.id, 80),
        "title": clean(f.title, 600),
        "severity": severity_text(f),
        "times": f"{number(f.count)} times" if f.count > 1 else "",
        "blamed": is_server_fault(f) and not f.accepted,
        "context": [(k, v) for k, v in context if v],
        "advice": [(k, v) for k, v in advice if v],
        "evidence": failure_evidence(f),
        "known": [_link(known_text(k)) for k in f.known],
        "incident": incident,
        "incidents": incidents[1:20],
        "excerpt": log,
    }


def _link(text: str) -> dict[str, str]:
    url, _, rest = text.partition(", ")
    return {"url": url, "text": rest} if url.startswith("https://") else {"url": "", "text": text}


def excerpt(path: Path) -> str:
    """Read the head of an incident's log excerpt, cleaned; empty without one."""
    try:
        with path.open("rb") as f:
            text = f.read(_EXCERPT_CHARACTERS + 1).decode("utf-8", "replace")
    except OSError:  # an incident without a log has no excerpt
        return ""
    lines = [clean(line, 600) for line in text[:_EXCERPT_CHARACTERS].splitlines()]
    return os.linesep.join(lines) + ("\n…" if len(text) > _EXCERPT_CHARACTERS else "")


def _rule(rule: CheckResult) -> dict[str, str]:
    decision, text = rule.verdict, rule_text(rule)
    return {
        "css": decision if decision in {"pass", "fail", "unknown"} else "unknown",
        "result": {"pass": "ok", "fail": "FAIL"}.get(decision, "unknown"),
        "label": text.label,
        "expected": text.expected,
        "found": text.found,
    }


def _outcomes(verdict: Verdict, names: list[str]) -> list[dict[str, Any]]:
    total = {o: n for o, n in verdict.outcomes.items() if n}
    counts = [verdict.by_traffic[name] for name in names]
    order = [o for o in OUTCOMES if o in total] + sorted(set(total) - set(OUTCOMES))
    return [
        {
            "name": outcome_text(o),
            "id": clean(o, 40),
            "all": number(total[o]),
            "by": [number(c.get(o, 0)) for c in counts],
        }
        for o in order
    ]


def _labels(verdict: Verdict, names: list[str]) -> list[list[str]]:
    """Rows of answers by label: title, value, count of all traffic, counts by traffic."""
    total = sum_of_labels(verdict.answer_labels.values())
    by = [verdict.answer_labels.get(name, {}) for name in names]
    return [
        [label.title, clean(value, 80), number(n), *(number(t.get(label.name, {}).get(value, 0)) for t in by)]
        for label in LABELS
        for value, n in total.get(label.name, {}).items()
    ]


def _state(verdict: Verdict, s: StateChange) -> dict[str, str]:
    return {
        "when": since_load(verdict, s.at, s.at_s),
        "replica": clean(s.replica or "", 40),
        "state": state_text(s.state),
        "signs": "; ".join(clean(x, 300) for x in s.signs),
        "noticed": _noticed(s.noticed_after_s),
    }


def _noticed(after_s: float | None) -> str:
    if after_s is None:
        return ""
    return "at once" if after_s < 0.001 else duration(after_s)


def server_facts(folder: Path) -> list[tuple[str, str]]:
    """Describe what was measured of the server before the load. It comes from facts.json; empty without it."""
    try:
        facts = orjson.loads((folder / "facts.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
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


def _configuration(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the server's settings, flags and machine, as it reports them."""
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


def _attacks(series: Series) -> list[dict[str, str]]:
    return [
        {"name": clean(name, 60), **{how: number(series.attacks[name, how]) for how in ("ok", "failed", "skipped")}}
        for name in sorted({n for n, _ in series.attacks})
    ]


def _ending(verdict: Verdict) -> list[tuple[str, str]]:
    facts = [f"{name}: {clean(value, 200)}" for name, value in vars(verdict.target).items() if value]
    rows = [
        ("run again", clean(verdict.replay, 600)),
        ("judge again", "loadchaos judge RUN (from the ledger in this folder, without load)"),
        ("target", ", ".join(facts)),
        ("load generator", generator_text(verdict)),
    ]
    return [(k, v) for k, v in rows if v]
