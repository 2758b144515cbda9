"""Latency table, throughput and goodput of a verdict as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadchaos.core.latency_names import REPORTED_LATENCIES, REPORTED_STATISTICS
from loadchaos.report.formatting import clean, duration, number, plural
from loadchaos.report.phrases import outcome_count_text, outcome_counts

SESSION_COLUMNS = {
    "sessions": "sessions", "finished": "finished", "lost": "lost", "left": "left", "cut": "cut", "turns": "turns",
    "turns_lost": "turns lost", "turns_cut": "turns cut", "requests": "requests", "tool_calls": "tool calls",
}  # fmt: skip
"""Counts of a session table with their headings; times follow."""
ENDPOINT_LATENCIES = tuple((kind, name) for kind in ("ttft", "itl", "e2e") for name in ("p50", "p99"))
"""Latency and quantile of each column of the table of endpoints."""
ENDPOINT_HEADS = tuple(f"{kind.upper()} {name}" for kind, name in ENDPOINT_LATENCIES)
"""Headings of these columns."""
SHORT_HEADS = {head: head.rpartition(" ")[2] for head in ENDPOINT_HEADS if not head.endswith("p50")}
"""Headings for wide tables, where the column before has the name of the latency."""
_TURNS = {"turns_lost": "lost", "turns_left": "not sent", "turns_cut": "without room in the context"}
_OVER = {"failed": "failed", "not_sent": "not sent for want of a free slot"}


def latency_rows(verdict: Mapping[str, Any], statistics: Iterable[str] = REPORTED_STATISTICS) -> list[list[str]]:
    """Rows of the table of latencies: traffic, name, statistics, samples.

    Several kinds of traffic have rows together (`all`), too.
    """
    by_traffic = dict(verdict.get("latency") or {})
    if len(by_traffic) > 1 and verdict.get("latency_all"):
        by_traffic["all"] = verdict["latency_all"]
    rows = []
    for traffic, kinds in by_traffic.items():
        for kind in REPORTED_LATENCIES:
            found = kinds.get(f"{kind}_s") or {}
            if found.get("n"):
                figures = (duration(found.get(name)) for name in statistics)
                rows.append([clean(traffic, 40), kind.upper(), *figures, number(found["n"])])
    return rows


def endpoint_rows(verdict: Mapping[str, Any]) -> list[list[str]]:
    """Rows of the table of endpoints; empty unless there are several.

    Endpoint, its traffic, requests, ok, the latencies of `ENDPOINT_HEADS`, and the outcomes that are not ok.
    """
    rows = []
    for endpoint, figures in (verdict.get("by_endpoint") or {}).items():
        outcomes, latency = outcome_counts(figures), figures.get("latency") or {}
        times = ((latency.get(f"{kind}_s") or {}).get(name) for kind, name in ENDPOINT_LATENCIES)
        others = (outcome_count_text(name, n) for name, n in outcomes.items() if n and name != "ok")
        rows.append(
            [
                clean(endpoint, 40),
                ", ".join(clean(traffic, 40) for traffic in figures.get("traffic") or ()),
                number(sum(outcomes.values())),
                number(outcomes.get("ok", 0)),
                *map(duration, times),
                ", ".join(others),
            ]
        )
    return rows


def throughput_text(verdict: Mapping[str, Any]) -> str:
    """Requests and tokens per second of a verdict; empty without any."""
    found = verdict.get("throughput") or {}
    if not found.get("requests") or not found.get("seconds"):
        return ""
    parts = [f"{per_second(found['requests_per_s'])} requests/s"]
    tokens = {kind: found.get(f"{kind}_tokens_per_s") for kind in ("input", "output")}
    parts += [f"{per_second(value)} {kind} tokens/s" for kind, value in tokens.items() if value is not None]
    return f"{', '.join(parts)} (successful requests, over {duration(found['seconds'])})"


def efficiency_texts(verdict: Mapping[str, Any]) -> dict[str, str]:
    """Prefix cache, accepted drafts and energy as text, as far as known."""
    found, texts = verdict.get("efficiency") or {}, dict[str, str]()
    if found.get("prefix_hit_rate") is not None:
        source = "usage of the answers" if found.get("prefix_source") == "usage" else "counters of the server"
        texts["prefix cache"] = f"{100 * found['prefix_hit_rate']:.1f} % of the prompt tokens were cached ({source})"
        if found.get("warm_cache"):
            texts["prefix cache"] += f"; latencies are those of a warm cache: {found['warm_cache']}"
    if found.get("acceptance") is not None:
        tokens = f"{number(found['accepted_tokens'])} of {number(found['drafted_tokens'])}"
        source = "told by the answers" if found.get("acceptance_source") == "answers" else "counters of the server"
        texts["drafts"] = f"{100 * found['acceptance']:.1f} % accepted, {tokens} tokens ({source})"
        if single := found.get("acceptance_by_request"):
            quantiles = ", ".join(f"{name} {100 * single[name]:.0f} %" for name in ("p10", "p50", "p90"))
            which = "single requests" if source == "told by the answers" else "single requests that tell it"
            texts["drafts"] += f"; of {which}: {quantiles}"
    if found.get("joules_per_output_token") is not None:
        per_watt = f"{found['output_tokens_per_s_per_w']:.3g} tokens/s per W"
        power = f"{found['mean_power_w']:,.0f} W of all GPUs"
        texts["energy"] = f"{found['joules_per_output_token']:.3g} J per output token, {per_watt}, {power}"
    return texts


def sessions_text(verdict: Mapping[str, Any]) -> str:
    """Sessions and turns of a verdict; empty without sessions."""
    found = verdict.get("sessions") or {}
    if not found.get("sessions"):
        return ""
    ends = [
        f"{number(found[end])} {end}" for end in ("finished", "lost", "left", "cut", "unfinished") if found.get(end)
    ]
    turns = [f"{number(found['turns'])} of {number(found['planned_turns'])} turns answered"]
    turns += [f"{number(found[key])} {text}" for key, text in _TURNS.items() if found.get(key)]
    parts = [f"{plural(int(found['sessions']), 'session')}: {', '.join(ends)}", ", ".join(turns)]
    times = found.get("session_e2e_s") or {}
    if times.get("n"):
        parts.append(f"p50 {duration(times['p50'])}, p95 {duration(times['p95'])}, longest {duration(times['max'])}")
    choices = {traffic.get("tools") for traffic in (found.get("by_traffic") or {}).values()}
    if found.get("tool_calls") or choices - {None, "none"}:
        parts.append(
            plural(int(found["tool_calls"]), "tool call") if found.get("tool_calls") else "no tool call got a result"
        )
    if found.get("bad_calls"):
        parts.append(f"{plural(int(found['bad_calls']), 'call')} cut or without a JSON object")
    if found.get("why"):
        parts.append("ended by " + ", ".join(f"{clean(why, 40)}: {number(n)}" for why, n in found["why"].items()))
    return "; ".join(parts)


def session_rows(verdict: Mapping[str, Any]) -> list[list[str]]:
    """Rows of the table of sessions: traffic, ends, turns, times."""
    found = verdict.get("sessions") or {}
    by_traffic = dict(found.get("by_traffic") or {})
    if len(by_traffic) > 1:
        by_traffic["all"] = found
    rows = []
    for traffic, figures in by_traffic.items():
        times = figures.get("session_e2e_s") or {}
        counts = (number(figures.get(key) or 0) for key in SESSION_COLUMNS)
        rows.append([clean(traffic, 40), *counts, *(duration(times.get(name)) for name in ("p50", "p95", "max"))])
    return rows


def warm_up_text(verdict: Mapping[str, Any]) -> str:
    """Requests that the figures leave out; empty without a warm-up."""
    found = verdict.get("warm_up") or {}
    if not found:
        return ""
    seconds = f" of the first {duration(found['seconds'])}" if found.get("seconds") else ""
    return (
        f"{plural(int(found.get('requests') or 0), 'request')}{seconds} left out of these figures; failures in it count"
    )


def goodput_text(verdict: Mapping[str, Any]) -> str:
    """Goodput of a verdict with its limits; empty without `slo`."""
    found = verdict.get("goodput") or {}
    if not found.get("due"):
        return ""
    limits = ", ".join(f"{name} <= {duration(limit)}" for name, limit in (found.get("slo_s") or {}).items())
    text = f"{100 * found['share']:.2f} %, {number(found['good'])} of {number(found['due'])} requests within {limits}"
    if found.get("good_per_s") is not None:
        text += f", {per_second(found['good_per_s'])} requests/s"
    over = ", ".join(f"{_OVER.get(name, f'over {name}')}: {number(n)}" for name, n in (found.get("over") or {}).items())
    return f"{text}; {over}" if over else text


def per_second(value: float) -> str:
    """A rate with three digits, and all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
