"""Result of a run with the keys of `vllm bench serve --save-result`. Latencies are those of the verdict: they count
from the time a request was due. Only answers with the outcome `ok` are completed; tokens are those of usage.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from ruamel.yaml import YAML

from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import EfficiencyFigures, Verdict
from loadchaos.core import progress
from loadchaos.core.errors import OptionError
from loadchaos.core.histogram import bucket_middle
from loadchaos.core.latency import sample_of
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow
from loadchaos.core.units import NS_PER_S

METRICS: Mapping[str, str] = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
"""Names of --percentile-metrics, with their headings."""

_OTHER_NAMES = {"e2e": "e2el"}
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class BenchFigures:
    """Metrics and percentiles of a result; `detailed` adds lists with a value for each request."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    percentiles: Sequence[float] = (99.0,)
    detailed: bool = False

    @classmethod
    def parse(cls, metrics: str | None, percentiles: str | None, *, detailed: bool = False) -> BenchFigures:
        standard = cls()
        names = [_OTHER_NAMES.get(n, n) for n in (metrics or ",".join(standard.metrics)).replace(" ", "").split(",")]
        if unknown := [name for name in names if name not in METRICS]:
            raise OptionError(f"--percentile-metrics {unknown[0]}: {', '.join(METRICS)} were expected")
        try:
            values = [float(p) for p in (percentiles or "99").split(",")]
        except ValueError:
            values = [-1.0]
        if not all(0 < p <= 100 for p in values):
            raise OptionError(f"--metric-percentiles {percentiles}: numbers up to 100 were expected, e.g. 50,90,99")
        return cls([name for name in METRICS if name in names], values, detailed)


class _Requests(RowFold):
    """Requests one by one: the most in flight at one time and, if `detailed`, values in the order of the plan."""

    def __init__(self, run: RunFigures, *, detailed: bool) -> None:
        self._run, self._detailed = run, detailed
        self._edges = array("q")  # send times, and end times as negative numbers
        self._first_ns: int | None = None
        self._rows: list[tuple[int, dict[str, Any]]] = []

    def on_end(self, row: EndRow) -> None:
        if row.get("sent_ns") is None or row.get("outcome") == "missed" or self._run.warm_up.covers(row):
            return
        sent_ns, ok = int(row["sent_ns"] or 0), row.get("outcome") == "ok"
        self._first_ns = min(self._first_ns or sent_ns, sent_ns)
        self._edges.extend((sent_ns, -int(row["at_ns"])))
        if self._detailed:
            found = sample_of(row) if ok else None
            values = {
                "input_lens": row.get("prompt_tokens") or row.get("planned_tokens") or 0,
                "output_lens": (row.get("completion_tokens") or 0) if found else 0,
                "ttfts": (found.ttft_ns or 0) / NS_PER_S if found else 0.0,
                "latencies": (found.e2e_ns or 0) / NS_PER_S if found else 0.0,
                "start_times": sent_ns,
                "errors": "" if ok else f"{row.get('outcome')}: {row.get('error') or ''}",
            }
            self._rows.append((int(row.get("step") or 0), values))

    def most_in_flight(self) -> int:
        most = now = 0
        for edge in sorted(self._edges, key=lambda at: (abs(at), at > 0)):
            now += 1 if edge > 0 else -1
            most = max(most, now)
        return most

    def lists(self) -> dict[str, list[Any]]:
        rows = [row for _, row in sorted(self._rows, key=lambda found: found[0])]
        for row in rows:
            row["start_times"] = round((row["start_times"] - (self._first_ns or 0)) / NS_PER_S, 6)
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}


def result(
    folder: RunFolder, verdict: Verdict, figures: BenchFigures, say: progress.Say | None = None
) -> dict[str, Any]:
    run = RunFigures()
    requests = _Requests(run, detailed=figures.detailed)
    for row in progress.rows(Reader(folder, fits_its_kind).new(final=True), "the result of the requests", say):
        run.fold(row)
        requests.fold(row)
    run.requests.finish()
    found = {**_head(folder, verdict), **_totals(verdict, run), "max_concurrent_requests": requests.most_in_flight()}
    for metric in figures.metrics:
        found.update(_statistics(metric, run, figures.percentiles))
    return {**found, **(requests.lists() if figures.detailed else {})}


def _head(folder: RunFolder, verdict: Verdict) -> dict[str, Any]:
    profile = YAML(typ="safe", pure=True).load(folder.profile.read_text("utf-8")) or {}
    phases = [phase for phase in profile.get("load") or () if not phase.get("warm_up")]
    phase = phases[0] if len(phases) == 1 else {}
    endpoints = {traffic.get("endpoint", "chat") for traffic in profile.get("traffic") or ()}
    rate = str(phase.get("rate") or "").removesuffix("/s")
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": " and ".join(sorted(endpoints)),
        "backend": verdict.target.dialect,
        "label": None,
        "model_id": verdict.target.model,
        "tokenizer_id": None,
        "request_rate": _number(rate) if phase.get("law", "constant") in ("constant", "poisson", "gamma") else None,
        "burstiness": phase.get("burstiness", 1.0 if phase.get("law") == "poisson" else None),
        "max_concurrency": phase.get("users") or phase.get("concurrency") or phase.get("max_in_flight"),
        "loadchaos_run": str(folder.path.resolve()),
        "loadchaos_verdict": verdict.verdict,
        "loadchaos_outcomes": dict(verdict.outcomes),
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _totals(verdict: Verdict, run: RunFigures) -> dict[str, Any]:
    done, goodput, efficiency = verdict.throughput, verdict.goodput, verdict.efficiency or EfficiencyFigures()
    due, completed = run.requests.total().total() - run.warm_up.left_out, run.throughput.requests
    rate, tokens = efficiency.acceptance, (done.input_tokens_per_s, done.output_tokens_per_s) if done else (None, None)
    return {
        "duration": done.seconds if done else None,
        "num_prompts": due,
        "completed": completed,
        "failed": due - completed,
        "spec_decode_acceptance_rate": None if rate is None else round(100 * rate, 4),
        "spec_decode_draft_tokens": efficiency.drafted_tokens,
        "spec_decode_accepted_tokens": efficiency.accepted_tokens,
        "prefix_hit_rate": efficiency.prefix_hit_rate,
        "joules_per_output_token": efficiency.joules_per_output_token,
        "warm_up_requests": verdict.warm_up.requests if verdict.warm_up else 0,
        "total_input_tokens": done.input_tokens if done else None,
        "total_output_tokens": done.output_tokens if done else None,
        "request_throughput": done.requests_per_s if done else None,
        "request_goodput": goodput.good_per_s if goodput else None,
        "output_throughput": tokens[1],
        "total_token_throughput": None if tokens[0] is None or tokens[1] is None else sum(tokens),
    }


def _statistics(metric: str, run: RunFigures, percentiles: Sequence[float]) -> Iterator[tuple[str, float | None]]:
    """Yield the mean, median, deviation and percentiles of a metric, those of the verdict (steps of 0.8 %). Requests
    that timed out are lower bounds. An answer that was not streamed has its first token at its end.
    """
    latency = run.answers.all_latency()
    whole = not latency.ttft.n and any(traffic.completion_tokens for traffic in run.requests.traffic.values())
    values = latency["e2e" if metric == "e2el" or (metric == "ttft" and whole) else metric]
    mean = values.mean()
    spread = sum(n * (bucket_middle(i) - (mean or 0.0)) ** 2 for i, n in values.counts.items())
    deviation = math.sqrt(spread / values.n) if values.n else None
    quantiles = [values.quantile(p / 100) for p in (50.0, *percentiles)]
    names = ["mean", "median", "std", *(f"p{p:g}" for p in percentiles)]
    for name, value in zip(names, [mean, quantiles[0], deviation, *quantiles[1:]], strict=True):
        yield f"{name}_{metric}_ms", None if value is None else round(value / _NS_PER_MS, 4)


def text(found: Mapping[str, Any], figures: BenchFigures) -> str:
    lines = ["Figures as vllm bench serve names them"]
    totals = {
        "Successful requests": "completed",
        "Failed requests": "failed",
        "Benchmark duration (s)": "duration",
        "Total input tokens": "total_input_tokens",
        "Total generated tokens": "total_output_tokens",
        "Request throughput (req/s)": "request_throughput",
        "Request goodput (req/s)": "request_goodput",
        "Output token throughput (tok/s)": "output_throughput",
        "Total token throughput (tok/s)": "total_token_throughput",
        "Peak concurrent requests": "max_concurrent_requests",
    }
    rows = [(label, found[key]) for label, key in totals.items() if found[key] is not None]
    for metric in figures.metrics:
        shown = {"Mean": "mean", "Median": "median", **{f"P{p:g}": f"p{p:g}" for p in figures.percentiles}}
        rows += [(f"{word} {metric.upper()} (ms)", found[f"{key}_{metric}_ms"]) for word, key in shown.items()]
    for label, value in rows:
        shown_value = "unknown" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
        lines.append(f"  {label + ':':34} {shown_value}")
    return "\n".join(lines)


def file_name(found: Mapping[str, Any]) -> str:
    model = str(found["model_id"] or "model").rsplit("/", 1)[-1]
    label = found["label"] or found["endpoint_type"].replace(" ", "-")
    rate, users = found["request_rate"], found["max_concurrency"]
    limit = f"-concurrency{users}" if users is not None else ""
    return f"{label}-{'inf' if rate is None else f'{rate:g}'}qps{limit}-{model}-{found['date']}.json"


def save(found: Mapping[str, Any], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    except OSError as e:
        raise OptionError(f"{path}: {e.strerror}; give --result-dir a folder that can be written") from e
