"""Print notices about workers on other machines."""

from __future__ import annotations

from collections.abc import Callable

from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.ledger.rows import DiskRow, HeartbeatRow, WorkerRow
from loadchaos.core.units import describe_duration
from loadchaos.profile.client_limits import ClientLimits
from loadchaos.run.options import Master


class WorkerNotices(RowFold):
    """Printer for `worker`, `disk` and first-pause rows. `load_begun` is set when the workers begin the load."""

    def __init__(self, print_line: Callable[[str], None], limits: ClientLimits) -> None:
        self._print, self._limits = print_line, limits
        self._backoff_told = False
        self.load_begun = False

    def waiting(self, master: Master, local_url: str | None) -> None:
        """`local_url` is the URL of a server that this run started, which other machines can hardly reach."""
        host = "all addresses of this machine" if master.bind_host == "*" else master.bind_host
        workers = "1 worker" if master.workers == 1 else f"{master.workers} workers"
        port = f"port {master.bind_port} (unprotected: docs/how-to/many-machines.md)"
        self._print(f"waiting for {workers} on {host}, {port}")
        if local_url is not None:
            self._print(f"note: workers on other machines cannot reach {local_url}")

    def on_heartbeat(self, row: HeartbeatRow) -> None:
        if row.get("backed_off") and not self._backoff_told:
            self._backoff_told = True
            first, most = describe_duration(self._limits.backoff), describe_duration(self._limits.backoff_max)
            self._print(
                f"users wait after instant errors: {first}, doubled after each further error, at most {most} "
                "(limits: backoff, backoff_max)"
            )

    def on_disk(self, row: DiskRow) -> None:
        self._print(f"note: {row['text']}")

    def on_worker(self, row: WorkerRow) -> None:
        self.load_begun = self.load_begun or row["what"] == "begin"
        if row["what"] != "awaited":
            worker = "" if row["worker"] is None else f"worker {row['worker']} "
            host = f"({row['host']}) " if row["host"] else ""
            self._print(f"{worker}{host}{row['what']}{': ' + row['why'] if row['why'] else ''}")
