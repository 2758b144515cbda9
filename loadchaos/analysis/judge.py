"""Judge: rows of a run in, findings and the verdict out. Its time is that of the newest row."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import PurePath
from typing import Any, cast

from loadchaos.analysis.classify.classifier import classify_text
from loadchaos.analysis.classify.kernel_log import KernelLog
from loadchaos.analysis.classify.late_lines import LateLines
from loadchaos.analysis.classify.live import LiveClassifier
from loadchaos.analysis.detectors.end_of_load import EndOfLoad
from loadchaos.analysis.detectors.exact_lengths import ExactLengths
from loadchaos.analysis.detectors.growth_limits import GrowthTracker
from loadchaos.analysis.detectors.image_cache_hits import ImageCacheHits
from loadchaos.analysis.detectors.length_ladder import LengthLadder
from loadchaos.analysis.detectors.length_symptoms import LengthSymptoms
from loadchaos.analysis.detectors.open_restarts import OpenRestarts
from loadchaos.analysis.detectors.suite import DetectorSuite
from loadchaos.analysis.failure import DEADLY, Failure, evidence
from loadchaos.analysis.figures.by_endpoint import EndpointFigures
from loadchaos.analysis.figures.refusals import QUOTA_SPENT
from loadchaos.analysis.figures.reported import ReportedComparison, WireFigures, compare_reported
from loadchaos.analysis.figures.run_figures import RunFigures
from loadchaos.analysis.figures.sessions import MOST_CUT
from loadchaos.analysis.figures.stalls import Stall
from loadchaos.analysis.incidents import bad_answers
from loadchaos.analysis.incidents.attribution import AttackLog
from loadchaos.analysis.incidents.bad_answers import BadAnswerQueue
from loadchaos.analysis.incidents.explain import Explainer
from loadchaos.analysis.incidents.failures import FailureRegistry, failures_of
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.incidents.queue_order import QueueOrder
from loadchaos.analysis.incidents.tracker import IncidentTracker
from loadchaos.analysis.mechanisms import Mechanisms
from loadchaos.analysis.other_clients import OtherClients
from loadchaos.analysis.verdict import error_budget
from loadchaos.analysis.verdict import verdict as rules
from loadchaos.analysis.verdict.expectations import ExpectationInputs, shed_allowed
from loadchaos.analysis.verdict.model import (
    AttackCounts,
    CheckResult,
    FailureResult,
    IncidentReference,
    StallFigure,
    StateChange,
    Verdict,
    VerdictTarget,
)
from loadchaos.analysis.verdict.run_health import RunHealth, slots_of
from loadchaos.analysis.warm_cache import WarmCache, why_warm
from loadchaos.analysis.wrong_answer import MOST_EXAMPLES
from loadchaos.core import typed_json
from loadchaos.core.expectation_names import parse
from loadchaos.core.ledger.row_fold import RowFold, RowRouter
from loadchaos.core.ledger.rows import (
    BeginRow,
    ConfigurationRow,
    EndRow,
    FactsRow,
    FailureRow,
    IncidentRow,
    LaunchRow,
    LogRow,
    RunRow,
    StateRow,
    SupervisorRow,
)
from loadchaos.core.model import KERNEL_LOG, Decision, ExposureGoal, Facts, Row, Terms, severity_rank
from loadchaos.core.reported_figures import ReportedFigures
from loadchaos.core.units import NS_PER_S, counted, measured_duration

_POLL_NS = NS_PER_S // 4
_MOST_STATES = 10_000
_MOST_OPEN = 16  # newest incidents that may still get candidates


class Judge(RowFold):
    """Folds rows in the order of their arrival. `terms` None: those of the run's first row. Without `answers` it folds
    no latencies: `figures.answers` is set before the verdict. Memory is bounded by what is in flight and by the kinds
    of failure, not by the length of the run.
    """

    def __init__(self, terms: Terms | None = None, *, answers: bool = True) -> None:
        self._terms = terms
        self._facts: Facts | None = None
        self.figures = RunFigures(terms, answers=answers)
        self._health, self._attacks, self._warm_cache = RunHealth(), AttackLog(), WarmCache()
        self._other_clients = OtherClients()
        self._stats = self.figures.requests
        self._mechanisms, self._log_classifier, self._bad_answers = Mechanisms(), LiveClassifier(), BadAnswerQueue()
        self._late_lines = LateLines()
        self._queue_order = QueueOrder()
        self._tracker, self._registry = IncidentTracker(self._stats, self._attacks), FailureRegistry()
        self._lengths, self._exact_lengths, self._images = LengthSymptoms(), ExactLengths(), ImageCacheHits()
        self._growth, self._kernel = GrowthTracker(), KernelLog()
        self._ladder, self._open_restarts, self._end_of_load = LengthLadder(), OpenRestarts(), EndOfLoad()
        self._states: deque[Row] = deque(maxlen=_MOST_STATES)
        self._environment: dict[str, Any] = {}
        self._findings: list[FailureRow | IncidentRow] = []
        self._polled_ns = 0
        self._start_ns: tuple[int, int | None] | None = None  # (begin, healthy at) of the newest launched life
        self._unfinished: int | None = None
        self._tracker.environment = self._environment
        self._explainer = Explainer(self._tracker, self._record)
        self._detectors = DetectorSuite(self._tracker, self._record)
        before = (self._health, self.figures, self._attacks, self._mechanisms, self._queue_order, self._kernel)
        after = (self._growth, self._images, self._warm_cache, self._open_restarts, self._end_of_load, self._lengths)
        self._router = RowRouter(
            [*before, self, self._tracker, *self._detectors.detectors, *after, self._exact_lengths, self._other_clients]
        )

    # --- rows in --------------------------------------------------------------------------------------------------------

    def fold(self, row: Row) -> None:
        self._health.move_clock(row)
        self._router.fold(row)
        newest_ns = self._health.newest_ns
        if newest_ns - self._polled_ns > _POLL_NS:
            self._polled_ns = newest_ns
            self._poll(newest_ns)

    def on_begin(self, row: BeginRow) -> None:
        self._ladder.on_begin(row)

    def on_end(self, row: EndRow) -> None:
        outcome, sent = str(row.get("outcome")), self.figures.ended
        if outcome == "shed":
            ours = self._attacks.attribute(("shed",), row["at_ns"], sent_ns=row.get("sent_ns"))
            self._stats.shed_by_attacks += ours == "expected"
        bad = bad_answers.bad_outcome(row)
        self._ladder.on_end(row, bad=bad is not None)
        if row.get("edge") is not None and bad is None and outcome == "rejected":
            self._mechanisms.over_limit()
        if bad is not None:
            self._bad_answers.add(row, bad)
            self._tracker.feed_failed(int(row.get("sent_ns") or row["at_ns"]))
        elif outcome == "ok" and sent is not None:
            self._tracker.feed_answer(sent.sent_ns, int(row["at_ns"]))

    def on_state(self, row: StateRow) -> None:
        self._states.append(row)
        if row.get("to") == "healthy" and self._start_ns is not None and self._start_ns[1] is None:
            self._start_ns = (self._start_ns[0], int(row["at_ns"]))
        if row.get("to") == "restarting" and row.get("engine") is None:
            self._end_life(str(row.get("replica")))

    def on_launch(self, row: LaunchRow) -> None:
        if row.get("what") == "start":
            self._end_life(str(row.get("replica")))
            self._start_ns = (int(row["at_ns"]), None)
            self._environment["command"] = list(row.get("command") or ())

    def on_supervisor(self, row: SupervisorRow) -> None:
        if row.get("what") != "ended":
            return
        for failure in classify_text(str(row.get("reason"))):
            if failure.severity in DEADLY:
                shown = evidence(str(row.get("source")), str(row.get("reason")))
                failure = replace(bad_answers.at(failure, int(row["at_ns"])), evidence=shown)
                self._tracker.add_deadly(failure, str(row.get("replica")))

    def on_run(self, row: RunRow) -> None:
        if row.get("what") == "begin":
            self._environment |= {k: row.get(k) for k in ("target", "profile", "argv", "version", "seed")}
            if self._terms is None and row.get("terms"):
                self._terms = typed_json.from_json(Terms, row["terms"])

    def on_facts(self, row: FactsRow) -> None:
        self._environment["facts"] = row.get("facts")
        if self._facts is None and row.get("facts"):
            self._facts = self._explainer.facts = typed_json.from_json(Facts, row["facts"])
            if self._facts.media_fault:
                self._record(bad_answers.media_fault(self._facts, int(row["at_ns"]))).at_clients += 1

    def on_configuration(self, row: ConfigurationRow) -> None:
        self._environment |= {k: row.get(k) for k in ("flags", "settings", "system")}

    def on_log(self, row: LogRow) -> None:
        if row.get("file") == KERNEL_LOG:
            if not self._kernel.concerns(str(row.get("text", ""))):
                return
        else:
            self._tracker.has_log = True
        text, at_ns = str(row.get("text", "")), int(row.get("at_ns") or self._health.newest_ns)
        self._attacks.feed_log(text, at_ns)
        if not self._is_late(str(row.get("file")), text, at_ns):
            self._log_classifier.on_log(row, at_ns)

    def _is_late(self, file: str, text: str, at_ns: int) -> bool:
        begin_s, now_s = self._health.unix_s(self._health.begin_ns), self._health.unix_s(at_ns)
        if begin_s is None or now_s is None or not file.startswith("watch/"):  # what we launched writes to us at once
            return False
        return self._late_lines.is_late(file, text, begin_s, now_s)

    # --- polling: matches and answers that wait for more evidence ----------------------------------------------------------

    def _end_life(self, replica: str) -> None:
        """End a life of a server: report all that was held back."""
        if self._tracker.sole:
            self._poll(None)
            self._attacks.forget_effects()
        else:
            self._read_logs(self._health.newest_ns, at_once=True)
        self._log_classifier.forget(replica, sole=self._tracker.sole)

    def _read_logs(self, now_ns: int | None, *, at_once: bool = False) -> None:
        for failure in self._log_classifier.poll(now_ns, died=self._tracker.any_down(), at_once=at_once):
            self._logged(failure)
        while self._log_classifier.stops:
            self._tracker.shutdowns.append(self._log_classifier.stops.pop()[0])
        self._add_candidates()

    def _add_candidates(self) -> None:
        for incident in self._tracker.incidents[-_MOST_OPEN:]:
            if not incident.process_ended or incident.causes:
                continue
            if incident.closed_ns is None or not incident.candidates:
                replica = None if self._tracker.sole else incident.replica
                incident.candidates = self._log_classifier.last_words(incident.opened_ns, replica)

    def _poll(self, now_ns: int | None) -> None:
        self._read_logs(now_ns)
        for bad in self._bad_answers.poll(now_ns):
            bad.waited = self._queue_order.waited(bad)
            self._explainer.explain(bad)
        newest_ns = self._health.newest_ns
        self._detectors.poll(newest_ns, self._health.load_begin_ns or newest_ns, final=now_ns is None)

    def _logged(self, failure: Failure) -> None:
        source = str(failure.evidence.source or "")
        replica = "" if source == KERNEL_LOG else PurePath(source).stem
        failure = replace(bad_answers.at(failure, self._health.newest_ns), replica=replica)
        if failure.severity in DEADLY:
            self._tracker.add_deadly(failure, replica)
            return
        if failure.severity in ("hang", "node") and failure.role == "cause":
            about = self._tracker.find_beside(failure, replica)
            if about is not None and about.kind in ("death", "hang") and not about.causes:
                self._tracker.add_deadly(failure, replica)
                return
        if failure.severity == "degraded" and self._while_starting(failure.at_ns):
            return  # no client is served yet: warnings of loading, profiling and compiling are normal
        begin_ns, newest_ns = self._health.load_begin_ns, max(failure.at_ns, failure.last_ns)
        early = failure.severity == "request" and (begin_ns is None or newest_ns < begin_ns)
        failure = replace(failure, before_load=early)
        known = self._record(failure)
        known.in_log += 1 + failure.repeats
        if not failure.before_load:
            self._explainer.add_logged(failure.at_ns, known)

    def _while_starting(self, at_ns: int) -> bool:
        begun = self._start_ns
        return begun is not None and begun[0] <= at_ns and (begun[1] is None or at_ns < begun[1])

    def _record(self, failure: Failure) -> Failure:
        attribution = self._attacks.attribute(failure.effects, failure.at_ns, sent_ns=failure.sent_ns)
        if attribution == "server":
            attribution = failure.attribution
        failure = replace(failure, attribution=attribution)
        known = self._registry.find(failure)
        if known is None:
            incident = self._tracker.find_beside(failure, failure.replica) or self._tracker.open_failure(
                failure, attribution
            )
            known = self._registry.open(failure, incident)
            self._findings.append(self._failure_row(known, self._health.newest_ns))
        elif failure.title != known.title and len(known.alt) < 20 and failure.title not in known.alt:
            known.alt += (failure.title,)
        self._add_examples(known, failure)
        return known

    @staticmethod
    def _add_examples(known: Failure, failure: Failure) -> None:
        for wrong in failure.wrong[: MOST_EXAMPLES - len(known.wrong)] if failure is not known else ():
            if wrong not in known.wrong:
                known.wrong += (wrong,)
        incident = known.incident
        if incident is not None and known.wrong and incident.kind == "failure":
            incident.wrong = known.wrong

    # --- findings and verdict out -----------------------------------------------------------------------------------------

    def findings(self) -> list[FailureRow | IncidentRow]:
        """Rows for findings.jsonl since the last call. They are new failures, and incidents opened and closed. A death
        is reported as a failure when a log names it and a state shows it, and with final counts when its incident closes.
        """
        tracker = self._tracker
        rows = [*self._findings, *tracker.findings]
        self._findings, tracker.findings = [], []
        named = [i for i in tracker.named if i.closed_ns is None]
        about = [(self._health.newest_ns, i) for i in named if i.by_states]
        tracker.named = [i for i in named if not i.by_states]
        closed = [r for r in rows if r["row"] == "incident" and r["what"] == "close"]
        about += [(int(r["at_ns"]), tracker.incidents[r["n"] - 1]) for r in closed]
        for at_ns, incident in about:
            found = failures_of([incident])
            rows += [self._failure_row(failure, at_ns) for failure in found]
        return sorted(rows, key=lambda r: int(r["at_ns"]))

    @property
    def incidents(self) -> Sequence[Incident]:
        return [i for i in self._tracker.incidents if i.real]

    def verdict(self, *, bad_rows: int = 0) -> Verdict:
        """The verdict of the rows so far. Call it when the run is over. `bad_rows`: lines the reader had to skip."""
        self._finish()
        terms = self._terms or Terms(profile=str(self._health.begin.get("profile") or ""))
        started = self._health.utc(self._health.begin_ns)
        today = date.fromisoformat(started[:10]) if started else None
        failures = rules.accepted(self.failures(), terms, today)
        episodes = self._tracker.real()
        checks = self._checks(terms, episodes, bad_rows, against=any(f.counts for f in failures))
        checks = rules.accepted_checks(checks, terms, today)
        figures = rules.figures_of(failures, episodes, self._figures(episodes, terms), checks)
        judged = rules.expectations(terms, figures)
        failures = error_budget.excused(failures, judged, figures.errors[""].n)
        checks += rules.uncovered(failures, judged)
        decision = rules.decide(failures, judged, checks)
        reported = self._reported(failures)
        throughput, groups = self.figures.throughput.figures(), EndpointFigures(terms.endpoints, self.figures)
        return Verdict(
            schema=1,
            profile=terms.profile,
            verdict=decision,
            exit_code=rules.exit_code(decision, self._health.end, sent=self._stats.begun > 0),
            started=started,
            ended=self._health.utc(self._health.newest_ns or None),
            target=self._target(),
            outcomes=dict(self._stats.total()),
            by_traffic={t: dict(c) for t, c in sorted(self._stats.outcomes.items())},
            answer_labels=self.figures.labels.figures(),
            failures=tuple(failures),
            failure_counts=rules.failure_counts(failures),
            states=tuple(self._state_changes()),
            latency={t: latency.figures() for t, latency in sorted(self.figures.answers.latency.items())},
            latency_all=self.figures.answers.all_latency().figures(),
            throughput=throughput,
            efficiency=self.figures.efficiency.figures(throughput.output_tokens, figures.warm),
            by_endpoint=groups.results(self.figures.goodput.parts() if terms.slo else {}),
            sessions=self.figures.sessions.figures(),
            warm_up=self.figures.warm_up.figures(),
            refusals=self.figures.refusals.figures(self._stats),
            reported=reported,
            steady=self.figures.steady.figures(),
            longest_stall=self._longest_stall(),
            goodput=self.figures.goodput.figures(terms.slo, self.figures.throughput.seconds()) if terms.slo else None,
            expectations=tuple(judged),
            checks=tuple(checks),
            worth=self._worth(decision, figures, terms),
            generator=self._health.generator(self._stats, terms),
            exposures=dict(self._mechanisms.exposures),
            incidents=tuple(
                IncidentReference(n=i.n, id=i.id, folder=i.folder, kind=i.shown_kind, replica=i.replica)
                for i in self.incidents
            ),
            attacks={name: AttackCounts(**counts) for name, counts in sorted(self._attacks.counts.items())},
            by_hand=tuple(self._health.by_hand),
            notes=tuple(self._notes(terms, episodes, reported)),
        )

    def _notes(self, terms: Terms, episodes: list[Incident], reported: ReportedComparison | None) -> list[str]:
        notes = [] if reported is None or not reported.note else [reported.note]
        notes += [*self._health.notes, *self._tracker.notes(), *self._detectors.notes]
        notes += [*self._log_classifier.unexplained.notes(), *self._late_lines.notes()]
        if (others := self._other_clients.why(terms.new_prompts)) is not None:
            notes.append(others)
        notes += self._void_latencies()
        if self._images.note:
            notes.append(self._images.note)
        if (stall := self._told_stall(terms, episodes)) is not None and not stall.unexplained:
            notes.append(f"longest stall: {self._stall_text(stall)}")
        return notes

    def _reported(self, failures: Sequence[FailureResult]) -> ReportedComparison | None:
        """Compare what the command of a watch reported with its requests. Answers that are wrong although their outcome is
        `ok` are counted by their failure.
        """
        if not self._health.reported:
            return None
        wrong = [f for f in failures if f.wrong_answers is not None and not f.requests]
        wire = WireFigures.of(
            self._stats.total(),
            self.figures.answers.all_latency(),
            sum(traffic.completion_tokens for traffic in self._stats.traffic.values()) or None,
            {f"have the failure {failure.id}": failure.count for failure in wrong},
        )
        return compare_reported(typed_json.from_json(ReportedFigures, self._health.reported), wire)

    def _void_limit(self, terms: Terms) -> str | None:
        """Reason why the goodput is not known: a limit of `slo` is on a latency that means nothing."""
        void = self.figures.answers.all_latency().void()
        return next((void[kind] for name in terms.slo if (kind := name.partition("_")[0]) in void), None)

    def _void_latencies(self) -> list[str]:
        by_reason: dict[str, list[str]] = {}
        for traffic, latency in sorted(self.figures.answers.latency.items()):
            for name, why in latency.void().items():
                by_reason.setdefault(f"{traffic}: {why}", []).append(name.upper())
        notes = []
        for why, (*names, last) in by_reason.items():
            what = "are not known" if "TTFT" in names else "say nothing about the server"
            notes.append(f"{why}, so {', '.join(names)} and {last} {what}")
        return notes

    def _longest_stall(self) -> StallFigure | None:
        stall = self.figures.stalls.longest
        if stall is None:
            return None
        at_s, replica = self._at_s(stall.begin_ns), stall.replica or None
        return StallFigure(seconds=round(stall.seconds, 3), requests=stall.requests, at_s=at_s, replica=replica)

    def _stall_text(self, stall: Stall) -> str:
        at_s, where = self._at_s(stall.begin_ns), f" at {stall.replica}" if stall.replica else ""
        since = f" from {measured_duration(max(0.0, at_s))} on" if at_s is not None else ""
        return f"{measured_duration(stall.seconds)} without a token for {counted(stall.requests, 'request')}{where},{since}"

    def _told_stall(self, terms: Terms, episodes: list[Incident]) -> Stall | None:
        """Stall beyond its limit that no incident, no attack of ours and no expectation tells."""
        stall = self.figures.stalls.told
        if stall is None or any(parse(text, traffics=None).name == "longest_stall" for text in terms.expect):
            return None
        if any(i.kind != "failure" and i.covers(stall.begin_ns, stall.end_ns) for i in episodes):
            return None
        if self._attacks.in_force(stall.begin_ns) or self._attacks.in_force(stall.end_ns):
            return None
        return stall

    def _stall_check(self, stall: Stall | None) -> CheckResult | None:
        if stall is None or not stall.unexplained:
            return None
        limit = measured_duration(stall.limit_ns / NS_PER_S)
        return CheckResult("longest_stall", f"<= {limit}", self._stall_text(stall), "unknown")

    def _worth(self, decision: Decision, figures: ExpectationInputs, terms: Terms) -> str:
        """Strength of the evidence, by the exposure that the profile counts, else by requests."""
        exposure = (terms.exposure or ExposureGoal()).count
        if not self._mechanisms.exposures.get(exposure):
            exposure = "requests"
        met, what = self._mechanisms.exposures.get(exposure, 0), exposure.replace("_", " ")
        if terms.watched == "traffic":
            return "Not assessed: nobody counted the requests of the others"
        if exposure == "requests" and met != self._stats.begun:
            what = f"requests with a token, of {self._stats.begun:,} sent"
        return rules.worth(
            decision,
            figures.counts["engine_deaths"],
            met,
            what,
            open_restart=self._open_restarts.check(self._health.newest_ns) is not None,
            unproved=figures.unproved.get("engine_deaths"),
        )

    def _finish(self) -> None:
        self._poll(None)
        self._detectors.finish(self._health.newest_ns)
        self._tracker.finish(self._health.newest_ns)
        if self._unfinished is None or self._stats.in_flight:
            self._unfinished = (self._unfinished or 0) + self._stats.finish()

    def failures(self) -> list[FailureResult]:
        """All failures so far with counts, none accepted. Folding continues unchanged."""
        found = failures_of(self._tracker.real())
        found += [replace(failure) for failure in self._registry.failures.values()]  # naming changes them
        self._lengths.name(found, self._facts)
        found.sort(key=lambda f: (severity_rank(f.severity), f.at_ns))
        return [self._result(failure) for failure in found]

    def _failure_row(self, failure: Failure, at_ns: int) -> FailureRow:
        found = typed_json.to_json(self._result(failure))
        del found["accepted"]  # only the verdict knows it
        return cast("FailureRow", {"row": "failure", "at_ns": at_ns, **found})

    def _result(self, failure: Failure) -> FailureResult:
        first_ns = failure.first_seen_ns
        dialect, version = (self._facts.dialect, self._facts.version) if self._facts else (None, None)
        return failure.result(dialect, version, self._health.utc(first_ns), self._at_s(first_ns))

    def _at_s(self, at_ns: int) -> float | None:
        begin_ns = self._stats.first_sent_ns or self._health.load_begin_ns or self._health.begin_ns
        return None if begin_ns is None else round((at_ns - begin_ns) / NS_PER_S, 3)

    def _state_changes(self) -> list[StateChange]:
        return [
            StateChange(
                replica=r.get("replica"),
                engine=r.get("engine"),
                state=r["to"],
                before=r.get("from"),
                at=self._health.utc(r["at_ns"]),
                at_s=self._at_s(r["at_ns"]),
                signs=tuple(r.get("signs") or ()),
                noticed_after_s=r.get("noticed_after_s"),
            )
            for r in self._states
        ]

    def _checks(self, terms: Terms, episodes: list[Incident], bad_rows: int, *, against: bool) -> list[CheckResult]:
        checks: list[CheckResult | None] = [
            *self._health.checks(terms, self._stats, self._unfinished or 0, episodes, bad_rows)
        ]
        if self.figures.refusals.by_spent_quota:
            checks = [replace(c, actual=f"{c.actual}, {QUOTA_SPENT}") if c and c.name == "shed" else c for c in checks]
        worked = sum(counts["ok"] for counts in self._attacks.counts.values())
        checks += self._mechanisms.required(terms.requires, self._facts, worked)
        checks += [self._mechanisms.exposed(terms.exposure), self._ladder.check(against, self._facts)]
        checks += self._exact_lengths.checks(terms.expect)
        checks += [self._open_restarts.check(self._health.newest_ns), self._end_of_load.check()]
        checks.append(self._stall_check(self._told_stall(terms, episodes)))
        checks += [self._images.check(required="mm_cache" in terms.requires), *self._detectors.checks]
        refused = self._facts is not None and self._facts.images is False  # such questions are not asked
        asked = [part for part in terms.questions if not (part == "images" and refused)]
        checks += self._detectors.not_judged(asked if self._stats.begun else ())
        if (cut := self.figures.sessions.cut()) is not None:
            checks.append(
                CheckResult("turns_fit", f"<= {MOST_CUT:.0%}", cut.text, "unknown" if cut.too_many else "pass")
            )
        if (made := self.figures.sessions.calls()) is not None:
            checks.append(CheckResult("tools_called", "> 0", made.text, "pass" if made.calls else "unknown"))
        idle = dict(self._attacks.without_effect(terms.attacks))
        for name in dict.fromkeys(terms.attacks):  # one that the profile names twice is one in the ledger
            counts = self._attacks.counts.get(name, {})
            actual = idle.get(name) or f"{counts.get('ok', 0)} of {counts.get('begun', 0)} succeeded"
            checks.append(CheckResult(f"attack {name}", "took effect", actual, "unknown" if name in idle else "pass"))
        if self._explainer.misfits:
            checks.append(
                CheckResult("fit", "no request beyond the server's limits", self._explainer.misfits[0], "unknown")
            )
        return [check for check in checks if check is not None]

    def _figures(self, episodes: list[Incident], terms: Terms) -> ExpectationInputs:
        late = [w for p in self._stats.phases.values() if (w := p.limit_reason())]
        phases = self._stats.phases.items()
        slots = [w for n, p in phases if (w := p.slots_reason(slots_of(terms, n)))]
        too_late = f"the load generator was the limit: {late[0]}" if late else None
        void = too_late or (slots[0] if slots else None)
        down = [i for i in episodes if i.kind in ("death", "hang", "outage", "restart", "terminated")]
        groups, efficiency = EndpointFigures(terms.endpoints, self.figures), self.figures.efficiency.parts()
        hits, stall = efficiency.get("prefix_hit_rate", {}), self.figures.stalls.longest
        return ExpectationInputs(
            counts={**self._exact_lengths.mismatches, **self.figures.sessions.counts()},
            sessions=self.figures.sessions.times(),
            unproved={**self.figures.sessions.unproved(), **self._health.unproved(terms)},
            ok=groups.with_parts(self._stats.ok_parts(groups.traffics_of(shed_allowed(terms.expect)))),
            errors=groups.with_parts(self._stats.error_parts()),
            goodput=groups.with_parts(self.figures.goodput.parts()) if terms.slo else {},
            goodput_in_time=groups.with_parts(self.figures.goodput.parts(in_time=True)) if terms.slo else {},
            efficiency={name: groups.with_parts(parts) for name, parts in efficiency.items()},
            late=too_late or self.figures.goodput.unproved() or self._void_limit(terms),
            warm=why_warm(self._warm_cache.hit_rate(hits, self.figures.efficiency.prefix_source, terms.new_prompts)),
            outcomes=groups.outcomes(),
            latency=groups.latency(),
            recoveries_s=[i.recovered_after_s() for i in down],
            away_s=max(
                ((self._health.newest_ns - i.opened_ns) / NS_PER_S for i in down if i.back_ns is None), default=None
            ),
            void=void,
            host=self._health.host(),
            others=self._other_clients.why(terms.new_prompts),
            longest_stall=None if stall is None else (stall.seconds, self._stall_text(stall)),
            drifts=self._growth.growths(),
            steady=self.figures.steady.span() if terms.steady else None,
        )

    def _target(self) -> VerdictTarget:
        target = typed_json.from_json(VerdictTarget, self._health.begin.get("target"))
        if (facts := self._facts) is None:
            return target
        return replace(target, dialect=facts.dialect, version=facts.version, model=facts.model)
