"""Results of a proof: cells of reproducers and releases, their page, and how often the predictions were right."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from loadchaos.analysis.advisories.condition import Result
from loadchaos.campaigns.replay.estimate import probability
from loadchaos.core import exit_codes
from loadchaos.core.stats import upper_bound_at_zero, wilson
from loadchaos.core.typed_json import to_json
from loadchaos.report.formatting import columns, percent, plural
from loadchaos.run.doctor_page import FATAL

State = Literal["present", "unknown", "absent", "not run"]
_RELEASES_ABREAST = 6


@dataclass(frozen=True)
class Cell:
    """A reproducer on a release: what doctor said before, and what was seen. `proved`: an advisory had been proved on this
    release then, so that it is no prediction. `launch`: number of the --launch command that was used. `times`: servers
    that were asked for. `why` it is unknown or was not run.
    """

    reproducer: str
    advisory: str
    severity: str
    release: str
    predicted: Result
    predicted_on: str
    proved: bool = False
    launch: int = 0
    reproduced: int = 0
    tries: int = 0
    times: int = 1
    measured: str = ""
    why: str = ""

    @property
    def state(self) -> State:
        if self.reproduced:
            return "present"
        if not self.measured:
            return "not run"
        return "unknown" if self.why or self.tries < self.times else "absent"

    @property
    def differs(self) -> bool:
        """True where what was seen is not what was predicted."""
        return self.state in ("present", "absent") and (self.state == "present") != (self.predicted == "applies")

    def text(self) -> str:
        """Count, share and interval; for what was not seen the highest share that fits."""
        if not self.tries:
            return self.why
        bound = upper_bound_at_zero(self.tries) or 1.0
        p = probability(self.reproduced, self.tries) if self.reproduced else f"p < {bound:.2f} at 95 %"
        return f"{self.reproduced} of {self.tries} ({p})" + (f"; then {self.why}" if self.why else "")


@dataclass(frozen=True)
class Score:
    """Predictions beside what was seen, over cells that are present or absent, and were not proved before. `applies` is the
    prediction of a bug.
    """

    right: int
    applies: int
    present: int
    seen: int
    left_open: int
    """Present ones of which doctor said that they may apply, or that nothing was read about this version."""

    @property
    def precision(self) -> str:
        return _share(self.right, self.applies)

    @property
    def recall(self) -> str:
        return _share(self.right, self.present)

    def text(self) -> str:
        return (
            f"precision {self.precision}: present, of those predicted to apply; recall {self.recall}: predicted to "
            f"apply, of those present; left open of those present: {self.left_open}; cells decided that were not proved "
            f"before: {self.seen}"
        )


def score(cells: Iterable[Cell]) -> Score:
    seen = [c for c in cells if c.state in ("present", "absent") and not c.proved]
    present = [c for c in seen if c.state == "present"]
    return Score(
        sum(c.predicted == "applies" for c in present),
        sum(c.predicted == "applies" for c in seen),
        len(present),
        len(seen),
        sum(c.predicted in ("may apply", "unsettled") for c in present),
    )


def _share(part: int, whole: int) -> str:
    return f"{percent(part / whole)} ({part} of {whole})" if whole else "unknown (0 of 0)"


def data(cells: Sequence[Cell]) -> dict[str, object]:
    """Make the rows of docs/measured/doctor-*.json."""

    def row(cell: Cell) -> dict[str, object]:
        interval = list(wilson(cell.reproduced, cell.tries)) if cell.tries else None
        return {**to_json(cell), "state": cell.state, "interval": interval}

    return {"schema": 1, "score": to_json(score(cells)), "rows": [row(c) for c in cells]}


def page(cells: Sequence[Cell], width: int) -> str:
    """A table of releases, if there are several, and a line for each cell, what was seen first. Of one server the bugs
    that it cannot have are only counted.
    """
    releases = list(dict.fromkeys(c.release for c in cells))
    several = len(releases) > 1
    lines: list[str] = []
    for begin in range(0, len(releases) if several else 0, _RELEASES_ABREAST):
        lines += [*_matrix(cells, releases[begin : begin + _RELEASES_ABREAST]), ""]
    left = [] if several else [c for c in cells if c.state == "not run" and c.predicted == "does not apply"]
    for cell in sorted((c for c in cells if c not in left), key=lambda c: get_args(State).index(c.state)):
        release = f"{cell.release} " if several else ""
        text = f"{cell.state:8} {release}{cell.reproducer}: {cell.text() or 'not reached'}; doctor: {cell.predicted}"
        lines += textwrap.wrap(text, width, subsequent_indent=" " * 9, break_on_hyphens=False)
    lines += (
        [f"{plural(len(left), 'reproducer')} of bugs that do not apply: not run (--json has the reasons)"]
        if left
        else []
    )
    return "\n".join([*lines, *(["", *textwrap.wrap(score(cells).text(), width)] if several else [])])


def _matrix(cells: Sequence[Cell], releases: Sequence[str]) -> list[str]:
    """States; `!` marks those that differ from the prediction."""
    found = {(c.reproducer, c.release): c for c in cells}
    names = list(dict.fromkeys(c.reproducer for c in cells))
    rows = [["", *releases], *([name, *(_mark(found.get((name, r))) for r in releases)] for name in names)]
    return columns(rows, left=range(len(releases) + 1))


def _mark(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return cell.state + ("!" if cell.differs else "")


def exit_code(cells: Sequence[Cell]) -> int:
    """1: a bug that ends the engine or gives wrong answers is present; 3: something is unknown, or nothing was run."""
    if any(c.state == "present" and c.severity in FATAL for c in cells):
        return exit_codes.FAIL
    decided = [c for c in cells if c.state in ("present", "absent")]
    return exit_codes.PASS if decided and all(c.state != "unknown" for c in cells) else exit_codes.UNKNOWN
