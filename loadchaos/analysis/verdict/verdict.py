"""Verdict of a run: fail over unknown over pass, and its strength."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.incidents.incident import Incident
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.analysis.verdict.model import NOT_JUDGED, SAME_SERVER, CheckResult, FailureResult, NotJudged
from loadchaos.core import exit_codes
from loadchaos.core.model import DEFAULT_EXPECT, Acceptance, Decision, Row, Terms
from loadchaos.core.stats import upper_bound_at_zero

_EXIT: Mapping[Decision, int] = {"pass": exit_codes.PASS, "fail": exit_codes.FAIL, "unknown": exit_codes.UNKNOWN}
_MOST_NAMED = 5
_STANDINGS = {"load": "load", "expected": "expected", "self-inflicted": "ours", "injected": "ours"}
"""Standing of failures by their attribution; those of the server are known or unexplained."""
_UNEXPLAINED = re.compile(r"^(?:unexplained|unknown|unexpected)_|_unexplained$|^alive_but_hung$")
"""Ids of failures without a known cause."""


def accepted(failures: Sequence[FailureResult], terms: Terms, today: date | None) -> list[FailureResult]:
    found = []
    for failure in failures:
        for entry in [e for e in terms.accept if _is_meant(e, failure)]:
            why_not = _refusal(entry, sum(f.count for f in failures if _is_meant(entry, f)), today)
            failure = replace(failure, accepted=why_not is None, acceptance=why_not or entry.because)
            if failure.accepted:
                break
        found.append(failure)
    return found


def _is_meant(entry: Acceptance, failure: FailureResult) -> bool:
    if entry.id != failure.id or (entry.frame and not any(entry.frame in frame for frame in failure.frames)):
        return False
    words = entry.text or ""  # numbers in it differ from answer to answer
    texts = (failure.title, failure.evidence.text or "")
    return any(words in text or normalise(words) in normalise(text) for text in texts)


def _refusal(entry: Acceptance, count: int, today: date | None) -> str | None:
    if not entry.because:
        return "not accepted: the profile gives no reason"
    if entry.until is not None and (today is None or today > date.fromisoformat(entry.until)):
        return f"accepted only until {entry.until}"
    if entry.at_most is not None and count > entry.at_most:
        return f"accepted at most {entry.at_most} times"
    return None


def accepted_checks(checks: Sequence[CheckResult], terms: Terms, today: date | None) -> list[CheckResult]:
    """Let pass each `NotJudged`, and a change of the server, that an entry of `accept` excuses, with its reason."""
    found = []
    for check in checks:
        names = [check.name] if check.name == SAME_SERVER else []
        if isinstance(check, NotJudged):
            names = [NOT_JUDGED, check.name]
        if names:
            for entry in [e for e in terms.accept if e.id in names]:
                why_not = _refusal(entry, 1, today)
                actual = f"{check.actual}; {why_not or f'accepted: {entry.because}'}"
                check = replace(
                    check,
                    actual=actual,
                    verdict="unknown" if why_not else "pass",
                    accepted="" if why_not else entry.because,
                )
                if why_not is None:
                    break
        found.append(check)
    return sorted(found, key=lambda check: check.name != SAME_SERVER)  # else all figures are those of several servers


def failure_counts(failures: Sequence[FailureResult]) -> dict[str, int]:
    """Counts of failures by standing. `expected` of an attack, `ours` otherwise, `known` by name, and `unexplained`.
    Those of too much load and those before the load are counted apart, where there are any.
    """
    found = {"expected": 0, "ours": 0, "known": 0, "unexplained": 0}
    for failure in failures:
        standing = "before_load" if failure.before_load else _STANDINGS.get(failure.attribution)
        standing = standing or ("unexplained" if _UNEXPLAINED.search(failure.id) else "known")
        found[standing] = found.get(standing, 0) + failure.count
    return found


def figures_of(
    failures: Sequence[FailureResult],
    episodes: Sequence[Incident],
    base: ExpectationInputs,
    checks: Sequence[CheckResult] = (),
) -> ExpectationInputs:
    """Add the counts that expectations ask for. Accepted and expected failures are left out. Where nothing was judged by
    one of the checks, no wrong answers prove nothing.
    """
    against = [f for f in failures if f.counts]
    left_out = {f.id for f in failures} - {f.id for f in against}
    met = [i for i in episodes if i.attribution != "expected" and i.id not in left_out]
    deaths = [i for i in met if i.kind in ("death", "restart") and not i.starting and not i.outlived]
    hangs = [i for i in met if i.ever_hung]
    hung_in_log = sum(f.count for f in against if f.severity == "hang" and not f.incidents)
    found = {
        **base.counts,
        "engine_deaths": len(deaths),
        "hangs": len(hangs) + hung_in_log,
        "outages": sum(i.kind == "outage" and i.attribution != "expected" for i in episodes),  # accepted or not
        "failures": len(against),
        "wrong_answers": sum(f.count for f in against if f.wrong_answers is not None),
        "occurrences": sum(f.count for f in against),
        "restarts": sum(i.kind == "restart" for i in met),
        "replicas_lost": len({i.replica for i in deaths}),
        "lost_requests": sum(i.lost.total() for i in met),
    }
    lost = ("engine_deaths", "restarts", "replicas_lost") if found["outages"] else ()
    unproved = {**base.unproved, **dict.fromkeys(lost, "what happened in the outage is not known")}
    if blind := [check for check in checks if isinstance(check, NotJudged) and check.verdict == "unknown"]:
        more = f"; and {len(blind) - 1} more checks" if len(blind) > 1 else ""
        unproved["wrong_answers"] = f"{blind[0].name}: {blind[0].actual}{more}"
    return replace(base, counts=found, unproved=unproved)


def expectations(terms: Terms, figures: ExpectationInputs) -> list[CheckResult]:
    return [judge(text, figures) for text in (terms.expect or DEFAULT_EXPECT)]


def uncovered(failures: Sequence[FailureResult], judged: Sequence[CheckResult]) -> list[CheckResult]:
    """Check that no failure remains that no expectation covers. Returns the check only if it fails."""
    left = [f for f in failures if f.counts]
    if not left or any(j.name == "failures" and j.verdict == "fail" for j in judged):
        return []
    shown = "; ".join(f"{f.id} ({f.count:,} {'time' if f.count == 1 else 'times'})" for f in left[:_MOST_NAMED])
    more = f"; and {len(left) - _MOST_NAMED} more kinds" if len(left) > _MOST_NAMED else ""
    return [CheckResult("unaccepted_failures", "none outside of accept and error budgets", shown + more, "fail")]


def decide(failures: Sequence[FailureResult], judged: Sequence[CheckResult], checks: Sequence[CheckResult]) -> Decision:
    """Fail over unknown over pass. Every failure that counts fails the run, with or without an expectation."""
    verdicts = [*(j.verdict for j in judged), *(c.verdict for c in checks)]
    if any(f.counts for f in failures) or "fail" in verdicts:
        return "fail"
    return "pass" if verdicts and all(v == "pass" for v in verdicts) else "unknown"


def exit_code(decision: Decision, end: Row | None, *, sent: bool) -> int:
    """Exit code: 0, 1 or 3; 130 and 143 after a signal. 2 and 4 only while no request of the load was sent; 70 after a
    bug of loadchaos, unless the run failed.
    """
    forced = int((end or {}).get("exit_code") or 0)
    if forced == exit_codes.INTERNAL_ERROR and decision != "fail":
        return forced
    if forced in exit_codes.BY_SIGNAL or (forced in exit_codes.BEFORE_LOAD and not sent):
        return forced
    return _EXIT[decision]


def worth(
    decision: Decision,
    deaths: int,
    exposures: int,
    what: str,
    *,
    open_restart: bool = False,
    unproved: str | None = None,
) -> str:
    """Statistical strength: the crash rate met, or the one excluded at 95 %. `open_restart`: a restart at the end is
    neither confirmed nor excluded, so that no deaths are no proof. `unproved`: why no death may be counted although
    there was one.
    """
    what = re.sub(r"^(\w+)s\b", r"\1", what) if exposures == 1 else what  # 1 request
    if deaths and not exposures:
        return f"Not assessed: no {what} came before the death"
    if deaths:
        met = f"{deaths:,} in {exposures:,} {what}"
        return f"Crash rate {_percent(deaths / exposures)} ({met})" if exposures > deaths else f"Crashes: {met}"
    if open_restart:
        return "Not assessed: the server may have restarted at the end"
    if unproved:
        return f"Not assessed: no crash is proved, but {unproved}"
    if decision == "unknown":
        return "Not assessed: the verdict is unknown"
    bound = upper_bound_at_zero(exposures)
    if bound is None:
        return "Not assessed: no exposure"
    if bound > 0.5:
        return f"Not assessed: 0 crashes in {exposures:,} {what} are too few to bound the crash rate"
    return f"Crash rate < {_percent(bound)} (95 % confidence, 0 in {exposures:,} {what})"


def _percent(share: float) -> str:
    """`4.3 %`, rounded up so that no more is claimed than is known."""
    scale = 10 ** (1 - math.floor(math.log10(share * 100)))
    return f"{math.ceil(share * 100 * scale - 1e-9) / scale:.12g} %"
