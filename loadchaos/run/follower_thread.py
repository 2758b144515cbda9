"""Follow a run in a thread of its own process: a watch without a live view, which lasts for weeks, needs no second one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Literal

from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.model import Row

_ROUTINE = frozenset({"probe", "metrics", "process", "host", "page"})


class FollowerThread:
    """In place of `FollowerProcess`. There is no load whose timing it could disturb, and it saves 25 MB."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._failure = ""

    async def begin(
        self, exporter_port: int | Literal["default"] | None, variables: Mapping[str, str], *, live: bool, cockpit: bool
    ) -> None:
        """Start to follow, with plain lines in place of `live`."""
        from loadchaos.report.export import notify
        from loadchaos.run.follower import Follower, FollowerOptions

        addresses = notify.from_environment(dict(variables))
        options = FollowerOptions(exporter_port, live=live, cockpit=cockpit, addresses=addresses)

        def run() -> None:
            try:
                Follower(self._folder, options, self._stop, self._wake).run()
            except Exception as e:  # noqa: BLE001 - a thread's exception would only be printed; the watch goes on
                self._failure = f"{type(e).__name__}: {e}"

        self._thread = threading.Thread(target=run, name="follower", daemon=True)
        self._thread.start()

    async def finish(self, limit_s: float) -> None:
        """Let it read to the end of the ledger, for this time."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, limit_s)
            self.kill()
            await asyncio.to_thread(self._thread.join, 1.0)

    def kill(self) -> None:
        self._stop.set()
        self._wake.set()

    def fold(self, row: Row) -> None:
        """Look at once at what is no routine: the state that follows from it is written already."""
        if row.get("row") not in _ROUTINE or row.get("ok") is False or row.get("what") == "gone":
            self._wake.set()

    def exit_notice(self) -> str | None:
        if not self._failure:
            return None
        failure, self._failure = self._failure, ""
        command = f"loadchaos follow {self._folder.path}"
        return (
            f"note: incidents are written at the end alone ({failure}), and the watch continues; show it with {command}"
        )
