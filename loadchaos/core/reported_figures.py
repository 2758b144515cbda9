"""ReportedFigures: what a load tool says of its own run in its result file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ReportedFigures:
    """Figures in the result file of a tool; None or empty where it has none. Latencies are by statistic of
    core/latency_percentiles.py, in seconds. `requests_failed` are those that the tool itself calls failed; `remark` is
    what a reader of the figures has to know about them. `more_files` counts further result files of the command.
    """

    tool: str
    requests_sent: int | None = None
    requests_ok: int | None = None
    requests_failed: int | None = None
    ttft_s: Mapping[str, float] = field(default_factory=dict)
    itl_s: Mapping[str, float] = field(default_factory=dict)
    tpot_s: Mapping[str, float] = field(default_factory=dict)
    e2e_s: Mapping[str, float] = field(default_factory=dict)
    output_tokens: int | None = None
    remark: str = ""
    file: str = ""
    more_files: int = 0
