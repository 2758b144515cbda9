"""Expectations of a profile, such as `images.ttft_p99 <= 2s`. The profile checks them and
analysis/verdict/expectations.py judges them, both with `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

from loadchaos.core import latency_percentiles
from loadchaos.core.endpoint_groups import PREFIX
from loadchaos.core.errors import did_you_mean
from loadchaos.core.limits import OUTAGE_S
from loadchaos.core.model import OUTCOMES
from loadchaos.core.units import duration_s, growth, share

Kind = Literal["count", "share", "duration", "growth"]

NAMES: dict[str, tuple[Kind, str]] = {
    "engine_deaths": ("count", "deaths of the server's engine"),
    "hangs": ("count", "times the server hung"),
    "outages": (
        "count",
        f"times every request failed for {OUTAGE_S:g} s, whatever the cause; accepted errors count, too",
    ),
    "failures": ("count", "kinds of failure, without accepted ones"),
    "wrong_answers": ("count", "answers and probes whose content is wrong, without accepted ones"),
    "ok_share": ("share", "share of requests that succeed, among those that had to succeed"),
    "goodput": ("share", "share of requests that succeed within every limit of slo, among those that had to succeed"),
    "prefix_hit_rate": ("share", "share of the prompt tokens that the server took from its prefix cache"),
    "acceptance": ("share", "share of the drafted tokens that speculative decoding accepted"),
    "error_rate": ("share", "share of requests with an outcome that was not expected, among those that ended"),
    "shed_share": ("share", "share of requests rejected by admission control, among those sent"),
    "turns_lost": ("count", "questions of sessions (answers: live) without an answer, as one before was not ok"),
    "restarts": ("count", "times the server came back as a new process"),
    "replicas_lost": ("count", "replicas whose engine died at least once"),
    "lost_requests": ("count", "requests lost to an engine death"),
    "length_mismatch": ("count", "answers whose prompt length differs from the planned one"),
    "output_mismatch": ("count", "answers whose length differs from output: {exact}"),
    "drift.rss": ("growth", "growth per hour of the memory of the server's processes, relative to the start"),
    "drift.threads": ("growth", "growth per hour of the server's threads"),
    "drift.fds": ("growth", "growth per hour of the server's open files"),
    "drift.kv": ("growth", "growth per hour of KV cache use while no request runs, in percentage points"),
    "drift.gpu_memory": ("growth", "growth per hour of used GPU memory"),
    "drift.ttft": ("growth", "growth per hour of the time to first token"),
    "drift.error_rate": ("growth", "growth per hour of the share of failed requests, in percentage points"),
    "longest_stall": (
        "duration",
        "longest time in which requests were in flight and neither a token nor an answer arrived at any of them",
    ),
    "recovers_within": ("duration", "longest time from a server death, hang or outage until it is healthy again"),
}
"""Figures of a whole run that an expectation can name, with their meaning.

Latencies and outcomes come on top.
"""

_PER_TRAFFIC = {"ok_share", "shed_share", "error_rate", "goodput", "prefix_hit_rate", "acceptance"}
"""Names of `NAMES` that also exist for one traffic."""
_TEXT = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(==|!=|<=|>=|<|>|=)\s*(.*?)\s*")


@dataclass(frozen=True)
class Expectation:
    """A parsed expectation: `name op value`. The unit of `value` follows `kind`: a count, a share from 0 to 1, seconds,
    or growth per hour. `limit` is `value` as it was written. `traffic` is "" for all requests, and `endpoint.NAME` for
    those of an endpoint.
    """

    text: str
    name: str
    op: str
    limit: str
    value: float
    kind: Kind
    traffic: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.traffic}.{self.name}" if self.traffic else self.name

    def meaning(self) -> str:
        of = f" (traffic {self.traffic})" if self.traffic else ""
        if self.traffic.startswith(PREFIX):
            of = f" (endpoint {self.traffic.removeprefix(PREFIX)})"
        if self.name in NAMES:
            return NAMES[self.name][1] + of
        if self.name.startswith("outcomes."):
            return f"requests with the outcome {self.name.removeprefix('outcomes.')}{of}"
        latency = latency_percentiles.parse(self.name)
        return f"{latency.meaning if latency is not None else self.name}{of}"


def prefixes(traffics: Iterable[tuple[str, str]]) -> list[str]:
    """List what may stand before a figure, from traffic with its endpoint."""
    found = list(traffics)
    return [*(name for name, _ in found), *dict.fromkeys(PREFIX + endpoint for _, endpoint in found)]


def known_names() -> list[str]:
    """Every name that an expectation can have, without a traffic prefix."""
    return [*NAMES, *map(str, latency_percentiles.all_names()), *(f"outcomes.{outcome}" for outcome in OUTCOMES)]


def parse(text: str, traffics: Collection[str] | None = ()) -> Expectation:
    """Parse one line of `expect`. `traffics` are the names that may stand before the figure, those of endpoints as
    `endpoint.NAME`; None allows any. Raises ValueError that says what was expected.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"`name op value` was expected, e.g. engine_deaths == 0 (got {text!r})")
    full, op, value = match.groups()
    if op == "=":
        raise ValueError(f"= is not a comparison; write {full} == {value} (got {text!r})")
    traffic, name = _split(full, traffics)
    kind = _kind(name)
    if kind is None:
        raise ValueError(_unknown(full, traffics or ()))
    if traffic and name in NAMES and name not in _PER_TRAFFIC:
        raise ValueError(
            f"{name} exists only for the whole run, not for one traffic; write {name} {op} {value} (got {text!r})"
        )
    if traffic.startswith(PREFIX) and name.startswith("session_e2e_"):
        raise ValueError(f"{name} exists for all sessions or one traffic, not for an endpoint (got {text!r})")
    return Expectation(text, name, op, value, _value(name, kind, value), kind, traffic)


def _split(full: str, traffics: Collection[str] | None) -> tuple[str, str]:
    for dots in (2, 1):
        parts = full.split(".", dots)
        first, name = ".".join(parts[:dots]), parts[-1]
        if len(parts) <= dots or (dots > 1 and not first.startswith(PREFIX)):
            continue
        if first in traffics if traffics is not None else _kind(full) is None and (dots == 1 or _kind(name)):
            return first, name
    return "", full


def _kind(name: str) -> Kind | None:
    if name in NAMES:
        return NAMES[name][0]
    if name.startswith("outcomes."):
        return "count" if name.removeprefix("outcomes.") in OUTCOMES else None
    return "duration" if latency_percentiles.parse(name) is not None else None


def _unknown(full: str, traffics: Collection[str]) -> str:
    every = [*known_names(), *(f"{t}.{n}" for t in traffics for n in known_names())]
    meant = _synonym(full, traffics)
    if meant:
        return f"unknown figure {full!r}; did you mean {meant}?"
    endpoints = [name for name in traffics if name.startswith(PREFIX)]
    if full.startswith(PREFIX) and full.count(".") > 1 and not full.startswith(tuple(f"{e}." for e in endpoints)):
        return f"unknown endpoint in {full!r}; the profile has {', '.join(endpoints) or 'none'}"
    known = f"; known are {', '.join(NAMES)}, latencies such as ttft_p99, outcomes such as outcomes.ok"
    return f"unknown figure {full!r}{did_you_mean(full, every, known)}"


_SYNONYMS: tuple[tuple[str, str], ...] = (
    (r"(?:error|failure|fail)s?_?(?:rate|ratio|share|percent|pct)|http_req_failed|num_failures", "error_rate"),
    (r"success(?:ful)?_?(?:rate|ratio|share)|availability|ok_(?:rate|ratio)", "ok_share"),
    (r"(?:engine_)?(?:death|crash)(?:e?s)?|crashed", "engine_deaths"),
    (r"(?:wrong|incorrect|corrupt(?:ed)?)(?:_answers?|_outputs?)?|corruptions?", "wrong_answers"),
    (r"errors?|num_errors|failed(?:_requests)?", "failures"),
    (r"timeouts?", "outcomes.timeout"),
    (r"(?:throttled|rate_limited|rejected)(?:_share|_rate)?", "shed_share"),
    (r"(?:prefix_)?cache_hit_(?:rate|ratio|share)|prefix_hit_(?:ratio|share)", "prefix_hit_rate"),
    (r"(?:draft_|spec_(?:decode_)?)?acceptance_(?:rate|ratio|share)", "acceptance"),
    (r"recovery(?:_time)?|mttr|time_to_recover", "recovers_within"),
)
"""Names in other tools, and the figure here."""
_LATENCY_SYNONYMS: tuple[tuple[str, str], ...] = (
    ("ttft", r"ttft|time_to_first_token|first_token(?:_latency|_time)?|ttfb|time_to_first_byte|http_req_waiting"),
    ("ttfo", r"ttfo|time_to_first_output"),
    ("itl", r"itl|inter_token_latency|tbt|time_between_tokens"),
    ("tpot", r"tpot|time_per_output_token"),
    (
        "e2e",
        r"e2e|e2el|e2e_latency|end_to_end_latency|request_latency|latency|response_time|duration|http_req_duration",
    ),
)
_STATISTIC_SYNONYMS: tuple[tuple[str, str], ...] = (
    ("mean", r"mean|avg|average"),
    ("max", r"max|maximum|p_?100"),
    ("p50", r"p50|median|med|p_?50"),
    ("p90", r"p_?90|90p|p\(90\)"),
    ("p95", r"p_?95|95p|95th|p\(95\)"),
    ("p99", r"p_?99|99p|99th|p\(99\)"),
    ("p999", r"p_?99[._]?9|p_?999"),
)


def _synonym(full: str, traffics: Collection[str]) -> str:
    first, name = _split(full, traffics)
    prefix = f"{first}." if first else ""
    name = re.sub(r"_(?:ms|s|seconds|milliseconds)$", "", name.lower().replace("-", "_"))
    for pattern, figure in _SYNONYMS:
        if re.fullmatch(pattern, name):
            return prefix + figure if figure in _PER_TRAFFIC or figure not in NAMES else figure
    if name in OUTCOMES:
        return f"{prefix}outcomes.{name}"
    for latency, words in _LATENCY_SYNONYMS:
        for statistic, forms in _STATISTIC_SYNONYMS:
            if re.fullmatch(rf"(?:{words})[._](?:{forms})|(?:{forms})[._](?:{words})", name):
                return f"{prefix}{latency}_{statistic}"
        if re.fullmatch(words, name):
            return f"{prefix}{latency}_p99"
    return ""


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
