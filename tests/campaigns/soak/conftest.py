"""Fixtures for soaks: a fast clock and a child that only pretends to run."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loadchaos.campaigns.campaign import Campaign
from loadchaos.campaigns.soak.child import FinishedRun, SoakChild
from loadchaos.campaigns.soak.daemon import Order, Soak, SoakClock
from loadchaos.profile.cron import Schedule
from loadchaos.run.interrupts import Interrupts


class Clock(SoakClock):
    """Time that passes when somebody sleeps."""

    def __init__(self, now: datetime) -> None:
        self.time = now

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class World(SoakChild):
    """A folder, a clock and its current run; soaks come and go."""

    def __init__(self, home: Path, now: datetime) -> None:
        self.home, self.clock = home, Clock(now)
        self.lasts = timedelta(hours=1)
        self.verdict: str | None = "pass"
        self.makes_folder = True
        self.measured: dict[str, Any] = {}
        self.ends: datetime | None = None
        self.pid, self.code = 100, None
        self.interrupts = Interrupts()
        self.begun: list[tuple[str, list[str]]] = []
        self.signals: list[int] = []
        self.lines: list[str] = []
        self.soaks: list[Soak] = []
        self.judged: list[str] = []

    # --- as Child -------------------------------------------------------------------------------------------------

    def start(self, arguments: Sequence[str], *, quiet: bool) -> int:
        self.pid += 1
        self.begun.append((f"{self.clock.time:%m-%d %H:%M}", list(arguments)))
        self.ends = self.clock.time + self.lasts
        if self.makes_folder:
            self._folder().mkdir(parents=True)
            (self._folder() / "events.jsonl").write_text('{"row":"header"}\n')
        return self.pid

    def _folder(self) -> Path:
        return self.home / f"night-{self.pid}"

    def alive(self) -> bool:
        if self.ends is None:
            return False
        if self.clock.time < self.ends:
            return True
        if self.verdict is not None and self.makes_folder:
            code = {"pass": 0, "fail": 1}.get(self.verdict, 3)
            verdict_json = {"verdict": self.verdict, "exit_code": code, "ended": self.ends.isoformat(), **self.measured}
            (self._folder() / "verdict.json").write_text(json.dumps(verdict_json))
        self.ends = None
        return False

    def exit_code(self) -> int | None:
        return None

    def end(self, pid: int | None, number: int) -> None:
        self.signals.append(number)

    def find(self, pid: int | None, started: str, name: str, known: Collection[str]) -> FinishedRun | None:
        path = self._folder()
        if not path.is_dir() or path.name in known:
            return None
        verdict = path / "verdict.json"
        verdict_json: dict[str, Any] = json.loads(verdict.read_text()) if verdict.is_file() else {}
        return FinishedRun(
            path.name, self.pid, verdict_json.get("verdict"), verdict_json.get("exit_code"), verdict_json.get("ended")
        )

    def judge(self, folder: str) -> FinishedRun | None:
        self.judged.append(folder)
        return FinishedRun(folder, None, "unknown", 3)

    def last_line(self) -> str:
        return "its last line"

    # --- what tests do --------------------------------------------------------------------------------------------

    def soak(self, cron: str = "0 2 * * *", **more: object) -> Soak:
        schedule = Schedule.model_validate({"cron": cron, "timezone": "Europe/Berlin", **more})
        order = Order("night.yaml", "night", schedule, self.home)
        soak = Soak(order, self.clock, self, Campaign(self.home, self.lines.append, self.interrupts))
        self.soaks.append(soak)
        return soak

    def kill(self) -> None:
        """kill -9 of the soak: its lock is free, nothing else happens."""
        self.soaks.pop().close()

    def pass_time(self, soak: Soak, step_s: float = 60, **span: float) -> None:
        """Time in which the soak looks at the clock as it does."""
        end = self.clock.time + timedelta(**span)
        while self.clock.time < end:
            soak.poll()
            self.clock.sleep(step_s)

    def when_begun(self) -> list[str]:
        return [at for at, _ in self.begun]


Make = Callable[..., Any]
"""Makes a World, whose methods tests replace."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[datetime], World]]:
    made: list[World] = []

    def make(now: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)) -> World:
        made.append(World(tmp_path / "runs", now))
        return made[-1]

    yield make
    for w in made:
        for soak in w.soaks:
            soak.close()
