"""Incident: one episode of a server, from the first sign to its recovery."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loadchaos.analysis.classify.versions import with_standing
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.figures.requests import Sent
from loadchaos.analysis.incidents.attribution import ProcessEnds, known_and_remedy
from loadchaos.analysis.incidents.context import Reading
from loadchaos.analysis.incidents.record import (
    IncidentRecord,
    LineWindow,
    NearAttack,
    SentBefore,
    ShownFailure,
    TimelineEntry,
)
from loadchaos.analysis.state.death_evidence import gone_sign
from loadchaos.analysis.verdict.model import CandidateLine, Kind, KnownIssue
from loadchaos.analysis.wrong_answer import WrongAnswer
from loadchaos.core.ledger.rows import IncidentRow, ProcessRow
from loadchaos.core.model import Attribution, Severity, State
from loadchaos.core.units import NS_PER_S

_WINDOW_NS = 60 * NS_PER_S
COVERED_NS = 2 * NS_PER_S
"""Time before and after an incident in which a failed request may belong to it."""
_MOST_SHOWN = 50
_NUMBER = re.compile(r"[\d.]+")
_PID = re.compile(r"\(pid (\d+)(?:, \w+)?\) is (?:gone|stopped)")

_GONE = (("engine_core", "engine_core_proc_died", "engine core"), ("worker", "worker_proc_died", "worker"))
_LOG_ADVICE = "Pass --server-log so that the cause can be named."
_DEFAULTS: Mapping[str, tuple[str, Severity, str, str]] = {
    "death": (
        "engine_death_unexplained", "engine_death", "Server died, and no log names the cause",
        _LOG_ADVICE,
    ),
    "startup": (
        "startup_failure_unexplained", "startup", "Server exited before it became healthy",
        _LOG_ADVICE,
    ),
    "restart": (
        "restart_unexplained", "engine_death", "Server restarted under load, and no log names the cause",
        f"{_LOG_ADVICE} Ask the supervisor who restarted it.",
    ),
    "hang": (
        "alive_but_hung", "hang", "Server accepts requests but makes no progress (/health may still return 200)",
        f"Run py-spy dump --pid <engine core> before the hung process is restarted. {_LOG_ADVICE}",
    ),
    "unreachable": ("server_unreachable", "node", "Server unreachable: probes were neither answered nor refused", ""),
    "outage": (
        "outage_unexplained", "node", "Outage, cause unknown behind this gateway or network: every request failed",
        "Let loadchaos see the server behind it: --server-log, --pid, or target.replicas with the server's own address.",
    ),
    "terminated": ("server_terminated", "node", "Server was shut down (SIGTERM) during the load", ""),
    "failure": ("failure", "request", "", ""),
}  # fmt: skip


@dataclass
class Incident:
    """One episode of one replica, or the first time of a `failure`. A `failure` kills nobody. Times are CLOCK_MONOTONIC
    ns. `died_ns` is the first sign of what it became, `noticed_ns` when that was known.
    """

    n: int
    kind: Kind
    replica: str
    opened_ns: int
    by_states: bool = True
    unconfirmed: bool = False  # reported by text alone; then it is dismissed
    outlived: bool = False  # only a log showed it, and the server answered later requests: no engine died
    died_ns: int | None = None
    noticed_ns: int | None = None
    back_ns: int | None = None
    closed_ns: int | None = None
    worst: State | None = None
    dismissed: bool = False
    starting: bool = False
    has_log: bool = False
    ever_dead: bool = False
    ever_hung: bool = False
    signs: list[str] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)  # pids of processes that ended during it, with the sign of each
    causes: list[Failure] = field(default_factory=list)
    echoes: list[Failure] = field(default_factory=list)
    candidates: list[CandidateLine] = field(default_factory=list)  # unexplained log lines around it, likeliest first
    beside: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    cut: int = 0  # lost requests whose connection broke, or whose answer told a death
    in_flight: list[Sent] = field(default_factory=list)
    examples: list[Sent] = field(default_factory=list)  # failed requests, later ones too
    admitted: list[Sent] = field(default_factory=list)
    sent_before: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    attacks: list[NearAttack] = field(default_factory=list)
    figures: list[Reading] = field(default_factory=list)
    log_lines: dict[str, list[int]] = field(default_factory=dict)
    timeline: list[tuple[int, str]] = field(default_factory=list)
    attribution: Attribution = "server"
    exit: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    load_begin_ns: int | None = None
    wrong: tuple[WrongAnswer, ...] = ()  # wrong answers of a `failure`
    title: str | None = None  # better than the signature's, with the numbers of this run
    remedy: str | None = None

    def named_by(self) -> Failure:
        """Failure that names it: the first cause, echo, or what the signs show."""
        if self.causes:
            first = min(self.causes, key=lambda s: s.at_ns)
            return first.of_request if self.outlived and first.of_request is not None else first
        named = self._unexplained()
        return named if named.candidates or not self.candidates else replace(named, candidates=tuple(self.candidates))

    def _unexplained(self) -> Failure:
        if self.has_log and (killed := self._killed()) is not None:
            return killed
        if self.echoes:
            return min(self.echoes, key=lambda s: s.at_ns)
        name, severity, title, remedy = _DEFAULTS["startup" if self.kind == "death" and self.starting else self.kind]
        if self.exit is not None and self.process_ended:
            title = f"{title} ({self.exit.get('reason')})"
        if has_advice := self.has_log and _LOG_ADVICE in remedy:
            remedy = remedy.replace(_LOG_ADVICE, "").strip()
        if self.has_log and (self.process_ended or (has_advice and not remedy)):
            remedy = "Read the end of its log: no signature matches a line of it. Send it upstream with this incident."
            if self.candidates:
                remedy = "No signature matches these lines of its log. Send them upstream with this incident."
        if self.kind == "death" and self.exit and self.exit.get("code") == 0 and not self.exit.get("signal"):
            remedy += " It ended with exit code 0: a supervisor that restarts only on failure leaves it down."
        text = "; ".join(self.signs) or title
        layer = "host" if severity == "node" else ""
        return Failure(name, severity, title, evidence("signs", text), self.opened_ns, remedy=remedy, layer=layer)

    def _killed(self) -> Failure | None:
        """Failure of a killed process: it disappeared and no log gives a cause. An engine that fails logs it, one that
        is killed cannot.
        """
        first = next((s for s in self.signs if s.endswith((", engine_core) is gone", ", api_server) is gone"))), "")
        for role, name, label in _GONE:
            sign = next((s for s in self.signs if f", {role}) is gone" in s), None)
            if role == "engine_core" and sign != first and not self.echoes:
                continue  # it went after its API server, which reported no death of an engine
            if sign is not None and self.process_ended:
                title = f"The {label} process disappeared, and no line of a log says why"
                remedy = "Check the OOM killer (dmesg, journalctl -k, the pod's last state) and who sends signals."
                # An echo in the log is evidence with a line number; else only the sign is left.
                shown = self.echoes[0].evidence if self.echoes else evidence("signs", sign)
                return Failure(name, "engine_death", title, shown, self.opened_ns, remedy=remedy, layer="OS")
        return None

    @property
    def id(self) -> str:
        return self.named_by().id

    @property
    def process_ended(self) -> bool:
        """True where a process of the server ended, whatever came after."""
        return self.kind in ("death", "restart")

    @property
    def shown_kind(self) -> Kind:
        """Its kind in files: a death that the server outlived killed nobody."""
        return "failure" if self.outlived else self.kind

    @property
    def folder(self) -> str:
        return f"{self.n:03d}-{self.id}"

    @property
    def real(self) -> bool:
        """True unless it was a false alarm. It is real when it became dead, hung, unreachable or terminated, or a log
        names a death.
        """
        if self.unconfirmed or (self.dismissed and not self.causes):
            return False
        return self.kind != "death" or self.ever_dead or self.worst != "dying" or bool(self.causes or self.echoes)

    def covers(self, sent_ns: int, ended_ns: int) -> bool:
        """True when a request in flight from `sent_ns` to `ended_ns` overlaps it, with `COVERED_NS` on each side."""
        until_ns = self.back_ns or self.closed_ns
        return ended_ns >= self.opened_ns - COVERED_NS and (until_ns is None or sent_ns <= until_ns + COVERED_NS)

    def open_at(self, at_ns: int) -> bool:
        return self.opened_ns <= at_ns and (self.closed_ns is None or at_ns <= self.closed_ns)

    def note(self, at_ns: int, text: str) -> None:
        """Add a line to its timeline; after 50 lines only the newest is kept."""
        if len(self.timeline) >= _MOST_SHOWN:
            self.timeline.pop()
        self.timeline.append((at_ns, text))

    def add_signs(self, signs: Sequence[str]) -> None:
        """Add signs; one that differs only in numbers replaces the old one."""
        for sign in signs:
            alike = [i for i, old in enumerate(self.signs) if _NUMBER.sub("", old) == _NUMBER.sub("", sign)]
            if alike:
                self.signs[alike[0]] = sign
            else:
                self.signs.append(sign)

    def add_gone(self, row: ProcessRow) -> None:
        self.gone[row["pid"]] = gone_sign(row["pid"], row["role"], row["name"])

    def add_gone_engines(self) -> None:
        """Add the end of each engine core that no sign names: it was reported when the server was dead already."""
        named = {int(pid) for sign in self.signs for pid in _PID.findall(sign)}
        self.add_signs([sign for pid, sign in self.gone.items() if "engine_core" in sign and pid not in named])

    def add_log_line(self, file: str, line: int) -> None:
        window = self.log_lines.setdefault(file, [line, line])
        window[0], window[1] = min(window[0], line), max(window[1], line)

    @property
    def ended(self) -> ProcessEnds:
        exit_row = self.exit or {}
        pids = frozenset(int(pid) for sign in self.signs for pid in _PID.findall(sign))
        return ProcessEnds(pids | self.gone.keys(), exit_row.get("pid"), exit_row.get("signal"))

    def recovered_after_s(self) -> float | None:
        return None if self.back_ns is None else round((self.back_ns - self.opened_ns) / NS_PER_S, 3)

    def noticed_after_s(self) -> float | None:
        if self.noticed_ns is None:
            return None
        return round((self.noticed_ns - (self.died_ns or self.opened_ns)) / NS_PER_S, 3)

    def record(self) -> IncidentRecord:
        base = self.load_begin_ns if self.load_begin_ns is not None else self.opened_ns
        named = self.named_by()
        known, remedy = known_and_remedy(self.attribution, self._known(named), self.remedy or named.remedy)

        def at_s(ns: int | None) -> float | None:
            return None if ns is None else round((ns - base) / NS_PER_S, 3)

        return IncidentRecord(
            schema=1,
            n=self.n,
            id=named.id,
            folder=self.folder,
            kind=self.shown_kind,
            replica=self.replica,
            severity=named.severity,
            title=self.title or named.shown_title,
            attribution=self.attribution,
            layer=named.layer,
            opened_at_s=at_s(self.opened_ns),
            noticed_at_s=at_s(self.noticed_ns),
            back_at_s=at_s(self.back_ns),
            closed_at_s=at_s(self.closed_ns),
            opened_ns=self.opened_ns,
            closed_ns=self.closed_ns,
            recovered_after_s=self.recovered_after_s(),
            state=self.worst,
            signs=tuple(self.signs),
            known=tuple(known),
            remedy=remedy,
            evidence=named.evidence,
            frames=named.frames,
            process=named.process,
            candidates=named.candidates,
            exit=dict(self.exit) if self.exit else None,
            causes=tuple(_shown(s, at_s(s.at_ns)) for s in self.causes[:_MOST_SHOWN]),
            echoes=tuple(_shown(s, at_s(s.at_ns)) for s in self.echoes[:_MOST_SHOWN]),
            beside=tuple(self.beside),
            lost_requests=sum(self.lost.values()),
            lost=dict(self.lost),
            wrong_answers=tuple(w.example() for w in self.wrong),
            in_flight_at_death=len(self.in_flight),
            in_flight=tuple(s.record(self.opened_ns) for s in self.in_flight),
            examples=tuple(s.record(s.sent_ns) for s in self.examples),
            admitted=tuple(s.record(self.opened_ns) for s in self.admitted),
            attacks=tuple(self.attacks),
            sent_before={traffic: SentBefore(**counts) for traffic, counts in self.sent_before.items()},
            log_lines={file: LineWindow(first=w[0], last=w[1]) for file, w in self.log_lines.items()},
            figures=tuple(one.record(base) for one in self.figures),
            metrics_window_ns=(self.opened_ns - _WINDOW_NS, (self.closed_ns or self.opened_ns) + _WINDOW_NS),
            timeline=tuple(TimelineEntry(at_s=at_s(ns), text=text) for ns, text in sorted(self.timeline)),
            environment=dict(self.environment),
        )

    def _known(self, named: Failure) -> Sequence[KnownIssue]:
        facts = self.environment.get("facts") or {}
        return with_standing(named.known, facts.get("dialect"), facts.get("version"))


def _shown(failure: Failure, at_s: float | None) -> ShownFailure:
    return ShownFailure(
        id=failure.id,
        title=failure.shown_title,
        at_s=at_s,
        evidence=failure.evidence,
        process=failure.process,
        frames=failure.frames,
    )


_KINDS: Mapping[State, Kind] = {
    "dead": "death", "dying": "death", "hung": "hang", "unreachable": "unreachable", "terminated": "terminated",
}  # fmt: skip


def kind_of(state: State, was: State) -> Kind | None:
    if state in _KINDS:
        return _KINDS[state]
    return "restart" if state == "restarting" and was in ("healthy", "degraded") else None


def merged_kind(old: Kind, new: Kind) -> Kind:
    """Kind of an incident that was `old` and continues as `new`. A hang that ends in a death is that death."""
    order: tuple[Kind, ...] = ("failure", "unreachable", "outage", "hang", "restart", "death")
    if new == "terminated":
        return "terminated" if old in ("death", "terminated", "unreachable", "outage") else old
    return new if old == "terminated" or order.index(new) > order.index(old) else old


def finding_row(incident: Incident, what: Literal["open", "close"], at_ns: int) -> IncidentRow:
    """Row of findings.jsonl for an incident. `id` and `folder` are final when it closes."""
    return {
        "row": "incident",
        "at_ns": at_ns,
        "what": what,
        "n": incident.n,
        "id": incident.id,
        "folder": incident.folder,
        "kind": incident.shown_kind,
        "replica": incident.replica,
        "state": incident.worst,
    }
