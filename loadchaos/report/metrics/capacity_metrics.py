"""Metrics of a capacity search, from its capacity.json."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.core import Metric

from loadchaos.analysis.capacity.result import CapacityResult, CurrentStep
from loadchaos.analysis.capacity.step_columns import LATENCIES, CapacityStep
from loadchaos.core.units import figure
from loadchaos.report.capacity_text import RESOURCE_TEXT, longest_steps
from loadchaos.report.metrics.metric_table import CAPACITY_LOADS
from loadchaos.report.metrics.sample_page import SamplePage

_MET = {"met": 1, "not_met": 0}


def capacity_families(data: CapacityResult, run: str) -> list[Metric]:
    """Build all families of the page. `current` of `data` is the step in progress."""
    page = SamplePage(run)
    profile = Path(data.wanted.profile).stem
    page.add("loadchaos_capacity_info", [profile, data.by], 1)
    page.add("loadchaos_capacity_running", [], 0 if data.ended else 1)
    page.add("loadchaos_capacity_goal_ratio", [], data.goal)
    for name, limit_s in data.slo_s.items():
        page.add("loadchaos_capacity_limit_seconds", [name], limit_s)
    page.add("loadchaos_capacity_steps", [], len(data.steps))
    for key, value in vars(data.current or CurrentStep()).items():
        if value is not None:
            page.add(_CURRENT[key], [], value)
    _found(page, data)
    for step in longest_steps(data.steps)[:CAPACITY_LOADS]:
        _step(page, step)
    return page.families()


_CURRENT = {
    "load": "loadchaos_capacity_current_load",
    "requests": "loadchaos_capacity_current_requests",
    "goodput": "loadchaos_capacity_current_goodput_ratio",
}


def _found(page: SamplePage, data: CapacityResult) -> None:
    answer, knee, most = data.answer, data.knee, data.saturation
    low, high = answer.bounds
    loads = {
        "met": answer.low,
        "not_met": answer.high,
        "interval_low": low,
        "interval_high": high,
        "knee": knee.load if knee is not None else None,
    }
    for name, load in loads.items():
        if load is not None:
            page.add("loadchaos_capacity_load", [name], load)
    if most.reached:
        for name, value in (("requests", most.requests_per_s), ("tokens", most.output_tokens_per_s)):
            if value is not None:
                page.add(f"loadchaos_capacity_saturation_{name}_per_second", [], value)
    if data.ended and (limiting := data.limit.resource):
        for resource in RESOURCE_TEXT:
            page.add("loadchaos_capacity_limiting_resource", [resource], resource == limiting)


def _step(page: SamplePage, step: CapacityStep) -> None:
    load = figure(float(f"{step.load:.4g}"))
    figures: dict[tuple[str, ...], float | None] = {
        ("load", load): step.load,
        ("met", load): _MET.get(step.status),
        ("requests", load): step.requests,
        ("requests_per_second", load): step.requests_per_s,
        ("tokens_per_second", load): step.output_tokens_per_s,
        ("goodput_ratio", load, "measured"): step.goodput,
        ("goodput_ratio", load, "low"): step.goodput_low,
        ("goodput_ratio", load, "high"): step.goodput_high,
        **{("latency_seconds", load, kind, statistic): step.figure(name) for name, kind, statistic in LATENCIES},
    }
    for (name, *labels), value in figures.items():
        if value is not None:
            page.add(f"loadchaos_capacity_step_{name}", labels, value)
