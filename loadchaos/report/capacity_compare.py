"""Compare the answers of two capacity searches, for the terminal. Two capacities differ if their intervals do not
overlap. An interval without an upper end, of a search that proved no load to fail, is open. Answers to different goals,
or in different units, are not compared.
"""

from __future__ import annotations

import math
from typing import Literal

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.core import typed_json
from loadchaos.report.capacity_text import facts, goal_text, headline
from loadchaos.report.formatting import clean

Judgement = Literal["higher", "lower", "no clear difference", "not comparable", "unknown"]


def judgement(a: CapacityResult, b: CapacityResult) -> Judgement:
    if not a.answer.known or not b.answer.known:
        return "unknown"
    if (goal_text(a), a.by) != (goal_text(b), b.by):
        return "not comparable"
    (low_a, high_a), (low_b, high_b) = (_interval(data) for data in (a, b))
    return "higher" if low_b > high_a else "lower" if high_b < low_a else "no clear difference"


def _interval(data: CapacityResult) -> tuple[float, float]:
    answer = data.answer
    low, high = answer.bounds if answer.interval else (answer.low, answer.high)
    return low or 0.0, math.inf if answer.at_least or high is None else high


def caveats(a: CapacityResult, b: CapacityResult) -> list[str]:
    """Reasons why the two answers are not those of one question."""
    parts = (
        ("the goal", goal_text(a), goal_text(b)),
        ("the kind of load", a.by, b.by),
        ("the profile", a.wanted.profile or None, b.wanted.profile or None),
        ("--set", *(" ".join(data.wanted.overrides) or "nothing" for data in (a, b))),
        ("the traffic", *(", ".join(data.phase.traffic) or "unknown" for data in (a, b))),
    )
    return [f"{what} differs: {x} and {y}" for what, x, y in parts if x != y]


def to_json(a: CapacityResult, b: CapacityResult) -> dict[str, object]:
    kept = ("target", "server", "by", "goal", "slo_s", "answer", "knee", "saturation", "limit")
    whole = {"a": typed_json.to_json(a), "b": typed_json.to_json(b)}
    sides = {name: {key: data[key] for key in kept} for name, data in whole.items()}
    return {"schema": 1, **sides, "b_is": judgement(a, b), "caveats": caveats(a, b)}


def text(a: CapacityResult, b: CapacityResult) -> str:
    said = {
        "higher": "the capacity of B is higher",
        "lower": "the capacity of B is lower",
        "not comparable": "not comparable: the two searches answer different questions",
    }
    lines = [said.get(found := judgement(a, b), found), *(f"  ! {clean(c, 200)}" for c in caveats(a, b))]
    for name, data in (("A", a), ("B", b)):
        server = " ".join(data.server.parts)
        lines += ["", f"{name}  {clean(data.target, 100)} {clean(server, 100)}".rstrip(), f"   {headline(data)}"]
        lines += [f"   {label:<12}{said_of}" for label, said_of in facts(data)]
    return "\n".join(lines)
