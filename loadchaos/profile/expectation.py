"""One line of `expect`, such as `engine_deaths == 0` or `images.ttft_p99 <= 2s`: reads it, or says what is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from loadchaos.core.model import OUTCOMES
from loadchaos.core.units import duration_s, growth, share

Kind = Literal["count", "share", "duration", "growth"]

NAMES: dict[str, tuple[Kind, str]] = {
    "engine_deaths": ("count", "deaths of the engine"),
    "hangs": ("count", "times the server hung"),
    "failures": ("count", "kinds of failure that no accepted entry covers"),
    "ok_share": ("share", "share of ok answers among the requests that should succeed"),
    "shed_share": ("share", "share of requests turned away by admission control"),
    "restarts": ("count", "times the server came back as a new process"),
    "lost_requests": ("count", "requests lost to a death of the engine"),
    "length_mismatch": ("count", "answers whose prompt length differs from the plan"),
    "output_mismatch": ("count", "answers of another length than asked for with output: {exact}"),
    "drift.rss": ("growth", "growth of the memory of the server's processes, a part of where it began, in an hour"),
    "drift.threads": ("growth", "growth of their threads"),
    "drift.fds": ("growth", "growth of their open files"),
    "drift.kv": ("growth", "growth of the KV cache in use with nothing running, in points"),
    "drift.gpu_memory": ("growth", "growth of the memory in use on the GPUs"),
    "drift.ttft": ("growth", "growth of the time to first token"),
    "drift.error_rate": ("growth", "growth of the share of requests that end badly, in points"),
    "recovers_within": ("duration", "longest time from going down to healthy again"),
}
"""What the judge counts once a run, with what it means."""

_LATENCIES = {
    "ttft": "time to first token",
    "ttfo": "time to first token of the answer proper",
    "itl": "time between token chunks",
    "e2e": "whole time of a request",
}
_QUANTILES = ("p50", "p90", "p95", "p99", "p999", "mean")
_BY_TRAFFIC = {"ok_share", "shed_share"}
_TEXT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(==|!=|<=|>=|<|>|=)\s*(.*?)\s*")


@dataclass(frozen=True)
class Expectation:
    """`name op value`; `value` is a count, a share from 0 to 1, seconds, or growth an hour (`kind`). `traffic` "" is all."""

    text: str
    name: str
    op: str
    value: float
    kind: Kind
    traffic: str = ""

    def meaning(self) -> str:
        """What the name stands for, in words."""
        of = f" (traffic {self.traffic})" if self.traffic else ""
        if self.name in NAMES:
            return NAMES[self.name][1] + of
        if self.name.startswith("outcomes."):
            return f"requests that end {self.name.removeprefix('outcomes.')}{of}"
        latency, quantile = self.name.split("_")
        return f"{_LATENCIES[latency]}, {quantile}{of}"


def known() -> list[str]:
    """Every name without a traffic in front."""
    latencies = [f"{latency}_{quantile}" for latency in _LATENCIES for quantile in _QUANTILES]
    return [*NAMES, *latencies, *(f"outcomes.{outcome}" for outcome in OUTCOMES)]


def parse(text: str, traffics: Collection[str] = ()) -> Expectation:
    """Read one line. Raises ValueError that says what was expected; `traffics` are the names that may stand in front."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"an expectation reads `name op value`, e.g. engine_deaths == 0 (got {text!r})")
    full, op, value = match.groups()
    if op == "=":
        raise ValueError(f"{full} == {value}? A single = means nothing here (got {text!r})")
    first, dot, rest = full.partition(".")
    traffic, name = (first, rest) if dot and first in traffics else ("", full)
    kind = _kind(name)
    if kind is None:
        raise ValueError(_unknown(full, traffics))
    if traffic and name in NAMES and name not in _BY_TRAFFIC:
        raise ValueError(
            f"{name} is counted for the whole run, not for one traffic: {name} {op} {value}? (got {text!r})"
        )
    return Expectation(text, name, op, _value(name, kind, value), kind, traffic)


def _kind(name: str) -> Kind | None:
    if name in NAMES:
        return NAMES[name][0]
    if name.startswith("outcomes."):
        return "count" if name.removeprefix("outcomes.") in OUTCOMES else None
    latency, _, quantile = name.partition("_")
    return "duration" if latency in _LATENCIES and quantile in _QUANTILES else None


def _unknown(full: str, traffics: Collection[str]) -> str:
    every = [*known(), *(f"{t}.{n}" for t in traffics for n in known())]
    near = difflib.get_close_matches(full, every, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(NAMES)}, ttft_p99 and the like, outcomes.ok"
    return f"nothing is called {full!r} that could be expected; {hint}"


def _value(name: str, kind: Kind, text: str) -> float:
    try:
        if kind == "duration":
            return duration_s(int(text) if text.isdigit() else text)
        if kind == "share":
            return share(text)
        if kind == "growth":
            return growth(text)
        if not text.isdigit():
            raise ValueError(f"a whole number was expected (got {text!r})")
        return float(text)
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from None
