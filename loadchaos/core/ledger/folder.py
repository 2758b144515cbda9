"""Paths of the files in a run folder."""

from __future__ import annotations

from pathlib import Path

from loadchaos.core.ledger import parquet


class RunFolder:
    """Names the files of one run folder; reads nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.control = path / "control.jsonl"
        self.commands = path / "commands.jsonl"
        self.cockpit = path / "cockpit"
        self.findings = path / "findings.jsonl"
        self.server_log = path / "server.log"
        self.server_index = path / "server.index.jsonl"
        self.profile = path / "profile.yaml"
        self.plan = path / "plan.json"
        self.facts = path / "facts.json"
        self.verdict = path / "verdict.json"
        self.report_html = path / "report.html"
        self.junit = path / "junit.xml"
        self.incidents = path / "incidents"
        self.watch = path / "watch"

    def requests(self, worker: int | str) -> Path:
        return self.path / f"requests-{worker}.jsonl"

    @staticmethod
    def worker(requests: Path) -> int:
        """Number of the worker that writes a file. Raises ValueError for the master's file: it sends no requests."""
        return int(requests.name.removeprefix("requests-").removesuffix(".jsonl"))

    def request_files(self) -> list[Path]:
        """List the workers' files by name; their later parts are read with them."""
        names = {path.name.removesuffix(parquet.SUFFIX) for path in self.path.glob("requests-*")}
        return sorted(self.path / name for name in names if name.endswith(".jsonl"))
