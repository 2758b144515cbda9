"""The follower: reads a run's ledger while it grows, judges it, and tells: findings, incidents, terminal, /metrics.

A process of its own, so that a slow regex, a rendering or a stalled terminal never delays a probe or a request. It may
be killed and started again at any time: it reads everything anew and writes nothing twice.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import psutil

from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.judge import Judge
from loadchaos.core.errors import LedgerError, LoadchaosError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.core.ledger.writer import Writer, boot_id
from loadchaos.core.model import Row
from loadchaos.report.export import notify
from loadchaos.report.formatting import short_path
from loadchaos.report.html.web_panels import PanelPages
from loadchaos.report.incident import folder as incident
from loadchaos.report.live_stats.fold import Fold
from loadchaos.report.metrics.exporter import Exporter
from loadchaos.report.terminal.live import Screen, View

POLL_S = 0.25
_CHUNK = 2000
_REWRITE_S = 5.0
_WRITER_CHECK_S = 2.0
LAST_SCRAPE_S = 5.0
"""How long the exporter of a finished run waits for one more scrape to be answered, where somebody scrapes so often."""


class Follower:
    """Follows one run folder; `run` returns when the run has ended and all was read.

    `stopped`: once set, what is there is read once more, then `run` returns. `live` False: plain lines on a terminal, too.
    `cockpit`: make the pages of the web UI. `addresses`: who is told of incidents.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        exporter_port: int | None = None,
        live: bool = True,
        stream: TextIO | None = None,
        stopped: threading.Event | None = None,
        cockpit: bool = False,
        addresses: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._reader, self._judge, self._fold = Reader(folder), Judge(), Fold()
        self._incidents = IncidentFolders(folder)
        self._findings = Findings(folder)
        self._head: list[str] = []
        self._exporter = self._export(exporter_port)
        self._lock = self._exporter.lock if self._exporter else threading.Lock()
        self._screen = Screen(View(stream, plain=None if live else True, head=self._head))
        self._stop = stopped or threading.Event()
        self._writer = WriterOfRun()
        self._pages = PanelPages(folder) if cockpit else None
        self._messenger = notify.IncidentNotifier(addresses, folder.path.resolve(), _complain) if addresses else None

    def run(self) -> bool:
        """Follow to the end; False when the terminal was stuck and its thread had to be left behind."""
        try:
            while not self._stop.is_set() and not self._fold.ended and not self._writer.gone():
                self._step()
                self._stop.wait(POLL_S)
            over = not self._stop.is_set()
            self._step(final=True)
            if over:
                self._finish()
            if self._pages:
                self._pages.write(self._fold.snapshot(), now=True)
            return self._screen.close(self._fold.snapshot())
        finally:
            if self._exporter:
                self._exporter.close()
            if self._messenger:
                self._messenger.close()
            self._findings.close()

    def _finish(self) -> None:
        """The run is over: what the judge held back until now is told too."""
        self._judge.verdict(bad_rows=self._reader.bad_rows)
        self._tell(self._judge.findings())
        with self._lock:
            self._fold.finish()
        if self._exporter and self._writer.this_boot:
            # The death that ended the run is its most important sample: whoever scrapes gets it before we go.
            self._exporter.collector.wait_for_scrape(LAST_SCRAPE_S)

    def _step(self, *, final: bool = False) -> None:
        rows = self._reader.new(final=final)
        while chunk := list(islice(rows, _CHUNK)):
            for row in chunk:
                self._judge.feed(row)
                self._writer.feed(row)
                if self._pages:
                    self._pages.feed(row)
            with self._lock:
                for row in chunk:
                    self._fold.feed(row)
        self._tell(self._judge.findings())
        now_ns = time.monotonic_ns() if self._writer.this_boot and not self._fold.ended else None
        snapshot = self._fold.snapshot(now_ns)
        self._screen.show(snapshot)
        if self._pages:
            self._pages.write(snapshot)

    def _tell(self, findings: list[Row]) -> None:
        """Findings to their file, incidents to their folders, both to the live numbers.

        A death is told when it is named, and again with its final counts (`final`) when it is over.
        """
        closed = {i.folder for i in self._judge.incidents if i.closed_ns is not None}
        findings = [
            {**row, "final": closed.issuperset(map(str, row["incidents"]))} if row.get("incidents") else row
            for row in findings
        ]
        if self._findings.mine:
            self._findings.write(findings)
            self._incidents.renew(self._judge.incidents)
            if self._messenger:
                for i in self._judge.incidents:
                    self._messenger.feed(i.n, i.id, i.to_json)
        with self._lock:
            for row in [*findings, *_opened(self._judge.incidents)]:
                self._fold.feed(row)
            self._fold.count_failures(self._judge.failures())

    def _export(self, port: int | None) -> Exporter | None:
        """The exporter, or None: a port that is taken costs the metrics, never the run."""
        if port is None:
            return None
        try:
            exporter = Exporter(self._fold, port, run=self._folder.path.resolve().name)
        except LoadchaosError as e:
            self._head.append(f"loadchaos: {e}")
            self._findings.write([{"row": "exporter", "at_ns": time.monotonic_ns(), "port": None, "error": str(e)}])
            return None
        self._head.append(f"metrics: http://127.0.0.1:{exporter.port}/metrics")
        self._findings.write([{"row": "exporter", "at_ns": time.monotonic_ns(), "port": exporter.port}])
        return exporter


def _complain(trouble: str) -> None:
    sys.stderr.write(f"loadchaos: {trouble}\n")


def _opened(incidents: Iterable[Incident]) -> Iterator[dict[str, Any]]:
    """Open episodes under the name they have now, for the live numbers: their rows come when they close."""
    for i in incidents:
        if i.kind != "failure":
            named = i.named_by()
            yield {
                "row": "incident",
                "what": "open" if i.closed_ns is None else "close",
                "n": i.n,
                "id": i.id,
                "folder": f"incidents/{i.folder}",
                "severity": "engine_death" if i.kind == "death" else named.severity,
                "title": named.title,
                "known": list(named.known),
                "attribution": i.attribution,
            }


class WriterOfRun:
    """Whether the process that writes the run still lives, by the header of events.jsonl: a killed run has no end row."""

    def __init__(self) -> None:
        self._pid, self._since_s = 0, 0.0
        self.this_boot = False
        self._checked = 0.0

    def feed(self, row: Mapping[str, Any]) -> None:
        """Take the header of events.jsonl."""
        if row.get("row") == "header" and row.get("file") == "events.jsonl":
            self._pid, self._since_s = int(row.get("pid") or 0), int(row.get("utc_ns") or 0) / 1e9
            self.this_boot = row.get("boot_id") == boot_id()

    def gone(self) -> bool:
        """True once it is known to have ended; asked of the system every two seconds only."""
        if not self._pid or time.monotonic() - self._checked < _WRITER_CHECK_S:
            return False
        self._checked = time.monotonic()
        if not self.this_boot:
            return True
        try:
            process = psutil.Process(self._pid)
            # A pid is used again: its new owner was born after the header was written.
            return process.create_time() > self._since_s + 1 or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:  # somebody else's process: it lives
            return False


class Findings:
    """findings.jsonl: written by one follower at a time, each finding once, however often the ledger is read anew.

    A second follower of the same run (`mine` False) only looks.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._writer: Writer | None = None
        try:
            self._lock_fd = os.open(folder.findings, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as e:  # a read-only folder can still be looked at
            sys.stderr.write(f"loadchaos: {folder.findings}: {e.strerror}; nothing will be written\n")
            self._lock_fd = -1
            return
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another follower writes
            return
        self._seen.update(_key(row) for row in Tail(folder.findings).rows())
        try:
            self._writer = Writer(folder.findings, "follower")
        except LedgerError as e:  # a full disk: what would stand there can be made again from the rest
            sys.stderr.write(f"loadchaos: {e}\n")

    @property
    def mine(self) -> bool:
        """Whether this process is the one that writes."""
        return self._writer is not None

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append those that are new; a full disk costs the findings, which can be made again, not the follower."""
        for row in rows:
            key = _key(row)
            if self._writer is None or key in self._seen:
                continue
            self._seen.add(key)
            try:
                self._writer.write(row)
            except LedgerError as e:
                sys.stderr.write(f"loadchaos: {e}\n")
                return

    def close(self) -> None:
        """Give the file to the next follower."""
        if self._writer is not None:
            self._writer.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a finding the same one when it is found again; an exporter's port is news each time."""
    if row.get("row") == "incident":
        return "incident", row.get("n"), row.get("what")
    if row.get("row") == "failure":
        incidents = row.get("incidents") or [row.get("incident")]
        return (
            "failure",
            row.get("id"),
            row.get("attribution"),
            row.get("title"),
            row.get("final"),
            *map(str, incidents),
        )
    return row.get("row"), row.get("at_ns")


class IncidentFolders:
    """Keeps incidents/ equal to the judge's incidents: new ones at once, those that grow every few seconds."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._told: dict[int, tuple[tuple[Any, ...], tuple[Any, ...], float]] = {}
        self._troubled = False

    def renew(self, incidents: Iterable[Incident]) -> None:
        """Write each incident that has changed: at once where its name or end did, else at most every few seconds."""
        for i in islice(incidents, incident.MOST_INCIDENTS):
            name = (i.id, i.closed_ns, len(i.causes))
            size = (sum(i.lost.values()), len(i.timeline), str(i.log_lines))
            known = self._told.get(i.n)
            due = known is not None and known[1] != size and time.monotonic() - known[2] > _REWRITE_S
            if known is None or known[0] != name or due:
                self._write(i)
                self._told[i.n] = (name, size, time.monotonic())

    def _write(self, i: Incident) -> None:
        try:
            incident.write(self._folder, i.to_json())
        except OSError as e:  # a full disk: the ledger has it all, and the end of the run tries again
            if not self._troubled:
                sys.stderr.write(f"loadchaos: incident {i.folder} could not be written: {e}\n")
            self._troubled = True


def follow(
    folder: RunFolder,
    *,
    exporter_port: int | None = None,
    live: bool = True,
    stream: TextIO | None = None,
    cockpit: bool = False,
    addresses: Sequence[str] = (),
) -> int:
    """Follow a run to its end or until SIGTERM or SIGINT; the exit code, 0. `stream`: where to tell (default stderr)."""
    # Before anything is opened: a SIGTERM that comes while the follower sets itself up must end it in order, too.
    stopped = threading.Event()
    before = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        drawn = Follower(
            folder,
            exporter_port=exporter_port,
            live=live,
            stream=stream,
            stopped=stopped,
            cockpit=cockpit,
            addresses=addresses,
        ).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not drawn:
        # The drawing thread hangs in a write to a stopped terminal; only leaving without clean-up ends the process.
        os._exit(0)
    return 0


def main(argv: list[str] | None = None) -> int:
    """`python -m loadchaos.runner.follower RUN`: what `run` starts."""
    parser = argparse.ArgumentParser(prog="python -m loadchaos.runner.follower", description=__doc__)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--exporter-port", type=int, help="serve /metrics on 127.0.0.1 (0: a free port)")
    parser.add_argument("--no-live", action="store_true", help="plain lines in place of the live view")
    parser.add_argument("--cockpit", action="store_true", help="make the pages of the web UI's tabs")
    options = parser.parse_args(argv)
    folder = RunFolder(options.run)
    if not folder.path.is_dir():
        parser.error(f"{short_path(folder.path, '.')} is no folder")
    return follow(
        folder,
        exporter_port=options.exporter_port,
        live=not options.no_live,
        cockpit=options.cockpit,
        addresses=notify.from_environment(os.environ),
    )


if __name__ == "__main__":
    sys.exit(main())
