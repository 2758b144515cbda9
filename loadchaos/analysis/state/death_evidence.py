"""Evidence of a death: processes, connections, answers and logs.

A proof makes a server dead; a sign makes it dying until it becomes a proof, or until tokens disprove it. Over the
network one sign proves nothing: a refused connection counts from the second probe on and only while no token arrives.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from loadchaos.analysis.state.limits import FEWEST_FAILED, LAST_WORD_NS, TEXT_ALONE_NS, TEXT_BESIDE_NS
from loadchaos.analysis.state.signals import NetworkSignals, ProcessSignals, TrafficSignals
from loadchaos.core.ledger.rows import HeardRow
from loadchaos.core.units import NS_PER_MS, NS_PER_S, counted

_LATER_NS = 300 * NS_PER_MS
_NEAR_NS = 10 * NS_PER_S
_OWN_TITLE = re.compile(r"\b[A-Za-z]+::\w+")  # VLLM::EngineCore, sglang::scheduler_TP0
_INTERPRETER = re.compile(r"(?:\S*/)?python[\d.]*(?: -[^mc\s]\S*)*(?: -m)? (?=[^-\s])")

Sign = tuple[int, str]  # its first time, and its text


class LogSignals:
    """Markers of shutdown and death in the log, from `heard` rows."""

    def __init__(self) -> None:
        self._listening = False  # there is a log, and it is scanned
        self._ending: Sign | None = None
        self._failing_ns: int | None = None
        self.dead: Sign | None = None  # the engine is gone

    def on_heard(self, row: HeardRow) -> None:
        self._listening = True
        if row.get("what") == "ending":
            self._ending = (int(row["at_ns"]), f"the log says: {row.get('text')}")
        elif row.get("what") == "failing":
            self._failing_ns = int(row["at_ns"])
        elif row.get("what") == "dead":
            self._failing_ns = int(row["at_ns"])
            if self.dead is None or int(row["at_ns"]) - self.dead[0] > _NEAR_NS:  # it repeats that
                self.dead = (int(row["at_ns"]), f"the log says: {row.get('text')}")

    def orderly_shutdown(self, since_ns: int) -> Sign | None:
        """Log line of an orderly shutdown near `since_ns`. None without one, or where the log shows a failure before
        it.
        """
        if self._ending is None or abs(self._ending[0] - since_ns) > _NEAR_NS:
            return None
        failed = self._failing_ns is not None and 0 <= self._ending[0] - self._failing_ns < _NEAR_NS
        return None if failed else self._ending

    def may_still_explain(self, since_ns: int, now_ns: int) -> bool:
        silent = all(
            ns is None or ns < since_ns - NS_PER_S for ns in (self._failing_ns, self._ending and self._ending[0])
        )
        return self._listening and silent and now_ns - since_ns < LAST_WORD_NS

    def forget(self) -> None:
        self._ending = self._failing_ns = self.dead = None


@dataclass
class DeathEvidence:
    """Evidence of one replica from its signals. `sole`: our traffic goes to it alone, so that our tokens prove that it
    works. `orchestrator_end` is the exit that an orchestrator reports.
    """

    traffic: TrafficSignals
    network: NetworkSignals
    processes: ProcessSignals
    sole: bool
    log_death: Sign | None = None
    orchestrator_end: Sign | None = None
    log: LogSignals = field(default_factory=LogSignals)
    outlived_health: bool = False
    """Progress came well after a /health that tells a death: it fails by habit, and only silence makes it a sign again."""

    def forget(self) -> None:
        self.traffic.forget_death()
        self.log_death = self.orchestrator_end = None
        self.log.forget()

    def gone(self, now_ns: int, worked_ns: int) -> tuple[list[Sign], list[Sign]]:
        """(proofs, signs) of processes and containers that are gone. `worked_ns`: time of the newest progress."""
        proofs = [self.orchestrator_end] if self.orchestrator_end is not None else []
        signs: list[Sign] = []
        for at_ns, pid, role, name in self.processes.gone:
            sign = (at_ns, gone_sign(pid, role, name))
            if role in ("engine_core", "api_server"):
                # A server that was shut down loses its engine core as a dying one does.
                (signs if self.log.may_still_explain(at_ns, now_ns) else proofs).append(sign)
            elif role == "worker" and worked_ns <= at_ns + NS_PER_S + _LATER_NS:
                signs.append(sign)
        return proofs, signs

    def told_deaths(
        self, now_ns: int, worked_ns: int, *, beside: bool, waiting_ns: int
    ) -> tuple[list[Sign], list[Sign]]:
        """(proofs, signs) of what answers and log lines say. Words alone prove nothing: they may be a prompt's, or of one
        of several servers. Requests have to fail, or to wait without a token.

        Args:
            now_ns: time.
            worked_ns: time of the newest progress.
            beside: there is a sign that is no text.
            waiting_ns: time that requests in flight may need without a token.
        """
        proofs: list[Sign] = []
        signs: list[Sign] = []
        for at_ns, text, outlived in self._texts():
            if worked_ns > at_ns + NS_PER_S + _LATER_NS:
                continue  # tokens came long after it: not (or no longer) true
            if outlived and not beside and not self.traffic.all_fail(now_ns):
                continue
            waits = self.traffic.waits_since(at_ns + NS_PER_S, now_ns)
            limit_ns = TEXT_BESIDE_NS if beside else max(TEXT_ALONE_NS, waiting_ns) if waits else TEXT_ALONE_NS
            failing = self.traffic.failed_after_text
            if now_ns - at_ns < limit_ns or (0 < failing < FEWEST_FAILED and not beside and not waits):
                signs.append((at_ns, text))
            elif beside or waits or failing:
                proofs.append((at_ns, text))
        if (last := self._dead_in_log(now_ns, worked_ns)) is not None:
            sent_later = self.traffic.broken[-1][1] > last[0]
            (proofs if sent_later and now_ns - last[0] >= _LATER_NS else signs).append(last)
        return proofs, signs

    def _texts(self) -> list[tuple[int, str, bool]]:
        """(time, text, whether the server outlived such a text) of answers and failures that name a dead engine."""
        traffic, found = self.traffic, []
        if traffic.dead_text_ns is not None and self.sole:
            said = f"{counted(traffic.dead_texts, 'answer')} said that the engine is dead"
            found.append((traffic.dead_text_ns, said, traffic.outlived_text))
        if self.log_death is not None:
            found.append((*self.log_death, False))
        return found

    def log_says_dead(self, ns: int) -> bool:
        """True when the log shows, near `ns`, that the engine is gone. A server may return /health 200 long after it."""
        return self.log.dead is not None and abs(self.log.dead[0] - ns) <= _NEAR_NS

    def _dead_in_log(self, now_ns: int, worked_ns: int) -> Sign | None:
        """Log line of a dead engine, once requests fail and no token arrives. The text alone proves nothing: a log may
        quote a prompt.
        """
        dead, broken = self.log.dead, self.traffic.broken
        if dead is None or not self.sole or len(broken) < 2 or broken[0][0] < dead[0] - TEXT_BESIDE_NS:
            return None
        if worked_ns > dead[0] + 2 * _LATER_NS or not self._silent_since(dead[0], now_ns):
            return None
        return dead[0], f"{dead[1]}; requests fail and no tokens arrive"

    def reported(self, now_ns: int, worked_ns: int, *, knows_death: bool) -> tuple[list[Sign], list[Sign]]:
        """(proofs, signs) of the listener and of /health. `worked_ns`: time of the newest progress."""
        network = self.network
        proofs: list[Sign] = []
        signs: list[Sign] = []
        if network.refused_ns is not None:
            first, _, n = network.refused_ns
            sure = network.refused_twice() and self._silent_since(first, now_ns)
            (proofs if sure else signs).append((first, f"connection refused ({counted(n, 'probe')})"))
        if network.says_dead(knows_death) and network.unhealthy_ns is not None:
            first, newest, n = network.unhealthy_ns
            self.outlived_health |= self.sole and worked_ns > first + _LATER_NS
            sure = newest - first >= 50 * NS_PER_MS and self._silent_since(first, now_ns)
            if self.outlived_health:
                sure = sure and newest - max(first, worked_ns) >= TEXT_ALONE_NS
            told = (first, f"/health returned {network.unhealthy_status}{f' {n} times' if n > 1 else ''}")
            if sure or not self.outlived_health:
                (proofs if sure else signs).append(told)
        return proofs, signs

    def _silent_since(self, ns: int, now_ns: int) -> bool:
        """True without a token after `ns`, and where tokens prove nothing."""
        return not self.sole or self.traffic.silent_since(ns, now_ns)


def gone_sign(pid: int, role: str, name: str) -> str:
    return f"process {_short_title(name) or role} (pid {pid}, {role}) is gone"


def _short_title(title: str) -> str:
    """Name a process by its program, without interpreter, folder and options. A title that the process has set
    (`VLLM::EngineCore`) stays.
    """
    if (own := _OWN_TITLE.search(title)) is not None:
        return own[0]
    program = _INTERPRETER.sub("", title, count=1).partition(" ")[0]
    return program.rpartition("/")[2]
