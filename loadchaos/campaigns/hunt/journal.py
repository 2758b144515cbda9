"""Files of a hunt: its settings and one row for each workload. A row is appended with one write(2) when its workload is
done, so a kill loses the workloads in flight and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loadchaos.campaigns.campaign import saved
from loadchaos.campaigns.hunt.workload import Workload
from loadchaos.core.ledger.reader import Tail
from loadchaos.core.ledger.writer import Writer
from loadchaos.core.model import ServerName
from loadchaos.core.typed_json import IF_SET, from_json, to_json

SETTINGS, WORKLOADS = "hunt.json", "workloads.jsonl"
FINDINGS, RUNS, CORPUS = "findings", "runs", "corpus"
SCHEMA = 1
COUNTED = ("server", "self-inflicted")
"""Attributions of failures that are findings."""
Genes = Mapping[str, Mapping[str, object]]


MOST_LINE_BYTES = 1 << 26
"""Of an order or a result between a hunt and its slots."""


@dataclass(frozen=True, kw_only=True)
class HuntSettings:
    """Contents of hunt.json: options as typed. The hunt ends after `findings`, or when its budget is spent. `genes`:
    content of the file of --genes. `requests`: those of the largest workload. `identified_with`: requests that
    identified the server, by kind.
    """

    schema: Literal[1] = 1
    launch: str = ""
    budget_s: float = 0.0
    genes: Genes | None = None
    seed: int = 0
    requests: int = 64
    no_feedback: bool = False
    findings: int | None = None
    parallel: int = 1
    workload_time: float | None = None
    wait_ready: float | None = None
    model: str | None = None
    api_key_env: str | None = None
    headers: tuple[str, ...] = ()
    ca: str | None = None
    insecure: bool = False
    identified_with: Mapping[str, int] = field(default_factory=dict, metadata=IF_SET)
    server: ServerName | None = field(default=None, metadata=IF_SET)


@dataclass(frozen=True, kw_only=True)
class HuntFailure:
    """A failure of a workload. `after_requests`: those of its load. `refused`: it is only the refusal of a request."""

    id: str
    frame: str = ""
    title: str = ""
    severity: str = ""
    attribution: str = "server"
    line: str = ""
    count: int = 1
    after_requests: int = 0
    accepted: bool = False
    before_load: bool = False
    incident: str | None = None
    refused: bool = False

    @property
    def is_finding(self) -> bool:
        """A refusal with a 4xx and the effect of too much load are none: genes may ask for both."""
        return self.attribution in COUNTED and not self.accepted and not self.refused

    @property
    def key(self) -> str:
        """Key of equal failures: id and guilty frame. The title counts too where the id does not say enough."""
        loose = self.id.startswith(("unexplained_", "unknown_", "unexpected_", "error_in_"))
        return "|".join([self.id, self.frame, *([self.title] if loose and not self.frame else [])])


@dataclass(frozen=True, kw_only=True)
class WorkloadResult:
    """Result of a workload as its slot tells it. `run`: folder of its run. `asked`: other requests by their purpose."""

    features: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    idle_lines: tuple[str, ...] = ()
    failures: tuple[HuntFailure, ...] = ()
    requests: int = 0
    questions: int = 0
    asked: Mapping[str, int] = field(default_factory=dict)
    proved: bool = False
    why: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    died: bool = False
    stopped: bool = False
    restarted: bool = False
    seconds: float = 0.0
    run: str = field(default="", metadata=IF_SET)

    @property
    def findings(self) -> list[HuntFailure]:
        return [f for f in self.failures if f.is_finding]

    @property
    def others(self) -> int:
        """Requests that are not of the load: questions, and those that identify the server."""
        return self.questions + self.asked.get("discovery", 0)


@dataclass(frozen=True, kw_only=True)
class WorkloadRow(WorkloadResult):
    """Row of workloads.jsonl: `at_s` of the hunt; `news` are features that no workload had before."""

    n: int
    workload: Workload
    seed: int = 0
    change: str = ""
    parent: int | None = None
    at_s: float = 0.0
    news: tuple[str, ...] = ()


class Journal:
    """Rows of the workloads of a hunt."""

    def __init__(self, folder: Path) -> None:
        self.rows = list(rows_of(folder))
        self._writer = Writer(folder / WORKLOADS, "hunt")

    def append(self, row: WorkloadRow) -> None:
        self._writer.write(to_json(row))
        self.rows.append(row)

    def close(self) -> None:
        self._writer.close()


def rows_of(folder: Path) -> Iterator[WorkloadRow]:
    """Rows of the workloads of a hunt; none where the file is missing."""
    return (from_json(WorkloadRow, row) for row in Tail(folder / WORKLOADS).rows() if row.get("row") != "header")


def read_settings(folder: Path) -> HuntSettings:
    missing = f"{folder} is no hunt: it has no {SETTINGS}"
    return from_json(HuntSettings, saved(folder / SETTINGS, SCHEMA, "start a new hunt", missing))
