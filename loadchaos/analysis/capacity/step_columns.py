"""Columns of the capacity table: one step of a search as in capacity.json, capacity.csv, its page and the terminal.
The fields are the columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal, NamedTuple

from loadchaos.core.typed_json import IF_KNOWN, IF_SET

StepStatus = Literal["undecided", "met", "not_met", "client"]


@dataclass(frozen=True, kw_only=True)
class ShortDecision:
    """Figures of a step, before its queue was found to be too long in the long run."""

    status: StepStatus
    leans: bool | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class ClientFigures:
    """Our own client in a step: CPU use of a worker, delays of its sends, and why it limits the load, if it does."""

    cpu_share: float | None = None
    limit: str | None = None
    send_delay_p50_s: float | None = None
    send_delay_p99_s: float | None = None


def _column(head: str = "") -> Mapping[str, str]:
    """Metadata: the field is a column of capacity.csv; with a head, also of the table of terminal and page."""
    return {"column": head}


@dataclass(frozen=True, kw_only=True)
class CapacityStep:
    """One load that was tried. Figures are None where nothing was measured. A field `ttft_p95_s` is that quantile of
    the TTFT: a latency is measured, written, shown and exported because its field is here.
    """

    load: float = field(metadata=_column())
    status: StepStatus = field(metadata=_column())
    leans: Annotated[bool | None, "true: the measured share reaches the goal"] = field(default=None, metadata=_column())
    requests: int = field(default=0, metadata=_column("requests"))
    good: int | None = field(default=None, metadata=_column())
    goodput: float | None = field(default=None, metadata=_column("goodput"))
    goodput_low: float | None = field(default=None, metadata=_column())
    goodput_high: float | None = field(default=None, metadata=_column())
    requests_per_s: float | None = field(default=None, metadata=_column("completed/s"))
    input_tokens_per_s: float | None = field(default=None, metadata=_column())
    output_tokens_per_s: float | None = field(default=None, metadata=_column("tokens/s"))
    ttft_p50_s: float | None = field(default=None, metadata=_column("TTFT p50"))
    ttft_p99_s: float | None = field(default=None, metadata=_column("TTFT p99"))
    itl_p50_s: float | None = field(default=None, metadata=_column())
    itl_p99_s: float | None = field(default=None, metadata=_column())
    tpot_p50_s: float | None = field(default=None, metadata=_column("TPOT p50"))
    tpot_p99_s: float | None = field(default=None, metadata=_column())
    e2e_p50_s: float | None = field(default=None, metadata=_column("E2E p50"))
    e2e_p99_s: float | None = field(default=None, metadata=_column())
    queue_growth: Annotated[float | None, "share of the arrivals that stays behind"] = field(
        default=None, metadata=_column()
    )
    seconds: float | None = field(default=None, metadata=_column())
    why: str = field(default="", metadata=_column())
    run: Annotated[str | None, "run folder of the step"] = field(default=None, metadata=_column())
    scout: Annotated[bool, "true: a short step, which never proves that its load meets the goal"] = False
    queue_grows: bool = False
    warm_up_s: float | None = None
    measured_s: float | None = None
    unfinished: int | None = None
    not_sent: int | None = None
    overdispersion: float | None = None
    over: Annotated[Mapping[str, int], "requests over each limit"] = field(default_factory=dict)
    completed: int = 0
    offered: Annotated[int, "requests that were due in completing_s, without those that failed by themselves"] = 0
    completing_s: float = 0.0
    completion_variation: float | None = None
    client: ClientFigures = ClientFigures()
    server: Mapping[str, float] = field(default_factory=dict)
    began: Annotated[str | None, "UTC"] = None
    ended: Annotated[str | None, "UTC"] = None
    measured: ShortDecision | None = field(default=None, metadata=IF_KNOWN)
    proved: Annotated[
        tuple[float | None, ...],
        "answer after this step: highest load proved to meet the goal, lowest proved not to",
    ] = field(default=(), metadata=IF_SET)

    def figure(self, name: str) -> float | None:
        value: float | None = getattr(self, name)
        return value

    def as_measured(self) -> CapacityStep:
        """The step as its own figures decided it."""
        own = self.measured
        return self if own is None else replace(self, status=own.status, leans=own.leans, why=own.why, measured=None)


COLUMNS: Mapping[str, str] = {f.name: f.metadata["column"] for f in fields(CapacityStep) if "column" in f.metadata}
"""Fields of a step in its tables, in order, with the head where terminal and page show the field."""


class Latency(NamedTuple):
    """Field of a step with a quantile of a latency: `ttft_p50_s`, `ttft`, `p50`."""

    field: str
    kind: str
    statistic: str


LATENCIES = tuple(
    Latency(f.name, *found.groups())
    for f in fields(CapacityStep)
    if (found := re.fullmatch(r"(ttft|itl|tpot|e2e)_(p\d+)_s", f.name)) is not None
)
