"""State machine of one replica: ledger rows in, `state` rows out.

The exit of a launched process proves a death, and so does an engine core that disappeared. Over the network one sign
proves nothing: a refused connection counts from the second probe on and only while no token arrives. A hung server may
return /health 200, so progress is measured by our own tokens first and by the server's counters second.
"""

from __future__ import annotations

from loadchaos.analysis.state.client_evidence import ClientEvidence
from loadchaos.analysis.state.death_evidence import DeathEvidence
from loadchaos.analysis.state.engines import EngineStates, state_row
from loadchaos.analysis.state.hang_evidence import HangEvidence
from loadchaos.analysis.state.limits import DEGRADED_NS, HUNG_AT_LATEST_NS, beyond_gaps_ns
from loadchaos.analysis.state.restarts import RestartDetector
from loadchaos.analysis.state.signals import (
    AttackEffects,
    CounterSignals,
    NetworkSignals,
    ProcessSignals,
    TrafficSignals,
)
from loadchaos.analysis.state.stall_count import Stalls
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import (
    AttackRow,
    BeginRow,
    CanaryRow,
    EndRow,
    FailureRow,
    HeardRow,
    HeartbeatRow,
    LastQuestionRow,
    LaunchRow,
    MetricsRow,
    ProbeRow,
    ProcessRow,
    StateRow,
    SupervisorRow,
)
from loadchaos.core.limits import SCRAPE_EVERY_S
from loadchaos.core.model import Row, State
from loadchaos.core.units import NS_PER_MS, NS_PER_S
from loadchaos.server.dialects.gateways import LIVENESS_PATH

_HEALTH_SILENT_NS = 5 * NS_PER_S
_UNREACHABLE_NS = 2 * NS_PER_S
_BLIND_NS = 5 * NS_PER_S
_BACK_NS = 1 * NS_PER_S
_BACK_SURE_NS = 10 * NS_PER_S
_EXIT_WAITS_NS = 60 * NS_PER_S
_ORCHESTRATOR_NS = 30 * NS_PER_S
_PAGE_NS = int(SCRAPE_EVERY_S * NS_PER_S)
_PAUSED = frozenset({"paused", "asleep", "alive_but_hung"})
_TERMINATED = frozenset({"terminated", "server_terminated"})
_BREAKS_REQUESTS = frozenset(
    {"connect_error", "reset", "http_error", "stream_error", "truncated", "http_unhandled_500"}
)
_ALIVE_NS = 3 * NS_PER_S
_SAME_PROCESS = frozenset({"degraded", "hung", "dying"})  # a single refused probe is no restart that was seen

Verdict = tuple[State, int, list[str]]  # the state, the time of its first sign, the signs


class StateMachine(RowFold):
    """State of one replica: `changes_after` every row about it, `tick` in between.

    `knows_death`: an empty 500 or 503 of /health means that the engine is gone. `sole`: our traffic goes to this replica
    alone, so that our tokens prove that it works. `known_server`: /health is the server's own and not a gateway's.
    """

    def __init__(
        self,
        replica: str,
        knows_death: bool = True,
        *,
        sole: bool = True,
        known_server: bool = True,
    ) -> None:
        self.replica = replica
        self.state: State = "starting"
        self.knows_death, self.known_server = knows_death, known_server
        self.outage = False  # every request fails, and nothing proves a death
        self._sole = sole
        self._traffic, self._network, self._processes = TrafficSignals(), NetworkSignals(), ProcessSignals()
        self._counters, self._attacked, self._client = CounterSignals(), AttackEffects(), ClientEvidence()
        self._stalls = Stalls()
        self._evidence = DeathEvidence(self._traffic, self._network, self._processes, sole=sole)
        self._hang = HangEvidence(self._traffic, self._network, self._processes, self._counters, self._client)
        self._restarts = RestartDetector(self._counters)
        self._engines = EngineStates(replica)
        self._progress_ns: int | None = None
        self._worked_ns: int | None = None  # the newest progress of any kind, in flight or not
        self._longest_gap_ns = 0
        self._now_ns = 0
        self._since_ns: int | None = None
        self._exit: tuple[int, Verdict] | None = None
        self._relaunched_ns: int | None = None
        self._was_up = False
        self._down_ns: int | None = None
        self._listener_gone_ns: int | None = None  # its listener was closed, so that an open one proves a new process
        self._engine_was_gone = False
        self._healthy_ns = 0
        self._only_said = False
        self._is_sign = False  # the newest row may change the state
        self._of_engines: list[StateRow] = []

    def changes_after(self, row: Row) -> list[StateRow]:
        """Fold one row; gives `state` rows for the ledger (usually none)."""
        at_ns = row.get("at_ns")
        if at_ns is None or row.get("row") in ("state", "header"):
            return []
        if row.get("replica") not in (None, self.replica):
            return []
        self._clock(at_ns)
        self._is_sign, self._of_engines = row.get("row") in self.receivers, []
        self.fold(row)
        return self._of_engines + self._decide() if self._is_sign else []

    def tick(self, now_ns: int) -> list[StateRow]:
        """Let time pass without a row: silence is a sign, too."""
        self._clock(now_ns)
        return self._decide()

    def unsettled(self, since_ns: int) -> bool:
        """True while a restart before `since_ns` may still show."""
        page_ns = self._counters.at_ns
        awaited = page_ns is not None and page_ns <= since_ns and self._now_ns - page_ns < _ALIVE_NS
        return self._restarts.open or awaited

    @property
    def said_dead(self) -> bool:
        """True where only texts say that it is dying or dead. The next requests show whether it is."""
        gone = self._exit is not None or self._network.refused_ns is not None
        return self._only_said and self.state in ("dying", "dead") and not gone

    @property
    def requests_fail(self) -> bool:
        return self._traffic.all_fail(self._now_ns)

    def _clock(self, at_ns: int) -> None:
        if self._now_ns and at_ns - self._now_ns > _BLIND_NS:
            # We were stopped or starved ourselves: the server is not to blame for this time.
            self._progress_ns = at_ns
            if self._traffic.busy_since_ns is not None:
                self._traffic.busy_since_ns = at_ns
        self._now_ns = max(self._now_ns, at_ns)

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        self._client.on_heartbeat(row)
        if self._traffic.on_heartbeat(row) and self._sole:
            self._progressed(row["at_ns"])

    def on_begin(self, row: BeginRow) -> None:
        self._client.on_begin(row)
        self._is_sign = False

    def on_end(self, row: EndRow) -> None:
        self._client.on_end(row)
        answered = self._traffic.on_end(row)
        if answered and self._sole:
            self._progressed(row["at_ns"])
        self._is_sign = not answered and self._traffic.dead_text_ns == row["at_ns"]

    def on_probe(self, row: ProbeRow) -> None:
        self._network.on_probe(row)

    def on_process(self, row: ProcessRow) -> None:
        self._processes.on_process(row)

    def on_attack(self, row: AttackRow) -> None:
        self._attacked.on_attack(row)

    def on_failure(self, row: FailureRow) -> None:
        if row.get("severity") == "engine_death" and self._evidence.log_death is None:
            self._evidence.log_death = (row["at_ns"], f"the log says: {row.get('title') or row.get('id')}")

    def on_heard(self, row: HeardRow) -> None:
        self._evidence.log.on_heard(row)

    def on_canary(self, row: CanaryRow | LastQuestionRow) -> None:
        if self._traffic.canary(row) and self._sole:
            self._progressed(row["at_ns"])

    def on_last_question(self, row: LastQuestionRow) -> None:
        self.on_canary(row)

    def _progressed(self, at_ns: int) -> None:
        before = max(self._progress_ns or 0, self._traffic.busy_since_ns or 0)
        gap_ns = 0
        if before and self.state in ("healthy", "degraded") and not self._paused():
            gap_ns = at_ns - before
            self._longest_gap_ns = max(self._longest_gap_ns, gap_ns)
        self._client.progressed(at_ns, gap_ns)
        self._stalls.progressed(at_ns)
        self._progress_ns = max(self._progress_ns or 0, at_ns)
        self._worked_ns = self._progress_ns

    def on_metrics(self, row: MetricsRow) -> None:
        self._of_engines = self._engines.on_metrics(row)
        before_ns = self._counters.at_ns or 0
        self._network.scraped(row["at_ns"])
        if self._restarts.scraped(row):
            # It moved some time after the page before; a stall must not look a second shorter.
            self._progressed(max(before_ns, row["at_ns"] - _PAGE_NS))

    def on_launch(self, row: LaunchRow) -> None:
        at_ns = row["at_ns"]
        if row.get("what") == "start":
            self._exit, self._relaunched_ns = None, at_ns
            self._processes.forget_gone()
        elif self.state == "dead" and (row.get("asked") or row.get("what") == "kill"):
            self._exit = (at_ns, ("dead", at_ns, []))  # we stop what is left of it: it stays dead
        elif row.get("what") == "kill":
            self._exit = (at_ns, ("terminated", at_ns, [f"stopped by loadchaos: {row.get('reason')}"]))
        elif row.get("what") == "exit":
            reason = str(row.get("reason") or f"exited with code {row.get('code')}")
            by_us = bool(row.get("asked")) or self._attacked.in_force(_TERMINATED, at_ns, _EXIT_WAITS_NS)
            # vLLM ends with code 0 both after a death and after a shutdown.
            shut_down = row.get("signal") is None and self._evidence.log.orderly_shutdown(at_ns) is not None
            state: State = "terminated" if by_us or shut_down or row.get("signal") == 15 else "dead"
            self._exit = (at_ns, (state, at_ns, [f"process ended: {reason}"]))

    def on_supervisor(self, row: SupervisorRow) -> None:
        if row.get("what") != "ended":
            return
        at_ns, report = int(row["at_ns"]), f"{row.get('source')}: {row.get('reason')}"
        known_down = self._down_ns is not None and at_ns - self._down_ns < _ORCHESTRATOR_NS
        if not row.get("running"):
            self._evidence.orchestrator_end = (at_ns, report)
        elif self.state in ("healthy", "degraded") and not known_down:
            self._restarts.replaced(at_ns, report)

    def _decide(self) -> list[StateRow]:
        rows: list[StateRow] = []
        for _ in range(3):  # dead -> restarting -> healthy may come with one row
            target, since_ns, signs = self._target()
            if target == self.state:
                break
            rows.append(self._enter(target, since_ns, signs))
        rows += self._notes()
        return rows

    def _target(self) -> Verdict:
        if self._exit is not None:
            state, since_ns, signs = self._exit[1]
            earlier = self._since_ns if self.state == "dying" and self._since_ns else since_ns
            return (state, min(since_ns, earlier), signs)
        if self.state in ("dead", "terminated"):
            return self._recovery() or (self.state, 0, [])
        bad = self._death() or self._outage() or self._hang_or_silence()
        busy = not self._sole or self._traffic.in_flight(self._now_ns) > 0
        if bad is None and self.state == "degraded" and busy and self._stalls.recent(self._now_ns):
            return "degraded", 0, []  # one stall after the other is one degraded time
        return bad or self._health()

    def _death(self) -> Verdict | None:
        """Judge signs of death: a proof makes it dead, anything less dying."""
        worked_ns = self._worked_ns or 0
        proofs, signs = self._evidence.gone(self._now_ns, worked_ns)
        if self._was_up and self.state != "restarting":  # a starting server also refuses and returns 503
            more_proofs, more_signs = self._evidence.reported(self._now_ns, worked_ns, knows_death=self.knows_death)
            beside = bool(more_signs or more_proofs)
            least_ns = 0 if self._progress_ns else HUNG_AT_LATEST_NS  # its gaps are not known
            waiting_ns = beyond_gaps_ns(least_ns, self._longest_gap_ns) + self._client.prefill_ns(self._now_ns)
            said = self._evidence.told_deaths(self._now_ns, worked_ns, beside=beside, waiting_ns=waiting_ns)
            proofs, signs = proofs + more_proofs, signs + more_signs
            self._only_said = not proofs and not signs
            proofs, signs = proofs + said[0], signs + said[1]
        if not proofs and not signs:
            return None
        since_ns = min(at_ns for at_ns, _ in proofs + signs)
        texts = [text for _, text in proofs + signs]
        if proofs and self._attacked.in_force(_TERMINATED, self._now_ns, _EXIT_WAITS_NS):
            return "terminated", since_ns, [*texts, "after our SIGTERM"]
        if (ending := self._evidence.log.orderly_shutdown(since_ns)) is not None:
            return "terminated", min(since_ns, ending[0]), [*texts, ending[1]]
        return ("dead" if proofs else "dying"), since_ns, texts

    def _outage(self) -> Verdict | None:
        self.outage = False
        if not self._sole or not self._was_up or self.state == "restarting":
            return None
        found = self._client.outage(self._now_ns, answers=self._answers())
        if found is None or self._attacked.in_force(
            _BREAKS_REQUESTS, self._now_ns, _ALIVE_NS, by_ns=found[0] + NS_PER_S
        ):
            return None
        self.outage = True
        return "unreachable", found[0], [found[1]]

    def _answers(self) -> bool:
        """True when the server itself answered in the last 3 s. A server whose metrics pages were read has to give
        these: /health may be a gateway's.
        """
        network = self._network
        good_ns = self._counters.at_ns or (network.health_ok_ns if network.unhealthy_ns is None else None)
        own = self.known_server and network.page != LIVENESS_PATH
        return own and good_ns is not None and self._now_ns - good_ns < _ALIVE_NS

    def _hang_or_silence(self) -> Verdict | None:
        silent = self._network.silent_since()
        if self.state == "unreachable" and silent is None:
            self._progress_ns = self._now_ns  # the server is not to blame for the time behind a partition
        stuck_ns, why = self._stuck()
        if stuck_ns is not None and (stopped := self._hang.stopped(stuck_ns, self._now_ns)) is not None:
            return "hung", stuck_ns, [stopped, why]
        if silent is not None and not self._working_since(silent) and self._was_up:
            if self._now_ns - silent >= _UNREACHABLE_NS or self.state == "unreachable":
                return "unreachable", silent, ["probes get no answer"]
            return self.state, silent, []
        ended_ns = self._client.limit_stall(self._now_ns, busy=stuck_ns is not None) if self._sole else None
        if ended_ns is not None and not self._paused():
            return "hung", ended_ns, ["requests reach their time limit, and no token arrives on any"]
        if stuck_ns is None or self._now_ns - stuck_ns < DEGRADED_NS:
            return None
        limit_ns = beyond_gaps_ns(HUNG_AT_LATEST_NS, self._longest_gap_ns)
        # A pause explains the silence after it; for a silence before it only up to the limit.
        paused = self._paused()
        if paused and (self._now_ns - stuck_ns < limit_ns or self._paused(by_ns=stuck_ns + DEGRADED_NS)):
            return "degraded", stuck_ns, [why, f"paused by our attack {paused}"]
        may_work = not self._sole or self._answers()
        sign = self._hang.sign(stuck_ns, self._now_ns, limit_ns, reachable=silent is None, may_work=may_work)
        if sign is not None:
            return "hung", stuck_ns, [why, sign]
        if self.state == "hung":
            return "hung", stuck_ns, []  # no progress since: a sign that disappears is no recovery
        self._stalls.begin(stuck_ns)
        return "degraded", stuck_ns, [why]

    def _stuck(self) -> tuple[int | None, str]:
        """(since when, sign) of work without progress. By our own requests or, without any, by the counters of the
        server: requests of others, or ours are not known.
        """
        progress_ns = self._progress_ns or 0
        stuck = self._hang.stuck_requests(self._now_ns, progress_ns) if self._sole else None
        stuck = stuck or self._hang.stuck_counters(self._now_ns, progress_ns)
        return (stuck[0] or None, stuck[1]) if stuck else (None, "")

    def _working_since(self, ns: int) -> bool:
        return self._worked_ns is not None and self._worked_ns > ns + 300 * NS_PER_MS

    def _paused(self, by_ns: int | None = None) -> str | None:
        return self._attacked.in_force(_PAUSED, self._now_ns, by_ns=by_ns)

    def _health(self) -> Verdict:
        network = self._network
        if not self._was_up or self.state == "restarting":
            now_ok = network.refused_ns is None and network.unhealthy_ns is None
            if now_ok and network.health_ok_ns is not None and network.health_ok_ns > (self._down_ns or 0):
                return "healthy", network.health_ok_ns, [f"{network.page} returns 200"]
            if self._worked_ns is not None and self._worked_ns > (self._down_ns or 0) + _BACK_NS:
                return "healthy", self._worked_ns, ["answers requests"]
            return ("restarting" if self._was_up else "starting"), 0, []
        if network.unhealthy_ns is not None and network.unhealthy_ns[2] >= 2:
            return "degraded", network.unhealthy_ns[0], [network.unhealthy_text]
        silent = network.silent_ns.get("health")
        if silent is not None and silent[2] >= 2 and self._now_ns - silent[0] >= _HEALTH_SILENT_NS:
            return "degraded", silent[0], [f"{network.page} does not answer"]
        stalls = self._stalls.describe()
        return "healthy", self._stalls.ended_ns or self._now_ns, [f"working; {stalls}" if stalls else "working"]

    def _recovery(self) -> Verdict | None:
        """Judge whether a dead server comes back. A dying vLLM 0.8 returns /health 200 for 5 s more."""
        assert self._down_ns is not None
        down, network = self._down_ns, self._network
        if self._relaunched_ns is not None and self._relaunched_ns > down:
            return "restarting", self._relaunched_ns, ["launched again"]
        if (moved := self._restarts.moved_since(down)) is not None:
            return "restarting", moved[0], [moved[1]]
        reached = network.last_ok_ns
        says_dead = network.says_dead(self.knows_death)
        if reached is None or reached <= down + _BACK_NS or network.refused_ns is not None or says_dead:
            return None
        if self._listener_gone_ns is not None and reached > self._listener_gone_ns:
            return "restarting", reached, ["connections are accepted again"]
        if self._worked_ns is not None and self._worked_ns > down + _BACK_NS:
            return "restarting", self._worked_ns, ["answers requests again"]
        if self._processes.engine_seen_ns > down:
            return "restarting", self._processes.engine_seen_ns, ["engine core is running again"]
        if self._engine_was_gone:
            return None  # LMDeploy says /health 200 without its engine: before 0.14 for ever, now until it looks
        if reached - down < _BACK_SURE_NS or network.health_ok_ns is None or network.health_ok_ns <= down:
            return None
        if self._answers() and not self._client.failed_since(down):
            return "restarting", reached, [f"{network.page} returned 200 for 10 s"]
        return None

    def _enter(self, target: State, since_ns: int, signs: list[str]) -> StateRow:
        row = state_row(self.replica, None, (self.state, target), signs, self._now_ns, since_ns or self._now_ns)
        if self.outage and target == "unreachable":
            row["outage"] = True
        if self._only_said and target == "dying":
            row["said"] = True
        if self.state == "unreachable" and target in ("healthy", "degraded"):
            self._restarts.settle(self._now_ns)
        if target != "degraded":
            self._stalls.forget()
        if self.state == "hung":
            self._client.thawed()
        was, self.state, self._since_ns = self.state, target, since_ns or self._now_ns
        if target in ("dead", "terminated"):
            self._engines.forget()
            self._down_ns = self._now_ns
            self._restarts.remember_process()
            gone = any(role == "engine_core" for _, _, role, _ in self._processes.gone)
            self._engine_was_gone = gone or self._evidence.log_says_dead(self._now_ns)
            self._listener_gone_ns = self._now_ns if self._network.refused_ns is not None or self._exit else None
        elif target == "unreachable":
            self._restarts.remember_process()
        elif target == "restarting":
            self._processes.forget_gone()
            self._evidence.forget()
            self._traffic.outlived_text = False
            self._client.forget()
            self._progress_ns = self._now_ns
        elif target == "healthy":
            self._was_up = True
            if was not in _SAME_PROCESS:
                self._healthy_ns = self._now_ns
            if was == "restarting":
                self._restarts.settle(self._now_ns)
                self._network.refused_ns = None  # tokens may outrun the next probe
            if was == "dying":
                self._traffic.outlived_text |= self._traffic.dead_text_ns is not None
                self._evidence.forget()
        return row

    def _notes(self) -> list[StateRow]:
        rows: list[StateRow] = []
        if self.state in ("dead", "terminated") and self._network.refused_ns is not None:
            self._listener_gone_ns = self._now_ns
        for note in self._restarts.poll(self._now_ns, self.state, healthy_ns=self._healthy_ns):
            if note.restarted_ns is None:
                row = state_row(self.replica, None, (self.state, self.state), [note.text], self._now_ns, None)
                if note.balanced:
                    row["balanced"] = True
                rows.append(row)
            else:
                rows.append(self._enter("restarting", note.restarted_ns, [note.text]))
                rows.append(self._enter("healthy", self._now_ns, ["working"]))
                self._restarts.settled()
        return rows
