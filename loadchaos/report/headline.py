"""Headline figures of a run, with which the terminal and report.html begin: what was asked, offered and measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.errors import LedgerError
from loadchaos.core.latency import LatencyFigures
from loadchaos.core.latency_percentiles import FEWEST_SAMPLES, enough_to_show
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.model import BLAMELESS, Terms
from loadchaos.core.typed_json import from_json
from loadchaos.report.formatting import duration, number, plural
from loadchaos.report.performance import latency_head, per_second, time_text
from loadchaos.report.phrases import outcome_count_text, outcome_order

REFUSED = ("shed", "rejected")
"""Outcomes of requests that the server refused."""

_TOLD_FROM = 0.05
"""Difference between figures of the steady state and of the whole that is told."""

_SHORTEST_S = 1.0
"""The shortest load whose rate is shown."""


@dataclass(frozen=True)
class HeadlineFigure:
    """A figure with its label; `more` qualifies it, `bad` marks what no run should have."""

    label: str
    value: str
    more: str = ""
    bad: bool = False


def terms_of(folder: Path) -> Terms:
    """Terms of the run in a folder; empty ones where its first rows cannot be read."""
    try:
        rows = Tail(RunFolder(folder).events, fits_its_kind).rows()
        return from_json(Terms, next((row.get("terms") for row in rows if row.get("row") == "run"), None))
    except (OSError, LedgerError):
        return Terms(profile="")


def offered_text(verdict: Verdict, terms: Terms) -> str:
    """Describe what was sent: `60 requests in 11.0 s (5.46/s); the server counts 64 tokens a prompt, 32 an answer`."""
    found, warm_up = verdict.throughput, verdict.warm_up.requests if verdict.warm_up is not None else 0
    if found is None or not found.seconds:
        return plural(verdict.sent, "request")
    sent, seconds = verdict.sent - warm_up, min(found.seconds, terms.planned_s or found.seconds)
    text = f"{plural(sent, 'request')} in {duration(found.seconds)}"
    # Nothing is sent after the planned time, and the last answer may come long after it.
    if terms.planned_s and seconds >= _SHORTEST_S:
        text += f" ({per_second(sent / seconds)}/s)"
    if warm_up:
        text += f", after {number(warm_up)} of a warm-up"
    if missed := verdict.outcomes.get("missed"):
        text += f", {number(missed)} more were not sent"
    if found.requests and found.input_tokens:
        prompt, answer = (number(round((n or 0) / found.requests)) for n in (found.input_tokens, found.output_tokens))
        return f"{text}; the server counts {prompt} tokens a prompt, {answer} an answer"
    return f"{text}; the server did not tell its number of tokens" if found.requests else text


def steady_text(verdict: Verdict, *, full: bool = False) -> str:
    """Describe the steady state where its figures differ from those of the whole load; with `full` always."""
    found, whole = verdict.steady, verdict.throughput
    if found is None or whole is None or not (found.requests_per_s and whole.requests_per_s):
        return ""
    latency = _all_latency(verdict)
    times, all_times, name = (
        (found.ttft_s, latency.ttft_s, "TTFT") if found.ttft_s.n else (found.e2e_s, latency.e2e_s, "E2E")
    )
    shown = [q for q in ("p50", "p99") if enough_to_show(q, times.n)]
    both = [
        (found.requests_per_s, whole.requests_per_s),
        *((times.of(q), all_times.of(q)) for q in shown),
    ]
    if not full and all(not (a and b) or abs(a / b - 1) < _TOLD_FROM for a, b in both):
        return ""
    text = f"{per_second(found.requests_per_s)} requests/s"
    if found.output_tokens_per_s:
        text += f", {per_second(found.output_tokens_per_s)} output tokens/s"
    if shown:
        text += f", {name} " + " ".join(f"{q} {duration(times.of(q))}" for q in shown)
    until_s = found.from_s + found.seconds
    return f"{text} from {duration(found.from_s)} to {duration(until_s)}, without ramp-up and end of the load"


def rows(verdict: Verdict) -> list[tuple[HeadlineFigure, HeadlineFigure]]:
    """Headline figures in pairs that belong together; empty where no request was sent."""
    return list(_rows(verdict)) if verdict.sent else []


def _rows(verdict: Verdict) -> Iterator[tuple[HeadlineFigure, HeadlineFigure]]:
    found, latency, outcomes = verdict.throughput, _all_latency(verdict), verdict.outcomes
    rates = (found.requests_per_s, found.output_tokens_per_s) if found is not None else (None, None)
    answered, tokens = ("–" if rate is None else per_second(rate) for rate in rates)
    yield HeadlineFigure("requests/s", answered), HeadlineFigure("output tokens/s", tokens)
    streamed = [kind for kind in ("ttft", "itl") if (times := latency.of(kind)) is not None and times.n]
    for kind in streamed or ["e2e"]:
        yield _times(latency, kind)
    stall = verdict.longest_stall
    waited = f"{plural(stall.requests, 'request')} waited" if stall is not None else ""
    in_flight = _mean_in_flight(verdict)
    yield (
        HeadlineFigure("in flight", number(in_flight), "on average" if in_flight is not None else ""),
        HeadlineFigure("longest stall", duration(stall.seconds if stall is not None else None), waited),
    )
    refused, failed = (
        HeadlineFigure(
            label,
            f"{number(sum(outcomes[o] for o in found))} of {number(verdict.sent)}",
            ", ".join(outcome_count_text(o, outcomes[o]) for o in found),
            bad=bool(found),
        )
        for label, found in (
            ("refused", [o for o in outcome_order(outcomes) if o in REFUSED]),
            ("failed", [o for o in outcome_order(outcomes) if o not in BLAMELESS]),
        )
    )
    yield refused, failed


def _mean_in_flight(verdict: Verdict) -> float | None:
    """By Little's law; None where not every request was answered, as the times of the others are not known."""
    e2e, found = _all_latency(verdict).e2e_s, verdict.throughput
    if found is None or not found.seconds or e2e.mean is None or verdict.outcomes.get("ok") != verdict.sent:
        return None
    return e2e.mean * e2e.n / found.seconds


def _times(latency: LatencyFigures, kind: str) -> tuple[HeadlineFigure, HeadlineFigure]:
    found, head = latency.of(kind), latency_head(kind, void=f"{kind}_s" in latency.void)
    if found is None or not found.n:
        return HeadlineFigure(f"{head} p50", duration(None)), HeadlineFigure(f"{head} p99", duration(None))
    median = HeadlineFigure(f"{head} p50", time_text(found, "p50"))
    if enough_to_show("p99", found.n):
        return median, HeadlineFigure(f"{head} p99", duration(found.p99))
    fewest = FEWEST_SAMPLES["p99"]
    return median, HeadlineFigure(
        f"{head} max", duration(found.max), f"p99 needs {fewest} samples, this run has {number(found.n)}"
    )


def _all_latency(verdict: Verdict) -> LatencyFigures:
    found = verdict.latency_all
    return found if found is not None else next(iter(verdict.latency.values()), from_json(LatencyFigures, None))
