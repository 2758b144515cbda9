"""Workers on other machines, as the person at the master's terminal hears of them."""

from __future__ import annotations

from collections.abc import Callable

from loadchaos.core.model import Row
from loadchaos.runner.options import Master


class WorkerNotices:
    """Says what the master's `worker` rows tell, and the workers' rows of their disks.

    `begun`: the load begins with those who came.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.begun = False

    def call(self, master: Master, ours: str | None) -> None:
        """They are waited for. `ours`: the URL of a server that we started, which they will hardly reach."""
        where = f"{'every address here' if master.bind_host == '*' else master.bind_host}, port {master.bind_port}"
        self._say(
            f"waiting for {master.workers} workers on {where} (nothing protects that port: docs/how-to/many-machines.md)"
        )
        if ours is not None:
            self._say(f"note: workers on other machines cannot reach {ours}")

    def see(self, row: Row) -> None:
        """A row of requests-*.jsonl."""
        if row.get("row") == "disk":
            self._say(f"note: {row['text']}")
        if row.get("row") != "worker":
            return
        self.begun = self.begun or row["what"] == "begin"
        if row["what"] != "awaited":
            who = "" if row["worker"] is None else f"worker {row['worker']} "
            host = f"({row['host']}) " if row["host"] else ""
            self._say(f"{who}{host}{row['what']}{': ' + row['why'] if row['why'] else ''}")
