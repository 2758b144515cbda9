"""Which finished runs of a soak are deleted: whole ones only, never the last good one, never one that a person marked.

A person marks a run with an empty file KEEP in its folder or in one of its incidents, or with "keep": true in an
incident.json. Only runs that this soak began are ever touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median_low

import orjson

from loadchaos.profile.cron import Keep
from loadchaos.runner.soak.state import SoakRun, when

_DOOMED = ".deleted-"
_USUAL_GAPS = 3


def too_many(home: Path, nights: Sequence[SoakRun], keep: Keep, now: datetime) -> list[SoakRun]:
    """The nights whose run folders may go, oldest first: `nights` are in the order in which they ended."""
    there = [n for n in nights if n.folder and n.started and not n.deleted and _whole(home / n.folder)]
    last_good = next((n for n in reversed(there) if n.verdict == "pass"), None)
    ages = _ages([when(str(n.started)) for n in there], now)
    most = timedelta(days=keep.days) if keep.days else timedelta.max
    return [
        n
        for i, (n, age) in enumerate(zip(there, ages, strict=True))
        if n is not last_good and (len(there) - i > keep.runs or age > most) and not marked(home / str(n.folder))
    ]


def _ages(starts: Sequence[datetime], now: datetime) -> list[timedelta]:
    """How old each is, in time that nights bear witness to: a clock that is wrong, once or from now on, ages none of them.

    A gap counts for three usual ones at most, one in which the clock went back for none. Of two nights nothing is usual.
    """
    gaps = [max(b - a, timedelta()) for a, b in pairwise([*starts, now])]
    usual = median_low(gaps[:-1]) if len(gaps) > 2 else timedelta()
    counted = (min(gap, _USUAL_GAPS * usual) for gap in reversed(gaps))
    return list(accumulate(counted, initial=timedelta()))[1:][::-1]


def _whole(path: Path) -> bool:
    """A run folder of its own: a link may lead to what is not ours to delete."""
    return path.is_dir() and not path.is_symlink() and (path / "events.jsonl").is_file()


def marked(run: Path) -> bool:
    """Whether a person wants this run or one of its incidents kept; what cannot be read is kept, too."""
    if (run / "KEEP").exists():
        return True
    try:
        for incident in (run / "incidents").iterdir() if (run / "incidents").is_dir() else ():
            if (incident / "KEEP").exists():
                return True
            told = incident / "incident.json"
            if told.is_file() and orjson.loads(told.read_bytes()).get("keep"):
                return True
    except (OSError, orjson.JSONDecodeError, AttributeError):
        return True
    return False


def delete(home: Path, night: SoakRun) -> None:
    """Take a run away whole: out of sight in one step, then its files; a kill between the two leaves no half run."""
    path = home / str(night.folder)
    doomed = home / f"{_DOOMED}{path.name}"
    path.rename(doomed)
    night.deleted = True
    shutil.rmtree(doomed, ignore_errors=True)  # what is left of it goes at the next start


def sweep(home: Path) -> None:
    """Finish deletions that a kill interrupted."""
    for doomed in home.glob(f"{_DOOMED}*"):
        if not doomed.is_symlink():
            shutil.rmtree(doomed, ignore_errors=True)  # a file that cannot go now is tried again the next time
