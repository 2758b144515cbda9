"""Write the Capacity tab of the web UI from the searches beside the runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadchaos.analysis.capacity.result import CapacityResult
from loadchaos.campaigns.capacity import files
from loadchaos.core.errors import OptionError
from loadchaos.core.whole_file import write_whole
from loadchaos.report.capacity_text import short_answer
from loadchaos.report.html.web_panels import capacity_tab
from loadchaos.run.web_session import WebUiProcess

TAB = "capacity.html"
_POLL_S = 2.0
_MOST = 6
"""Newest searches that are shown."""


class WebSearches:
    """Tells the web UI of changed searches in `out`, which may run in another terminal."""

    def __init__(self, out: Path, ui: WebUiProcess) -> None:
        self._out, self._ui, self._target = out, ui, ui.web.target
        self._read_ns: dict[Path, int] = {}
        self._searches: dict[str, CapacityResult] = {}
        self._write()

    async def follow(self) -> None:
        while True:
            self.update()
            await asyncio.sleep(_POLL_S)

    def update(self) -> None:
        found = sorted(self._out.glob(f"capacity-*/{files.RESULT}"))[-_MOST:]
        changed = [file for file in found if _modified_ns(file) != self._read_ns.get(file)]
        for file in changed:
            self._read_ns[file] = _modified_ns(file)
            try:
                data = files.read(file.parent)
            except OptionError:  # a broken file has no page
                continue
            self._searches[file.parent.name] = data
            self._ui.write("search", folder=str(file.parent.resolve()), about=short_answer(data))
        names = {file.parent.name for file in found}
        if changed or names < set(self._searches):
            self._searches = {name: self._searches[name] for name in sorted(names & set(self._searches))}
            self._write()

    def _write(self) -> None:
        command = f"loadchaos capacity PROFILE --target {self._target} --slo ttft=2s,itl_p99=50ms --goal 99%"
        write_whole(self._ui.home / TAB, capacity_tab(self._searches, self._target, self._out, command))


def _modified_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
