"""The report in the terminal: verdict first, then what broke and what to do; readable at 3 a.m. at 80 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadchaos.core.model import OUTCOMES
from loadchaos.report.phrases import (
    accepted_text,
    count_text,
    evidence_text,
    generator_text,
    incident_paths,
    known_text,
    lost_text,
    lower_bounds_text,
    one_line,
    outcome_counts,
    remedy_text,
    rule_text,
    target_in_words,
    to_do_text,
    when_text,
    worst_first,
)
from loadchaos.report.words import BLAME, SEVERITY, clean, number, path_of, seconds, since_load

_PAINT = re.compile(r"\x1b\[[0-9;]*m")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_VERDICT = {"pass": ("PASS", "green"), "fail": ("FAIL", "red"), "unknown": ("UNKNOWN", "yellow")}
_MARK = {"pass": ("ok  ", "green"), "fail": ("FAIL", "red"), "unknown": ("?   ", "yellow")}
_LABEL = 13
_MAX_STATES = 20


def render(verdict: Mapping[str, Any], folder: Path, *, color: bool = False, width: int = 80) -> str:
    """verdict.json as text, lines at most `width` characters (paths and addresses are never broken)."""
    page = _Page(max(40, width), color)
    _headline(page, verdict)
    failures = sorted(verdict.get("failures") or [], key=worst_first)
    for i, failure in enumerate(failures, 1):
        _failure(page, verdict, folder, i, failure)
    _rules(page, verdict)
    _outcomes(page, verdict)
    _latency(page, verdict)
    _states(page, verdict)
    _worth(page, verdict)
    _generator(page, verdict)
    _next(page, verdict, folder)
    return page.text()


class _Page:
    """Lines of text with colour or without; every foreign text goes through `clean`."""

    def __init__(self, width: int, color: bool) -> None:
        self.width, self._color, self._lines = width, color, list[str]()

    def paint(self, text: str, *styles: str) -> str:
        codes = ";".join(_CODES[s] for s in styles)
        return f"\x1b[{codes}m{text}\x1b[0m" if self._color and codes else text

    def line(self, text: str = "") -> None:
        self._lines.append(text.rstrip())

    def section(self, title: str) -> None:
        self.line()
        self.line(self.paint(title, "bold"))

    def wrap(self, text: str, indent: int = 0, first: str = "") -> None:
        """A paragraph; `first` stands before the first line, in place of its indent."""
        seen = len(_PAINT.sub("", first)) or indent
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * seen,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        if first:
            lines[0] = first + lines[0][seen:]
        for part in lines:
            self.line(part)

    def field(self, label: str, text: str, *styles: str) -> None:
        if text:
            self.wrap(text, 3 + _LABEL, "   " + self.paint(label.ljust(_LABEL), *(styles or ("dim",))))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Columns as wide as needed; the first `left` are aligned to the left, the first of all gives way."""
        sizes = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        sizes[0] = max(8, min(sizes[0], self.width - 2 - sum(sizes[1:]) - 2 * (len(sizes) - 1)))
        for n, row in enumerate([head, *rows]):
            cells = [
                _cut(c, s).ljust(s) if i < left else c.rjust(s) for i, (c, s) in enumerate(zip(row, sizes, strict=True))
            ]
            text = "  " + "  ".join(cells).rstrip()
            self.line(self.paint(text, "dim") if n == 0 else text)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def _headline(page: _Page, verdict: Mapping[str, Any]) -> None:
    word, color = _VERDICT.get(str(verdict.get("verdict")), ("UNKNOWN", "yellow"))
    first = f"{page.paint(word, color, 'bold')}  {page.paint(clean(verdict.get('profile'), 60), 'bold')}  "
    page.wrap(f"{one_line(verdict)} (exit code {verdict.get('exit_code', '?')})", len(word) + 2, first)
    page.wrap("on " + target_in_words(verdict), len(word) + 2)
    standing = [f"{number(n)} {what}" for what, n in (verdict.get("failure_counts") or {}).items() if n]
    if standing:
        page.wrap(f"failures: {', '.join(standing)}", len(word) + 2)
    for note in verdict.get("notes") or []:
        page.wrap(clean(note, 400), len(word) + 2)


def _failure(page: _Page, verdict: Mapping[str, Any], folder: Path, i: int, failure: Mapping[str, Any]) -> None:
    severity = str(failure.get("severity"))
    blame = str(failure.get("attribution") or "server")
    bad = blame == "server" and not failure.get("accepted")
    page.line()
    what = SEVERITY.get(severity, clean(severity, 30))
    times = f", {number(failure['count'])} times" if (failure.get("count") or 0) > 1 else ""
    name = clean(failure.get("id"), 80)
    page.line(f"{i}. {page.paint(name, 'bold', 'red' if bad else 'yellow')}  {what}{times}")
    page.wrap(clean(failure.get("title") or "", 400), 3)
    page.field("when", when_text(verdict, failure))
    page.field("in flight", count_text(failure, "in_flight_at_death", "in_flight"))
    page.field("lost", lost_text(failure))
    page.field("evidence", evidence_text(failure.get("evidence")), "cyan")
    for known in failure.get("known") or []:
        page.field("known as", known_text(known))
    if not failure.get("known") and bad:
        page.field("known as", "not known upstream, as far as loadchaos knows")
    page.field("what to do", remedy_text(failure.get("remedy")), "green")
    page.field("blame", BLAME.get(blame, clean(blame, 60)))
    page.field("accepted", accepted_text(failure))
    page.field("also", "; ".join(clean(a, 160) for a in (failure.get("alt") or [])[:5]))
    incidents = incident_paths(failure)
    if incidents:
        more = f" and {len(incidents) - 1} more beside it" if len(incidents) > 1 else ""
        page.field("incident", path_of(folder, incidents[0]) + more)


def _rules(page: _Page, verdict: Mapping[str, Any]) -> None:
    if verdict.get("exit_code") in (2, 4):
        page.line()
        page.wrap("No request of the load was sent, so no expectation was put to the test.")
        return
    for title, key in (("What was expected", "expectations"), ("What a verdict needs", "checks")):
        rules = verdict.get(key) or []
        if not rules:
            continue
        page.section(title)
        for rule in rules:
            mark, color = _MARK.get(str(rule.get("verdict")), ("?   ", "yellow"))
            page.wrap(rule_text(rule), 8, f"  {page.paint(mark, color)}  ")
            if key == "checks" and (todo := to_do_text(rule)):
                page.wrap(f"-> {todo}", 11, "        ")


def _outcomes(page: _Page, verdict: Mapping[str, Any]) -> None:
    total = {o: n for o, n in (verdict.get("outcomes") or {}).items() if n}
    by_traffic = {t: outcome_counts(c) for t, c in (verdict.get("by_traffic") or {}).items()}
    names = [o for o in OUTCOMES if o in total] + sorted(set(total) - set(OUTCOMES))
    if not names:
        return
    page.section("Requests")
    # Outcomes go down and traffics across while they are few, so that any number of outcomes fits 80 columns.
    columns = list(by_traffic)[:5] if len(by_traffic) > 1 else []
    rows = [[o, number(total[o]), *(number(by_traffic[t].get(o, 0)) for t in columns)] for o in names]
    page.table(["outcome", "all", *(_cut(clean(t, 40), 12) for t in columns)], rows)
    if len(by_traffic) > len(columns) > 0:
        more = len(by_traffic) - len(columns)
        page.line(f"  ({more} more kind{'s' if more > 1 else ''} of traffic: see the report)")


def _latency(page: _Page, verdict: Mapping[str, Any]) -> None:
    rows = []
    for traffic, kinds in (verdict.get("latency") or {}).items():
        for kind, label in (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("e2e_s", "E2E")):
            p = kinds.get(kind) or {}
            if p.get("n"):
                rows.append(
                    [
                        clean(traffic, 40),
                        label,
                        *(seconds(p.get(q)) for q in ("p50", "p90", "p99")),
                        number(p["n"]),
                    ]
                )
    if rows:
        page.section("Latency of answered requests, from the time they were due")
        page.table(["traffic", "", "p50", "p90", "p99", "n"], rows, left=2)
        bounds = lower_bounds_text(verdict)
        if bounds:
            page.wrap(bounds, 2, "  ")


def _states(page: _Page, verdict: Mapping[str, Any]) -> None:
    states = verdict.get("states") or []
    if not states:
        return
    page.section("The server")
    for state in states[:_MAX_STATES]:
        name = clean(state.get("state"), 20)
        color = {"healthy": "green", "starting": "dim", "degraded": "yellow"}.get(name, "red")
        signs = "; ".join(clean(s, 160) for s in state.get("signs") or [])
        noticed = state.get("noticed_after_s")
        late = f" [noticed {seconds(noticed)} later]" if noticed and noticed >= 0.001 else ""
        when = since_load(verdict, state.get("at"), state.get("at_s"))
        text = f"{when}{': ' + signs if signs else ''}{late}"
        replica = clean(state.get("replica") or "", 20)
        several = len({st.get("replica") for st in states}) > 1
        page.wrap(f"{replica}: {text}" if several else text, 15, f"  {page.paint(name.ljust(12), color)} ")
    if len(states) > _MAX_STATES:
        page.line(f"  ({len(states) - _MAX_STATES} more changes of state: see the report)")


def _worth(page: _Page, verdict: Mapping[str, Any]) -> None:
    worth = verdict.get("worth")
    if worth:
        page.section("What this is worth")
        for part in worth if isinstance(worth, list) else [worth]:
            page.wrap(clean(part, 800), 2, "  ")


def _generator(page: _Page, verdict: Mapping[str, Any]) -> None:
    text = generator_text(verdict)
    if text:
        page.section("The load generator")
        page.wrap(text, 2, "  ")


def _next(page: _Page, verdict: Mapping[str, Any], folder: Path) -> None:
    page.section("Where to look")
    logs = ["server.log", *(str(p.relative_to(folder)) for p in sorted((folder / "watch" / "logs").glob("*.log")))]
    for label, part in (("report", "report.html"), ("verdict", "verdict.json"), *(("server log", log) for log in logs)):
        if part == "verdict.json" or ((folder / part).exists() and (folder / part).stat().st_size):
            page.line(f"  {label.ljust(11)} {path_of(folder, part)}")
    page.line(f"  {'again'.ljust(11)} loadchaos report {path_of(folder, '.')}")
    again = verdict.get("replay")
    if again:
        page.line(f"  {'repeat'.ljust(11)} {clean(again, 400)}")
