"""Result of a run with the keys of `vllm bench serve --save-result`. Latencies are those of the verdict: they count
from the time a request was due. Only answers with the outcome `ok` are completed; tokens are those of usage.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
from ruamel.yaml import YAML

from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.verdict.model import EfficiencyFigures, ThroughputFigures, Verdict
from loadchaos.core import progress
from loadchaos.core.errors import OptionError
from loadchaos.core.histogram import bucket_middle
from loadchaos.core.latency import sample_of
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import EndRow, RunRow
from loadchaos.core.model import Row
from loadchaos.core.typed_json import from_json
from loadchaos.core.units import NS_PER_MS, NS_PER_S
from loadchaos.report.export.tables import Column
from loadchaos.report.performance import latency_head

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Names of --percentile-metrics."""

_OTHER_NAMES = {"e2e": "e2el"}


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


@dataclass(frozen=True, kw_only=True)
class _Phase:
    """Load phase of a profile, as far as the keys of a result tell it."""

    warm_up: bool = False
    law: str = "constant"
    rate: str | float = ""
    burstiness: float | None = None
    users: int | None = None
    concurrency: int | None = None
    max_in_flight: int | None = None

    @property
    def request_rate(self) -> float | None:
        try:
            return float(str(self.rate).removesuffix("/s")) if self.law in ("constant", "poisson", "gamma") else None
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True)
class _Traffic:
    endpoint: str = "chat"


@dataclass(frozen=True, kw_only=True)
class _Profile:
    load: tuple[_Phase, ...] = ()
    traffic: tuple[_Traffic, ...] = ()

    @property
    def phase(self) -> _Phase:
        """The phase that is measured; one without values where there are several."""
        phases = [phase for phase in self.load if not phase.warm_up]
        return phases[0] if len(phases) == 1 else _Phase()


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A request that was sent, as short as lists of all of them need it. Times are 0 where it failed."""

    step: int
    sent_ns: int
    input_tokens: int
    output_tokens: int
    ttft_ns: int
    e2e_ns: int
    error: str


class BenchRun(RowFold):
    """A run with all that the keys of its result are read from."""

    def __init__(self, folder: RunFolder, verdict: Verdict, *, detailed: bool) -> None:
        profile = YAML(typ="safe", pure=True).load(folder.profile.read_text("utf-8"))
        self.folder, self.verdict, self.profile = folder, verdict, from_json(_Profile, profile)
        self.throughput = verdict.throughput or ThroughputFigures(seconds=None, requests=0, requests_per_s=None)
        self.efficiency = verdict.efficiency or EfficiencyFigures()
        self.figures = RunFigures()
        self.requests: list[BenchRequest] = []
        self.watched = False
        """True where others sent the requests: their load is not known."""
        self._detailed = detailed
        self._edges = array("q")  # send times, and end times as negative numbers

    def fold(self, row: Row) -> None:
        self.figures.fold(row)
        super().fold(row)

    def on_run(self, row: RunRow) -> None:
        self.watched = self.watched or bool((row.get("terms") or {}).get("watched"))

    def on_end(self, row: EndRow) -> None:
        sent_ns, outcome = row.get("sent_ns"), row.get("outcome")
        if sent_ns is None or outcome == "missed" or self.figures.warm_up.covers(row):
            return
        self._edges.extend((sent_ns, -row["at_ns"]))
        if self._detailed:
            self.requests.append(_request(row, sent_ns))

    def rate_per_s(self) -> float | None:
        return None if self.watched else self.profile.phase.request_rate

    def asked_in_flight(self) -> int | None:
        phase = self.profile.phase
        return None if self.watched else phase.users or phase.concurrency or phase.max_in_flight

    @property
    def due(self) -> int:
        return self.figures.requests.total().total() - self.figures.warm_up.left_out

    @property
    def completed(self) -> int:
        return self.figures.throughput.requests

    def endpoints(self) -> str:
        return " and ".join(sorted({traffic.endpoint for traffic in self.profile.traffic}))

    def burstiness(self) -> float | None:
        phase = self.profile.phase
        return 1.0 if phase.burstiness is None and phase.law == "poisson" else phase.burstiness

    def tokens_per_s(self) -> float | None:
        inputs, outputs = self.throughput.input_tokens_per_s, self.throughput.output_tokens_per_s
        return None if inputs is None or outputs is None else inputs + outputs

    def acceptance_rate(self) -> float | None:
        rate = self.efficiency.acceptance
        return None if rate is None else round(100 * rate, 4)

    def goodput(self) -> float | None:
        return self.verdict.goodput.good_per_s if self.verdict.goodput else None

    def warm_up_requests(self) -> int:
        return self.verdict.warm_up.requests if self.verdict.warm_up else 0

    def most_in_flight(self) -> int:
        most = now = 0
        for edge in sorted(self._edges, key=lambda at: (abs(at), at > 0)):
            now += 1 if edge > 0 else -1
            most = max(most, now)
        return most


def _request(row: EndRow, sent_ns: int) -> BenchRequest:
    outcome = row.get("outcome")
    sample = sample_of(row) if outcome == "ok" else None
    return BenchRequest(
        step=row.get("step") or 0,
        sent_ns=sent_ns,
        input_tokens=row.get("prompt_tokens") or row.get("planned_tokens") or 0,
        output_tokens=(row.get("completion_tokens") or 0) if sample else 0,
        ttft_ns=(sample.ttft_ns or 0) if sample else 0,
        e2e_ns=(sample.e2e_ns or 0) if sample else 0,
        error="" if outcome == "ok" else f"{outcome}: {row.get('error') or ''}",
    )


_BY_THE_SERVER = "by the counters of the server or its answers; null where it tells neither"
KEYS: Sequence[Column[BenchRun]] = (
    Column("date", "UTC time of this result", lambda _: datetime.now(UTC).strftime("%Y%m%d-%H%M%S")),
    Column("endpoint_type", "endpoints of the traffic", BenchRun.endpoints),
    Column("backend", "dialect of the server", lambda r: r.verdict.target.dialect),
    Column("label", "`--label`; else null", lambda _: None),
    Column("model_id", "model of the server", lambda r: r.verdict.target.model),
    Column("tokenizer_id", "null", lambda _: None),
    Column("request_rate", "null where a profile has several phases, or others sent the requests", BenchRun.rate_per_s),
    Column("burstiness", "null where a profile has several phases", BenchRun.burstiness),
    Column(
        "max_concurrency",
        "users or most requests in flight; null where a profile has several phases, or others sent the requests",
        BenchRun.asked_in_flight,
    ),
    Column("loadchaos_run", "folder of the run", lambda r: str(r.folder.path.resolve())),
    Column("loadchaos_verdict", "the verdict", lambda r: r.verdict.verdict),
    Column("loadchaos_outcomes", "requests by [outcome](../outcomes.md)", lambda r: dict(r.verdict.outcomes)),
    Column("duration", "seconds from the first request to the last end", lambda r: r.throughput.seconds),
    Column("num_prompts", "requests of the load", lambda r: r.due),
    Column("completed", "requests with the outcome `ok`", lambda r: r.completed),
    Column(
        "failed", "all others; vllm bench counts streams that break off as completed", lambda r: r.due - r.completed
    ),
    Column("spec_decode_acceptance_rate", f"in per cent, {_BY_THE_SERVER}", BenchRun.acceptance_rate),
    Column("spec_decode_draft_tokens", _BY_THE_SERVER, lambda r: r.efficiency.drafted_tokens),
    Column("spec_decode_accepted_tokens", _BY_THE_SERVER, lambda r: r.efficiency.accepted_tokens),
    Column("prefix_hit_rate", _BY_THE_SERVER, lambda r: r.efficiency.prefix_hit_rate),
    Column("joules_per_output_token", "null: no power is watched", lambda r: r.efficiency.joules_per_output_token),
    Column("warm_up_requests", "requests that no figure counts", BenchRun.warm_up_requests),
    Column("total_input_tokens", "sum of `usage`; null if an answer had none", lambda r: r.throughput.input_tokens),
    Column("total_output_tokens", "the same of output tokens", lambda r: r.throughput.output_tokens),
    Column("request_throughput", "completed requests per second of `duration`", lambda r: r.throughput.requests_per_s),
    Column("request_goodput", "requests within every limit per second; null without `--goodput`", BenchRun.goodput),
    Column("output_throughput", "output tokens per second of `duration`", lambda r: r.throughput.output_tokens_per_s),
    Column("total_token_throughput", "input and output tokens per second of `duration`", BenchRun.tokens_per_s),
    Column("max_concurrent_requests", "most requests in flight at one time", BenchRun.most_in_flight),
)
"""Keys of a result; those of `_statistics` follow."""

DETAILED: Sequence[Column[BenchRequest]] = (
    Column("input_lens", "prompt tokens as the server counted them, else as planned", lambda q: q.input_tokens),
    Column("output_lens", "completion tokens; 0 of a request that failed", lambda q: q.output_tokens),
    Column("ttfts", "TTFT in seconds, or 0", lambda q: q.ttft_ns / NS_PER_S),
    Column("latencies", "E2E in seconds, or 0", lambda q: q.e2e_ns / NS_PER_S),
    Column("start_times", "seconds from the first send", lambda q: round(q.sent_ns / NS_PER_S, 6)),
    Column("errors", "outcome and error; empty of an `ok` one", lambda q: q.error),
)
"""Lists with a value for each request, in the order of the plan."""


def result(
    folder: RunFolder, verdict: Verdict, figures: BenchFigures, say: progress.Say | None = None
) -> dict[str, object]:
    run = BenchRun(folder, verdict, detailed=figures.detailed)
    for row in progress.rows(Reader(folder, fits_its_kind).new(final=True), "the result of the requests", say):
        run.fold(row)
    run.figures.requests.finish()
    found: dict[str, object] = {key.name: key.read(run) for key in KEYS}
    for metric in figures.metrics:
        found.update(_statistics(metric, run.figures, figures.percentiles))
    if void := run.figures.answers.all_latency().void():
        found["void"] = void
    first_ns = min((request.sent_ns for request in run.requests), default=0)
    in_order = sorted(run.requests, key=lambda request: request.step)
    if requests := [replace(request, sent_ns=request.sent_ns - first_ns) for request in in_order]:
        found |= {column.name: [column.read(request) for request in requests] for column in DETAILED}
    return found


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
        yield f"{name}_{metric}_ms", None if value is None else round(value / NS_PER_MS, 4)


def text(found: Mapping[str, object], figures: BenchFigures) -> str:
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
    void = found.get("void") or {}
    assert isinstance(void, dict)
    for metric in figures.metrics:
        shown = {"Mean": "mean", "Median": "median", **{f"P{p:g}": f"p{p:g}" for p in figures.percentiles}}
        head = latency_head(metric, void=metric in void)
        rows += [(f"{word} {head} (ms)", found[f"{key}_{metric}_ms"]) for word, key in shown.items()]
    return "\n".join([*lines, *(f"  {label + ':':34} {_figure(value)}" for label, value in rows)])


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else "unknown"


def file_name(found: Mapping[str, object]) -> str:
    model = str(found["model_id"] or "model").rsplit("/", 1)[-1]
    label = found["label"] or str(found["endpoint_type"]).replace(" ", "-")
    rate, users = found["request_rate"], found["max_concurrency"]
    limit = f"-concurrency{users}" if users is not None else ""
    return f"{label}-{f'{rate:g}' if isinstance(rate, float) else 'inf'}qps{limit}-{model}-{found['date']}.json"


def save(found: Mapping[str, object], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    except OSError as e:
        raise OptionError(f"{path}: {e.strerror}; give --result-dir a folder that can be written") from e
