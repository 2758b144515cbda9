"""Serve /metrics for Prometheus, folded from ledger rows, with the totals of the ledger. metric_table.py has the names,
labels and limits. Histograms have vLLM's own bounds (live.py). A server metric has one name for all dialects and
versions.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loadchaos.analysis.figures.answer_labels import sum_of_labels
from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.requests import TrafficFigures
from loadchaos.core.answer_labels import OTHER
from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.rows import ConversationEnd, MissReason
from loadchaos.core.model import OUTCOMES, SERVER_ROLES, STATES
from loadchaos.core.units import NS_PER_S
from loadchaos.report.metrics.metric_table import (
    ATTACKS,
    FAILURES,
    GAP_SOURCES,
    INCIDENTS,
    REPLICAS,
    SERIES_BESIDE,
    TRAFFICS,
)
from loadchaos.report.metrics.sample_page import SamplePage
from loadchaos.report.phrases import issue_path

DEFAULT_PORT = 9646
_ADDRESS = "127.0.0.1"
LAST_SCRAPE_S = 5.0
"""An exporter waits this long for one more scrape before it closes, where Prometheus scrapes that often."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_SERVER_NAMES = 40
# Reserved for all other series, so that the number of engines with series of their own never shrinks in a run.
_RESERVED = 34 + INCIDENTS + FAILURES + 6 + (ATTACKS + 1) * 4
_PER_REPLICA = len(STATES) + 4


class PageCollector(Collector):
    """Gives a page of metrics at each scrape. `lock` separates changes of the page's source from scraping."""

    def __init__(self, page: Callable[[], list[Metric]]) -> None:
        self._page = page
        self.lock = threading.Lock()
        self.scraped_s: list[float] = []  # time.monotonic at which the last two scrapes began
        self._scraped = threading.Condition()

    def collect(self) -> Iterable[Metric]:
        with self.lock:
            return self._page()

    def sent(self, began_s: float) -> None:
        """Note that the page requested at `began_s` was sent completely."""
        with self._scraped:
            self.scraped_s = [*self.scraped_s[-1:], began_s]
            self._scraped.notify_all()

    def describe(self) -> Iterable[Metric]:
        """Describe nothing in advance: the families depend on the server, and the registry has no other collector."""
        return []

    def wait_for_scrape(self, limit_s: float) -> bool:
        """Wait up to `limit_s` for the next scrape, if scrapes are frequent."""
        now = time.monotonic()
        with self._scraped:
            before = self.scraped_s
            if len(before) < 2 or before[1] - before[0] > limit_s or now - before[1] > limit_s:
                return False
            return self._scraped.wait_for(lambda: self.scraped_s[-1] > now, limit_s)


class LiveCollector(PageCollector):
    """Turns LiveFigures into metric families at each scrape."""

    def __init__(self, live: LiveFigures, run: str = "") -> None:
        super().__init__(lambda: families(live, run))
        self.live = live


class _PageBody:
    """Response body that calls `sent` once it was written completely. It does not call it if the scraper hung up."""

    def __init__(self, parts: Sequence[bytes], sent: Callable[[], None]) -> None:
        self._parts, self._sent = parts, sent

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        self._sent()

    def __len__(self) -> int:  # wsgiref takes the Content-Length from it
        return len(self._parts)


class Exporter:
    """Serves /metrics on the loopback; port 0 takes a free one, "default" `DEFAULT_PORT` or a free one. Raises
    OptionError where the port is in use.
    """

    def __init__(self, collector: PageCollector, port: int | Literal["default"]) -> None:
        self.collector = collector
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self.collector)
        if port == "default":
            with contextlib.suppress(OSError):
                self._listen(DEFAULT_PORT, registry)
                return
            port = 0
        try:
            self._listen(port, registry)
        except (OSError, OverflowError) as e:  # OverflowError: no port number at all
            raise OptionError(
                f"the metrics exporter cannot listen on {_ADDRESS}:{port}: {e}; "
                "another run may be using it: choose one with --exporter-port, 0 for any free one"
            ) from e

    def _listen(self, port: int, registry: CollectorRegistry) -> None:
        self._server, self._thread = start_http_server(port, _ADDRESS, registry)
        self._page: Any = self._server.get_app()
        self._server.set_app(self._counted)
        self.port = int(self._server.server_port)

    def _counted(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        began_s = time.monotonic()
        return _PageBody(self._page(environ, start_response), lambda: self.collector.sent(began_s))

    @property
    def lock(self) -> threading.Lock:
        return self.collector.lock

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)


def families(live: LiveFigures, run: str, now_ns: int | None = None) -> list[Metric]:
    """Build all families of the page as of `now_ns` (default: the newest row)."""
    page, figures = SamplePage(run), live.figures
    goodput = figures.goodput.parts()
    for name, group in _bounded_traffic(list(figures.requests.traffic)):
        _requests(page, name, [figures.requests.traffic[traffic] for traffic in group])
        for label, values in sum_of_labels(figures.labels.by_traffic.get(t, {}) for t in group).items():
            for value, count in values.items():
                page.add("loadchaos_answers", [name, label, value], count)
        if name in figures.endpoints and group == [name]:
            page.add("loadchaos_traffic_info", [name, figures.endpoints[name]], 1)
        if figures.slo_s:
            parts = [goodput[traffic] for traffic in group if traffic in goodput]
            page.add("loadchaos_slo_requests", [name], sum(part.whole for part in parts))
            page.add("loadchaos_slo_good_requests", [name], sum(part.n for part in parts))
        bounded = [live.bounded[traffic] for traffic in group]
        sessions = [figures.sessions.by_traffic[traffic] for traffic in group if traffic in figures.sessions.by_traffic]
        if sessions:
            _sessions(page, name, sessions)
            page.histogram("loadchaos_session_e2e_seconds", [name], [b.sessions for b in bounded])
        for kind in ("ttft", "itl", "tpot", "e2e"):
            page.histogram(f"loadchaos_{kind}_seconds", [name], [b.latency[kind] for b in bounded])
    _states(page, live)
    _findings(page, live)
    _attacks(page, live)
    _generator(page, live)
    _devices(page, live)
    _run(page, live)
    _server(page, live, now_ns)
    return page.families()


def _bounded_traffic(names: list[str]) -> list[tuple[str, list[str]]]:
    """Group traffic: the first kinds by name, later ones together. The grouping never changes during a run."""
    groups = [(name, [name]) for name in names[:TRAFFICS]]
    return [*groups, (OTHER, names[TRAFFICS:])] if len(names) > TRAFFICS else groups


def _requests(page: SamplePage, name: str, group: list[TrafficFigures]) -> None:
    outcomes: Counter[str] = Counter()
    for t in group:
        outcomes.update(t.outcomes)
    # All outcomes, also those at 0: else a rate would begin with the second request.
    for outcome in OUTCOMES:
        page.add("loadchaos_requests", [name, outcome], outcomes[outcome])
    sent = sum(t.begun for t in group)
    page.add("loadchaos_arrivals_due", [name], sent + outcomes["missed"])
    page.add("loadchaos_arrivals_sent", [name], sent)
    page.add("loadchaos_requests_in_flight", [name], sum(t.in_flight for t in group))
    page.add("loadchaos_prompt_tokens_sent", [name], sum(t.planned_tokens for t in group))
    page.add("loadchaos_prompt_tokens_counted", [name], sum(t.prompt_tokens for t in group))
    page.add("loadchaos_completion_tokens", [name], sum(t.completion_tokens for t in group))
    page.add("loadchaos_images_sent", [name], sum(t.images for t in group))
    page.add("loadchaos_images_answered", [name], sum(t.images_answered for t in group))


_TURNS = {"answered": "turns", "lost": "turns_lost", "cut": "turns_cut", "left": "turns_left"}


def _sessions(page: SamplePage, name: str, group: list[Counter[str]]) -> None:
    page.add("loadchaos_sessions_begun", [name], sum(s["sessions"] for s in group))
    # All ends and results, also those at 0: else a rate would begin with the second one.
    for end in get_args(ConversationEnd):
        page.add("loadchaos_sessions_ended", [name, end], sum(s[end] for s in group))
    for result, count in _TURNS.items():
        page.add("loadchaos_session_turns", [name, result], sum(s[count] for s in group))
    for result, count in (("ok", "tool_calls"), ("bad", "bad_calls")):
        page.add("loadchaos_session_tool_calls", [name, result], sum(s[count] for s in group))


def _states(page: SamplePage, live: LiveFigures) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    names = list(live.states)
    for i, name in enumerate(names):
        counts[name if i < REPLICAS else OTHER, live.states[name].state] += 1
    for name in dict.fromkeys(replica for replica, _ in counts):
        for state in STATES:
            page.add("loadchaos_server_state", [name, state], counts[name, state])
    memory: Counter[tuple[str, str]] = Counter()
    for (replica, _), (role, rss) in live.processes.items():
        if replica not in live.states:  # its first state row comes a moment later: it would be `other` until then
            continue
        shown = replica if replica in names[:REPLICAS] else OTHER
        memory[shown, role if role in SERVER_ROLES else "other"] += rss
    for labels, rss in memory.items():
        page.add("loadchaos_process_resident_bytes", labels, rss)


def _findings(page: SamplePage, live: LiveFigures) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    wrong = 0
    # Only named failures: an open death can change its id, and a counter must not disappear.
    for n, f in enumerate(live.failures.values()):
        # Beyond the limit only the severity is kept: six more series at most.
        counts[(f.id, f.severity, f.attribution) if n < FAILURES else (OTHER, f.severity, OTHER)] += f.count
        if f.wrong_answers is not None:
            wrong += f.count
    for labels, count in counts.items():
        page.add("loadchaos_failures", labels, count)
    page.add("loadchaos_wrong_answers", [], wrong)
    page.add("loadchaos_incidents", [], len(live.incidents))
    for i in list(live.incidents.values())[:INCIDENTS]:
        issue = issue_path(i.known[0].issue) if i.known else ""
        page.add("loadchaos_incident_open", (f"{i.n:03d}", i.id, i.severity or "", issue), 1 if i.open else 0)


def _attacks(page: SamplePage, live: LiveFigures) -> None:
    in_force = Counter(a.name for a in live.in_force.values())
    names = list(dict.fromkeys([*live.terms.attacks, *(n for n, _ in live.attacks), *in_force]))
    shown = {name: name if i < ATTACKS else OTHER for i, name in enumerate(names)}
    done: Counter[tuple[str, str]] = Counter()
    force: Counter[str] = Counter()
    for (name, result), n in live.attacks.items():
        done[shown[name], result] += n
    for name, n in in_force.items():
        force[shown[name]] += n
    # Planned attacks are 0 from the start: else Prometheus would see no increase for the first one.
    for name in dict.fromkeys(shown.values()):
        for result in ("ok", "failed", "skipped"):
            page.add("loadchaos_attacks", [name, result], done[name, result])
        page.add("loadchaos_attacks_in_force", [name], force[name])


def _generator(page: SamplePage, live: LiveFigures) -> None:
    requests = live.figures.requests
    whys: Counter[str] = Counter(dict.fromkeys(get_args(MissReason), 0))
    for why, n in requests.missed.items():
        whys[why if why in get_args(MissReason) else OTHER] += n
    for why, n in whys.items():
        page.add("loadchaos_arrivals_missed", [why], n)
    beats = list(live.workers.values())
    page.add("loadchaos_users", [], sum(int(w.get("users") or 0) for w in beats))
    page.add("loadchaos_workers", [], len(beats))
    lag_ns = max((w["lag_ns"] for w in beats), default=0)
    silence_ns = max((w.get("oldest_silence_ns") or 0 for w in beats), default=0)
    page.add("loadchaos_generator_lag_seconds", [], lag_ns / NS_PER_S)
    page.add("loadchaos_oldest_silence_seconds", [], silence_ns / NS_PER_S)
    stall = live.figures.stalls.longest
    page.add("loadchaos_longest_stall_seconds", [], stall.seconds if stall is not None else 0)
    page.summary("loadchaos_send_lag_seconds", [], requests.begun, requests.send_lag_ns / NS_PER_S)
    gaps: dict[str, float] = defaultdict(float)
    for n, (source, gap) in enumerate(live.gaps_s.items()):
        gaps[source if n < GAP_SOURCES - 1 else OTHER] += gap
    for source, gap in gaps.items():
        page.add("loadchaos_watch_gap_seconds", [source], gap)


_DEVICE_METRICS: Mapping[str, tuple[str, Callable[[Iterable[float]], float]]] = {
    "loadchaos_gpu_memory_used_bytes": ("gpu_memory_used_bytes", sum),
    "loadchaos_gpu_memory_free_bytes": ("gpu_memory_free_bytes", sum),
    "loadchaos_gpu_utilisation_ratio": ("gpu_utilisation_ratio", max),
    "loadchaos_gpu_temperature_celsius": ("gpu_temperature_c", max),
    "loadchaos_gpu_power_watts": ("gpu_power_w", sum),
    "loadchaos_gpu_xids": ("gpu_xids_total", sum),
    "loadchaos_host_memory_available_bytes": ("host_memory_available_bytes", min),
    "loadchaos_host_oom_kills": ("host_oom_kills_total", sum),
}


def _devices(page: SamplePage, live: LiveFigures) -> None:
    """Add device metrics over all hosts. Series per GPU come from the GPU exporter itself."""
    for name, (key, aggregate) in _DEVICE_METRICS.items():
        values = [v[key] for v in live.devices.values() if key in v]
        if values:
            page.add(name, [], aggregate(values))


def _run(page: SamplePage, live: LiveFigures) -> None:
    run = live.run
    page.add("loadchaos_run_info", [run.profile or "", run.target.kind if run.target else "", run.version or ""], 1)
    page.add("loadchaos_load_running", [], 1 if live.load_begin_ns is not None and live.load_end_ns is None else 0)
    page.add("loadchaos_load_paused", [], 1 if live.gate else 0)
    for name in ("first_byte", "between_bytes", "total"):
        if name in live.terms.limits:
            page.add("loadchaos_limit_seconds", [name], live.terms.limits[name])


def _server(page: SamplePage, live: LiveFigures, now_ns: int | None) -> None:
    # By all engines seen in this run, not by those alive now: an engine keeps its label when another dies.
    engines = list(live.server)
    names = sorted({n for values in live.server.values() for n in values if _NAME.fullmatch(n)})[:_SERVER_NAMES]
    available = SERIES_BESIDE - _RESERVED - _PER_REPLICA * min(max(len(live.states), 1), REPLICAS + 1)
    most = max(1, available // max(1, len(names)))
    kept = engines if len(engines) <= most else engines[: most - 1]
    rest: dict[str, list[float]] = defaultdict(list)
    for labels, values in live.fresh_server(now_ns).items():
        for name in names:
            if name not in values:
                continue
            if labels in kept:
                page.server(name, labels, values[name])
            else:
                rest[name].append(values[name])
    for name, several in rest.items():
        aggregate = sum if name.endswith("_total") or name.startswith("requests_") else max
        page.server(name, (OTHER, OTHER), aggregate(several))
