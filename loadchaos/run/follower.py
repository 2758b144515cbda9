"""Follow a run's ledger: judge it live, show and export findings. It is a process of its own, so that rendering never
delays a probe or a request, and may be killed and restarted at any time: it writes nothing twice.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import psutil

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.judge import Judge
from loadchaos.core.errors import LedgerError, LoadchaosError
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.reader import Reader, Tail
from loadchaos.core.ledger.row_check import fits_its_kind
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import HeaderRow
from loadchaos.core.ledger.writer import Writer, boot_id
from loadchaos.core.model import Row
from loadchaos.report.export import notify
from loadchaos.report.formatting import short_path
from loadchaos.report.html.web_panels import PanelPages
from loadchaos.report.incident import folder as incident
from loadchaos.report.metrics.exporter import LAST_SCRAPE_S, Exporter, LiveCollector
from loadchaos.report.terminal.live import Screen, View

POLL_S, _WOKEN_POLL_S = 0.25, 2.0
_CHUNK = 2000
_REWRITE_S = 5.0
_WRITER_CHECK_S = 2.0


@dataclass(frozen=True)
class FollowerOptions:
    """Outputs of a follower. `exporter_port` None: no exporter; `stream` None: stderr; `addresses`: where incidents are
    announced.
    """

    exporter_port: int | Literal["default"] | None = None
    live: bool = True
    stream: TextIO | None = None
    cockpit: bool = False
    addresses: Sequence[str] = ()


class Follower:
    """Follower of one run folder. Once `stopped` is set, it reads what is there and returns. With `woken` it reads seldom,
    and when that is set.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: FollowerOptions,
        stopped: threading.Event | None = None,
        woken: threading.Event | None = None,
    ) -> None:
        self._folder = folder
        self._reader, self._judge = Reader(folder, fits_its_kind), Judge()
        self._live = LiveFigures(self._judge.figures)
        self._incidents = IncidentFolders(folder)
        self._findings = FindingsFile(folder)
        self._head: list[str] = []
        self._exporter = self._start_exporter(options.exporter_port)
        self._lock = self._exporter.lock if self._exporter else threading.Lock()
        self._screen = Screen(View(options.stream, plain=None if options.live else True, head=self._head))
        self._stop, self._woken = stopped or threading.Event(), woken
        self._run_process = RunProcess()
        self._pages = PanelPages(folder, self._judge.figures.answers) if options.cockpit else None
        self._messenger = None
        if options.addresses:
            self._messenger = notify.IncidentNotifier(options.addresses, folder.path.resolve(), _print_error)

    def run(self) -> bool:
        """Follow the run to its end. Returns False when its terminal is stuck and the drawing thread hangs."""
        try:
            while not self._stop.is_set() and not self._live.ended and not self._run_process.gone():
                self._step()
                if not self._live.ended:
                    self._pause()
            ended = not self._stop.is_set()
            self._step(final=True)
            if ended:
                self._finish()
            if self._pages:
                self._pages.write(self._live.snapshot(), now=True)
            return self._screen.close(self._live.snapshot())
        finally:
            if self._exporter:
                self._exporter.close()
            if self._messenger:
                self._messenger.close()
            self._findings.close()

    def _pause(self) -> None:
        if self._woken is None:
            self._stop.wait(POLL_S)
            return
        self._woken.wait(_WOKEN_POLL_S)
        self._woken.clear()

    def _finish(self) -> None:
        with self._lock:
            self._judge.verdict(bad_rows=self._reader.bad_rows)
        self._report(self._judge.findings())
        with self._lock:
            self._live.finish()
        if self._exporter and self._run_process.this_boot:
            # The death that ended the run is its most important sample: let Prometheus scrape it before we exit.
            self._exporter.collector.wait_for_scrape(LAST_SCRAPE_S)

    def _step(self, *, final: bool = False) -> None:
        rows = self._reader.new(final=final)
        while chunk := list(islice(rows, _CHUNK)):
            with self._lock:
                for row in chunk:
                    self._judge.fold(row)
                    self._live.fold(row)
            for row in chunk:
                self._run_process.fold(row)
                if self._pages:
                    self._pages.fold(row)
        self._report(self._judge.findings())
        now_ns = time.monotonic_ns() if self._run_process.this_boot and not self._live.ended else None
        snapshot = self._live.snapshot(now_ns)
        self._screen.show(snapshot)
        if self._pages:
            self._pages.write(snapshot)

    def _report(self, findings: Sequence[Row]) -> None:
        """A death is reported when it is named, and again with final counts (`final`) when its incident closes."""
        closed = {i.folder for i in self._judge.incidents if i.closed_ns is not None}
        findings = [
            {**row, "final": closed.issuperset(map(str, row["incidents"]))} if row.get("incidents") else row
            for row in findings
        ]
        if self._findings.writable:
            self._findings.write(findings)
            self._incidents.update(self._judge.incidents)
            if self._messenger:
                for i in self._judge.incidents:
                    self._messenger.feed(i.n, i.id, i.record)
        with self._lock:
            for row in findings:
                self._live.fold(row)
            self._live.name_incidents(self._judge.incidents)
            self._live.count_failures(self._judge.failures())

    def _start_exporter(self, port: int | Literal["default"] | None) -> Exporter | None:
        if port is None:
            return None
        try:
            exporter = Exporter(LiveCollector(self._live, self._folder.path.resolve().name), port)
        except LoadchaosError as e:
            self._head.append(f"loadchaos: {e}")
            self._findings.write([{"row": "exporter", "at_ns": time.monotonic_ns(), "port": None, "error": str(e)}])
            return None
        self._head.append(f"metrics: http://127.0.0.1:{exporter.port}/metrics")
        self._findings.write([{"row": "exporter", "at_ns": time.monotonic_ns(), "port": exporter.port}])
        return exporter


def _print_error(text: str) -> None:
    sys.stderr.write(f"loadchaos: {text}\n")


class RunProcess(RowFold):
    """Process that writes the run. Its exit ends the follower: a killed run has no end row."""

    def __init__(self) -> None:
        self._pid, self._since_s = 0, 0.0
        self.this_boot = False
        self._checked = 0.0

    def on_header(self, row: HeaderRow) -> None:
        if row.get("file") == "events.jsonl":
            self._pid, self._since_s = int(row.get("pid") or 0), int(row.get("utc_ns") or 0) / 1e9
            self.this_boot = row.get("boot_id") == boot_id()

    def gone(self) -> bool:
        if not self._pid or time.monotonic() - self._checked < _WRITER_CHECK_S:
            return False
        self._checked = time.monotonic()
        if not self.this_boot:
            return True
        try:
            process = psutil.Process(self._pid)
            # Pids are reused: a new owner of the pid started after the header was written.
            return process.create_time() > self._since_s + 1 or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:  # another user's process: it lives
            return False


class FindingsFile:
    """Writer of findings.jsonl, each finding once. A second follower is not `writable` and only shows the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._writer: Writer | None = None
        try:
            self._lock_fd = os.open(folder.findings, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as e:  # a read-only folder can still be shown
            sys.stderr.write(f"loadchaos: {folder.findings}: {e.strerror}; findings are not saved\n")
            self._lock_fd = -1
            return
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another follower writes
            return
        self._seen.update(_key(row) for row in Tail(folder.findings).rows())
        try:
            self._writer = Writer(folder.findings, "follower")
        except LedgerError as e:  # a full disk: findings can be made again from the ledger
            sys.stderr.write(f"loadchaos: {e}\n")

    @property
    def writable(self) -> bool:
        return self._writer is not None

    def write(self, rows: Iterable[Row]) -> None:
        """Append new findings. On a full disk they are dropped, as they can be made again."""
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
        if self._writer is not None:
            self._writer.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)


def _key(row: Row) -> tuple[Any, ...]:
    if row.get("row") == "incident":
        return "incident", row.get("n"), row.get("what")
    if row.get("row") == "failure":
        incidents = row.get("incidents") or [row.get("incident")]
        kind = (row.get(name) for name in ("row", "id", "attribution", "title", "final"))
        return *kind, *map(str, incidents)
    return row.get("row"), row.get("at_ns")


class IncidentFolders:
    """Writer of incidents/. New incidents are written at once, growing ones every few seconds."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._written: dict[int, tuple[tuple[Any, ...], tuple[Any, ...], float]] = {}
        self._error_printed = False

    def update(self, incidents: Iterable[Incident]) -> None:
        for i in islice(incidents, incident.MOST_INCIDENTS):
            name = (i.id, i.closed_ns, len(i.causes))
            size = (sum(i.lost.values()), len(i.timeline), str(i.log_lines))
            known = self._written.get(i.n)
            due = known is not None and known[1] != size and time.monotonic() - known[2] > _REWRITE_S
            if known is None or known[0] != name or due:
                self._write(i)
                self._written[i.n] = (name, size, time.monotonic())

    def _write(self, i: Incident) -> None:
        try:
            incident.write(self._folder, i.record())
        except OSError as e:  # a full disk: `conclude` tries again at the end of the run
            if not self._error_printed:
                sys.stderr.write(f"loadchaos: incident {i.folder} could not be written: {e}\n")
            self._error_printed = True


def follow(folder: RunFolder, options: FollowerOptions) -> int:
    # Before anything is opened: a SIGTERM during the start must end the follower in order, too.
    stopped = threading.Event()
    before = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        drawn = Follower(folder, options, stopped).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not drawn:
        # The drawing thread hangs in a write to a stopped terminal; only an exit without clean-up ends the process.
        os._exit(0)
    return 0


def _port(text: str) -> int | Literal["default"]:
    return "default" if text == "default" else int(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadchaos.run.follower", description=__doc__)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--exporter-port", type=_port, help="serve /metrics on 127.0.0.1 (0: a free port, or default)")
    parser.add_argument("--no-live", action="store_true", help="print plain lines instead of the live view")
    parser.add_argument("--cockpit", action="store_true", help="make the pages of the web UI's tabs")
    options = parser.parse_args(argv)
    folder = RunFolder(options.run)
    if not folder.path.is_dir():
        parser.error(f"{short_path(folder.path, '.')} is not a folder")
    addresses = notify.from_environment(os.environ)
    live, cockpit = not options.no_live, options.cockpit
    return follow(folder, FollowerOptions(options.exporter_port, live, cockpit=cockpit, addresses=addresses))


if __name__ == "__main__":
    sys.exit(main())
