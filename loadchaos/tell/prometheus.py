"""/metrics for Prometheus, folded from the ledger's rows, so that its totals are the ledger's totals.

Labels are ids and names out of fixed or bounded sets, never texts: at most TRAFFICS kinds of traffic (the rest add up
as `other`), REPLICAS replicas and IDS failure ids. Histograms have vLLM's own bounds (fold.py). Times and sizes carry
their unit in the name, as Prometheus asks for; the server's own numbers have one name over dialects and versions.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from loadchaos.errors import OptionError
from loadchaos.model import STATES
from loadchaos.tell.fold import Bounded, Fold, Traffic

TRAFFICS, REPLICAS, IDS, SERVER_NAMES = 12, 32, 100, 64
_NS = 1_000_000_000
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")

# Server metrics that have a sentence of their own; others are exported with a general one.
_SERVER_HELP = {
    "requests_running": "Requests the server computes", "requests_waiting": "Requests in the server's queue",
    "kv_usage_ratio": "Share of the KV cache in use, 0 to 1",
    "prompt_tokens_total": "Prompt tokens the server says it processed",
    "generation_tokens_total": "Tokens the server says it generated",
    "preemptions_total": "Requests the server put back for want of KV cache",
    "process_start_time_s": "When the server's process started, Unix time",
    "process_rss_bytes": "Resident memory of the server's process",
}  # fmt: skip


class FoldCollector(Collector):
    """Turns a Fold into metric families at each scrape; `lock` keeps feeding and scraping apart."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """Every family, with the numbers as of now."""
        with self.lock:
            traffic = _bounded_traffic(self.fold)
            return [
                *_requests(traffic), *_latencies(traffic), *_states(self.fold), *_findings(self.fold),
                *_attacks(self.fold), *_generator(self.fold), *_run(self.fold), *_server(self.fold),
            ]  # fmt: skip

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families depend on what the server has, and no other collector shares the registry."""
        return []


class Exporter:
    """Serves /metrics on `address`:`port` (0: a free one); `port` then says which. OptionError where it is in use."""

    def __init__(self, fold: Fold, port: int, address: str = "127.0.0.1") -> None:
        self.collector = FoldCollector(fold)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self.collector)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except (OSError, OverflowError) as e:  # OverflowError: no port number at all
            raise OptionError(
                f"the metrics exporter cannot listen on {address}:{port}: {e}; "
                "another run may be using it: choose one with --exporter-port, 0 for any free one"
            ) from e
        self.port = int(self._server.server_port)

    @property
    def lock(self) -> threading.Lock:
        """Hold it while feeding the Fold."""
        return self.collector.lock

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)


def _bounded_traffic(fold: Fold) -> list[tuple[str, list[Traffic]]]:
    """The first kinds of traffic by name, the later ones together: which is which never changes during a run."""
    names = list(fold.traffic)
    groups = [(name, [fold.traffic[name]]) for name in names[:TRAFFICS]]
    rest = [fold.traffic[name] for name in names[TRAFFICS:]]
    return [*groups, ("other", rest)] if rest else groups


def _requests(traffic: list[tuple[str, list[Traffic]]]) -> Iterator[Metric]:
    done = CounterMetricFamily(
        "loadchaos_requests", "Requests by outcome; missed ones were due and never sent", labels=["traffic", "outcome"]
    )
    begun = CounterMetricFamily("loadchaos_requests_begun", "Requests sent", labels=["traffic"])
    flying = GaugeMetricFamily("loadchaos_requests_in_flight", "Requests sent and not ended", labels=["traffic"])
    tokens = CounterMetricFamily("loadchaos_prompt_tokens_sent", "Prompt tokens sent, as planned", labels=["traffic"])
    images = CounterMetricFamily("loadchaos_images_sent", "Images sent", labels=["traffic"])
    received = CounterMetricFamily("loadchaos_completion_tokens", "Tokens of ended answers", labels=["traffic"])
    for name, group in traffic:
        outcomes: Counter[str] = Counter()
        for t in group:
            outcomes.update(t.outcomes)
        for outcome, n in sorted(outcomes.items()):
            done.add_metric([name, outcome], n)
        begun.add_metric([name], sum(t.begun for t in group))
        flying.add_metric([name], sum(t.in_flight for t in group))
        tokens.add_metric([name], sum(t.tokens_in for t in group))
        images.add_metric([name], sum(t.images for t in group))
        received.add_metric([name], sum(t.tokens_out for t in group))
    yield from (done, begun, flying, tokens, images, received)


def _latencies(traffic: list[tuple[str, list[Traffic]]]) -> Iterator[Metric]:
    for kind, text in (
        ("ttft", "Time to first token of answered requests, from the time they were due"),
        ("itl", "Gaps between the chunks of answered requests"),
        ("e2e", "Time to the last byte of answered requests, from the time they were due"),
    ):
        family = HistogramMetricFamily(f"loadchaos_{kind}_seconds", text, labels=["traffic"])
        for name, group in traffic:
            parts = [t.bounded[kind] for t in group]
            family.add_metric([name], _cumulative(parts), sum(p.sum_s for p in parts))
        yield family


def _cumulative(parts: list[Bounded]) -> list[Any]:
    """Prometheus' buckets: each counts everything below its bound; with the newest request id as exemplar."""
    total, buckets = 0, list[Any]()
    bounds = [str(float(b)) for b in parts[0].bounds] + ["+Inf"]
    for i, bound in enumerate(bounds):
        total += sum(p.counts[i] for p in parts)
        found = next((p.exemplars[i] for p in parts if i in p.exemplars), None)
        exemplar = Exemplar({"request_id": found[0]}, found[1]) if found else None
        buckets.append((bound, total, exemplar))
    return buckets


def _states(fold: Fold) -> Iterator[Metric]:
    family = GaugeMetricFamily("loadchaos_server_state", "1 for the state a replica is in", labels=["replica", "state"])
    for replica, state in islice(fold.states.items(), REPLICAS):
        for name in STATES:
            family.add_metric([replica, name], 1 if state.state == name else 0)
    yield family


def _findings(fold: Fold) -> Iterator[Metric]:
    failures = CounterMetricFamily(
        "loadchaos_failures", "Failures by signature", labels=["id", "severity", "attribution"]
    )
    counts: Counter[tuple[str, str, str]] = Counter()
    for n, f in enumerate(fold.all_failures()):
        known = str(f.get("id")) if n < IDS else "other"
        counts[known, str(f.get("severity")), str(f.get("attribution") or "server")] += int(f.get("count") or 1)
    for labels, count in counts.items():
        failures.add_metric(labels, count)
    incidents = CounterMetricFamily("loadchaos_incidents", "Incidents opened")
    incidents.add_metric([], len(fold.incidents))
    yield from (failures, incidents)


def _attacks(fold: Fold) -> Iterator[Metric]:
    done = CounterMetricFamily("loadchaos_attacks", "Attacks by result", labels=["attack", "result"])
    for (name, result), n in fold.attacks.items():
        done.add_metric([name, result], n)
    force = GaugeMetricFamily("loadchaos_attacks_in_force", "Attacks begun and not ended", labels=["attack"])
    in_force = Counter(a.name for a in fold.in_force.values())
    for name in sorted({n for n, _ in fold.attacks} | set(in_force)):
        force.add_metric([name], in_force[name])
    yield from (done, force)


def _generator(fold: Fold) -> Iterator[Metric]:
    users = GaugeMetricFamily("loadchaos_users", "Users (slots) of the load generator")
    users.add_metric([], sum(int(w.get("users") or 0) for w in fold.workers.values()))
    lag = GaugeMetricFamily("loadchaos_generator_lag_seconds", "How late a worker sends", labels=["worker"])
    silence = GaugeMetricFamily("loadchaos_oldest_silence_seconds", "Longest wait for a byte now", labels=["worker"])
    for file, beat in fold.workers.items():
        worker = file.removeprefix("requests-").removesuffix(".jsonl")
        lag.add_metric([worker], int(beat.get("lag_ns") or 0) / _NS)
        silence.add_metric([worker], int(beat.get("oldest_silence_ns") or 0) / _NS)
    gaps = CounterMetricFamily("loadchaos_watch_gap_seconds", "Time a watcher saw nothing", labels=["source"])
    for source, gap in fold.gaps_s.items():
        gaps.add_metric([source], gap)
    yield from (users, lag, silence, gaps)


def _run(fold: Fold) -> Iterator[Metric]:
    target = fold.run.get("target") or {}
    info = GaugeMetricFamily("loadchaos_run_info", "What runs; always 1", labels=["profile", "target_kind", "version"])
    info.add_metric(
        [str(fold.run.get("profile", "")), str(target.get("kind", "")), str(fold.run.get("version", ""))], 1
    )
    running = GaugeMetricFamily("loadchaos_load_running", "1 while load is sent")
    running.add_metric([], 1 if fold.load_begin_ns is not None and fold.load_end_ns is None else 0)
    yield from (info, running)


def _server(fold: Fold) -> Iterator[Metric]:
    fresh = dict(islice(fold.fresh_server().items(), REPLICAS))
    names = sorted({n for values in fresh.values() for n in values if _NAME.fullmatch(n)})[:SERVER_NAMES]
    for name in names:
        help_text = _SERVER_HELP.get(name, "As the server says it, under one name over dialects and versions")
        full = "loadchaos_server_" + re.sub(r"_s$", "_seconds", name)
        family: CounterMetricFamily | GaugeMetricFamily
        if name.endswith("_total"):
            family = CounterMetricFamily(full, help_text, labels=["replica", "engine"])
        else:
            family = GaugeMetricFamily(full, help_text, labels=["replica", "engine"])
        for labels, values in fresh.items():
            if name in values:
                family.add_metric(labels, values[name])
        yield family
