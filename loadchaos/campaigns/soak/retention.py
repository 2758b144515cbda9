"""Delete old runs of a soak, except the last passed and marked ones. A user marks a run with an empty file KEEP in its
folder or in one of its incidents, or with "keep": true in an incident.json. Only runs that this soak started are
deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

import orjson

from loadchaos.campaigns.soak.state import SoakRun, parse_time

if TYPE_CHECKING:
    from loadchaos.profile.cron import Retention

_DOOMED = ".deleted-"
_USUAL_GAPS = 3


def expired(home: Path, runs: Sequence[SoakRun], keep: Retention, now: datetime) -> list[SoakRun]:
    """List the runs whose folders may be deleted, oldest first. `runs` are in the order in which they ended."""
    kept = [r for r in runs if r.folder and r.started and not r.deleted and _is_run_folder(home / r.folder)]
    last_passed = next((r for r in reversed(kept) if r.verdict == "pass"), None)
    ages = _ages([parse_time(str(r.started)) for r in kept], now)
    oldest = timedelta(days=keep.days) if keep.days else timedelta.max
    return [
        r
        for i, (r, age) in enumerate(zip(kept, ages, strict=True))
        if r is not last_passed and (len(kept) - i > keep.runs or age > oldest) and not marked(home / str(r.folder))
    ]


def _ages(starts: Sequence[datetime], now: datetime) -> list[timedelta]:
    """Ages of runs, robust against a wrong clock. A gap between two runs counts at most three times the median gap, and
    zero where the clock went back. With two runs or fewer there is no median and every age is zero.
    """
    gaps = [max(b - a, timedelta()) for a, b in pairwise([*starts, now])]
    usual = median_low(gaps[:-1]) if len(gaps) > 2 else timedelta()
    counted = (min(gap, _USUAL_GAPS * usual) for gap in reversed(gaps))
    return list(accumulate(counted, initial=timedelta()))[1:][::-1]


def _is_run_folder(path: Path) -> bool:
    """True for a real run folder; a symlink may lead to another soak's."""
    return path.is_dir() and not path.is_symlink() and (path / "events.jsonl").is_file()


def marked(run: Path) -> bool:
    """True when a user marked the run or one of its incidents. Also true when that cannot be read."""
    if (run / "KEEP").exists():
        return True
    try:
        for incident in (run / "incidents").iterdir() if (run / "incidents").is_dir() else ():
            if (incident / "KEEP").exists():
                return True
            data = incident / "incident.json"
            if data.is_file() and orjson.loads(data.read_bytes()).get("keep"):
                return True
    except (OSError, orjson.JSONDecodeError, AttributeError):
        return True
    return False


def delete(home: Path, run: SoakRun) -> None:
    delete_folder(home, str(run.folder))
    run.deleted = True


def delete_folder(home: Path, name: str) -> None:
    """Delete a run folder. It is renamed first, so that a kill leaves no half run behind."""
    doomed = home / f"{_DOOMED}{name}"
    (home / name).rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)  # `sweep` removes what is left at the next start


def sweep(home: Path) -> None:
    """Finish deletions that were interrupted by a kill."""
    for doomed in home.glob(f"{_DOOMED}*"):
        if not doomed.is_symlink():
            shutil.rmtree(doomed, ignore_errors=True)  # files that cannot be deleted are tried again next time
