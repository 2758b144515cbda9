"""Run the profiles of a suite, one after the other.

A run that fails, that cannot begin, or that finds the server dead does not end the suite. A signal does: the run ends in
order, and the suite with it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadchaos.analysis.verdict.model import CheckResult, FailureResult
from loadchaos.campaigns.suite.record import SuiteRecord, verdict_of
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError
from loadchaos.core.typed_json import to_json
from loadchaos.profile.profile import Profile
from loadchaos.run.finalize import Result
from loadchaos.run.options import Options
from loadchaos.run.run import run_quietly

_RECOVERY_S = 120.0
_STILL_DOWN_S = 5.0
_MOST_FAILURES = 20


class SuiteSession:
    """The runs of a suite.

    `print_line` gets the lines of the runs, `announce` one line before and after each.
    """

    def __init__(
        self, record: SuiteRecord, options: Options, print_line: Callable[[str], None], announce: Callable[[str], None]
    ) -> None:
        self._record, self._options = record, options
        self._print, self._announce = print_line, announce
        self._signal: signal.Signals | None = None
        self._ready_within_s = options.wait_ready_s

    async def run(self, profiles: Sequence[Profile]) -> int:
        """Run the profiles; returns the exit code of the suite."""
        self._record.write()
        for number, profile in enumerate(profiles, 1):
            self._handle_signals()
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {profile.about}")
            self._record.begin(profile.name)
            begin_s = time.monotonic()
            result = await self._run(profile, self._options.seed + number - 1)
            if self._signal is not None:
                result = {**result, "exit_code": 128 + self._signal}
            self._record.end(profile.name, time.monotonic() - begin_s, result)
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {result['verdict']}{_named(result)}")
            if result["exit_code"] in exit_codes.BY_SIGNAL:
                break
            down = result["exit_code"] == exit_codes.TARGET_ERROR
            self._ready_within_s = self._options.wait_ready_s or (_STILL_DOWN_S if down else _RECOVERY_S)
        self._record.write(ended=True)
        return self._record.exit_code

    async def _run(self, profile: Profile, seed: int) -> dict[str, Any]:
        """Run a profile with prompts that the server has not cached."""
        options = replace(self._options, out=self._record.folder, wait_ready_s=self._ready_within_s, seed=seed)
        try:
            return _summary(await run_quietly(profile, options, self._print))
        except LoadchaosError as e:  # it cannot begin: others can
            return {"exit_code": e.exit_code, "verdict": verdict_of(e.exit_code), "run": None, "error": str(e)}

    def _handle_signals(self) -> None:
        """Note a signal between two runs; each run installs its own handlers."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._note, number)

    def _note(self, number: signal.Signals) -> None:
        self._signal = number


def _summary(result: Result) -> dict[str, Any]:
    """The part of a run's verdict that the suite shows."""
    verdict = result.verdict
    failures = [f for f in result.failures if not f.accepted and f.attribution != "expected"]
    checks = (*verdict.expectations, *verdict.checks) if verdict is not None else ()
    return {
        "exit_code": result.exit_code,
        "verdict": verdict_of(result.exit_code),
        "run": result.folder.path.name,
        "error": result.error,
        "requests": sum(result.outcomes.values()),
        "worth": verdict.worth if verdict is not None else "",
        "failures": [_failure(f) for f in failures[:_MOST_FAILURES]],
        "unknown": [_described(c) for c in checks if c.verdict == "unknown"],
        "broken": [_described(c) for c in checks if c.verdict == "fail"],
    }


def _described(check: CheckResult) -> str:
    return f"{check.name}: {check.actual} (expected {check.expected})"


def _failure(failure: FailureResult) -> dict[str, Any]:
    whole = to_json(failure)
    return {name: whole[name] for name in ("id", "title", "severity", "count", "known", "remedy", "incident")}


def _named(result: Mapping[str, Any]) -> str:
    names = [f["id"] for f in result.get("failures") or ()]
    if names:
        return f" ({', '.join(dict.fromkeys(names))})"
    first = result.get("error") or next(iter(result.get("unknown") or ()), "")
    return f" ({first})" if first else ""
