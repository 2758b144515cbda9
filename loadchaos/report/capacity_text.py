"""Sentences about a capacity search, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadchaos.analysis.capacity.result import CapacityResult, Unit
from loadchaos.analysis.capacity.step_columns import COLUMNS, CapacityStep
from loadchaos.core.units import figure
from loadchaos.report.formatting import clean, duration, number, percent
from loadchaos.report.performance import limits_text, per_second

STATUS_TEXT = {"met": "met", "not_met": "not met", "undecided": "undecided", "client": "our client"}
RESOURCE_TEXT = {
    "client": "our own client, not the server",
    "kv_cache": "KV cache of the server",
    "queue": "number of requests that the server runs at once",
    "prefill": "prefill (reading prompts)",
    "decode": "decode (writing tokens)",
    "unknown": "unknown",
}


def load_text(by: Unit, load: float | None) -> str:
    """A load with its unit: `12.5 requests/s`, `8 users`."""
    if load is None:
        return "–"
    return f"{figure(float(f'{load:.4g}'))} requests/s" if by == "rate" else f"{load:.0f} user{'s' * (load != 1)}"


def goal_text(data: CapacityResult) -> str:
    """The goal: `goodput >= 99 % within ttft <= 2.0 s`."""
    return f"goodput >= {100 * data.goal:g} % within {limits_text(data.slo_s)}"


def phase_text(data: CapacityResult) -> str | None:
    """The phase that was searched: `load.1 of 2 phases: images, text`. None where the profile has no other."""
    phase = data.phase
    if phase.of == 1:
        return None
    return f"load.{phase.number} of {phase.of} phases: {', '.join(clean(name, 60) for name in phase.traffic)}"


def short_answer(data: CapacityResult) -> str:
    """The answer in a few words: `capacity 12.5 requests/s (12.1 to 12.9)`."""
    found = data.answer
    if not data.ended:
        return "capacity search: not finished"
    if not found.known:
        return "capacity unknown"
    more = " or more" if found.at_least else ""
    return f"capacity {load_text(data.by, found.low)}{_interval(data)}{more}"


def headline(data: CapacityResult) -> str:
    """The answer in one sentence, and what became of --at-least."""
    if data.at_least is None or not data.ended or data.ended_by:
        return _answer_text(data)
    said = {"pass": "the capacity is not below", "fail": "the capacity is below"}.get(
        data.verdict or "", "unknown if below"
    )
    return f"{_answer_text(data)}; {said} --at-least {load_text(data.by, data.at_least)}"


def _answer_text(data: CapacityResult) -> str:
    found = data.answer
    if data.ended_by:
        return f"the search ended early: {clean(data.ended_by, 400)}{_so_far(data)}"
    if not data.ended:
        return f"the search is not finished{_so_far(data)}"
    if not found.known:
        failed = found.high
        below = f"; {load_text(data.by, failed)} was proved not to meet it" if failed is not None else ""
        return f"capacity unknown: {found.why}{below}"
    text = f"capacity {load_text(data.by, found.low)}{_interval(data)}"
    if found.at_least:
        limit = found.client_limit
        client = f" (at {load_text(data.by, limit)})" if limit is not None else ""
        return f"{text} or more: {found.why}{client}"
    wide = "" if found.narrow else "; no load between them could be decided"
    return f"{text}: this load meets the goal, and {load_text(data.by, found.high)} does not{wide}"


def _interval(data: CapacityResult) -> str:
    low, high = data.answer.bounds
    if data.by != "rate" or low is None or high is None:
        return ""
    return f" ({per_second(low)} to {per_second(high)})"


def _so_far(data: CapacityResult) -> str:
    low = data.answer.low
    return f"; {load_text(data.by, low)} met the goal before" if low is not None else ""


def facts(data: CapacityResult) -> list[tuple[str, str]]:
    found = []
    knee, most, limit = data.knee, data.saturation, data.limit
    if knee is not None:
        after = load_text(data.by, knee.next)
        found.append(("knee", f"between {load_text(data.by, knee.load)} and {after}: from there answers slow down"))
    if most.requests_per_s:
        tokens = most.output_tokens_per_s
        shown = f"{per_second(most.requests_per_s)} requests/s"
        shown += f", {per_second(tokens)} output tokens/s" if tokens else ", tokens unknown (answers have no usage)"
        shown += f", of {per_second(most.offered_per_s)} requests/s that were due" if most.offered_per_s else ""
        found.append(("saturation", shown if most.reached else f"not reached; at least {shown}"))
    if limit.resource and data.steps:
        text = RESOURCE_TEXT.get(limit.resource, clean(limit.resource, 60))
        at = f" (at {load_text(data.by, limit.load)})" if limit.load is not None else ""
        found.append(("limit", f"{text}{at}: {'; '.join(clean(e, 300) for e in limit.evidence)}"))
    return found


def longest_steps(steps: Sequence[CapacityStep]) -> list[CapacityStep]:
    """The longest step of each load: a curve has one point there."""
    by_load: dict[float, CapacityStep] = {}
    for step in steps:
        before = by_load.get(step.load)
        if before is None or (step.requests or 0) >= (before.requests or 0):
            by_load[step.load] = step
    return list(by_load.values())


def status_text(step: CapacityStep) -> str:
    """Status of a step: a short one only shows a direction; one whose queue would grow in the long run proves nothing."""
    if step.status == "undecided" and step.measured is not None:
        return "near saturation"
    if step.status == "undecided" and step.scout:
        return {True: "looks met", False: "looks not met", None: "undecided"}[step.leans]
    return STATUS_TEXT.get(step.status, clean(step.status, 40))


STEP_HEADS: Mapping[str, str] = {name: head for name, head in COLUMNS.items() if head}
"""Heads of the table of steps by the fields that it shows: a column is a field of `CapacityStep` with a head."""


def step_cells(step: CapacityStep) -> list[str]:
    return [_cell(step, name) for name in STEP_HEADS]


def _cell(step: CapacityStep, name: str) -> str:
    value = step.figure(name)
    if name == "goodput":
        return _goodput(step)
    if name.endswith("_per_s"):
        return "–" if value is None else per_second(value)
    return duration(value) if name.endswith("_s") else number(value)


def _goodput(step: CapacityStep) -> str:
    if step.goodput is None or step.goodput_low is None or step.goodput_high is None:
        return "–"
    return f"{percent(step.goodput, 1)} ({100 * step.goodput_low:.1f} to {100 * step.goodput_high:.1f})"


def step_line(by: Unit, step: CapacityStep) -> str:
    """A step in a line: load, status, goodput, reason."""
    text = (
        f"{load_text(by, step.load)}: {status_text(step)}, goodput {_goodput(step)}, {number(step.requests)} requests"
    )
    return f"{text}, {duration(step.seconds)}: {clean(step.why, 300)}"
