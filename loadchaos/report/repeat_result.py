"""Result of `loadchaos run --repeat` as in repeat.json: the figures of each run, and their interval between runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core import exit_codes
from loadchaos.core.histogram import RESOLUTION
from loadchaos.core.latency_percentiles import LatencyName, label
from loadchaos.core.model import BLAMELESS
from loadchaos.core.stats import mean_interval
from loadchaos.report.formatting import duration, percent
from loadchaos.report.html.trend import marks_of
from loadchaos.report.performance import per_second

FILE = "repeat.json"
FAILED = "failed"
RATES: Mapping[str, str] = {
    "requests_per_s": "requests/s",
    "good_requests_per_s": "good requests/s",
    "output_tokens_per_s": "output tokens/s",
}
"""Throughput figures by the name that a limit gives them, with their names in reports."""
LATENCIES = tuple(LatencyName(kind, q) for kind in ("ttft", "itl", "e2e") for q in ("p50", "p99"))
FIGURES = (*RATES, *map(str, LATENCIES), FAILED)
_OF_THE_LOAD = frozenset({
    "run", "requests_sent", "load_delivered", "load_process", "ledger", "workers", "fitted", "same_server", "traffic",
})  # fmt: skip
"""Checks that say whether the load was the one planned, and reached one and the same server."""
_HEADLINES = ("requests_per_s", "output_tokens_per_s", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")


@dataclass(frozen=True, kw_only=True)
class RepeatedRun:
    """One run, and `why` it did not pass. `figures` are seconds, rates per second and shares; empty where the load was
    not sent as planned, or could not be read: then they say nothing of the server. `server` has its versions and flags.
    """

    run: str | None
    seed: int
    exit_code: int
    why: str = ""
    figures: Mapping[str, float]
    server: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        return bool(self.figures) and exit_codes.verdict_of(self.exit_code) != "error"


@dataclass(frozen=True, kw_only=True)
class BetweenRuns:
    """A figure over the runs: mean, and half width of its 95 % interval (Student's t), None for one run."""

    name: str
    mean: float
    half_width: float | None
    values: tuple[float, ...]

    @property
    def relative(self) -> float | None:
        """Half width as a share of the mean."""
        return None if self.half_width is None or not self.mean else self.half_width / self.mean


@dataclass(frozen=True, kw_only=True)
class RepeatResult:
    """Runs of one load, one after the other; each has the next seed. `asked`: their number, or `until=5%`. `exit_code`: None
    until they have ended."""

    schema: Literal[1]
    profile: str
    asked: str
    exit_code: int | None
    runs: tuple[RepeatedRun, ...]

    def values(self, name: str) -> tuple[float, ...]:
        return tuple(run.figures[name] for run in self.runs if run.counts and name in run.figures)

    def changes(self) -> list[str]:
        """Changes of the server from one run that counts to the next, as far as both know it."""
        return [
            f"{mark} ({now.run})"
            for before, now in pairwise(run for run in self.runs if run.counts)
            for mark in marks_of(
                *({k: s[k] for k in _facts_of(before) & _facts_of(now)} for s in (before.server, now.server))
            )
        ]

    def between_runs(self) -> list[BetweenRuns]:
        """All figures that every run that counts has."""
        counted = sum(run.counts for run in self.runs)
        found = [(name, self.values(name)) for name in FIGURES]
        return [
            BetweenRuns(name=name, mean=mean, half_width=half, values=values)
            for name, values in found
            if values and len(values) == counted
            for mean, half in [mean_interval(values, resolution=resolution_of(name))]
        ]

    def widest(self) -> BetweenRuns | None:
        """The headline figure with the widest relative interval; None while one has no interval."""
        found = [figure for figure in self.between_runs() if figure.name in _HEADLINES]
        known = [figure for figure in found if figure.relative is not None]
        return max(known, key=lambda f: f.relative or 0.0) if known and len(known) == len(found) else None


@dataclass(frozen=True, kw_only=True)
class Audited:
    """Runs of one kind of an audit, and the shares of their prompt tokens that came from the prefix cache, where known."""

    result: RepeatResult
    hit_rates: tuple[float, ...]


def _facts_of(run: RepeatedRun) -> set[str]:
    """Facts that are equal for two starts of one command: the size of the KV cache differs a little."""
    return set(run.server) - ({"capacity_tokens"} if run.server.get("kind") == "launched" else set())


def name_of(figure: str) -> str:
    """Name of a figure in reports: `ttft_p99` is `TTFT p99`."""
    if figure in RATES:
        return RATES[figure]
    return "requests that failed" if figure == FAILED else label(*figure.split("_", 1))


def resolution_of(figure: str) -> float:
    """Step between values of a figure, as a share of them: latencies are the middles of buckets."""
    return 0.0 if figure in RATES or figure == FAILED else RESOLUTION


def shown(figure: str, value: float) -> str:
    """A value of a figure with its unit."""
    if figure in RATES:
        return per_second(value)
    return percent(value, 2) if figure == FAILED else duration(value)


def figures_of(verdict: Verdict) -> dict[str, float]:
    """Figures of a run by name: rates per second, latencies over all traffic in seconds, and the share that failed. Empty
    where the load was another one than planned: `degeneration` makes a verdict unknown, and no figure.
    """
    unknown = {check.name for check in verdict.checks if check.verdict == "unknown"}
    as_planned = verdict.sent and not verdict.generator.limited and _OF_THE_LOAD.isdisjoint(unknown)
    return dict(_figures(verdict)) if as_planned else {}


def _figures(verdict: Verdict) -> Iterator[tuple[str, float]]:
    done, goodput, latency = verdict.throughput, verdict.goodput, verdict.latency_all
    rates = (
        ("requests_per_s", done.requests_per_s if done is not None else None),
        ("good_requests_per_s", goodput.good_per_s if goodput is not None else None),
        ("output_tokens_per_s", done.output_tokens_per_s if done is not None else None),
    )
    yield from ((name, rate) for name, rate in rates if rate is not None)
    times = latency if latency is not None else next(iter(verdict.latency.values()), None)
    for name in LATENCIES:
        found = times.of(name.latency) if times is not None and f"{name.latency}_s" not in times.void else None
        value = getattr(found, name.statistic, None)
        if found is not None and value is not None and not name.too_few(found.n, verdict.outcomes.get("ok", 0)):
            yield str(name), value
    yield FAILED, sum(n for outcome, n in verdict.outcomes.items() if outcome not in BLAMELESS) / verdict.sent
