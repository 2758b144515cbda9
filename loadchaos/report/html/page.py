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

from loadchaos.analysis.figures.series import Series
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
    count_text,
    failure_evidence,
    generator_text,
    incident_paths,
    is_server_fault,
    known_text,
    lost_text,
    lower_bounds_text,
    one_line,
    outcome_counts,
    outcome_text,
    remedy_text,
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


def write(folder: RunFolder, verdict: Mapping[str, Any], series: Series) -> Path:
    """Write report.html into the run folder, whole or not at all."""
    write_whole(folder.report_html, render(verdict, series, folder.path))
    return folder.report_html


def render(verdict: Mapping[str, Any], series: Series, folder: Path) -> str:
    """Render the page; `folder` holds the incidents with log excerpts."""
    decision = str(verdict.get("verdict") or "unknown")
    decision = decision if decision in {"pass", "fail", "unknown"} else "unknown"
    drawn = picture(series, _incident_marks(verdict))
    names = list(verdict.get("by_traffic") or {})[:_MOST]
    states = verdict.get("states") or []
    column, hot = heatmaps(series, drawn)
    return _template().render(
        sections=SECTIONS,
        decision=decision,
        result=decision.upper(),
        profile=clean(verdict.get("profile") or "?", 80),
        headline=one_line(verdict),
        target=target_text(verdict),
        times=_times(verdict),
        exit_code=verdict.get("exit_code", "?"),
        embedded=(verdict.get("target") or {}).get("kind") == "embedded",
        notes=[clean(n, 400) for n in verdict.get("notes") or []],
        failures=[_failure(verdict, f, folder) for f in sorted(verdict.get("failures") or [], key=worst_first)[:_MOST]],
        rules=[_rule(r) for r in verdict.get("expectations") or []],
        checks=[{**_rule(r), "advice": advice_text(r)} for r in verdict.get("checks") or []],
        worth=_worth(verdict),
        picture=drawn,
        width=plural(drawn.width_s, "second"),
        heatmaps=hot,
        column=column,
        traffics=[clean(n, 40) for n in names],
        outcomes=_outcomes(verdict, names),
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
        limited=bool((verdict.get("generator") or {}).get("limited")),
        facts=[*server_facts(folder), *_configuration(series.configuration)],
        states=[_state(verdict, s) for s in states[:_MOST]],
        several=len({s.get("replica") for s in states}) > 1,
        attacks=_attacks(series),
        ending=_ending(verdict),
        script=uplot_data.script()[0],
        script_hash=uplot_data.script()[1],
        canvas_style=uplot_data.style(),
        numbers=uplot_data.numbers(drawn, series.origin_utc_s),
    )


def _times(verdict: Mapping[str, Any]) -> str:
    started, ended = parse_time(verdict.get("started")), parse_time(verdict.get("ended"))
    if started is None:
        return "at an unknown time"
    lasted = f", {duration((ended - started).total_seconds())}" if ended else ""
    return f"{started:%Y-%m-%d %H:%M:%S} UTC{lasted}"


def _incident_marks(verdict: Mapping[str, Any]) -> list[tuple[float, str]]:
    begun = parse_time(verdict.get("started"))
    marks = []
    for f in (verdict.get("failures") or [])[:_MOST]:
        if f.get("severity") not in {"engine_death", "hang", "startup", "node"}:
            continue
        first = parse_time(f.get("first_seen"))
        at = f.get("first_seen_s")
        if at is None and first is not None and begun is not None:
            at = (first - begun).total_seconds()
        if isinstance(at, int | float):
            marks.append((float(at), clean(f.get("id"), 80)))
    return marks


def _failure(verdict: Mapping[str, Any], f: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    context = [
        ("when", when_text(verdict, f)),
        ("in flight", count_text(f, "in_flight_at_death", "in_flight")),
        ("lost", lost_text(f)),
        ("cause", cause_text(f)),
        *(("wrong answer", text) for text in wrong_answer_texts(f)),
        *(("unexplained line", text) for text in candidate_texts(f)),
    ]
    advice = [
        ("what to do", remedy_text(f.get("remedy"))),
        ("accepted", accepted_text(f)),
        ("also seen", "; ".join(clean(a, 200) for a in (f.get("alt") or [])[:10])),
    ]
    incidents = incident_paths(f)
    incident = incidents[0] if incidents else ""
    log = excerpt(folder / incident / "server.log.excerpt") if incident else ""
    return {
        "id": clean(f.get("id"), 80),
        "title": clean(f.get("title") or "", 600),
        "severity": severity_text(f),
        "times": f"{number(f['count'])} times" if (f.get("count") or 0) > 1 else "",
        "blamed": is_server_fault(f) and not f.get("accepted"),
        "context": [(k, v) for k, v in context if v],
        "advice": [(k, v) for k, v in advice if v],
        "evidence": failure_evidence(f),
        "known": [_link(known_text(k)) for k in f.get("known") or []],
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


def _rule(rule: Mapping[str, Any]) -> dict[str, str]:
    decision, text = str(rule.get("verdict")), rule_text(rule)
    return {
        "css": decision if decision in {"pass", "fail", "unknown"} else "unknown",
        "result": {"pass": "ok", "fail": "FAIL"}.get(decision, "unknown"),
        "label": text.label,
        "expected": text.expected,
        "found": text.found,
    }


def _worth(verdict: Mapping[str, Any]) -> list[str]:
    worth = verdict.get("worth") or []
    return [clean(w, 800) for w in (worth if isinstance(worth, list) else [worth])]


def _outcomes(verdict: Mapping[str, Any], names: list[str]) -> list[dict[str, Any]]:
    total = {o: n for o, n in (verdict.get("outcomes") or {}).items() if n}
    counts = [outcome_counts(verdict["by_traffic"][name]) for name in names]
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


def _state(verdict: Mapping[str, Any], s: Mapping[str, Any]) -> dict[str, str]:
    return {
        "when": since_load(verdict, s.get("at"), s.get("at_s")),
        "replica": clean(s.get("replica") or "", 40),
        "state": state_text(s.get("state")),
        "signs": "; ".join(clean(x, 300) for x in s.get("signs") or []),
        "noticed": _noticed(s.get("noticed_after_s")),
    }


def _noticed(after_s: float | None) -> str:
    if after_s is None:
        return ""
    return "at once" if after_s < 0.001 else duration(after_s)


def server_facts(folder: Path) -> list[tuple[str, str]]:
    """Describe what was measured of the server before the load.

    It comes from facts.json; empty without it.
    """
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


def _ending(verdict: Mapping[str, Any]) -> list[tuple[str, str]]:
    target = verdict.get("target") or {}
    facts = [f"{clean(k, 40)}: {clean(v, 200)}" for k, v in target.items() if v not in (None, "", [], {})]
    rows = [
        ("run again", clean(verdict.get("replay") or "", 600)),
        ("judge again", "loadchaos judge RUN (from the ledger in this folder, without load)"),
        ("target", ", ".join(facts)),
        ("load generator", generator_text(verdict)),
        ("loadchaos", clean(verdict.get("version") or "", 40)),
    ]
    return [(k, v) for k, v in rows if v]
