"""Compare each run of a soak with the last seven good ones. A latency is unusual outside `median ± max(5 x 1.4826 x
MAD, 15 % of the median)`. Seven runs are a small sample, so the MAD is the larger of theirs and that of the last 28
good runs, and it is widened while there are fewer than seven. Healthy runs that vary by 5 % raise 1 alarm in 8,000, by
10 % 1 in 260 (simulated). A rate is unusual if its 95 % interval lies above that of the runs before. Intervals are
exact and one-sided at zero, Wilson's above. A change of the server is a mark: the runs before it may not be comparable
with those after it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal

import orjson

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core import latency_percentiles
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.model import BLAMELESS
from loadchaos.core.stats import upper_bound_at_zero, wilson
from loadchaos.core.typed_json import from_json
from loadchaos.core.whole_file import read_json
from loadchaos.report.formatting import clean, parse_time
from loadchaos.report.headline import REFUSED
from loadchaos.report.phrases import is_server_fault

OF_PROFILE = "the profile's"
"""Begin of the names of facts that are the load and not the server."""
_SHOWN_OF_PROFILE = 200
"""Characters of a part of two profiles up to which both are shown; of longer ones only that they differ."""
PAST = "trend-past.jsonl"
"""File with one line per deleted run, so that its figures stay in the trend."""
_BASELINE_RUNS = 7
_MAD_RUNS = 28
_FEWEST = 3
_MAD_TO_SIGMA = 1.4826
_WIDTH = 5.0
_FLOOR = 0.15
_STATISTICS = ("p50", "p99")
_FACTS = ("dialect", "version", "model", "max_model_len", "capacity_tokens", "speculative_decoding", "images")
Says = Literal["higher", "lower", "as usual", "no baseline"]


@dataclass(frozen=True)
class Figure:
    """A latency of one run in seconds, and the band of earlier good runs, None with fewer than three of them."""

    value: float
    median: float | None
    low: float | None
    high: float | None
    of_nights: int  # runs in the baseline; the name is a key of trend.json
    says: Says


@dataclass(frozen=True)
class Rate:
    """A rate, `count` of `of`, with its bounds at 95 %, one-sided at a count of 0."""

    count: int
    of: int
    low: float
    high: float
    says: Says = "no baseline"

    def text(self) -> str:
        """Format as `< 0.0049 % (95 % confidence, 0 in 61,200)`."""
        if self.of == 0:
            return "no exposure"
        observed = f"{self.count:,} in {self.of:,}"
        if self.count == 0:
            return f"< {_two_digits(self.high, math.ceil)} (95 % confidence, {observed})"
        low, high = _two_digits(self.low, math.floor), _two_digits(self.high, math.ceil)
        return f"{_two_digits(self.count / self.of, round)} ({observed}; 95 % interval {low} to {high})"


@dataclass
class TrendRun:
    """One run of a profile: its server, figures, rates and changes."""

    folder: str
    started: str | None
    verdict: str | None
    exit_code: int | None
    good: bool
    requests: int
    failures: Sequence[str]
    server: Mapping[str, str] = field(default_factory=dict)
    marks: Sequence[str] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    rates: Mapping[str, Rate] = field(default_factory=dict)
    deleted: bool = False

    @property
    def unusual(self) -> list[str]:
        slower = [n for n, f in self.figures.items() if f.says == "higher"]
        return slower + [n for n, r in self.rates.items() if r.says == "higher"]


@dataclass(frozen=True)
class SoakTrend:
    """All runs of a profile, oldest first. `since_change` pools the rates since the server changed."""

    profile: str
    runs: tuple[TrendRun, ...]
    since_change: Mapping[str, Rate]
    changed: str | None
    others: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        runs = [
            {**asdict(n), "unusual": n.unusual, "rates": {k: _rate_json(r) for k, r in n.rates.items()}}
            for n in self.runs
        ]
        return {
            "schema": 1,
            "profile": self.profile,
            "changed": self.changed,
            "nights": runs,  # keys of trend.json are older than the names in this module
            "since_change": {k: _rate_json(r) for k, r in self.since_change.items()},
            "other_profiles": list(self.others),
        }


def _rate_json(rate: Rate) -> dict[str, object]:
    return {**asdict(rate), "text": rate.text()}


def _two_digits(share: float, rounded: Callable[[float], int]) -> str:
    """Format a share in per cent with two digits; a bound is rounded outwards."""
    if share <= 0:
        return "0 %"
    scale = 10 ** (1 - math.floor(math.log10(share * 100)))
    return f"{rounded(round(share * 100 * scale, 6)) / scale:.12g} %"


def rate(count: int, of: int) -> Rate:
    """Build a rate with its 95 % bounds. They are exact and one-sided at a count of 0, Wilson's above."""
    if count == 0:
        return Rate(0, of, 0.0, upper_bound_at_zero(of) or 1.0)
    # There can be more than one per exposure (a count of lines): the bound is that of "every time".
    low, high = wilson(min(count, of), of)
    return Rate(count, of, low, high)


# --- reading --------------------------------------------------------------------------------------------------------------


def read(home: Path, profile: str | None = None) -> SoakTrend:
    """Read all runs of a profile in a folder, deleted ones too. The default is the profile that ran last."""
    runs = [RunFolder(p) for p in home.iterdir() if (p / "verdict.json").is_file()] if home.is_dir() else []
    found = [(v.profile, _trend_run(f, v)) for f in runs if (v := Verdict.read(f)) is not None]
    present = {run.folder for _, run in found}
    found += [(name, run) for name, run in _past(home) if run.folder not in present]
    found.sort(key=lambda item: (item[1].started or "", item[1].folder))
    names = [name for name, _ in found]
    chosen = profile or (names[-1] if names else "")
    return trend(chosen, [run for name, run in found if name == chosen], set(names) - {chosen})


def remember(home: Path, folder: str) -> None:
    run = RunFolder(home / folder)
    if (verdict := Verdict.read(run)) is not None:
        line = {"profile": verdict.profile, "night": asdict(_trend_run(run, verdict))}
        with (home / PAST).open("ab+") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(max(0, end - 1))
            begin = b"" if f.read() in (b"", b"\n") else b"\n"  # a kill cut the last line
            f.write(begin + orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            f.flush()
            os.fsync(f.fileno())


def _past(home: Path) -> list[tuple[str, TrendRun]]:
    try:
        lines = (home / PAST).read_bytes().splitlines()
    except OSError:
        return []
    found: dict[str, tuple[str, TrendRun]] = {}
    for line in lines:
        try:
            data = orjson.loads(line)
            if (run := replace(from_json(TrendRun, data["night"]), deleted=True)).folder:
                found[run.folder] = str(data["profile"]), run
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
    return list(found.values())


def _trend_run(folder: RunFolder, verdict: Verdict) -> TrendRun:
    sent = verdict.sent
    # A refusal that the request expected is no failure; such refusals are in `by_traffic` only and count as answered.
    failed = sum(n for o, n in verdict.outcomes.items() if o not in BLAMELESS)
    failures = [f for f in verdict.failures if is_server_fault(f)]
    plan = read_json(folder.plan).get("profile") or {}
    exposure = str((plan.get("exposure") or {}).get("count") or "requests")
    exposed = verdict.exposures.get(exposure, 0)
    deaths = sum(f.count or 1 for f in failures if f.severity == "engine_death")
    rates = {
        "failed requests": rate(failed, sent),
        f"engine deaths by {exposure.replace('_', ' ')}": rate(deaths, exposed),
    }
    if refused := sum(verdict.outcomes.get(outcome, 0) for outcome in REFUSED):
        rates["refused requests"] = rate(refused, sent)
    for f in failures:
        rates.setdefault(f"{clean(f.id, 80)} by requests", rate(f.count or 1, sent))
    started = parse_time(verdict.started)
    return TrendRun(
        folder=folder.path.name,
        started=started.isoformat() if started else None,
        verdict=verdict.verdict,
        exit_code=verdict.exit_code,
        requests=sent,
        failures=[clean(f.id, 80) for f in failures],
        good=verdict.verdict == "pass" and not (verdict.generator.limited or verdict.generator.slots),
        server=server_of(folder, verdict),
        rates=rates,
        figures={n: Figure(v, None, None, None, 0, "no baseline") for n, v in _latencies(verdict).items()},
    )


def _latencies(verdict: Verdict) -> dict[str, float]:
    """Latencies of a run by name. One that means nothing (a proxy that buffers) is none, as is one of few samples."""
    found = {}
    for traffic, kinds in verdict.latency.items():
        for kind, values in (("ttft", kinds.ttft_s), ("itl", kinds.itl_s), ("e2e", kinds.e2e_s)):
            if f"{kind}_s" in kinds.void:
                continue
            for statistic in _STATISTICS:
                few = latency_percentiles.LatencyName(kind, statistic).too_few(values.n, kinds.e2e_s.n)
                if not few and (value := values.of(statistic)) is not None:
                    found[f"{clean(traffic, 60)} {latency_percentiles.label(kind, statistic)}"] = float(value)
    return found


def server_of(folder: RunFolder, verdict: Verdict) -> dict[str, str]:
    """Facts that must be equal for two runs to be comparable: version and flags of the server, and the load."""
    plan = read_json(folder.plan).get("profile") or {}
    kind, target, facts = verdict.target.kind, vars(verdict.target), read_json(folder.facts)
    shown = {k: facts.get(k, target.get(k)) for k in _FACTS} | {"kind": kind}
    asked = plan.get("target") or {}
    embedded, launch = asked.get("embedded") or {}, asked.get("launch") or {}
    if kind == "embedded":
        shown |= {f"--{k}": v for k, v in (embedded.get("flags") or {}).items()}
        shown["defects"] = embedded.get("defects") or None
    elif kind == "launched":
        shown |= {"command": " ".join(map(str, launch.get("command") or ())) or None}
    shown |= {f"{OF_PROFILE} load": plan.get("load"), f"{OF_PROFILE} traffic": plan.get("traffic")}
    return {k: clean(v, 2000) for k, v in shown.items() if v not in (None, "")}


def configured_server_of(folder: RunFolder, verdict: Verdict) -> dict[str, str]:
    """The same with the settings that its pages and its log show, and the attacks. Flags that are not known are empty."""
    attacks = (read_json(folder.plan).get("profile") or {}).get("attacks") or None
    known = server_of(folder, verdict) | ({f"{OF_PROFILE} attacks": clean(attacks, 2000)} if attacks else {})
    rows = Tail(folder.events, fits_its_kind).rows()
    if (row := next((row for row in rows if row["row"] == "configuration"), None)) is None:
        return known
    settings = {k: clean(v, 2000) for k, v in (row.get("settings") or {}).items()}
    return {"flags": clean(row.get("flags") or "", 2000), **settings, **known}


# --- comparing each run with those before it -----------------------------------------------------------------------------


def trend(profile: str, runs: Sequence[TrendRun], others: Sequence[str] | set[str] = ()) -> SoakTrend:
    """Compare each run with the good ones before it, in place. Runs are in order of time."""
    good: list[TrendRun] = []
    since: list[TrendRun] = []
    changed = None
    for before, run in zip([None, *runs], runs, strict=False):
        run.marks = marks_of(before.server, run.server) if before is not None else []
        if run.marks:
            since, changed = [], run.started
        baseline, recent = good[-_BASELINE_RUNS:], good[-_MAD_RUNS:]
        run.figures = {
            n: _figure(f.value, [b.figures[n].value for b in recent if n in b.figures]) for n, f in run.figures.items()
        }
        run.rates = {
            n: _compare_rate(r, [b.rates[n] for b in baseline if n in b.rates], baseline) for n, r in run.rates.items()
        }
        since.append(run)
        if run.good:
            good.append(run)
    pooled = {
        n: _pool([x.rates.get(n) or rate(0, x.requests if n.endswith(" by requests") else 0) for x in since])
        for n in dict.fromkeys(n for x in since for n in x.rates)
    }
    return SoakTrend(profile, tuple(runs), pooled, changed, tuple(sorted(others)))


def _figure(value: float, recent: Sequence[float]) -> Figure:
    before = recent[-_BASELINE_RUNS:]
    if len(before) < _FEWEST:
        return Figure(value, None, None, None, len(before), "no baseline")
    center = median(before)
    width = _WIDTH * (1 + (_BASELINE_RUNS - 1) / len(before) - (_BASELINE_RUNS - 1) / _BASELINE_RUNS)
    half = max(width * _MAD_TO_SIGMA * max(_mad(before), _mad(recent)), _FLOOR * center)
    low, high = max(0.0, center - half), center + half
    says: Says = "higher" if value > high else "lower" if value < low else "as usual"
    return Figure(value, center, low, high, len(before), says)


def _mad(values: Sequence[float]) -> float:
    center = median(values)
    return median(abs(v - center) for v in values)


def _compare_rate(newest: Rate, before: Sequence[Rate], baseline: Sequence[TrendRun]) -> Rate:
    """Compare a rate with the baseline. A failure that is new in this run occurred 0 times before."""
    if len(baseline) < _FEWEST:
        return newest
    pooled = _pool(before) if before else rate(0, sum(n.requests for n in baseline))
    says: Says = "higher" if newest.count and newest.low > pooled.high else "as usual"
    if pooled.count and newest.high < pooled.low:
        says = "lower"
    return Rate(newest.count, newest.of, newest.low, newest.high, says)


def _pool(rates: Sequence[Rate]) -> Rate:
    return rate(sum(r.count for r in rates), sum(r.of for r in rates))


def marks_of(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Changes of the server and of the load between two runs, as far as both are known."""
    found = []
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        if a != b and "" not in (a, b):
            long = key.startswith(OF_PROFILE) and len(f"{a}{b}") > _SHOWN_OF_PROFILE
            found.append(f"{key} changed" if long else f"{key}: {clean(a or 'none', 120)} → {clean(b or 'none', 120)}")
    return found
