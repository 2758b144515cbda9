"""Run all detectors of this folder. Their failures go to the incidents they belong to."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from loadchaos.analysis import detectors
from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.failure import Failure
from loadchaos.analysis.incidents.bad_answers import at
from loadchaos.analysis.incidents.explain import Record
from loadchaos.analysis.incidents.tracker import IncidentTracker
from loadchaos.analysis.oracles import ORACLES, Oracle
from loadchaos.analysis.verdict.model import CheckResult, NotJudged
from loadchaos.core.units import NS_PER_S


def _found() -> list[Callable[[], Detector]]:
    names = sorted(module.name for module in pkgutil.iter_modules(detectors.__path__) if module.name != "suite")
    modules = [import_module(f"{detectors.__name__}.{name}") for name in names]
    classes = dict.fromkeys(c for module in modules for c in vars(module).values() if isinstance(c, type))
    return [c for c in classes if Detector in c.__mro__[1:]]


DETECTORS: list[Callable[[], Detector]] = _found()
"""The `Detector` classes of this folder, by file name. A run has these and the oracles."""

_SLOW_POLL_NS = 10 * NS_PER_S
_DEATH_WAIT_NS = 10 * NS_PER_S
"""A device page is read every 5 s and dcgm-exporter updates every 30 s: wait for the death that a fault may explain."""


class DetectorSuite:
    """All detectors of one run. `detectors` fold the rows, `poll` is for now and then, `finish` for the end of the run.
    `checks` and `notes` are for the verdict, once `finish` was called.
    """

    def __init__(self, tracker: IncidentTracker, record: Record) -> None:
        self.checks: list[CheckResult] = []
        self.notes: list[str] = []
        self._tracker, self._record = tracker, record
        self.detectors = [*(make() for make in DETECTORS), *(oracle() for oracle in ORACLES.values())]
        self._hang_causes: list[Failure] = []  # until the states, which are slower, show the hang
        self._death_causes: list[Failure] = []
        self._slow_polled_ns = 0
        self._finished = False

    def poll(self, now_ns: int, begin_ns: int, *, final: bool) -> None:
        """Report new failures. Slow detectors are polled every 10 s, and every tenth of a run's length once that is
        more. `final`: a server's life or the run is over, so that nothing is held back.
        """
        self._poll_detectors(now_ns, slow=False)
        self._explain_deaths(now_ns, final=final)
        if final or now_ns - self._slow_polled_ns > max(_SLOW_POLL_NS, (now_ns - begin_ns) // 10):
            self._slow_polled_ns = now_ns
            self._poll_detectors(now_ns, slow=True)
            self._name_hangs(final=False)

    def finish(self, now_ns: int) -> None:
        """End the run: record what is left. A second call only renews `checks` and `notes`."""
        self._name_hangs(final=True)
        self.checks, self.notes = [], []
        for found in [found for detector in self.detectors for found in detector.finish()]:
            if isinstance(found, CheckResult):
                self.checks.append(found)
            elif isinstance(found, str):
                self.notes.append(found)
            elif not self._finished:
                known = self._record(at(found, now_ns))  # one already reported under load counts once
                known.in_log = max(known.in_log, found.in_log, 1)
        self._finished = True

    def not_judged(self, parts: Sequence[str]) -> list[NotJudged]:
        """Checks of the oracles whose questions the profile asks and that judged nothing; call it after `finish`."""
        told = {check.name for check in self.checks}
        oracles = (d for d in self.detectors if isinstance(d, Oracle) and d.asked_by in parts)
        return [oracle.unjudged() for oracle in oracles if oracle.check not in told]

    def _poll_detectors(self, now_ns: int, *, slow: bool) -> None:
        for detector in self.detectors:
            if detector.slow == slow:
                for failure in detector.poll(now_ns):
                    self._report(at(failure, now_ns))

    def _report(self, failure: Failure) -> None:
        if failure.explains_death:
            self._death_causes.append(failure)
        elif failure.severity == "hang":
            self._hang_causes.append(failure)
        else:
            self._record(failure).in_log += 1

    def _name_hangs(self, *, final: bool) -> None:
        """Give hangs their cause. At the end of the run a cause without a hang is a failure of its own."""
        causes, self._hang_causes = self._hang_causes, []
        for failure in causes:
            hang = self._tracker.hang_at(failure.at_ns)
            if hang is not None:
                self._tracker.explain(hang, failure)
            elif final:
                self._record(failure).in_log += 1
            else:
                self._hang_causes.append(failure)

    def _explain_deaths(self, now_ns: int, *, final: bool) -> None:
        """Give unexplained deaths their cause. Without a death the fault is one of the node."""
        causes, self._death_causes = self._death_causes, []
        for failure in causes:
            if not final and now_ns - failure.at_ns < _DEATH_WAIT_NS:
                self._death_causes.append(failure)
                continue
            incident = self._tracker.find_beside(failure, None)
            if incident is not None and incident.kind in ("death", "hang", "restart") and not incident.causes:
                self._tracker.add_deadly(failure, incident.replica)
            else:
                self._record(replace(failure, severity="node")).in_log += 1
