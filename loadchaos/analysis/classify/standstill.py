"""Find an engine that stands still in the statistics that it logs.

vLLM, SGLang and LMDeploy log every few seconds how many tokens they made. Lines that say none, with requests running or
waiting, one after the other for half a minute, are a hang: a batch of long prompts is shorter, as each chunk counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from loadchaos.analysis.classify.match import Match

HUNG_IN_LOG_S = 25.0
"""Between the third and the fourth line of vLLM, which logs every ten seconds."""
_FEWEST_LINES = 3
HINT = "thr"
"""It is in each line of statistics: one cheap test for all lines of a log."""
STANDSTILL = "engine_stands_still"
"""Its signature, in figures.toml."""
_STATISTICS = re.compile(
    r"(?:(?P<engine>Engine \d+): )?Avg prompt throughput: (?P<prompt>\d+(?:\.\d+)?) tokens/s, "
    r"Avg generation throughput: (?P<made>\d+(?:\.\d+)?) tokens/s, "
    r"Running: (?P<running>\d{1,9}) reqs?, .*?(?:Waiting|Pending): (?P<waiting>\d{1,9})"
    r"|Decode batch[.,].*#running-req: (?P<s_running>\d{1,9})"
    r".*gen throughput \(token/s\): (?P<s_made>\d+(?:\.\d+)?).*#queue-req: (?P<s_waiting>\d{1,9})"
    r"|Avg thr \(in/out\): (?P<l_prompt>\d+(?:\.\d+)?) / (?P<l_made>\d+(?:\.\d+)?) tokens/s.*"
    r"Engine \(running/waiting\): (?P<l_running>\d{1,9}) / (?P<l_waiting>\d{1,9})"
)


@dataclass(slots=True)
class Standstill:
    """Successive statistics of one engine without a token; `since_s` and `seconds` by the log's clock."""

    line: int
    text: str
    since_s: float
    seconds: float = 0.0
    lines: int = 1
    running: int = 0
    waiting: int = 0
    match: Match | None = None  # once it was given

    @property
    def is_hang(self) -> bool:
        """True once it is longer than any step of a healthy engine."""
        return self.lines >= _FEWEST_LINES and self.seconds >= HUNG_IN_LOG_S


class StandstillWatch:
    """Folds the statistics of the engines of one log."""

    def __init__(self) -> None:
        self._open: dict[str, Standstill] = {}

    def may_matter(self, line: str) -> bool:
        """False for most lines of an engine that works; cheap."""
        return bool(self._open) or " 0.0" in line

    def on_line(self, text: str, writer: str, line_no: int, clock_s: float | None) -> Standstill | None:
        """Fold a line; gives the hang that it belongs to."""
        if clock_s is None or (found := _STATISTICS.search(text)) is None:
            return None
        made = [float(found[name]) for name in ("prompt", "made", "s_made", "l_prompt", "l_made") if found[name]]
        running = int(found["running"] or found["s_running"] or found["l_running"])
        waiting = int(found["waiting"] or found["s_waiting"] or found["l_waiting"])
        engine = f"{writer} {found['engine']}"
        if any(made) or not running + waiting:
            self._open.pop(engine, None)
            return None
        still = self._open.setdefault(engine, Standstill(line_no, text, clock_s))
        still.seconds, still.lines = clock_s - still.since_s, still.lines + (line_no != still.line)
        still.running, still.waiting = max(still.running, running), max(still.waiting, waiting)
        return still if still.is_hang else None
