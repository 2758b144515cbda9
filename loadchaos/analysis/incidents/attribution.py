"""Attribute failures: server, own attack, sabotage, or expected."""

from __future__ import annotations

import re
import signal
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadchaos.analysis.incidents.record import NearAttack
from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core.attack_names import ENGINE_FAULTS, LOST, engine_attack
from loadchaos.core.latency import LOWER_BOUNDS
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import AttackRow, LaunchRow, ProcessRow, RunRow
from loadchaos.core.model import OUTCOMES, Attribution
from loadchaos.core.units import NS_PER_S

_AFTER_NS = 10 * NS_PER_S
_SOON_NS = 2 * NS_PER_S
"""After an attack that was taken back, its effects on answers last so long, or as long as the attack did if that is more."""
_HARMS = dict.fromkeys(("process", "network", "host"), "expected") | dict.fromkeys(("engine", "sabotage"), "injected")
# Log line of each act of loadchaos-vllm, behind at most the prefix that vLLM puts before a process's lines.
_SABOTAGE = re.compile(r"^(?:\x1b\[[\d;]*m)*(?:\([^()]*\)\s*(?:\x1b\[[\d;]*m)*\s*)?loadchaos-sabotage: act (\w+) ")
_SABOTAGE_NS = 50 * NS_PER_S  # an entry that is gone is missed when its request comes; a slow step is seen late
_ENGINE_ATTACKS = frozenset(map(engine_attack, ENGINE_FAULTS))
_NO_ATTACK = {"begun": 0, "ok": 0, "failed": 0, "skipped": 0}
_DEATHS = frozenset({"death", "engine_death"})
# A reset leaves this behind: one side of the cache still expects images that the other has lost.
_LASTING = frozenset({
    "mm_cache_desync_request", "mm_cache_desync_thread_death", "mm_cache_keyerror_v08", "mm_cache_spin",
})  # fmt: skip
_ANYTHING = frozenset({"*"})  # the process did not survive it: any failure of this death is its effect
_NOT_A_SERVER_BUG = "None: loadchaos-vllm injected this fault, as LOADCHAOS_SABOTAGE asked. It is not a server bug."

# Effects of an admin operation by design, unlike what may break by it (encoder_cache_miss after our own reset).
_BY_DESIGN = frozenset(
    {*OUTCOMES, "alive_but_hung", "server_terminated", "server_unreachable", "http_scaling", "http_paused"}
)


@dataclass
class _Attack:
    name: str
    n: int
    replica: str
    kind: str
    begin_ns: int
    end_ns: int | None = None
    effects: frozenset[str] = field(default_factory=frozenset)
    pid: int | None = None
    signal: int | None = None
    undone: bool = False

    def hits_answer(self, names: Collection[str], at_ns: int, sent_ns: int) -> bool:
        """True if an answer that ended badly at `at_ns` may be an effect. One that was asked for after the attack was taken
        back is none.
        """
        if self.end_ns is None or not self.undone:
            return True
        if sent_ns > self.end_ns + _SOON_NS:
            return False
        lasts_ns = max(_SOON_NS, self.end_ns - self.begin_ns)
        return not LOWER_BOUNDS.isdisjoint(names) or at_ns <= self.end_ns + lasts_ns

    def in_force(self, at_ns: int) -> bool:
        until = None if self.end_ns is None else self.end_ns + _AFTER_NS
        return self.begin_ns - NS_PER_S <= at_ns and (until is None or at_ns <= until)


def known_and_remedy(
    attribution: Attribution, known: Sequence[KnownIssue], remedy: str
) -> tuple[Sequence[KnownIssue], str]:
    """(known issues, remedy); no upstream issues for our own faults."""
    if attribution == "injected":
        return (), _NOT_A_SERVER_BUG
    return (known if attribution == "server" else ()), remedy


@dataclass(frozen=True)
class ProcessEnds:
    """Processes that an incident names, and the exit of the launched one."""

    pids: frozenset[int] = frozenset()
    exit_pid: int | None = None
    exit_signal: int | None = None

    def explained_by(self, pid: int | None, signal: int | None) -> bool:
        """True when a signal to this process may have ended it. An attack without a pid is no signal."""
        if pid is None:
            return True
        if self.exit_signal is not None and (self.exit_pid, self.exit_signal) != (pid, signal):
            return False
        return not self.pids or pid in self.pids or pid == self.exit_pid


def result_of(row: AttackRow) -> Literal["ok", "failed", "skipped"] | None:
    """Result that an `attack` row tells. None for other events, and for an act that ended without an answer."""
    if row.get("what") == "end" and row.get("ok") is not None:
        return "ok" if row["ok"] else "failed"
    return "skipped" if row.get("what") == "skipped" else None


class AttackLog(RowFold):
    """Attacks of the run: the newest with their effects, and counts of all."""

    def __init__(self) -> None:
        self._recent: deque[_Attack] = deque(maxlen=400)
        self._lasting: dict[str, int] = {}  # lasting effects in this life of the server, and since when
        self._acted: set[str] = set()  # engine attacks of which the log shows an act
        self._told_to_end: defaultdict[str, set[int]] = defaultdict(set)  # pids that got a SIGTERM, by the attack
        self._ended_pids: set[int] = set()
        self._load_ended = False
        self.counts: dict[str, dict[str, int]] = {}

    def on_attack(self, row: AttackRow) -> None:
        name, n, what = str(row.get("attack")), int(row.get("n") or 0), row.get("what")
        replica = str(row.get("replica"))
        counts = self.counts.setdefault(name, dict(_NO_ATTACK))
        if (result := result_of(row)) is not None:
            counts[result] += 1
        effects = frozenset(str(e) for e in row.get("effects") or ())
        if what == "begin":
            counts["begun"] += 1
            for effect in effects & _LASTING:
                self._lasting.setdefault(effect, row["at_ns"])
            kind, target = str(row.get("kind", "admin")), (row.get("pid"), row.get("signal"))
            self._recent.append(_Attack(name, n, replica, kind, row["at_ns"], None, effects, *target))
            if row.get("signal") == signal.SIGTERM and (pid := row.get("pid")) is not None:
                self._told_to_end[name].add(pid)
        elif what == "undo":
            for attack in reversed(self._recent):
                if (attack.name, attack.n, attack.replica) == (name, n, replica):
                    attack.undone = bool(row.get("ok"))
                    break
        elif what == "end":  # after the undo, if any: its effects are ours from begin to end
            for attack in reversed(self._recent):
                if (attack.name, attack.n, attack.replica) == (name, n, replica):
                    attack.end_ns = row["at_ns"]
                    attack.effects |= effects
                    if attack.kind == "process" and row.get("ok") is False:
                        attack.effects = frozenset()  # no signal was sent: any failure is the server's
                    break

    def on_run(self, row: RunRow) -> None:
        self._load_ended |= row.get("what") == "load_end"

    def on_process(self, row: ProcessRow) -> None:
        if not self._load_ended and (row["what"] == "gone" or row.get("state") == "Z"):
            self._ended_pids.add(row["pid"])

    def on_launch(self, row: LaunchRow) -> None:
        if row["what"] == "exit" and not row.get("asked"):
            self._ended_pids.add(row.get("pid") or 0)

    def feed_log(self, text: str, at_ns: int) -> None:
        """Fold a log line: acts of sabotage inside the engine are an attack. It lasts from the first act to a while
        after the last.
        """
        act = _SABOTAGE.match(text) if "loadchaos-sabotage: act" in text else None
        if act is None:
            return
        name = f"sabotage {act[1]}"
        self._acted.add(engine_attack(act[1]))
        last = next((a for a in reversed(self._recent) if a.name == name), None)
        if last is not None and last.in_force(at_ns):
            last.n, last.end_ns = last.n + 1, at_ns + _SABOTAGE_NS
            return
        shows = ENGINE_FAULTS.get(act[1], LOST)
        effects = _ANYTHING if shows is LOST else frozenset(shows)
        self._recent.append(_Attack(name, 1, "", "sabotage", at_ns, at_ns + _SABOTAGE_NS, effects))

    def in_force(self, at_ns: int, within_ns: int = 0) -> list[NearAttack]:
        """Attacks in force at `at_ns` or ended at most 10 s before. At most 20, newest last."""
        found = [a for a in self._recent if a.in_force(at_ns) or 0 <= at_ns - a.begin_ns <= within_ns]
        return [
            NearAttack(
                attack=a.name,
                n=a.n,
                kind=a.kind,
                effects=tuple(sorted(a.effects)),
                began_before_s=round((at_ns - a.begin_ns) / NS_PER_S, 3),
            )
            for a in found[-20:]
        ]

    def attribute(
        self, ids: Iterable[str], at_ns: int, ended: ProcessEnds | None = None, sent_ns: int | None = None
    ) -> Attribution:
        """Attribute a failure with one of these ids (or outcomes) at `at_ns`. It is ours only where an effect of an
        attack lists it. `ended`: the known process ends of a death. Our signal explains only the process that got it.
        `sent_ns`: when the request of a bad answer was sent.
        """
        names = set(ids)
        for attack in reversed(self._recent):
            if not attack.in_force(at_ns) or (ended is not None and not ended.explained_by(attack.pid, attack.signal)):
                continue
            if sent_ns is not None and not attack.hits_answer(names, at_ns, sent_ns):
                continue
            hit = names & attack.effects
            if attack.effects is _ANYTHING and names & _DEATHS:
                return "injected"
            if not hit:
                continue
            harm = _HARMS.get(attack.kind)
            if harm == "injected":
                return "injected"
            return "expected" if harm == "expected" or hit & _BY_DESIGN else "self-inflicted"
        return "self-inflicted" if any(self._lasting.get(name, at_ns) < at_ns for name in names) else "server"

    def forget_effects(self) -> None:
        self._lasting.clear()

    def without_effect(self, planned: Iterable[str]) -> list[tuple[str, str]]:
        found = []
        for name in planned:
            counts = self.counts.get(name, _NO_ATTACK)
            if counts["begun"] == 0:
                found.append((name, f"skipped {counts['skipped']} times" if counts["skipped"] else "none ran"))
            elif counts["ok"] == 0:
                found.append((name, f"0 of {counts['begun']} succeeded"))
            elif name in _ENGINE_ATTACKS - self._acted:
                found.append((name, f"armed {counts['ok']} times, and no log of the server shows an act of it"))
            elif (told := self._told_to_end.get(name)) and not told & self._ended_pids:
                found.append(
                    (name, f"SIGTERM was sent {counts['ok']} times, and no process ended of it under the load")
                )
        return found
