"""`loadchaos run --resume RUN`: where the load of an interrupted run stopped, and how that run was called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadchaos.errors import OptionError
from loadchaos.ledger import RunFolder, Tail, is_behind
from loadchaos.plan.profile import Profile
from loadchaos.plan.steps import PHASE_STRIDE, of_phase, total
from loadchaos.redact import REDACTED


@dataclass(frozen=True)
class Point:
    """The next step of a plan, `behind_s` into its phase; `left`: requests to come, None where time ends the load."""

    run: str
    phase: int
    step: int
    behind_s: float
    left: int | None

    def to_json(self) -> dict[str, Any]:
        """As plan.json has it."""
        return {"run": self.run, "phase": self.phase, "step": self.step, "behind_s": self.behind_s}


def begin_row(folder: RunFolder) -> Mapping[str, Any]:
    """The first row of a run: what was asked for. Raises OptionError where there is none."""
    for row in Tail(folder.events).rows():
        if row.get("row") == "run" and row.get("what") == "begin":
            return row
    raise OptionError(f"--resume {folder.path}: no run began there; `loadchaos runs` lists those here")


def arguments(folder: RunFolder) -> list[str]:
    """What stood behind `loadchaos run`, its secrets redacted."""
    argv = [str(a) for a in begin_row(folder).get("argv") or ()]
    return argv[argv.index("run") + 1 :] if "run" in argv else []


def hidden(value: object) -> bool:
    """Whether a part of an option's value was a secret, and so is not recorded."""
    return any(REDACTED in str(text) for text in (value if isinstance(value, tuple | list) else (value,)))


def point(folder: RunFolder, profile: Profile, seed: int) -> Point:
    """Behind the last step that any worker sent. Raises OptionError where nothing was sent, or nothing is left."""
    last, begun_ns, newest_ns, done, ends = _read(folder)
    if not last:
        raise OptionError(f"--resume {folder.path}: it sent nothing, so there is nothing to go on with: run it anew")
    if ends and all(why == "done" for why in ends):
        raise OptionError(f"--resume {folder.path}: its load ran to the end, nothing of it is left: run it anew")
    phase = max(last)
    following, behind_s = last[phase] + 1, 0.0
    part = profile.load[phase]
    if part.kind == "closed" and part.for_ is not None:
        behind_s = (newest_ns - begun_ns.get(phase, newest_ns)) / 1e9
        over = behind_s >= part.for_
    else:
        step = next((s for s in of_phase(profile, seed, phase) if s.index >= following), None)
        over = step is None
        behind_s = (step.due_s or 0.0) if step is not None else 0.0
    if over:
        phase, following, behind_s = phase + 1, (phase + 1) * PHASE_STRIDE, 0.0
    if phase >= len(profile.load):
        raise OptionError(f"--resume {folder.path}: its load ran to the end, nothing of it is left: run it anew")
    planned = total(profile, seed)
    left = None if planned is None else max(0, planned - done)
    return Point(str(folder.path.resolve()), phase, following, behind_s, left)


def _read(folder: RunFolder) -> tuple[dict[int, int], dict[int, int], int, int, Sequence[str]]:
    """(last step by phase, begin of each phase, newest moment, requests sent or missed, how each worker's load ended)."""
    last: dict[int, int] = {}
    begun_ns: dict[int, int] = {}
    newest_ns = done = 0
    ends: list[str] = []
    for path in folder.request_files():
        end = ""
        for row in Tail(path).rows():
            kind, at_ns = row.get("row"), int(row.get("at_ns") or 0)
            newest_ns = max(newest_ns, at_ns)
            if kind == "begin":
                phase = int(row["phase"])
                last[phase] = max(last.get(phase, 0), int(row["step"]))
                done += not is_behind(row)
            elif kind == "missed":
                done += int(row["count"])
            elif kind == "phase" and row["what"] == "begin":
                begun_ns[int(row["phase"])] = min(begun_ns.get(int(row["phase"]), at_ns), at_ns)
            elif kind == "load":
                end = str(row.get("why") or "never") if row["what"] == "end" else "never"
        if end:
            ends.append(end)
    return last, begun_ns, newest_ns, done, ends
