"""Render the verdict page of a suite: one row for each profile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from loadchaos.report.formatting import clean, plural, utc_text
from loadchaos.report.html import templates
from loadchaos.report.suite_result import SuiteResult

_BADGES: Mapping[str, str] = {"pass": "pass", "fail": "fail", "error": "fail"}
_COUNTED = {"fail": "failed", "error": "could not be tested", "unknown": "proved nothing", "pass": "passed"}
"""Verdicts in the order of the page, as the headline counts them; an interrupted profile comes last."""
_ORDER = (*_COUNTED, "interrupted")


def render(suite: SuiteResult) -> str:
    finished = sorted(suite.in_state("finished"), key=lambda row: _ORDER.index(row.shown_verdict))
    return templates.render(
        "suite.html.j2",
        headline=headline(suite),
        badge=_BADGES.get(suite.shown_verdict, "unknown"),
        verdict=suite.shown_verdict.upper(),
        target=clean(suite.target, 300),
        server=" ".join(clean(part, 100) for part in suite.server.parts),
        times=utc_text(suite.started, suite.ended),
        badges=_BADGES,
        rows=finished,
        waiting=suite.in_state("waiting", "running"),
        left_out=suite.in_state("left out"),
    )


def headline(suite: SuiteResult) -> str:
    finished = suite.in_state("finished")
    if not finished:
        return "no profile was run"
    stopped = [row for row in finished if row.shown_verdict == "interrupted"]
    counts = Counter(row.shown_verdict for row in finished)
    said = ", ".join(f"{counts[verdict]} {words}" for verdict, words in _COUNTED.items() if counts[verdict])
    missing, left_out = len(suite.in_state("waiting", "running")), len(suite.in_state("left out"))
    more = [f"interrupted in {stopped[0].name}"] if stopped else []
    more += [f"{missing} not run"] if stopped and missing else [f"{missing} not finished"] if missing else []
    more += [f"{left_out} left out"] if left_out else []
    return f"of {plural(len(finished), 'profile')} {'; '.join([said or 'none ended', *more])}"
