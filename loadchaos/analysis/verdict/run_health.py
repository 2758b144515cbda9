"""Check the run itself: complete, monitored, load delivered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from loadchaos.analysis.figures.requests import RequestStats
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.verdict.model import CheckResult, Generator
from loadchaos.core.histogram import LogHistogram
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    BeginRow,
    CommandRow,
    DiskRow,
    GapRow,
    HeaderRow,
    HeartbeatRow,
    HostRow,
    LoadRow,
    LocustRow,
    LogLoss,
    LogRow,
    MetricsRow,
    PreflightRow,
    ProbeRow,
    RunRow,
    StreamReader,
    WorkerRow,
)
from loadchaos.core.model import KERNEL_LOG, REPLACED, Decision, Row, Terms, is_unlike
from loadchaos.core.units import NS_PER_S, counted, iso_utc, seconds_of

PROOF = ("run", "requests_sent", "load_process", "ledger", "watching")
"""Checks that have to pass for a run without a failure to prove anything."""
_MOST_FITTED = 20
_NUMBER = re.compile(r"\d+")
_PROBE_GAP_S = 30.0
_GAP_S = 10.0
_LOST_TEXTS: Mapping[str, LogLoss] = {
    "could not be written": "certain", "dropped": "certain", "not recorded": "certain", "lines may be lost": "possible",
}  # fmt: skip
"""Texts in the `why` of log gaps of older run folders, whose rows have no `loss`."""
_MOST_BY_HAND = 50
_GAP_SHARE = 0.05
_DELIVERED = 0.95
_SHED = 0.01
_RETRIES = 0.005
_FEW_RETRIES = 2
"""So many are allowed in a run of any length: one in a short run is above every share."""
_MOST_EVENTS = 50
_STEAL = _THROTTLED = 0.05
_SWAPPED_BYTES = 64 * 2**20
_BUSY, _OTHERS = 0.9, 0.1
_WORKER_EVENTS = {
    "lost": "was lost", "back": "came back", "slow": "was slow", "late": "joined too late", "absent": "never joined",
    "refused": "was refused", "failed": "failed",
}  # fmt: skip


@dataclass
class _Gap:
    source: str
    begin_ns: int
    end_ns: int
    why: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / NS_PER_S


class RunHealth(RowFold):
    """Checks of the run itself, from its run, worker and probe rows."""

    def __init__(self) -> None:
        self.begin: dict[str, Any] = {}
        self.end: Row | None = None
        self.begin_ns: int | None = None
        self.load_begin_ns: int | None = None
        self.load_end_ns: int | None = None
        self.first_sent_ns: int | None = None
        self.interrupted: str | None = None
        self.shortened = False
        self._aborted: str | None = None
        self._cut: str | None = None
        self._backed_off: dict[str, int] = {}  # by worker's file
        self.newest_ns = 0
        self.lag = LogHistogram()
        self.cpu_share = 0.0
        self._anchor: tuple[int, int] | None = None
        self._workers: dict[str, str] = {}
        self._locust_exit: int | None = None
        self._last_probe_ns: int | None = None
        self._longest_gap: tuple[float, int] = (0.0, 0)
        self._probes = self._scrapes = 0
        self._served: dict[str, tuple[float, float]] = {}  # by engine: first and newest count of tokens
        self._seen_running = False
        self._begun: Counter[str] = Counter()
        self._replaced: Counter[str] = Counter()
        self._fitted: Counter[tuple[str, str]] = Counter()
        self._unlike: Counter[str] = Counter()  # requests that are not as asked, by traffic
        self._fitted_as: dict[tuple[str, str], str] = {}
        self._log_loss = ""
        self._log_lines: Counter[str] = Counter()  # by the file of each log that is followed
        self._gaps: list[_Gap] = []
        self._newest_gap: dict[tuple[str, str], _Gap] = {}  # by replica and source
        self._log_lost = ""
        self._preflight: list[Row] = []
        self._worker_events: Counter[str] = Counter()
        self._absent = False
        self._not_read: Counter[str] = Counter()
        self.reported: Mapping[str, Any] | None = None  # by the command of a watch
        self._command_code: int | None = None
        self._reader: StreamReader | None = None
        self._command_cut = False
        self.by_hand: list[str] = []  # actions in the web UI: such a run differs from its profile
        self._disk: list[str] = []
        self._host: list[HostRow] = []  # while the load ran

    def move_clock(self, row: Row) -> None:
        self.newest_ns = max(self.newest_ns, int(row.get("at_ns") or 0))

    def utc(self, ns: int | None) -> str | None:
        """ISO 8601 UTC of a monotonic time; None without a time or anchor."""
        unix_s = self.unix_s(ns)
        return None if unix_s is None else iso_utc(unix_s)

    def unix_s(self, ns: int | None) -> float | None:
        return None if ns is None or self._anchor is None else (self._anchor[1] + ns - self._anchor[0]) / NS_PER_S

    def on_header(self, row: HeaderRow) -> None:
        if self._anchor is None and row.get("mono_ns") is not None and row.get("utc_ns") is not None:
            self._anchor = (int(row["mono_ns"]), int(row["utc_ns"]))

    def on_run(self, row: RunRow) -> None:
        what, at_ns = row.get("what"), int(row["at_ns"])
        if what == "begin":
            self.begin, self.begin_ns = dict(row), at_ns
        elif what == "load_begin":
            self.load_begin_ns = at_ns
        elif what == "load_end":
            self.load_end_ns = at_ns
            self._probe_gap(at_ns)
            self.shortened = bool(row.get("shortened"))
            self._aborted, self._cut = row.get("aborted"), row.get("cut")
        elif what == "interrupted":
            self.interrupted = str(row.get("why") or row.get("signal") or "a signal")
        elif what == "end":
            self.end = row

    def on_command(self, row: CommandRow) -> None:
        if row.get("ok") and len(self.by_hand) < _MOST_BY_HAND:
            self.by_hand.append(f"{self._at(int(row['at_ns']))}: {row.get('text')}")

    def on_disk(self, row: DiskRow) -> None:
        if len(self._disk) < _MOST_BY_HAND:
            self._disk.append(f"{self._at(int(row['at_ns']))}: {row.get('text')}")

    def on_load(self, row: LoadRow) -> None:
        self._workers[str(row.get("file", row.get("worker", "")))] = str(row.get("what"))
        if (reader := row.get("reader")) and self._reader != "python":
            self._reader = reader
        self._not_read = Counter(row.get("not_read") or {})
        self.reported = row.get("reported")
        self._command_code, self._command_cut = row.get("code"), row.get("why") == "stopped"

    def on_worker(self, row: WorkerRow) -> None:
        who = f"worker {row.get('worker')}" if row.get("worker") is not None else "a worker"
        if row.get("host"):
            who += f" on {row['host']}"
        self._absent = self._absent or row.get("what") == "absent"
        if row.get("what") in _WORKER_EVENTS and len(self._worker_events) < _MOST_EVENTS:
            self._worker_events[f"{who} {_WORKER_EVENTS[str(row['what'])]}"] += 1

    def on_locust(self, row: LocustRow) -> None:
        if row.get("what") == "exit":
            code = row.get("code")
            self._locust_exit = int(code) if code is not None else -1

    def on_probe(self, row: ProbeRow) -> None:
        self._probes += 1
        self._probe_gap(int(row["at_ns"]))
        self._last_probe_ns = int(row["at_ns"])

    def on_metrics(self, row: MetricsRow) -> None:
        self._scrapes += 1
        values = row.get("values") or {}
        self._seen_running |= values.get("requests_running", 0) > 0
        if (tokens := values.get("generation_tokens_total")) is not None:
            engine = f"{row.get('replica')} {row.get('engine')}"
            self._served[engine] = (self._served.get(engine, (tokens, 0))[0], tokens)

    def _probe_gap(self, at_ns: int) -> None:
        if self.load_begin_ns is None or (self.load_end_ns is not None and at_ns > self.load_end_ns):
            return
        since_ns = max(self._last_probe_ns or self.load_begin_ns, self.load_begin_ns)
        if (at_ns - since_ns) / NS_PER_S > self._longest_gap[0]:
            self._longest_gap = ((at_ns - since_ns) / NS_PER_S, since_ns)

    def on_gap(self, row: GapRow) -> None:
        loss, why = _log_loss(row), str(row.get("why") or "")
        if loss == "certain":
            self._log_lost = self._log_lost or why
        elif loss == "possible":
            self._log_loss = self._log_loss or why
        source, replica, at_ns = str(row.get("source")), str(row.get("replica") or ""), int(row["at_ns"])
        begin_ns = at_ns - round(float(row.get("seconds") or 0) * NS_PER_S)
        known = self._newest_gap.get((replica, source))
        if known is not None and begin_ns <= known.end_ns:  # a long gap has several rows, with its length so far
            known.end_ns = max(known.end_ns, at_ns)
        elif len(self._gaps) < 10_000:
            self._newest_gap[replica, source] = gap = _Gap(source, begin_ns, at_ns, why if why != "over" else "")
            self._gaps.append(gap)

    def on_host(self, row: HostRow) -> None:
        if self.load_begin_ns is not None and self.load_end_ns is None:
            self._host.append(row)

    def host(self) -> tuple[str, ...]:
        """Say what took CPU time from our own processes while the load ran; empty where nothing did, or nobody knows."""
        if not (seconds := sum(row["seconds"] for row in self._host)):
            return ()
        steal = sum(row["steal"] * row["seconds"] for row in self._host) / seconds
        periods = sum(row["periods"] for row in self._host)
        throttled = sum(row["throttled"] for row in self._host) / max(periods, 1)
        swapped = sum(row["swapped_bytes"] for row in self._host)
        busy = sum(row["busy"] * row["seconds"] for row in self._host) / seconds
        others = sum(row.get("others", 0.0) * row["seconds"] for row in self._host) / seconds
        found = (
            (
                others >= _OTHERS and busy >= _BUSY,
                f"other processes took {others:.0%} of its CPU time, of which {busy:.0%} was in use",
            ),
            (steal >= _STEAL, f"the hypervisor gave {steal:.0%} of its CPU time to others (steal)"),
            (throttled >= _THROTTLED, f"the CPU limit of the cgroup was reached in {throttled:.0%} of its periods"),
            (swapped >= _SWAPPED_BYTES, f"it swapped {swapped / 2**20:,.0f} MiB of memory"),
        )
        return tuple(text for is_large, text in found if is_large)

    def on_log(self, row: LogRow) -> None:
        if str(row.get("file", "")).startswith("watch/") and row.get("file") != KERNEL_LOG:
            self._log_lines[PurePath(str(row["file"])).stem] += 1

    def on_begin(self, row: BeginRow) -> None:
        if self.first_sent_ns is None or row["at_ns"] < self.first_sent_ns:
            self.first_sent_ns = int(row["at_ns"])
        fitted, traffic = str(row.get("fitted") or ""), str(row.get("traffic"))
        self._begun[traffic] += 1
        if not fitted:
            return
        self._unlike[traffic] += is_unlike(fitted)
        # Numbers differ from request to request; the adjustment is the same.
        key = traffic, _NUMBER.sub("N", fitted)
        self._replaced[traffic] += fitted.endswith(REPLACED)
        if key in self._fitted or len(self._fitted) < _MOST_FITTED:
            self._fitted[key] += 1
            if self._fitted_as.setdefault(key, fitted) != fitted:
                self._fitted_as[key] = key[1]

    def on_preflight(self, row: PreflightRow) -> None:
        self._preflight.append(row)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        if row.get("lag_ns") is not None:
            self.lag.add(float(row["lag_ns"]))
        if row.get("backed_off"):
            self._backed_off[str(row.get("file", ""))] = int(row["backed_off"])
        self.cpu_share = max(self.cpu_share, float(row.get("cpu_share") or 0.0))

    @property
    def notes(self) -> list[str]:
        by_hand = [f"changed by hand during the run: {'; '.join(self.by_hand)}"] if self.by_hand else []
        return by_hand + self._disk

    # --- what it comes to ---------------------------------------------------------------------------------------------

    def checks(
        self, terms: Terms, stats: RequestStats, unfinished: int, episodes: list[Incident], bad_rows: int
    ) -> list[CheckResult]:
        sent = CheckResult("requests_sent", "> 0", str(stats.begun), "pass" if stats.begun else "unknown")
        monitored = [self._watched(episodes), self._ledger(bad_rows, stats)]
        if terms.watched == "traffic":
            found = [self._completed(), self._traffic_seen(), *monitored]
        elif terms.watched:
            through = self._came_through(terms, stats)
            found = [self._completed(), *through, self._shed(stats), self._load_process(stats, unfinished), *monitored]
        else:
            delivered, process = self._delivered(terms, stats), self._load_process(stats, unfinished)
            found = [self._completed(), sent, delivered, self._shed(stats), process, *monitored]
        if self.end is None:  # a record that ends early does not tell what was after it
            found = [c for c in found if c.verdict != "pass" or c.name not in ("load_process", "ledger")]
        if stats.resent_hidden:
            found.append(self._retries(stats))
        if self.begin.get("server_logs"):
            found.append(self._logged())
        if self._worker_events:
            events = "; ".join(f"{text} ({n} times)" if n > 1 else text for text, n in self._worker_events.items())
            # Requests of a lost worker count as missed; a worker that never joined shows nowhere else.
            found.append(
                CheckResult("workers", "on time and until the end", events, "unknown" if self._absent else "pass")
            )
        found += self._fitted_checks()
        found += [_preflight_check(row) for row in self._preflight if not row.get("ok")]
        return found

    def _traffic_seen(self) -> CheckResult:
        """Check that a server that was only watched had something to do: an idle one proves nothing."""
        expected = "the server at work"
        if not self._scrapes:
            return CheckResult("traffic", expected, "not known: the server shows no metrics", "unknown")
        tokens = sum(newest - first for first, newest in self._served.values() if newest > first)
        if not tokens and not self._seen_running:
            return CheckResult("traffic", expected, "no request reached the server in this time", "unknown")
        actual = f"its metrics count {tokens:,.0f} generated tokens" if tokens else "its metrics show running requests"
        return CheckResult("traffic", expected, actual, "pass")

    def unproved(self, terms: Terms) -> dict[str, str]:
        """Counts that a watch without requests cannot tell, with the reason."""
        if terms.watched != "traffic" or self._scrapes:
            return {}
        return {"hangs": "without requests and /metrics, only /health can show a hang"}

    def _came_through(self, terms: Terms, stats: RequestStats) -> list[CheckResult]:
        """Checks of the requests that others sent through the recording proxy."""
        seen = f"{stats.begun:,}" if stats.begun else "no request came through the proxy"
        found = [CheckResult("requests_seen", "> 0", seen, "pass" if stats.begun else "unknown")]
        for what, count in sorted(self._not_read.items()):
            actual = f"{counted(count, 'connection')} not read: {what}"
            found.append(CheckResult("requests_read", "every connection read", actual, "unknown"))
        if terms.watched == "command":
            found.append(self._command())
        return found

    def _command(self) -> CheckResult:
        code = self._command_code
        if code is None:
            return CheckResult("command", "exit code 0", "its end was not recorded", "unknown")
        ended = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        if self._command_cut:
            return CheckResult("command", "exit code 0", f"{ended}, ended with the watch", "pass")
        return CheckResult("command", "exit code 0", ended, "pass" if code == 0 else "unknown")

    def _completed(self) -> CheckResult:
        if self.interrupted is not None:
            return CheckResult("run", "completed", f"interrupted by {self.interrupted}", "unknown")
        if self.end is None:
            return CheckResult("run", "completed", "the record ends early", "unknown")
        if self.end.get("exit_code") or self.end.get("why"):
            return CheckResult("run", "completed", str(self.end.get("why") or "ended early"), "unknown")
        return CheckResult("run", "completed", "completed", "pass")

    def _delivered(self, terms: Terms, stats: RequestStats) -> CheckResult:
        counts = stats.total()
        given = sum(n for outcome, n in counts.items() if outcome not in ("missed", "unfinished")) - stats.later
        missed = counts["missed"] - (stats.missed["stopped"] if self.shortened else 0)
        planned = given + missed + counts["unfinished"]
        if terms.planned_requests and not self.shortened:
            planned = max(terms.planned_requests, planned)
        part = given / planned if planned else 0.0
        why = ", ".join(f"{n} missed: {w or 'why is not known'}" for w, n in sorted(stats.missed.items()))
        actual = f"{part:.1%} ({given} of {planned}{'; ' + why if why else ''})"
        if self._aborted:
            actual += f"; ended early by abort_when: {self._aborted}"
            return CheckResult("load_delivered", f">= {_DELIVERED:.0%}", actual, "unknown")
        if self._cut and (left := self._left_out(terms, stats, given)):
            return CheckResult("load_delivered", f">= {_DELIVERED:.0%}", f"{left}, cut by {self._cut}", "unknown")
        return CheckResult(
            "load_delivered", f">= {_DELIVERED:.0%}", actual, "pass" if part >= _DELIVERED else "unknown"
        )

    def _left_out(self, terms: Terms, stats: RequestStats, given: int) -> str:
        """Describe what a load that was cut did not send; empty: nothing."""
        planned, phases = terms.planned_requests, len(terms.in_flight)
        if planned is not None and given >= planned:
            return ""
        of = f" of {planned:,}" if planned is not None else ""
        begun = [n for n, phase in stats.phases.items() if phase.ended or phase.no_slot or phase.lag.n]
        absent = phases - 1 - max(begun, default=-1)
        text = f"{given:,}{of} planned requests" if of else f"{counted(given, 'request')} of the plan"
        return text + (f"; {absent} of {counted(phases, 'phase')} did not run" if absent > 0 else "")

    def _shed(self, stats: RequestStats) -> CheckResult:
        counts, again, ours = stats.total(), stats.sent_again, stats.shed_by_attacks
        sent = sum(n for outcome, n in counts.items() if outcome != "missed") - again
        part = max(0, counts["shed"] - ours - again) / sent if sent else 0.0
        actual = f"{part:.1%}" + (f", and {counted(ours, 'request')} that an attack had refused" if ours else "")
        actual += f", and {counted(again, 'refusal')} after which the request was sent again" if again else ""
        return CheckResult("shed", f"<= {_SHED:.0%}", actual, "pass" if part <= _SHED else "unknown")

    def _retries(self, stats: RequestStats) -> CheckResult:
        """Check that few requests were sent again: retries hide dropped ones. One that failed again, as the server
        died, has its own outcome.
        """
        n, part = stats.resent_hidden, stats.resent_hidden / max(1, stats.begun)
        many = n > _FEW_RETRIES and part > _RETRIES
        actual = f"{part:.1%} ({n} of {counted(stats.begun, 'request')} sent again on a new connection)"
        return CheckResult("retries", f"<= {_RETRIES:.1%}", actual, "fail" if many else "pass")

    def _load_process(self, stats: RequestStats, unfinished: int) -> CheckResult:
        lost = [worker for worker, what in self._workers.items() if what != "end"]
        if self._locust_exit not in (None, 0):
            actual = f"exited with code {self._locust_exit}"
        elif lost or not self._workers:
            actual = f"no end recorded for {', '.join(lost)}" if lost else "no load was recorded"
        elif unfinished or stats.missed["worker_lost"]:
            actual = (
                f"{counted(unfinished, 'request')} without an end, {stats.missed['worker_lost']} lost with a worker"
            )
        else:
            return CheckResult("load_process", "alive until the end", "alive until the end", "pass")
        return CheckResult("load_process", "alive until the end", actual, "unknown")

    def _watched(self, episodes: list[Incident]) -> CheckResult:
        missing = self._not_watched(episodes)
        actual = missing or f"{self._probes} probes, longest gap {self._longest_gap[0]:.1f} s"
        return CheckResult("watching", "probed and recorded throughout", actual, "unknown" if missing else "pass")

    def _not_watched(self, episodes: list[Incident]) -> str:
        if not self._probes:
            return "the server was never probed"
        gap_s, since_ns = self._longest_gap
        if gap_s > _PROBE_GAP_S:
            return f"no probe for {gap_s:.0f} s, from {self._at(since_ns)} on"
        if self._log_lost:
            return f"part of the log is lost: {self._log_lost}"
        load_s = ((self.load_end_ns or self.newest_ns) - (self.load_begin_ns or self.newest_ns)) / NS_PER_S
        lost: dict[str, list[_Gap]] = {}
        for gap in self._gaps:
            down = any(i.covers(gap.begin_ns, gap.end_ns) for i in episodes)
            without = gap.source == "scrape" and not self._scrapes  # a server without /metrics is no gap
            if not down and not without and gap.seconds:
                lost.setdefault(gap.source, []).append(gap)
        for gaps in lost.values():
            if sum(gap.seconds for gap in gaps) > max(_GAP_S, _GAP_SHARE * load_s):
                return _gaps_text(gaps)
        return ""

    def _fitted_checks(self) -> list[CheckResult]:
        """Checks of requests that were adjusted to the server. A run in which most requests were replaced by short text
        proves nothing about its profile, and neither does traffic that is not what was asked.
        """
        replaced, sent = self._replaced.total(), self._begun.total()
        kinds = ", ".join(traffic for traffic, n in sorted(self._replaced.items()) if n)
        actual = f"{replaced} of {sent} requests were replaced by text ({kinds})"
        void = [CheckResult("substance", "most requests as planned", actual, "unknown")] if replaced > sent / 2 else []
        for (traffic, text), n in sorted(self._fitted.items()):
            actual = f"{n} of {self._begun[traffic]}: {self._fitted_as[traffic, text]}"
            few = self._unlike[traffic] <= (1 - _DELIVERED) * self._begun[traffic]
            decision: Decision = "unknown" if is_unlike(text) and not few else "pass"
            void.append(CheckResult(f"fitted {traffic}", "as in the profile", actual, decision))
        return void

    def _logged(self) -> CheckResult:
        """Check of a server log; one without lines is likely of another server."""
        specs = [str(spec) for spec in self.begin["server_logs"]]
        logs = ", ".join(specs)
        if self._log_loss:
            return CheckResult("server_log", "log lines", f"{logs}: {self._log_loss}", "unknown")
        stems = ["server", *(f"server-{n}" for n in range(2, len(specs) + 1))]
        silent = [spec for spec, stem in zip(specs, stems, strict=True) if not self._log_lines[stem]]
        if lines := self._log_lines.total():
            none = f", none from {', '.join(silent)}" if silent else ""
            actual = f"{lines:,} lines from {', '.join(s for s in specs if s not in silent) or logs}{none}"
            return CheckResult("server_log", "log lines", actual, "pass")
        return CheckResult("server_log", "log lines", f"no lines from {logs}. Is it this server's log?", "unknown")

    def _ledger(self, bad_rows: int, stats: RequestStats) -> CheckResult:
        lost = (self.end or {}).get("ledger_lost")
        if lost:
            return CheckResult("ledger", "complete", str(lost), "unknown")
        verdict: Decision = "pass" if bad_rows <= (stats.begun + 1000) / 1000 else "unknown"
        actual = counted(bad_rows, "unreadable row") if bad_rows else "complete"
        return CheckResult("ledger", "complete", actual, verdict)

    def _at(self, ns: int) -> str:
        return f"{(ns - (self.first_sent_ns or self.load_begin_ns or self.begin_ns or ns)) / NS_PER_S:.1f} s"

    def generator(self, stats: RequestStats, terms: Terms) -> Generator:
        """Generator section of verdict.json: was the generator the limit? `slots`: limits of the profile that were
        reached because the server was slow.
        """
        slots = {n: p.slots_reason(slots_of(terms, n)) for n, p in sorted(stats.phases.items())}
        reasons = [f"phase {n}: {why}" for n, p in sorted(stats.phases.items()) if (why := p.limit_reason())]
        send = LogHistogram()
        for phase in stats.phases.values():
            send.merge(phase.lag)
        return Generator(
            limited=bool(reasons),
            why=tuple(reasons),
            slots=tuple(f"phase {n}: {why}" for n, why in slots.items() if why),
            lag_p99_s=seconds_of(self.lag.quantile(0.99), 4),
            send_lag_p99_s=seconds_of(send.quantile(0.99), 4),
            cpu_share_max=round(self.cpu_share, 3),
            stale_connections=stats.stale,
            retries=stats.resent,
            backed_off=sum(self._backed_off.values()),
            host=self.host(),
            governor=next((row["governor"] for row in self._host if row.get("governor")), ""),
            reader=self._reader,
        )


def _gaps_text(gaps: Sequence[_Gap]) -> str:
    lengths, whys = [gap.seconds for gap in gaps], Counter(gap.why for gap in gaps if gap.why)
    text = f"no data from {gaps[0].source} for {sum(lengths):.1f} s"
    if len(gaps) > 1:
        text += f" in all: {len(gaps)} gaps of {min(lengths):.1f} to {max(lengths):.1f} s"
    return f"{text} ({whys.most_common(1)[0][0]})" if whys else text


def _log_loss(row: GapRow) -> LogLoss | None:
    """Loss of log lines that a gap row tells; of older rows by their text."""
    if row.get("source") != "log":
        return None
    told = (loss for text, loss in _LOST_TEXTS.items() if text in str(row.get("why")))
    return row.get("loss") or next(told, None)


def slots_of(terms: Terms, phase: int) -> str:
    return terms.in_flight[phase] if 0 <= phase < len(terms.in_flight) else "max_in_flight"


def _preflight_check(row: Row) -> CheckResult:
    """Check of what was not ok before the load. Others that use the server stop a run unless --shared was given."""
    name, text = f"preflight {row.get('name')}", str(row.get("text"))
    if row.get("name") == "others":
        text += ": the figures are not those of this load alone"
        return CheckResult(name, "ok", text, "pass", accepted="--shared was given")
    return CheckResult(name, "ok", text, "unknown")
