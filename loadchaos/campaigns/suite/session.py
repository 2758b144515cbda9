"""Run the profiles of a suite, one after the other.

A run that fails, that cannot begin, or that finds the server dead does not end the suite. A signal does: the run ends in
order, and the suite with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadchaos.campaigns.suite.record import SuiteRecord, verdict_of
from loadchaos.core import exit_codes
from loadchaos.core.errors import LoadchaosError
from loadchaos.profile.profile import Profile
from loadchaos.run.finalize import Result
from loadchaos.run.interrupts import Interrupts
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
        self,
        record: SuiteRecord,
        options: Options,
        interrupts: Interrupts,
        print_line: Callable[[str], None],
        announce: Callable[[str], None],
    ) -> None:
        self._record, self._options, self._interrupts = record, options, interrupts
        self._print, self._announce = print_line, announce
        self._ready_within_s = options.wait_ready_s

    async def run(self, profiles: Sequence[Profile]) -> int:
        """Run the profiles; returns the exit code of the suite."""
        self._record.write()
        for number, profile in enumerate(profiles, 1):
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {profile.about}")
            self._record.begin(profile.name)
            begin_s = time.monotonic()
            result = await self._run(profile, self._options.seed + number - 1)
            if self._interrupts:
                result = {**result, "exit_code": self._interrupts.exit_code}
            self._record.end(profile.name, time.monotonic() - begin_s, result)
            self._announce(f"[{number}/{len(profiles)}] {profile.name}: {result['verdict']}{_named(result)}")
            if self._interrupts:
                break
            down = result["exit_code"] == exit_codes.TARGET_ERROR
            self._ready_within_s = self._options.wait_ready_s or (_STILL_DOWN_S if down else _RECOVERY_S)
        self._record.write(ended=True)
        return self._record.exit_code

    async def _run(self, profile: Profile, seed: int) -> dict[str, Any]:
        """Run a profile with prompts that the server has not cached."""
        options = replace(self._options, out=self._record.folder, wait_ready_s=self._ready_within_s, seed=seed)
        try:
            return _summary(await run_quietly(profile, options, self._interrupts, self._print))
        except LoadchaosError as e:  # it cannot begin: others can
            return {"exit_code": e.exit_code, "verdict": verdict_of(e.exit_code), "run": None, "error": str(e)}


def _summary(result: Result) -> dict[str, Any]:
    """The part of a run's verdict that the suite shows."""
    verdict = result.verdict or {}
    failures = [f for f in verdict.get("failures") or () if not f.get("accepted") and f["attribution"] != "expected"]
    checks = [*(verdict.get("expectations") or ()), *(verdict.get("checks") or ())]
    return {
        "exit_code": result.exit_code,
        "verdict": verdict_of(result.exit_code),
        "run": result.folder.path.name,
        "error": result.error,
        "requests": sum((verdict.get("outcomes") or {}).values()),
        "worth": verdict.get("worth", ""),
        "failures": [_failure(f) for f in failures[:_MOST_FAILURES]],
        "unknown": [_described(c) for c in checks if c["verdict"] == "unknown"],
        "broken": [_described(c) for c in checks if c["verdict"] == "fail"],
    }


def _described(check: Mapping[str, Any]) -> str:
    return f"{check['name']}: {check['actual']} (expected {check['expected']})"


def _failure(failure: Mapping[str, Any]) -> dict[str, Any]:
    return {name: failure.get(name) for name in ("id", "title", "severity", "count", "known", "remedy", "incident")}


def _named(result: Mapping[str, Any]) -> str:
    names = [f["id"] for f in result.get("failures") or ()]
    if names:
        return f" ({', '.join(dict.fromkeys(names))})"
    first = result.get("error") or next(iter(result.get("unknown") or ()), "")
    return f" ({first})" if first else ""
