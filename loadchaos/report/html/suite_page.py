"""Render the verdict page of a suite: one row for each profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadchaos.report.formatting import clean, duration, number, parse_time, plural
from loadchaos.report.suite_result import ProfileRow, SuiteFailure, SuiteResult, SuiteVerdict

_BADGES: Mapping[SuiteVerdict, str] = {"pass": "pass", "fail": "fail", "unknown": "unknown", "error": "fail"}
_ORDER: Mapping[SuiteVerdict, int] = {"fail": 0, "error": 1, "unknown": 2, "pass": 3}


def render(suite: SuiteResult) -> str:
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    finished = sorted(suite.in_state("finished"), key=lambda row: _ORDER[row.verdict or "error"])
    return env.get_template("suite.html.j2").render(
        headline=headline(suite),
        badge=_BADGES[suite.verdict] if suite.verdict else "unknown",
        verdict=(suite.verdict or "not ended").upper(),
        target=clean(suite.target, 300),
        server=" ".join(clean(part, 100) for part in suite.server.text),
        times=_times(suite),
        rows=[_row(row) for row in finished],
        waiting=suite.in_state("waiting", "running"),
        left_out=suite.in_state("left out"),
    )


def headline(suite: SuiteResult) -> str:
    finished = suite.in_state("finished")
    if not finished:
        return "no profile was run"
    counts = {name: sum(row.verdict == name for row in finished) for name in _ORDER}
    words = {"fail": "failed", "error": "could not be tested", "unknown": "proved nothing", "pass": "passed"}
    said = ", ".join(f"{count} {words[name]}" for name, count in counts.items() if count)
    missing, left_out = len(suite.in_state("waiting", "running")), len(suite.in_state("left out"))
    more = [f"{missing} not finished"] if missing else []
    more += [f"{left_out} left out"] if left_out else []
    return f"of {plural(len(finished), 'profile')} {said}" + "".join(f"; {text}" for text in more)


@dataclass(frozen=True)
class _Row:
    """Texts of a finished profile."""

    name: str
    about: str
    verdict: str
    badge: str
    requests: str
    time: str
    worth: str
    run: str | None
    error: str
    failures: Sequence[SuiteFailure]
    reasons: Sequence[str]


def _row(row: ProfileRow) -> _Row:
    verdict = row.verdict or "error"
    return _Row(
        name=row.name,
        about=row.about,
        verdict=verdict,
        badge=_BADGES[verdict],
        requests=number(row.requests or 0),
        time=duration(row.seconds),
        worth=row.worth,
        run=row.run,
        error=clean(row.error or "", 600),
        failures=[replace(f, title=clean(f.title, 300), remedy=clean(f.remedy, 600)) for f in row.failures],
        reasons=[clean(text, 300) for text in (*row.broken, *row.unknown)],
    )


def _times(suite: SuiteResult) -> str:
    began, ended = parse_time(suite.started), parse_time(suite.ended)
    if began is None:
        return ""
    shown = f"{began:%Y-%m-%d %H:%M:%S} UTC"
    return shown if ended is None else f"{shown}, {duration((ended - began).total_seconds())}"
