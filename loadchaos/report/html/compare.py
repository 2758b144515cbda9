"""Compare latency and failure rates of two runs, with intervals. Latency quantiles are compared by a bootstrap over the
runs' histograms (fixed seed, so the same runs give the same text), shares by Newcombe's interval for a difference of
two proportions (Newcombe 1998, method 10, from Wilson's). Both assume independent answers: a run in which one stall
hits hundreds of requests varies more than its interval shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core import progress
from loadchaos.core.endpoint_groups import merged_latency, traffic_by_endpoint
from loadchaos.core.errors import OptionError
from loadchaos.core.histogram import LogHistogram, bucket_middle
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.latency_percentiles import (
    FEWEST_SAMPLES,
    REPORTED_LATENCIES,
    REPORTED_QUANTILES,
    STATISTICS,
    LatencyName,
    label,
)
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.model import BLAMELESS
from loadchaos.core.stats import wilson
from loadchaos.core.units import NS_PER_S, seconds_of
from loadchaos.report.html.trend import OF_PROFILE, configured_server_of, marks_of
from loadchaos.report.phrases import SECTIONS

_DRAWS = 1000
CONFIDENCE = 0.95
_SESSION_ENDS = {"lost": "sessions that were lost", "cut": "sessions that were cut"}
"""Bad ends of sessions with their names; the others finished, or we did not go on."""
_BY_ENDPOINT = f"{SECTIONS['endpoints']} (latencies of an endpoint with a single kind of traffic are above)"
Says = Literal["higher", "lower", "no clear difference", "too few", "void"]


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    name: str
    verdict: str
    target: str
    profile: str
    seed: object
    sent: int
    failed: int
    failures: Mapping[str, int]
    limited: bool
    run: RunFigures = field(repr=False)
    slo_s: Mapping[str, float] = field(default_factory=dict)
    due: int = 0
    good: int = 0
    sessions: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    sent_by: Mapping[str, int] = field(default_factory=dict)
    """Requests sent, by traffic."""
    failed_by: Mapping[str, int] = field(default_factory=dict)
    """Requests that failed, by traffic."""
    server: Mapping[str, str] = field(default_factory=dict)
    """Versions, flags and load, which must be equal for two runs to be comparable; empty: not known."""
    incomplete: bool = False
    """The run was stopped, or a part of its load was not sent."""

    def by_endpoint(self) -> dict[str, list[str]]:
        return traffic_by_endpoint(self.run.endpoints, self.sent_by)


@dataclass(frozen=True)
class Difference:
    """One figure in both runs; `low` and `high` bound b - a, at 95 % where nothing else was asked."""

    what: str
    unit: Literal["s", "share", "rate"]
    a: float | None
    b: float | None
    n_a: int
    n_b: int
    low: float | None
    high: float | None
    says: Says


@dataclass(frozen=True)
class Comparison:
    """Result of `loadchaos compare`; `caveats` are reasons to doubt it."""

    a: Side
    b: Side
    latency: tuple[Difference, ...]
    rates: tuple[Difference, ...]
    caveats: tuple[str, ...]
    sessions: tuple[Difference, ...] = ()
    endpoints: tuple[Difference, ...] = ()

    @property
    def changes(self) -> list[str]:
        """Versions, flags and settings of the server, and parts of the profile, that differ."""
        return marks_of(self.a.server, self.b.server)

    @property
    def tables(self) -> Sequence[tuple[str, tuple[Difference, ...]]]:
        """Tables of differences with their titles, in their order; a part that neither run has is left out."""
        return [
            (SECTIONS["latency"], self.latency),
            *([(_BY_ENDPOINT, self.endpoints)] if self.endpoints else []),
            *([("Sessions with live answers", self.sessions)] if self.sessions else []),
            ("Failures per request sent", self.rates),
        ]

    @property
    def differences(self) -> tuple[Difference, ...]:
        return (*self.latency, *self.endpoints, *self.sessions, *self.rates)

    def to_json(self) -> dict[str, Any]:
        sides = {k: {f: v for f, v in vars(s).items() if f != "run"} for k, s in (("a", self.a), ("b", self.b))}
        return {
            "schema": 1,
            **sides,
            "changes": self.changes,
            "caveats": list(self.caveats),
            "latency": [asdict(d) for d in self.latency],
            "rates": [asdict(d) for d in self.rates],
            "sessions": [asdict(d) for d in self.sessions],
            "endpoints": [asdict(d) for d in self.endpoints],
        }


def side(path: Path, say: progress.Say | None = None) -> Side:
    """Read a run to compare, from its ledger and verdict.json. Raises OptionError where it has no verdict."""
    folder = RunFolder(path)
    if (verdict := Verdict.read(folder)) is None:
        raise OptionError(f"{path} has no verdict to compare: loadchaos judge {path}")
    run = RunFigures()
    for row in progress.rows(Reader(folder, fits_its_kind).new(final=True), f"reading {path.name}", say):
        run.fold(row)
    failed = {
        name: sum(n for outcome, n in traffic.outcomes.items() if outcome not in BLAMELESS)
        for name, traffic in run.requests.traffic.items()
    }
    target, goodput, sessions = verdict.target, verdict.goodput, verdict.sessions
    return Side(
        name=path.resolve().name,
        verdict=verdict.verdict,
        profile=verdict.profile,
        target=" ".join(part for part in (target.dialect, target.version, target.model) if part),
        seed=run.seed,
        sent=run.requests.begun,
        failed=sum(failed.values()),
        limited=verdict.generator.limited,
        run=run,
        failures={f.id: f.count or 1 for f in verdict.failures},
        slo_s=dict(goodput.slo_s) if goodput else {},
        due=goodput.due if goodput else 0,
        good=goodput.good if goodput else 0,
        sessions={name: getattr(sessions, name, 0) for name in ("sessions", *_SESSION_ENDS)},
        figures=_figures(verdict),
        sent_by={name: traffic.begun for name, traffic in run.requests.traffic.items()},
        failed_by=failed,
        server=configured_server_of(folder, verdict),
        incomplete=any(c.name in ("run", "load_delivered") and c.verdict != "pass" for c in verdict.checks),
    )


def _figures(verdict: Verdict) -> dict[str, float]:
    done, efficiency, sessions = verdict.throughput, verdict.efficiency, verdict.sessions
    places: dict[str, tuple[object, str]] = {
        "requests/s": (done, "requests_per_s"),
        "good requests/s": (verdict.goodput, "good_per_s"),
        "input tokens/s": (done, "input_tokens_per_s"),
        "output tokens/s": (done, "output_tokens_per_s"),
        "prefix cache hits": (efficiency, "prefix_hit_rate"),
        "drafts accepted": (efficiency, "acceptance"),
        "J per output token": (efficiency, "joules_per_output_token"),
        "sessions finished": (sessions, "finished"),
        "turns answered": (sessions, "turns"),
        "turns lost": (sessions, "turns_lost"),
        "turns cut": (sessions, "turns_cut"),
    }
    found = {name: getattr(part, key, None) for name, (part, key) in places.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def compare(a: Side, b: Side) -> Comparison:
    random = np.random.default_rng(0)
    latency = [
        difference
        for traffic in sorted(set(a.run.answers.latency) & set(b.run.answers.latency))
        for difference in _latencies(
            _traffic_name(a, b, traffic), a.run.answers.latency[traffic], b.run.answers.latency[traffic], random
        )
    ]
    rates = [failed_share(a, b)]
    if a.due and b.due and a.slo_s == b.slo_s:
        rates.append(_share("requests not within slo", a.due - a.good, a.due, b.due - b.good, b.due))
    rates += [
        _share(name, a.failures.get(name, 0), a.sent, b.failures.get(name, 0), b.sent)
        for name in sorted(set(a.failures) | set(b.failures))
    ]
    sessions, endpoints = tuple(_sessions(a, b, random)), tuple(_endpoints(a, b, random))
    return Comparison(a, b, tuple(latency), tuple(rates), tuple(_caveats(a, b)), sessions, endpoints)


def failed_share(a: Side, b: Side, confidence: float = CONFIDENCE) -> Difference:
    return _share("requests that failed", a.failed, a.sent, b.failed, b.sent, confidence)


def overall_latency(a: Side, b: Side, name: LatencyName, confidence: float = CONFIDENCE) -> Difference | None:
    """Compare a percentile over all traffic; None where a run has no such latency, or the name has no quantile."""
    both = [side.run.answers.all_latency() for side in (a, b)]
    if name.quantile is None or not all(side[name.latency].n for side in both):
        return None
    samples = [_Sample(side, name.latency) for side in both]
    title = label(name.latency, name.statistic)
    found = _latency(title, samples[0], samples[1], name.statistic, np.random.default_rng(0), confidence)
    return replace(found, says="void") if name.latency in both[0].void() | both[1].void() else found


def incomparable(a: Side, b: Side) -> list[str]:
    """Reasons for which a difference of two runs says nothing about their servers."""
    found = []
    if a.profile != b.profile and not _same_load(a, b):
        found.append(f"the profile differs: {a.profile} and {b.profile}")
    if only := set(a.run.answers.lengths) ^ set(b.run.answers.lengths):
        found.append(f"traffic in one run only: {', '.join(sorted(only))}")
    return found + [
        f"{s.name}: the load generator was the limit, so its latencies include its own delay"
        for s in (a, b)
        if s.limited
    ]


def _same_load(a: Side, b: Side) -> bool:
    """True if profiles of two names send the same: a run without a profile is named by its server, too."""
    keys = [f"{OF_PROFILE} {part}" for part in ("load", "traffic")]
    return all(key in a.server and a.server[key] == b.server.get(key) for key in keys)


def _latencies(
    name: str, a: LatencyHistograms, b: LatencyHistograms, random: np.random.Generator
) -> Iterator[Difference]:
    void = a.void() | b.void()
    for kind in REPORTED_LATENCIES:
        if a[kind].n and b[kind].n:
            for quantile in REPORTED_QUANTILES:
                found = _latency(
                    f"{name} {label(kind, quantile)}", _Sample(a, kind), _Sample(b, kind), quantile, random
                )
                yield replace(found, says="void") if kind in void else found


def _traffic_name(a: Side, b: Side, traffic: str) -> str:
    endpoint = a.run.endpoints.get(traffic)
    if len(a.by_endpoint()) < 2 or endpoint in (None, traffic) or b.run.endpoints.get(traffic) != endpoint:
        return traffic
    return f"{traffic} ({endpoint})"


def _endpoints(a: Side, b: Side, random: np.random.Generator) -> Iterator[Difference]:
    """Compare failures and latencies by endpoint; those of one and the same traffic in both runs stand there."""
    in_a, in_b = a.by_endpoint(), b.by_endpoint()
    if max(len(in_a), len(in_b)) < 2:
        return
    for endpoint in sorted(set(in_a) & set(in_b)):
        of_a, of_b = in_a[endpoint], in_b[endpoint]
        sent, failed = (
            [sum(by[t] for t in of) for by, of in zip(pair, (of_a, of_b), strict=True)]
            for pair in ((a.sent_by, b.sent_by), (Counter(a.failed_by), Counter(b.failed_by)))
        )
        yield _share(f"{endpoint}: requests that failed", failed[0], sent[0], failed[1], sent[1])
        if of_a != of_b or len(of_a) > 1:
            both = [merged_latency(map(s.run.answers.latency.get, of)) for s, of in ((a, of_a), (b, of_b))]
            yield from _latencies(f"{endpoint}:", both[0], both[1], random)


def _sessions(a: Side, b: Side, random: np.random.Generator) -> list[Difference]:
    n_a, n_b = a.sessions.get("sessions", 0), b.sessions.get("sessions", 0)
    if not n_a or not n_b:
        return []
    times_a, times_b = a.run.sessions.times_by_traffic(), b.run.sessions.times_by_traffic()
    return [
        *(
            _latency(
                f"{traffic} session {quantile}",
                _Sample({"e2e": times_a[traffic]}, "e2e"),
                _Sample({"e2e": times_b[traffic]}, "e2e"),
                quantile,
                random,
            )
            for traffic in sorted(set(times_a) & set(times_b))
            for quantile in REPORTED_QUANTILES
        ),
        *(_share(text, a.sessions[end], n_a, b.sessions[end], n_b) for end, text in _SESSION_ENDS.items()),
    ]


def _caveats(a: Side, b: Side) -> list[str]:
    caveats = incomparable(a, b)
    if a.seed != b.seed:
        caveats.append(f"the seed differs: {a.seed} and {b.seed}")
    for traffic in sorted(set(a.run.endpoints) & set(b.run.endpoints)):
        ends = a.run.endpoints[traffic], b.run.endpoints[traffic]
        if ends[0] != ends[1]:
            caveats.append(f"the endpoint of {traffic} differs: {ends[0]} and {ends[1]}")
    if a.slo_s != b.slo_s and a.slo_s and b.slo_s:
        caveats.append("the slo differs, so goodput is not compared")
    for s in (a, b):
        for kind, why in s.run.answers.all_latency().void().items():
            caveats.append(f"{s.name}: {kind.upper()} means nothing: {why}")
        caveats += [f"{s.name}: {key} of the server are not known" for key, value in s.server.items() if not value]
        if s.incomplete:
            caveats.append(f"{s.name}: the run was stopped, or a part of its load was not sent")
    if min(a.sent, b.sent) * 2 < max(a.sent, b.sent):
        caveats.append(f"the number of requests differs: {a.sent:,} and {b.sent:,}")
    return caveats


# -- intervals -----------------------------------------------------------------------------------------------------


class _Sample:
    """A histogram and its number of independent values; the gaps of one answer are not independent."""

    def __init__(self, of: LatencyHistograms | Mapping[str, LogHistogram], kind: str) -> None:
        self.hist = of[kind]
        self.n = min(of[kind].n, of["e2e"].n or of[kind].n) if kind == "itl" else of[kind].n

    def drawn(self, q: float, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
        indices = sorted(self.hist.counts)
        counts = np.array([self.hist.counts[i] for i in indices], dtype=float)
        middles = np.array([bucket_middle(i) for i in indices])
        several = random.multinomial(self.n, counts / counts.sum(), size=_DRAWS).cumsum(axis=1)
        found: np.ndarray[Any, np.dtype[np.float64]] = middles[(several < max(1, math.ceil(q * self.n))).sum(axis=1)]
        return found


def _latency(
    what: str, a: _Sample, b: _Sample, quantile: str, random: np.random.Generator, confidence: float = CONFIDENCE
) -> Difference:
    q = STATISTICS[quantile] or 0.0
    quantile_a, quantile_b = a.hist.quantile(q), b.hist.quantile(q)
    if min(a.n, b.n) < FEWEST_SAMPLES[quantile] or quantile_a is None or quantile_b is None:
        low = high = None
        says: Says = "too few"
    else:
        drawn = b.drawn(q, random) - a.drawn(q, random)
        low, high = (float(x) / NS_PER_S for x in np.quantile(drawn, ((1 - confidence) / 2, (1 + confidence) / 2)))
        # A bucket of the histogram is 1.6 % wide: a smaller difference cannot be measured.
        says = _says(low, high, 0.016 * quantile_a / NS_PER_S)
    return Difference(
        what=what,
        unit="s",
        a=seconds_of(quantile_a),
        b=seconds_of(quantile_b),
        n_a=a.n,
        n_b=b.n,
        low=low,
        high=high,
        says=says,
    )


def _share(what: str, a: int, n_a: int, b: int, n_b: int, confidence: float = CONFIDENCE) -> Difference:
    if not n_a or not n_b:
        return Difference(
            what=what, unit="share", a=None, b=None, n_a=n_a, n_b=n_b, low=None, high=None, says="too few"
        )
    # A failure can occur more than once per request: limit it to one per request.
    a, b = min(a, n_a), min(b, n_b)
    p_a, p_b = a / n_a, b / n_b
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    (low_a, high_a), (low_b, high_b) = wilson(a, n_a, z), wilson(b, n_b, z)
    d = p_b - p_a
    low = d - math.hypot(p_b - low_b, high_a - p_a)
    high = d + math.hypot(high_b - p_b, p_a - low_a)
    return Difference(
        what=what, unit="share", a=p_a, b=p_b, n_a=n_a, n_b=n_b, low=low, high=high, says=_says(low, high, 0.0)
    )


def _says(low: float, high: float, least: float) -> Says:
    if low > 0 and high > least:
        return "higher"
    if high < 0 and low < -least:
        return "lower"
    return "no clear difference"
