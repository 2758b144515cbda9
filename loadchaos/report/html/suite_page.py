"""Render the verdict page of a suite: one row for each profile."""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.core import exit_codes
from loadchaos.report.formatting import clean, plural, utc_text
from loadchaos.report.html import templates
from loadchaos.report.suite_result import SuiteResult, SuiteVerdict

_BADGES: Mapping[SuiteVerdict, str] = {"pass": "pass", "fail": "fail", "unknown": "unknown", "error": "fail"}
_ORDER: Mapping[SuiteVerdict, int] = {"fail": 0, "error": 1, "unknown": 2, "pass": 3}


def render(suite: SuiteResult) -> str:
    finished = sorted(suite.in_state("finished"), key=lambda row: _ORDER[row.verdict or "error"])
    return templates.render(
        "suite.html.j2",
        headline=headline(suite),
        badge=_BADGES[suite.verdict] if suite.verdict else "unknown",
        verdict=(suite.verdict or "not ended").upper(),
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
    stopped = [row for row in finished if row.exit_code in exit_codes.BY_SIGNAL]
    counts = {name: sum(row.verdict == name for row in finished if row not in stopped) for name in _ORDER}
    words = {"fail": "failed", "error": "could not be tested", "unknown": "proved nothing", "pass": "passed"}
    said = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
    missing, left_out = len(suite.in_state("waiting", "running")), len(suite.in_state("left out"))
    more = [f"interrupted in {stopped[0].name}"] if stopped else []
    more += [f"{missing} not run"] if stopped and missing else [f"{missing} not finished"] if missing else []
    more += [f"{left_out} left out"] if left_out else []
    return f"of {plural(len(finished), 'profile')} {said}" + "".join(f"; {text}" for text in more)
