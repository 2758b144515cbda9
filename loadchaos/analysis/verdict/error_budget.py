"""Error budget: expectations that bound the errors of requests.

`error_rate <= 1%`, `images.error_rate < 2%` and `outcomes.http_error <= 5` are budgets. Failures of requests whose errors
all stay within such a rule do not fail the run. Deaths, hangs and other damage to the server have no budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loadchaos.analysis.verdict.model import CheckResult, FailureResult
from loadchaos.core.model import BLAMELESS, OUTCOMES

_RULE = re.compile(r"(?:(?P<traffic>.+)\.)?(?:error_rate|outcomes\.(?P<outcome>\w+))")
_OF_A_RATE = {*(set(OUTCOMES) - BLAMELESS), "rejected"} - {"wrong_output"}
"""Outcomes that `error_rate` excuses. A wrong answer needs a rule of its own: `outcomes.wrong_output <= 1`."""
_BAD_NAMES = {"unexpected_rejection": "rejected"}


@dataclass(frozen=True)
class ErrorBudget:
    """One rule that was met. `traffic` "" means all traffic, `outcome` None means every outcome."""

    rule: str
    traffic: str
    outcome: str | None

    def covers(self, traffic: str, outcome: str) -> bool:
        outcome = _BAD_NAMES.get(outcome, outcome)
        right = outcome in _OF_A_RATE if self.outcome is None else outcome == self.outcome
        return right and self.traffic in ("", traffic)


def budgets(judged: Iterable[CheckResult]) -> list[ErrorBudget]:
    found = []
    for rule in judged:
        match = _RULE.fullmatch(rule.name)
        if match is not None and rule.verdict == "pass" and rule.expected.startswith("<"):
            found.append(ErrorBudget(f"{rule.name} {rule.expected}", match["traffic"] or "", match["outcome"]))
    return found


def excused(failures: Iterable[FailureResult], judged: Sequence[CheckResult], errors: int) -> list[FailureResult]:
    """Accept failures of requests that error budgets cover. One that only a log shows is covered by an `error_rate` of
    the whole run, if it has no more lines than there were errors.
    """
    met, found = budgets(judged), []
    for failure in failures:
        asked = failure.severity == "request" and not failure.accepted
        if asked and (rules := _covering(failure, met, errors)):
            why = f"within the error budget {', '.join(rules)}"
            found.append(replace(failure, accepted=True, acceptance=why))
        else:
            found.append(failure)
    return found


def _covering(failure: FailureResult, met: Sequence[ErrorBudget], errors: int) -> list[str]:
    if not failure.requests:
        whole = [b.rule for b in met if not b.traffic and b.outcome is None]
        return whole[:1] if failure.count <= errors else []
    found = []
    for traffic, outcomes in failure.requests.items():
        for outcome in outcomes:
            rule = next((b.rule for b in met if b.covers(traffic, outcome)), None)
            if rule is None:
                return []
            found.append(rule)
    return list(dict.fromkeys(found))
