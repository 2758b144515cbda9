"""Nights side by side: each against the median of the last seven good ones, and rates with the bounds they prove.

A latency is unusual outside `median ± max(5 x 1.4826 x MAD, 15 % of the median)`. Seven nights are a short ruler, so the
MAD is the larger of theirs and that of the last 28 good ones, and is stretched while there are fewer than seven: healthy
nights that vary by 5 % alarm 1 time in 8,000, by 10 % 1 time in 260 (simulated). A rate is unusual where its 95 %
interval lies above that of the nights before; intervals are exact and one-sided at zero, Wilson's above. A server that
changed is a mark: the nights before it may say nothing of those after.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import orjson

from loadchaos.core import latency_names
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import BLAMELESS
from loadchaos.core.stats import upper_bound_at_zero, wilson
from loadchaos.report.formatting import clean, parse_time

PAST = "trend-past.jsonl"
"""What deleted runs leave behind in their folder, a line each."""
_BASE = 7
_RULER = 28
_FEWEST = 3
_MAD_TO_SIGMA = 1.4826
_WIDTH = 5.0
_FLOOR = 0.15
_FEWEST_ANSWERS = {"p50": 10, "p99": 1000}
"""Answers below which a quantile of one night is mostly chance."""
_FACTS = ("dialect", "version", "model", "max_model_len", "capacity_tokens", "speculative_decoding", "images")
Says = Literal["higher", "lower", "as usual", "no baseline"]


@dataclass(frozen=True)
class Figure:
    """A latency of one night in seconds, and the band of the good nights before it (None: too few of them)."""

    value: float
    median: float | None
    low: float | None
    high: float | None
    of_nights: int
    says: Says


@dataclass(frozen=True)
class Rate:
    """How often something was met: `count` of `of`; `low` and `high` bound the rate at 95 %, one-sided at a count of 0."""

    count: int
    of: int
    low: float
    high: float
    says: Says = "no baseline"

    def text(self) -> str:
        """`0 in 61,200: below 1 in 20,430 at 95 %`."""
        if self.of == 0:
            return "no exposure"
        met = f"{self.count:,} in {self.of:,}"
        if self.count == 0:
            return f"{met}: below {_one_in(self.high)} at 95 %"
        return f"{met}: {_one_in(self.count / self.of)}, at 95 % {_one_in(self.low)} to {_one_in(self.high)}"


@dataclass
class TrendRun:
    """One run of the profile: what it was run against, what it measured, and what about it is unusual."""

    folder: str
    started: str | None
    verdict: str | None
    exit_code: int | None
    good: bool
    requests: int
    failures: list[str]
    server: dict[str, str] = field(default_factory=dict)
    marks: list[str] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    rates: dict[str, Rate] = field(default_factory=dict)
    deleted: bool = False

    @property
    def unusual(self) -> list[str]:
        """The figures and rates that are higher than before."""
        slower = [n for n, f in self.figures.items() if f.says == "higher"]
        return slower + [n for n, r in self.rates.items() if r.says == "higher"]


@dataclass(frozen=True)
class SoakTrend:
    """All nights of a profile, oldest first; `since_change` pools the rates since the server last changed."""

    profile: str
    nights: tuple[TrendRun, ...]
    since_change: Mapping[str, Rate]
    changed: str | None
    others: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For machines: seconds and rates."""
        nights = [
            {**asdict(n), "unusual": n.unusual, "rates": {k: _rate_json(r) for k, r in n.rates.items()}}
            for n in self.nights
        ]
        return {
            "schema": 1,
            "profile": self.profile,
            "changed": self.changed,
            "nights": nights,
            "since_change": {k: _rate_json(r) for k, r in self.since_change.items()},
            "other_profiles": list(self.others),
        }


def _rate_json(rate: Rate) -> dict[str, Any]:
    return {**asdict(rate), "text": rate.text()}


def _one_in(rate: float) -> str:
    return f"1 in {round(1 / rate):,}" if rate > 0 else "never"


def rate(count: int, of: int) -> Rate:
    """A rate with what it proves at 95 %: exact and one-sided at zero, Wilson above."""
    if count == 0:
        return Rate(0, of, 0.0, upper_bound_at_zero(of) or 1.0)
    # More than one to an exposure can happen (a count of lines): the bound is that of "every time".
    low, high = wilson(min(count, of), of)
    return Rate(count, of, low, high)


# --- reading --------------------------------------------------------------------------------------------------------------


def read(home: Path, profile: str | None = None) -> SoakTrend:
    """The nights of one profile in a folder, deleted ones too; without a name those of the profile that ran last."""
    runs = [RunFolder(p) for p in home.iterdir() if (p / "verdict.json").is_file()] if home.is_dir() else []
    told = [(str(v.get("profile")), _night(f, v)) for f in runs if (v := _json(f.verdict))]
    there = {n.folder for _, n in told}
    told += [(name, n) for name, n in _past(home) if n.folder not in there]
    told.sort(key=lambda item: (item[1].started or "", item[1].folder))
    names = [name for name, _ in told]
    chosen = profile or (names[-1] if names else "")
    return trend(chosen, [n for name, n in told if name == chosen], set(names) - {chosen})


def remember(home: Path, folder: str) -> None:
    """A line of what later nights are set against, to be written before a run is deleted."""
    run = RunFolder(home / folder)
    if verdict := _json(run.verdict):
        line = {"profile": str(verdict.get("profile")), "night": asdict(_night(run, verdict))}
        with (home / PAST).open("ab+") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(max(0, end - 1))
            begin = b"" if f.read() in (b"", b"\n") else b"\n"  # a kill cut the last line
            f.write(begin + orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            f.flush()
            os.fsync(f.fileno())


def _past(home: Path) -> list[tuple[str, TrendRun]]:
    """(profile, night) of runs that were deleted; a line that cannot be read is none."""
    try:
        lines = (home / PAST).read_bytes().splitlines()
    except OSError:
        return []
    found: dict[str, tuple[str, TrendRun]] = {}
    for line in lines:
        try:
            told = orjson.loads(line)
            night = TrendRun(**{**told["night"], "deleted": True})
            night.figures = {n: Figure(**f) for n, f in told["night"]["figures"].items()}
            night.rates = {n: Rate(**r) for n, r in told["night"]["rates"].items()}
            found[night.folder] = str(told["profile"]), night
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            continue
    return list(found.values())


def _json(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return data if isinstance(data, dict) else {}


def _night(folder: RunFolder, verdict: Mapping[str, Any]) -> TrendRun:
    outcomes = Counter(verdict.get("outcomes") or {})
    sent = sum(n for o, n in outcomes.items() if o != "missed")
    # A refusal that its request was sent for is none: those are told in `by_traffic` only, so they count as answered.
    failed = sum(n for o, n in outcomes.items() if o not in BLAMELESS)
    failures = [f for f in verdict.get("failures") or [] if f.get("attribution") in (None, "server")]
    plan = _json(folder.plan).get("profile") or {}
    met = str((plan.get("exposure") or {}).get("count") or "requests")
    exposed = int((verdict.get("exposures") or {}).get(met) or 0)
    deaths = sum(int(f.get("count") or 1) for f in failures if f.get("severity") == "engine_death")
    rates = {"failed requests": rate(failed, sent), f"engine deaths by {met.replace('_', ' ')}": rate(deaths, exposed)}
    for f in failures:
        rates.setdefault(f"{clean(f.get('id'), 80)} by requests", rate(int(f.get("count") or 1), sent))
    started = parse_time(verdict.get("started"))
    return TrendRun(
        folder=folder.path.name,
        started=started.isoformat() if started else None,
        verdict=verdict.get("verdict"),
        exit_code=verdict.get("exit_code"),
        requests=sent,
        failures=[clean(f.get("id"), 80) for f in failures],
        good=verdict.get("verdict") == "pass" and not (verdict.get("generator") or {}).get("limited"),
        server=_server(folder, verdict, plan),
        rates=rates,
        figures={n: Figure(v, None, None, None, 0, "no baseline") for n, v in _latencies(verdict).items()},
    )


def _latencies(verdict: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for traffic, kinds in (verdict.get("latency") or {}).items():
        for kind in ("ttft", "itl", "e2e"):
            values = kinds.get(f"{kind}_s") or {}
            for q, fewest in _FEWEST_ANSWERS.items():
                if (values.get("n") or 0) >= fewest and isinstance(values.get(q), int | float):
                    found[f"{clean(traffic, 60)} {latency_names.label(kind, q)}"] = float(values[q])
    return found


def _server(folder: RunFolder, verdict: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, str]:
    """What makes two nights comparable: the server's version and what is known of its flags, the load, and loadchaos."""
    target, facts = verdict.get("target") or {}, _json(folder.facts)
    told = {k: facts.get(k, target.get(k)) for k in _FACTS} | {"kind": target.get("kind")}
    asked = plan.get("target") or {}
    embedded, launch = asked.get("embedded") or {}, asked.get("launch") or {}
    if target.get("kind") == "embedded":
        told |= {f"--{k}": v for k, v in (embedded.get("flags") or {}).items()}
        told["defects"] = embedded.get("defects") or None
    elif target.get("kind") == "launched":
        told |= {"command": " ".join(map(str, launch.get("command") or ())) or None}
    told |= {"the profile's load": plan.get("load"), "the profile's traffic": plan.get("traffic")}
    return {k: clean(v, 2000) for k, v in told.items() if v not in (None, "")}


# --- judging each night by those before it -----------------------------------------------------------------------------


def trend(profile: str, nights: Sequence[TrendRun], others: Sequence[str] | set[str] = ()) -> SoakTrend:
    """Set each night against the good ones before it. `nights` are in order of time, and get their bands and marks."""
    good: list[TrendRun] = []
    since: list[TrendRun] = []
    changed = None
    for before, night in zip([None, *nights], nights, strict=False):
        night.marks = _marks(before.server, night.server) if before is not None else []
        if night.marks:
            since, changed = [], night.started
        base, ruler = good[-_BASE:], good[-_RULER:]
        night.figures = {
            n: _figure(f.value, [b.figures[n].value for b in ruler if n in b.figures]) for n, f in night.figures.items()
        }
        night.rates = {n: _against(r, [b.rates[n] for b in base if n in b.rates], base) for n, r in night.rates.items()}
        since.append(night)
        if night.good:
            good.append(night)
    pooled = {n: _pool([x.rates[n] if n in x.rates else _none_of(n, x) for x in since]) for n in _names(since)}
    return SoakTrend(profile, tuple(nights), pooled, changed, tuple(sorted(others)))


def _figure(value: float, ruler: Sequence[float]) -> Figure:
    before = ruler[-_BASE:]
    if len(before) < _FEWEST:
        return Figure(value, None, None, None, len(before), "no baseline")
    middle = median(before)
    width = _WIDTH * (1 + (_BASE - 1) / len(before) - (_BASE - 1) / _BASE)
    half = max(width * _MAD_TO_SIGMA * max(_mad(before), _mad(ruler)), _FLOOR * middle)
    low, high = max(0.0, middle - half), middle + half
    says: Says = "higher" if value > high else "lower" if value < low else "as usual"
    return Figure(value, middle, low, high, len(before), says)


def _mad(values: Sequence[float]) -> float:
    middle = median(values)
    return median(abs(v - middle) for v in values)


def _against(tonight: Rate, before: Sequence[Rate], base: Sequence[TrendRun]) -> Rate:
    """A failure that no night before had is judged by their requests: it was met 0 times in them."""
    if len(base) < _FEWEST:
        return tonight
    pooled = _pool(before) if before else rate(0, sum(n.requests for n in base))
    says: Says = "higher" if tonight.count and tonight.low > pooled.high else "as usual"
    if pooled.count and tonight.high < pooled.low:
        says = "lower"
    return Rate(tonight.count, tonight.of, tonight.low, tonight.high, says)


def _pool(rates: Sequence[Rate]) -> Rate:
    return rate(sum(r.count for r in rates), sum(r.of for r in rates))


def _none_of(name: str, night: TrendRun) -> Rate:
    """A night without that failure still had its requests."""
    return rate(0, night.requests if name.endswith(" by requests") else 0)


def _names(nights: Sequence[TrendRun]) -> list[str]:
    return list(dict.fromkeys(n for night in nights for n in night.rates))


def _marks(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    found = []
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        if a != b:
            long = key.startswith("the profile's")
            found.append(f"{key} changed" if long else f"{key}: {clean(a or 'none', 120)} → {clean(b or 'none', 120)}")
    return found


def write(home: Path, profile: str) -> SoakTrend:
    """trend.html and trend.json in the folder, each whole or not at all; what they tell."""
    from loadchaos.report.html import trend_page  # the template engine only where a page is made

    found = read(home, profile)
    data = orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    for name, content in (("trend.json", data), ("trend.html", trend_page.html(found).encode())):
        part = home / f".{name}.part"
        part.write_bytes(content)
        part.replace(home / name)
    return found
