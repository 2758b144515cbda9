"""Files of a capacity search: capacity.json, capacity.csv, report.html. They are replaced in one step after each
finished step, so that SIGKILL loses only the step in progress.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from loadchaos.analysis.capacity.result import SCHEMA, CapacityResult
from loadchaos.analysis.capacity.step_columns import COLUMNS
from loadchaos.campaigns.campaign import saved
from loadchaos.core.errors import OptionError
from loadchaos.core.typed_json import from_json
from loadchaos.report.html import capacity_page

RESULT, TABLE, PAGE, PROFILE = "capacity.json", "capacity.csv", "report.html", "profile.yaml"
STEPS, SERVER = "steps", "server"
_NEEDED = ("target", "server", "started", "seconds", "ended", "by", "goal", "slo_s", "answer", "steps", "failures")


def contents(data: CapacityResult) -> dict[str, object]:
    return {RESULT: data, TABLE: table(data), PAGE: capacity_page.render(data)}


def table(data: CapacityResult) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([getattr(step, name) for name in COLUMNS] for step in data.by_load)
    return out.getvalue()


def read(folder: Path, option: str = "") -> CapacityResult:
    """Read capacity.json of a search, whose folder `option` names. Raises OptionError where that cannot be used."""
    given = f"{option} {folder}".strip()
    instead = "start a new search"
    found = saved(folder / RESULT, SCHEMA, instead, f"{given}: {RESULT} cannot be read: it is missing; {instead}")
    if missing := [key for key in _NEEDED if key not in found]:
        raise OptionError(f"{given}: {RESULT} has no {missing[0]}; {instead}")
    return from_json(CapacityResult, found)
