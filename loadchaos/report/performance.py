"""Latency table, throughput and goodput of a verdict as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from loadchaos.core.latency_names import REPORTED_LATENCIES, REPORTED_STATISTICS
from loadchaos.report.formatting import clean, duration, number, plural

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
    if found.get("acceptance") is not None:
        tokens = f"{number(found['accepted_tokens'])} of {number(found['drafted_tokens'])}"
        texts["drafts"] = f"{100 * found['acceptance']:.1f} % accepted, {tokens} tokens (counters of the server)"
    if found.get("joules_per_output_token") is not None:
        per_watt = f"{found['output_tokens_per_s_per_w']:.3g} tokens/s per W"
        power = f"{found['mean_power_w']:,.0f} W of all GPUs"
        texts["energy"] = f"{found['joules_per_output_token']:.3g} J per output token, {per_watt}, {power}"
    return texts


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
