"""Base of all campaigns: a folder that no other process uses, files in it, time, signals and lines of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.core.errors import LedgerError, OptionError, next_step
from loadchaos.core.folder_lock import FolderLock
from loadchaos.core.model import ServerName
from loadchaos.core.typed_json import from_json, to_json
from loadchaos.core.whole_file import read_json, write_json, write_whole
from loadchaos.run.interrupts import Interrupts

if TYPE_CHECKING:  # it imports the judge: a service that watches for weeks has no use for it
    from loadchaos.run.finalize import Result

T = TypeVar("T")


class Campaign:
    """A campaign at work. `print_line` gets its progress; `before_s` is the time that it took before a resumption."""

    def __init__(self, folder: Path, print_line: Callable[[str], None], interrupts: Interrupts | None = None) -> None:
        self.folder, self.print_line = folder, print_line
        self.interrupts = Interrupts() if interrupts is None else interrupts
        self.before_s, self._begin_s = 0.0, time.monotonic()
        self._lock: FolderLock | None = None

    def lock(self, what: str, since: datetime | None = None) -> None:
        """Make the folder and lock it until `close`. Raises OptionError where another process has it."""
        self._lock = FolderLock(self.folder, what, since)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def at_s(self) -> float:
        return self.before_s + time.monotonic() - self._begin_s

    def begin_now(self) -> float:
        """Begin the time of this process again, as the start of a server is no part of a budget. Returns its length."""
        now_s = time.monotonic()
        took_s, self._begin_s = now_s - self._begin_s, now_s
        return took_s

    def write(self, files: Mapping[str, object], *, sync: bool = False) -> None:
        """Replace files by name, each in one step: a kill leaves the old or the new one. All but texts become JSON.

        Raises LedgerError where one cannot be written.
        """
        for name, content in files.items():
            path = self.folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, str):
                    write_whole(path, content, sync=sync)
                else:
                    write_json(path, to_json(content), sync=sync)
            except OSError as e:
                raise LedgerError(f"{path}: cannot be written: {e.strerror}; {next_step(e)}") from e

    def run(self, work: Coroutine[Any, Any, T], resume: str) -> T:
        """Run a campaign; after a signal, print the command that continues it. Raises StoppedBySignalError if cancelled."""
        try:
            return self.interrupts.run(work)
        finally:
            if self.interrupts and any(self.folder.glob("*.json")):  # without one there is nothing to continue
                self.print_line(f"interrupted; continue with: {resume}")


def saved(file: Path, schema: int, instead: str, missing: str = "") -> dict[str, object]:
    """Read a JSON file of a campaign. Raises OptionError for one that cannot be used. `missing`: the text of the
    error where there is no file.
    """
    try:
        data = orjson.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        if missing and isinstance(e, FileNotFoundError):
            raise OptionError(missing) from None
        raise OptionError(f"{file.parent}: {file.name} cannot be read ({e}); {instead}") from e
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise OptionError(
            f"{file.parent}: schema {schema} was expected in {file.name}: another version wrote it; {instead}"
        )
    return data


Settings = Mapping[str, str | tuple[str, ...]]
"""Settings of a search by name; one of several parts is compared as a whole, and shown by the parts that differ."""


class SavedState:
    """Results of a search so far, which is not continued with settings that they did not have."""

    def __init__(self, campaign: Campaign, name: str, schema: int, settings: Settings) -> None:
        self._campaign, self._name, self._schema, self._settings = campaign, name, schema, settings

    def load(self, kind: type[T]) -> T:
        """Results as a dataclass, which is empty without a file. Raises OptionError for a file that cannot be read, of
        another version or with other settings.
        """
        file = self._campaign.folder / self._name
        if not file.exists():
            return from_json(kind, {})
        data = saved(file, self._schema, "start without --resume")
        before = data.get("settings")
        _require_same(file, before if isinstance(before, dict) else {}, self._settings)
        return from_json(kind, data)

    def save(self, **results: object) -> None:
        settings = {name: _text(value) for name, value in self._settings.items()}
        self._campaign.write({self._name: {"schema": self._schema, "settings": settings, **results}})


def _text(setting: str | tuple[str, ...]) -> str:
    return setting if isinstance(setting, str) else " ".join(setting)


def _require_same(file: Path, before: Mapping[str, object], present: Settings) -> None:
    for name in dict.fromkeys((*present, *before)):
        setting = present.get(name, "")
        was, now = str(before.get(name, "")), _text(setting)
        if was != now:
            whole = isinstance(setting, str)
            shown = [one if whole else _own_parts(one, other) for one, other in ((was, now), (now, was))]
            raise OptionError(
                f"{file}: its tries had another {name}: {shown[0] or 'none'} (now {shown[1] or 'none'}). Use the same "
                "again, or start without --resume"
            )


def _own_parts(one: str, other: str) -> str:
    return " ".join(part for part in one.split(" ") if part not in other.split(" "))


def counting_failures(result: Result) -> list[FailureResult]:
    """Failures of a run that count against its server."""
    return [f for f in result.failures if not f.accepted and f.attribution != "expected"]


def server_of(run: Path) -> ServerName:
    return from_json(ServerName, read_json(run / "facts.json"))
