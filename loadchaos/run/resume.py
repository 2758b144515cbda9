"""Resume an interrupted run: find where its load stopped."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadchaos.core.errors import OptionError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.model import Row
from loadchaos.profile.arrivals import phase_requests
from loadchaos.profile.profile import Profile
from loadchaos.profile.run_plan import ResumePoint, RunPlan
from loadchaos.profile.steps import PHASE_STRIDE, SentSteps, is_left, of_phase

_MOST_WORKERS = 100_000  # more are no plan of ours
_LATE_S = 5.0
"""Steps due this long before an open phase's newest request count as missed and are not sent late."""


def begin_row(folder: RunFolder) -> Row:
    """Read the first row of a run. Raises OptionError where there is none."""
    for row in Tail(folder.events).rows():
        if row.get("row") == "run" and row.get("what") == "begin":
            return row
    raise OptionError(f"--resume {folder.path}: this folder has no run; `loadchaos runs` lists the runs here")


def arguments(folder: RunFolder) -> list[str]:
    """Arguments of the interrupted run without --resume. Secrets in them are redacted."""
    recorded = begin_row(folder).get("argv")
    argv = [str(a) for a in recorded] if isinstance(recorded, list) else []
    given = argv[argv.index("run") + 1 :] if "run" in argv else []
    return [
        a for before, a in pairwise(["", *given]) if "--resume" not in (before, a) and not a.startswith("--resume=")
    ]


def point(folder: RunFolder, profile: Profile, seed: int) -> ResumePoint:
    """Find the step after the last one of each worker. Raises OptionError where nothing was sent or nothing is left."""
    seen = _read(folder)
    if not seen.last:
        raise OptionError(f"--resume {folder.path}: this run sent no request; run the profile again without --resume")
    complete = OptionError(f"--resume {folder.path}: the load is complete; run the profile again without --resume")
    if seen.ends and all(why == "done" for why in seen.ends):
        raise complete
    plan = _plan(folder)
    before = plan.resume
    last = [seen.last.get(worker, -1) for worker in range(max(plan.workers, *(w + 1 for w in seen.last)))]
    phase = min(last) // PHASE_STRIDE if min(last) >= 0 else before.phase if before else 0
    while phase < len(profile.load):
        last = _without_missed(profile, seed, phase, last)
        sent: SentSteps = [*(before.sent if before else ()), last]
        if (found := _next(profile, seed, phase, sent, seen, before)) is not None:
            step, behind_s = found
            left = _left(profile, seed, phase, sent)
            return ResumePoint(str(folder.path.resolve()), phase, step, behind_s, left, sent, seen.loaded_s)
        phase += 1
    raise complete


def _next(
    profile: Profile, seed: int, phase: int, sent: SentSteps, seen: _Progress, before: ResumePoint | None
) -> tuple[int, float] | None:
    part = profile.load[phase]
    if part.kind == "closed" and part.for_ is not None:
        had_s = before.behind_s if before and before.phase == phase else 0.0
        begun_ns = seen.begun_ns.get(phase)
        behind_s = had_s + (0.0 if begun_ns is None else (seen.newest_ns - begun_ns) / 1e9)
        if behind_s >= part.for_:
            return None
        return next(i for i in itertools.count(phase * PHASE_STRIDE) if is_left(i, sent)), behind_s
    step = next((s for s in of_phase(profile, seed, phase) if is_left(s.index, sent)), None)
    return None if step is None else (step.index, step.due_s or 0.0)


def _without_missed(profile: Profile, seed: int, phase: int, last: Sequence[int]) -> list[int]:
    newest, end = max(last), (phase + 1) * PHASE_STRIDE
    if profile.load[phase].kind == "closed" or newest < phase * PHASE_STRIDE:
        return list(last)
    if newest >= end:  # other workers are past it
        return [max(had, end - 1) for had in last]
    horizon, recent = -1, deque[tuple[int, float]]()
    for step in itertools.takewhile(lambda s: s.index <= newest, of_phase(profile, seed, phase)):
        recent.append((step.index, step.due_s or 0.0))
        while recent[0][1] < recent[-1][1] - _LATE_S:
            horizon, _ = recent.popleft()
    return [max(had, horizon) for had in last]


def _left(profile: Profile, seed: int, phase: int, sent: SentSteps) -> int | None:
    left = 0
    for number in range(phase, len(profile.load)):
        if (planned := phase_requests(profile.load[number], seed, number)) is None:
            return None
        first = number * PHASE_STRIDE
        left += sum(is_left(index, sent) for index in range(first, first + planned))
    return left


def _plan(folder: RunFolder) -> RunPlan:
    try:
        plan = RunPlan.read(folder.plan)
        if not 1 <= plan.workers <= _MOST_WORKERS:
            raise ValueError(f"workers is {plan.workers}")
        return plan
    except (OSError, ValueError) as e:
        raise OptionError(
            f"--resume {folder.path}: plan.json cannot be read ({e}); run the profile again without --resume"
        ) from e


@dataclass
class _Progress:
    last: dict[int, int] = field(default_factory=dict)
    begun_ns: dict[int, int] = field(default_factory=dict)
    load_ns: int | None = None
    newest_ns: int = 0
    ends: list[str] = field(default_factory=list)

    @property
    def loaded_s(self) -> float:
        return 0.0 if self.load_ns is None else (self.newest_ns - self.load_ns) / 1e9


def _read(folder: RunFolder) -> _Progress:
    seen = _Progress()
    for path in folder.request_files():
        end = ""
        for row in Tail(path, fits_its_kind).rows():
            at_ns = 0 if row["row"] == "header" else row.get("at_ns") or 0
            seen.newest_ns = max(seen.newest_ns, at_ns)
            if row["row"] == "begin":
                worker, step = folder.worker(path), int(row["step"])
                seen.last[worker] = max(seen.last.get(worker, -1), step)
            elif row["row"] == "phase" and row["what"] == "begin":
                phase = int(row["phase"])
                seen.begun_ns[phase] = min(seen.begun_ns.get(phase, at_ns), at_ns)
            elif row["row"] == "load":
                if row["what"] == "begin":
                    seen.load_ns = at_ns if seen.load_ns is None else min(seen.load_ns, at_ns)
                end = str(row.get("why") or "never") if row["what"] == "end" else "never"
        if end:
            seen.ends.append(end)
    return seen
