"""Record of one run: ledger rows, listeners, upkeep of the folder."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadchaos import __version__
from loadchaos.core import typed_json
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.ledger.recorder import EventRecorder
from loadchaos.core.model import Row
from loadchaos.core.redact import Redactor
from loadchaos.load.disk_space import DiskMonitor
from loadchaos.profile.profile import Profile
from loadchaos.run.checkpoint import Checkpoint
from loadchaos.run.children import Compaction
from loadchaos.run.options import Options, verdict_terms
from loadchaos.run.server_under_test import TargetSpec

_SYNC_S, _CALM_SYNC_S = 1.0, 5.0


class RunRecord(EventRecorder):
    """Ledger writer that passes rows on, syncs files, watches the disk."""

    def __init__(self, folder: RunFolder, redactor: Redactor, print_line: Callable[[str], None]) -> None:
        super().__init__(folder, self._notify, redactor)
        self._print = print_line
        self._listeners: list[Callable[[Row], None]] = []
        self._checkpoint = Checkpoint()
        self._disk = DiskMonitor(folder.path)
        self._compaction = Compaction(folder)
        self._sync_s, self._synced_s = _SYNC_S, 0.0

    def listen(self, listener: Callable[[Row], None]) -> None:
        """Call `listener` with each row of the run and its workers. State rows are left out."""
        self._listeners.append(listener)

    def begin(self, profile: Profile, options: Options, target: TargetSpec) -> None:
        if options.load_unseen:
            self._sync_s = _CALM_SYNC_S  # a crash of the machine may take seconds of a watch that lasts for weeks
        self.run(
            "begin",
            profile=profile.name,
            argv=self.redactor.argv(list(options.argv)),
            version=__version__,
            target={"kind": target.kind, "url": target.url},
            seed=options.seed if options.others is None else None,
            duration_s=options.duration_s,
            server_logs=[self.redactor.text(spec) for spec in options.server_log],
            terms=typed_json.to_json(verdict_terms(profile, options)),
            resumes=options.resume.run if options.resume is not None else None,
        )
        self.keep(self.folder.profile, self.redactor.text(profile.to_yaml()))

    def fold(self, row: Row) -> None:
        self._checkpoint.fold(row)
        self._notify(row)

    def tick(self, *, loading: bool) -> None:
        now_s = time.monotonic()
        if loading:
            self._write_checkpoint(now_s)
            self._watch_disk(now_s)
        if now_s - self._synced_s > self._sync_s:
            self._synced_s = now_s
            self.sync()

    async def end_compaction(self) -> None:
        await self._compaction.end()

    def _write_checkpoint(self, now_s: float) -> None:
        if (figures := self._checkpoint.due(now_s)) is not None:
            self.run("checkpoint", **figures)
            self._print(self._checkpoint.describe(figures))
            self._compaction.begin()

    def _watch_disk(self, now_s: float) -> None:
        if (change := self._disk.poll(now_s)) is not None:
            self.event(change)
            self.control("compact" if self._disk.low else "full", change["text"])
            self._print(f"note: {change['text']}")

    def _notify(self, row: Row) -> None:
        """Pass a row to the listeners, except state rows. State rows follow from the others."""
        if row.get("row") != "state":
            for listener in self._listeners:
                listener(row)
