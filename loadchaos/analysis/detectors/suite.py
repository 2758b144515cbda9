"""Everything no line of a log says, in one place: figures that creep, silent wrongs, what is held, canaries, machines."""

from __future__ import annotations

from dataclasses import replace

from loadchaos.analysis.detectors.canary import CanaryDetector
from loadchaos.analysis.detectors.devices import DeviceFaultDetector
from loadchaos.analysis.detectors.drift_detector import DriftDetector
from loadchaos.analysis.detectors.kv_leak import KvLeakDetector
from loadchaos.analysis.detectors.late_aborts import LateAborts
from loadchaos.analysis.detectors.memory_leak import MemoryLeakDetector
from loadchaos.analysis.detectors.silent_faults import SilentFaultDetector
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.incidents.explain import Record
from loadchaos.analysis.incidents.spinning import SpinningDetector
from loadchaos.analysis.incidents.tracker import IncidentTracker
from loadchaos.analysis.mechanisms import Check
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Facts, Row

_LOOK_NS = 10 * S
_RELEASE = "requests whose client left are not let go: they hold KV cache and a place in the batch"


def _room(facts: Facts | None) -> int | None:
    """How long prompt and answer may be together, as far as is known: the context, or what the KV cache takes of it."""
    if facts is None or facts.max_model_len is None:
        return None
    told = (facts.max_model_len, facts.capacity_tokens, facts.input_limit)
    return min(n for n in told if n is not None)


class DetectorSuite:
    """Folds every row. `settle` is called now and then, `finish` when the run is over."""

    def __init__(self, episodes: IncidentTracker, record: Record) -> None:
        self._episodes, self._record = episodes, record
        self._creep, self._memory, self._silent, self._idle = (
            DriftDetector(),
            MemoryLeakDetector(),
            SilentFaultDetector(),
            KvLeakDetector(),
        )
        self._canaries, self._devices, self._spinning = CanaryDetector(), DeviceFaultDetector(), SpinningDetector()
        self._leaving = LateAborts()
        self._stalls: list[Failure] = []
        self._looked_ns = 0  # when the whole run was last looked at
        self._finished = False

    def feed(self, row: Row) -> None:
        """Fold one row; kinds that nobody needs are ignored."""
        parts = (self._creep, self._memory, self._silent, self._idle, self._canaries, self._devices, self._spinning)
        for part in (*parts, self._leaving):
            part.feed(row)

    def settle(self, now_ns: int, begin_ns: int, facts: Facts | None, *, final: bool) -> None:
        """Tell what has become clear. What grows slowly is looked at rarely, and the rarer the longer the run is."""
        for seen in self._canaries.found():
            self._count(seen)
        for seen in self._devices.ripe(None if final else now_ns):
            self._of_a_machine(seen)
        if final or now_ns - self._looked_ns > max(_LOOK_NS, (now_ns - begin_ns) // 10):
            self._looked_ns = now_ns
            self._look(now_ns, facts)

    def finish(self, now_ns: int, dialect: str) -> None:
        """The run is over: stalls that no hang took are failures, and so is what the server still holds."""
        self._name_hangs(final=True)
        leaks, self._finished = ({} if self._finished else self._idle.leaks(dialect)), True
        for replica, (name, text) in leaks.items():
            title = f"After clients hung up and the load was over, {text}"
            held = Failure(name, "degraded", title, evidence("metrics", text), now_ns, remedy=_RELEASE, replica=replica)
            known = self._record(held)  # what was told while the load ran is told once
            known.in_log = max(known.in_log, 1)

    def checks(self, dialect: str) -> list[Check]:
        """For verdict.json: whether the server came back to rest, what its canary was held to, what grew and is no leak."""
        return [c for c in (self._idle.check(dialect), self._canaries.check(), self._memory.check()) if c is not None]

    def notes(self) -> list[str]:
        """What a reader should know and no verdict hangs on: what was not looked at, hang-ups that came too late."""
        return [*self._idle.notes(), *self._leaving.notes()]

    def _look(self, now_ns: int, facts: Facts | None) -> None:
        self._silent.room = _room(facts)
        self._spinning.facts = facts
        creeps = (*self._creep.found(now_ns), *self._memory.found(now_ns), *self._devices.leaks(now_ns))
        creeps += tuple(self._devices.strains())
        for seen in (*self._spinning.found(), *self._silent.found(now_ns), *creeps):
            if seen.severity == "hang":
                self._stalls.append(seen)  # it names a hang, which the states are slower to see
            else:
                self._count(seen)
        self._name_hangs(final=False)

    def _name_hangs(self, *, final: bool) -> None:
        stalls, self._stalls = self._stalls, []
        for seen in stalls:
            hang = self._episodes.hang_at(seen.at_ns)
            if hang is not None:
                self._episodes.explain(hang, seen)
            elif final:
                self._count(seen)
            else:
                self._stalls.append(seen)

    def _of_a_machine(self, seen: Failure) -> None:
        """It explains a death that nobody else did; alone it is a trouble of the node, and whose process it hit is open."""
        about = self._episodes.beside(seen, None)
        if about is not None and about.kind in ("death", "hang", "restart") and not about.causes:
            self._episodes.deadly(seen, about.replica)
        else:
            self._count(replace(seen, severity="node"))

    def _count(self, seen: Failure) -> None:
        self._record(seen).in_log += 1
