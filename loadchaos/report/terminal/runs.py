"""List the runs of a folder with their verdicts (`loadchaos runs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.report.formatting import clean, columns, cut, duration, number, parse_time
from loadchaos.report.repeat_result import FILE as REPEAT

_TARGET, _FAILURES = 14, 30  # columns they have at least on a narrow terminal


@dataclass(frozen=True)
class RunEntry:
    """A run as `loadchaos runs --json` lists it; `verdict` None: it has none yet."""

    folder: str
    profile: str | None = None
    started: str | None = None
    verdict: str | None = None
    exit_code: int | None = None
    lasted_s: float | None = None
    requests: int = 0
    failures: Sequence[str] = ()
    target: str = ""


def found(home: Path) -> list[RunEntry]:
    """Read the runs in `home`, and those of its repeated loads and audits, oldest first."""
    repeated = [file.parent for pattern in (f"*/{REPEAT}", f"*/*/{REPEAT}") for file in home.glob(pattern)]
    places = [home, *repeated] if home.is_dir() else []
    runs = [_run(RunFolder(p)) for place in places for p in place.iterdir() if (p / "events.jsonl").is_file()]
    return sorted(runs, key=lambda r: (r.started or "", r.folder))


def _run(folder: RunFolder) -> RunEntry:
    if (verdict := Verdict.read(folder)) is None:  # the run is active or was killed; both can be judged
        return RunEntry(str(folder.path))
    started, ended = parse_time(verdict.started), parse_time(verdict.ended)
    target = verdict.target
    return RunEntry(
        folder=str(folder.path),
        profile=verdict.profile,
        started=verdict.started,
        verdict=verdict.verdict,
        exit_code=verdict.exit_code,
        lasted_s=(ended - started).total_seconds() if started and ended else None,
        requests=verdict.sent,
        failures=[f.id for f in verdict.failures],
        target=" ".join(part for part in (target.kind, target.dialect, target.version) if part),
    )


def text(runs: Sequence[RunEntry], home: Path, width: int | None = None) -> str:
    """Format one line per run of `home` in at most `width` columns; the failures get more space than the target."""
    cells = [("run", "verdict", "duration", "requests", "target", "failures")]
    for r in runs:
        verdict = "FAIL" if r.verdict == "fail" else r.verdict or "none yet"
        names = ", ".join(clean(f, 40) for f in r.failures[:3]) + (" ..." if len(r.failures) > 3 else "")
        what = str(Path(r.folder).relative_to(home)), verdict, duration(r.lasted_s), number(r.requests)
        cells.append((*what, clean(r.target, 34), names))
    widths = [max(len(c[i]) for c in cells) for i in range(5)]
    if width is not None:
        left = width - sum(widths[:4]) - 2 * 5 - min(_FAILURES, max(len(c[5]) for c in cells))
        widths[4] = min(widths[4], max(_TARGET, left))
    rows = [(*c[:4], cut(c[4], widths[4]), c[5]) for c in cells]
    return "\n".join(cut(line[2:], width) for line in columns(rows, range(6)))
