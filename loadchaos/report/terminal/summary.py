"""Print a verdict in the terminal, at any width."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from loadchaos.analysis.advisories.advisory import ENGINES
from loadchaos.analysis.verdict.model import FailureResult, StateChange, Verdict
from loadchaos.core import exit_codes
from loadchaos.core.latency_percentiles import REPORTED_QUANTILES, REPORTED_STATISTICS
from loadchaos.report import headline, performance, phrases
from loadchaos.report.formatting import clean, columns, cut, duration, number, plural, short_path, since_load

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_VERDICT = {"pass": ("PASS", "green"), "fail": ("FAIL", "red"), "unknown": ("UNKNOWN", "yellow")}
_MARK = {"pass": ("ok  ", "green"), "fail": ("FAIL", "red"), "unknown": ("?   ", "yellow")}
_LABEL_WIDTH = 15
_VALUE_WIDTH = 12
_WIDE = 80
_MAX_STATES = 20
_FAILURE_COUNTS = {
    "expected": "expected from our own attacks",
    "ours": "caused by our own attacks",
    "known": "known",
    "unexplained": "unexplained",
    "load": "of too much load",
    "before_load": "before the load (not counted)",
}


def render(verdict: Verdict, folder: Path, *, color: bool = False, width: int = 80, full: bool = False) -> str:
    """Render verdict.json in lines of at most `width` characters: the answer first, then failures and what differs from
    normal; `full`: all checks and tables. Paths and addresses are never broken.
    """
    page = _TextPage(max(40, width), color)
    _headline(page, verdict, full=full)
    _figures(page, verdict, folder, full=full)
    failures = sorted(verdict.failures, key=phrases.worst_first)
    for i, failure in enumerate(failures, 1):
        if failure.before_load and (i == 1 or not failures[i - 2].before_load):
            page.section(phrases.SECTIONS["before_load"])
        _failure(page, verdict, folder, i, failure)
    _rules(page, verdict, full=full)
    _outcomes(page, verdict, full=full)
    _reported(page, verdict)
    _latency(page, verdict, full=full)
    _states(page, verdict, full=full)
    _last_lines(page, verdict, full=full)
    _files(page, verdict, folder, full=full)
    return page.text()


class _TextPage:
    """Lines of text with or without colour. Foreign text goes through `clean` before it gets here."""

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
        """Add a paragraph; `first` replaces the indent of its first line."""
        width_of_first = len(_ANSI.sub("", first)) or indent
        lines = textwrap.wrap(
            text,
            self.width,
            initial_indent=" " * width_of_first,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
        if first:
            lines[0] = first + lines[0][width_of_first:]
        for part in lines:
            self.line(part)

    def field(self, label: str, text: str, *styles: str, indent: int = 2) -> None:
        if text:
            first = " " * indent + self.paint(f"{label} ".ljust(_LABEL_WIDTH), *(styles or ("dim",)))
            self.wrap(text, indent + _LABEL_WIDTH, first)

    def link(self, label: str, text: str) -> None:
        """Add a path or a command, which is never broken."""
        self.line("  " + self.paint(label.ljust(_LABEL_WIDTH), "dim") + text)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
        """Add a table with its first `left` columns aligned to the left. The first shrinks where space is short."""
        sizes = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
        size = max(8, min(sizes[0], self.width - 2 - sum(sizes[1:]) - 2 * (len(sizes) - 1)))
        first, *others = columns([(cut(row[0], size).ljust(size), *row[1:]) for row in [head, *rows]], range(left))
        self.line(self.paint(first, "dim"))
        self._lines += others

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _headline(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    result, color = _VERDICT.get(verdict.verdict, ("UNKNOWN", "yellow"))
    first = f"{page.paint(result, color, 'bold')}  {page.paint(clean(verdict.profile, 60), 'bold')}  "
    page.wrap(f"{phrases.one_line(verdict)} (exit code {verdict.exit_code})", len(result) + 2, first)
    page.field("cause", phrases.worst_cause(verdict))
    page.field("target", phrases.target_text(verdict))
    counts = [f"{number(n)} {_FAILURE_COUNTS.get(k, k)}" for k, n in verdict.failure_counts.items() if n]
    if full and counts:
        kinds = plural(sum(not f.before_load for f in verdict.failures), "kind")
        page.field("failures", f"{kinds}; occurrences: {', '.join(counts)}")
    for note in verdict.notes:
        page.field("note", clean(note, 400))


def _figures(page: _TextPage, verdict: Verdict, folder: Path, *, full: bool) -> None:
    rows, terms = headline.rows(verdict), headline.terms_of(folder)
    if not rows:
        return
    page.field("asked", clean(terms.load, 600))
    page.field("offered", headline.offered_text(verdict, terms))
    page.line()
    for left, right in rows:
        more = f" ({right.more})" if right.more else ""
        page.field(left.label, f"{left.value:{_VALUE_WIDTH}}{right.label:16}{right.value}{more}")
    page.field("steady state", headline.steady_text(verdict, full=full))


def _failure(page: _TextPage, verdict: Verdict, folder: Path, i: int, failure: FailureResult) -> None:
    field = partial(page.field, indent=3)
    blamed = phrases.is_server_fault(failure) and not failure.accepted
    page.line()
    times = f", {number(failure.count)} times" if failure.count > 1 else ""
    name = clean(failure.id, 80)
    page.line(
        f"{i}. {page.paint(name, 'bold', 'red' if blamed else 'yellow')}  {phrases.severity_text(failure)}{times}"
    )
    page.wrap(clean(failure.title, 400), 3)
    field("when", phrases.when_text(verdict, failure))
    field("in flight", phrases.requests_text(failure.in_flight_at_death))
    field("lost", phrases.lost_text(failure))
    field("evidence", phrases.failure_evidence(failure), "cyan")
    for text in phrases.wrong_answer_texts(failure):
        field("wrong answer", text, "cyan")
    for candidate in failure.candidates:
        field("unexplained", phrases.evidence_text(candidate), "cyan")
    for known in failure.known:
        field("known issue", phrases.known_text(known))
    if not failure.known and blamed:
        field("known issue", "none known to loadchaos")
    field("what to do", phrases.remedy_text(failure.remedy), "green")
    field("cause", phrases.cause_text(failure))
    field("accepted", phrases.accepted_text(failure))
    field("also seen", "; ".join(clean(a, 160) for a in failure.alt[:5]))
    incidents = phrases.incident_paths(failure)
    if incidents:
        others = f" and {len(incidents) - 1} more in the same folder" if len(incidents) > 1 else ""
        field("incident", short_path(folder, incidents[0]) + others)


def _is_mistake(verdict: Verdict, *, full: bool) -> bool:
    """True where the first line says it all: no load was sent, and the server did not fail."""
    return not full and verdict.exit_code in exit_codes.BEFORE_LOAD and not verdict.failures


def _rules(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    if verdict.exit_code in exit_codes.BEFORE_LOAD:
        page.line()
        page.wrap("No load was sent, so no expectation was tested.")
        return
    for key, rules in (("expectations", verdict.expectations), ("checks", verdict.checks)):
        shown = [rule for rule in rules if full or not phrases.is_normal(rule)]
        if not shown:
            continue
        page.section(phrases.SECTIONS[key])
        for rule in shown:
            mark, color = ("-   ", "yellow") if rule.accepted else _MARK.get(rule.verdict, ("?   ", "yellow"))
            page.wrap(phrases.rule_text(rule).sentence, 8, f"  {page.paint(mark, color)}  ")
            if key == "checks" and (advice := phrases.advice_text(rule)):
                page.wrap(f"-> {advice}", 11, "        ")


def _outcomes(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    total, by_traffic = verdict.outcomes, verdict.by_traffic
    names = phrases.outcome_order(total)
    if not names or (names == ["ok"] and not full):
        return
    page.section(phrases.SECTIONS["outcomes"])
    # Outcomes go down and traffics across while they are few, so that any number of outcomes fits 80 columns.
    shown = list(by_traffic)[:5] if len(by_traffic) > 1 else []
    rows = [
        [phrases.outcome_text(o), number(total[o]), *(number(by_traffic[t].get(o, 0)) for t in shown)] for o in names
    ]
    page.table(["outcome", "all", *(cut(clean(t, 40), 12) for t in shown)], rows)
    if len(by_traffic) > len(shown) > 0:
        left_out = len(by_traffic) - len(shown)
        page.line(f"  ({plural(left_out, 'more kind')} of traffic: see the report)")
    page.field("refused", performance.refusals_text(verdict))
    page.field("stall", performance.stall_text(verdict) if full else "")
    if full and (rows := performance.label_rows(verdict)):
        page.line()
        page.table(["label", "value", "answers"], rows, left=2)


def _reported(page: _TextPage, verdict: Verdict) -> None:
    if rows := performance.reported_rows(verdict):
        page.section(phrases.SECTIONS["reported"])
        page.table(["", "reported", "wire", ""], rows)
    for label, text in performance.reported_texts(verdict).items():
        page.field(label, text)


def _latency(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    statistics = list(REPORTED_STATISTICS) if page.width >= _WIDE else [*REPORTED_QUANTILES, "max"]
    if full and (rows := performance.latency_rows(verdict, statistics)):
        page.section(f"{phrases.SECTIONS['latency']}, from their scheduled time")
        page.table(["traffic", "", *statistics, "samples"], rows, left=2)
    shown = len(performance.ENDPOINT_HEADS) + (2 if page.width >= _WIDE else -1)
    heads = ["requests", "ok", *(performance.SHORT_HEADS.get(h, h) for h in performance.ENDPOINT_HEADS)]
    by_endpoint = [[row[0], *row[2:-1]] for row in performance.endpoint_rows(verdict)]
    for name, rows in (("traffic", [] if full else performance.traffic_rows(verdict)), ("endpoint", by_endpoint)):
        if rows:
            page.line()
            page.table([name, *heads[:shown]], [row[: shown + 1] for row in rows])
    warm = verdict.efficiency is not None and verdict.efficiency.warm_cache
    fields = {
        "throughput": performance.throughput_text(verdict) if full else "",
        "goodput": performance.goodput_text(verdict),
        **(performance.efficiency_texts(verdict) if full or warm else {}),
        "sessions": performance.sessions_text(verdict),
        "warm-up": performance.warm_up_text(verdict),
        "timeouts": phrases.lower_bounds_text(verdict),
    }
    if any(fields.values()):
        page.line()
    for label, text in fields.items():
        page.field(label, text)


def _states(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    states = verdict.states
    if not full and all(map(_is_normal, states)):
        return
    page.section(phrases.SECTIONS["states"])
    several = len({state.replica for state in states}) > 1
    for state in states[:_MAX_STATES]:
        color = {"healthy": "green", "starting": "dim", "degraded": "yellow"}.get(state.state, "red")
        signs = "; ".join(clean(s, 160) for s in state.signs)
        noticed = state.noticed_after_s
        late = f" [noticed {duration(noticed)} later]" if noticed and noticed >= 0.001 else ""
        text = f"{since_load(verdict, state.at, state.at_s)}{': ' + signs if signs else ''}{late}"
        replica = clean(state.replica or "", 20)
        first = f"  {page.paint(phrases.state_text(state.state).ljust(12), color)} "
        page.wrap(f"{replica}: {text}" if several else text, 15, first)
    if len(states) > _MAX_STATES:
        page.line(f"  ({plural(len(states) - _MAX_STATES, 'more state change')}: see the report)")


def _is_normal(change: StateChange) -> bool:
    """A server that becomes healthy, and one that loadchaos launched and stopped."""
    return change.state in ("starting", "healthy") or any("stopped by loadchaos" in sign for sign in change.signs)


def _last_lines(page: _TextPage, verdict: Verdict, *, full: bool) -> None:
    if _is_mistake(verdict, full=full):
        return
    page.line()
    if not full and (passed := phrases.passed_text(verdict)):
        page.field("checks", passed)
    page.field("strength", clean(verdict.worth, 800))
    generator = verdict.generator
    if full or generator.limited or generator.slots or generator.backed_off or generator.host:
        page.field("generator", phrases.generator_text(verdict))


def _files(page: _TextPage, verdict: Verdict, folder: Path, *, full: bool) -> None:
    page.line()
    logs = ["server.log", *(str(p.relative_to(folder)) for p in sorted((folder / "watch" / "logs").glob("*.log")))]
    parts = [("report", "report.html"), *([("verdict", "verdict.json")] if full else [])]
    for label, part in (*parts, *(("server log", log) for log in logs)):
        if (folder / part).exists() and (folder / part).stat().st_size:
            page.link(label, short_path(folder, part))
    if _is_mistake(verdict, full=full):
        return
    page.link("details", f"loadchaos judge -v {short_path(folder, '.')}")
    if verdict.replay:
        page.link("run again", clean(verdict.replay, 400))
    unseen = any(check.name == "traffic" for check in verdict.checks)  # only watched: there are no requests
    if not unseen and any(f.attribution == "server" and not f.before_load for f in verdict.failures):
        page.link("reproduce", f"loadchaos minimise {short_path(folder, '.')}")
    if command := _doctor(verdict, folder):
        page.link("known bugs", command)


def _doctor(verdict: Verdict, folder: Path) -> str:
    """Name the command that compares a dead server with known bugs; empty where none died, or its version is unknown."""
    died = any(phrases.is_server_fault(f) and f.severity == "engine_death" for f in verdict.failures)
    target, log = verdict.target, folder / "server.log"
    if not died or target.kind == "embedded" or target.dialect not in ENGINES or " " in (target.version or " "):
        return ""
    words = ["--log", short_path(folder, log.name)] if log.exists() and log.stat().st_size else []
    return shlex.join(["loadchaos", "doctor", *words, "--version", f"{target.dialect}=={target.version}"])
