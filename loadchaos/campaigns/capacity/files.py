"""Files of a capacity search: capacity.json, capacity.csv, report.html. They are replaced in one step after each
finished step, so that SIGKILL loses only the step in progress.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.campaigns.campaign import saved
from loadchaos.core.errors import OptionError
from loadchaos.report.html import capacity_page

RESULT, TABLE, PAGE, PROFILE = "capacity.json", "capacity.csv", "report.html", "profile.yaml"
STEPS, SERVER = "steps", "server"
SCHEMA = 1
SearchData = Mapping[str, Any]
"""Contents of capacity.json; with `current` while a step runs."""
_NEEDED = ("target", "server", "started", "seconds", "ended", "by", "goal", "slo_s", "answer", "steps", "failures")
_COLUMNS = (
    "load", "status", "leans", "requests", "good", "goodput", "goodput_low", "goodput_high", "requests_per_s",
    "input_tokens_per_s", "output_tokens_per_s", "ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s", "tpot_p50_s",
    "tpot_p99_s", "e2e_p50_s", "e2e_p99_s", "queue_growth", "seconds", "why", "run",
)  # fmt: skip


def contents(data: SearchData) -> dict[str, object]:
    return {RESULT: data, TABLE: table(data), PAGE: capacity_page.render(CapacityResult.from_json(data))}


def table(data: SearchData) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for step in sorted(data["steps"], key=lambda step: float(step["load"])):
        writer.writerow({name: step.get(name) for name in _COLUMNS})
    return out.getvalue()


def read(folder: Path, option: str = "") -> SearchData:
    """Read capacity.json of a search, whose folder `option` names. Raises OptionError where that cannot be used."""
    given = f"{option} {folder}".strip()
    instead = "start a new search"
    found = saved(folder / RESULT, SCHEMA, instead, f"{given}: {RESULT} cannot be read: it is missing; {instead}")
    if missing := [key for key in _NEEDED if key not in found]:
        raise OptionError(f"{given}: {RESULT} has no {missing[0]}; {instead}")
    return found
