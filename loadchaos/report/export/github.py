"""Write a verdict for GitHub Actions: annotations and a summary page. Workflow commands and their escapes:
docs.github.com, "Workflow commands for GitHub Actions". Foreign text is never a command: `fenced` switches commands off
around it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from loadchaos.analysis.verdict.model import FailureResult, Verdict
from loadchaos.report import phrases
from loadchaos.report.formatting import clean, duration, number, plural
from loadchaos.report.performance import ENDPOINT_HEADS, endpoint_rows, time_text

_MOST = 10
"""Annotations that GitHub shows per step; the worst failures come first."""


def fenced(text: str) -> str:
    """Switch workflow commands off around a text. A log line such as `::set-output` then stays text."""
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def annotate(verdict: Verdict, profile: str) -> list[str]:
    """Build an annotation for each failure and rule not met, worst first. They are shown on the file `profile`."""
    found = []
    for f in sorted(verdict.failures, key=phrases.worst_first):
        mild = f.accepted or f.before_load or f.attribution != "server"
        text = [clean(f.title, 300), phrases.when_text(verdict, f), phrases.evidence_text(f.evidence)]
        text += [phrases.known_text(k) for k in f.known[:3]] + [phrases.remedy_text(f.remedy)]
        title = f"loadchaos: {clean(f.id, 80)} ({phrases.severity_text(f)})"
        found.append(_command("warning" if mild else "error", profile, title, "\n".join(t for t in text if t)))
    for rule in [*verdict.expectations, *verdict.checks]:
        if rule.verdict in {"fail", "unknown"}:
            kind, text_of_rule = "error" if rule.verdict == "fail" else "warning", phrases.rule_text(rule)
            found.append(_command(kind, profile, f"loadchaos: {text_of_rule.label}", text_of_rule.sentence))
    return found[:_MOST]


def _command(kind: str, file: str, title: str, text: str) -> str:
    line = f"file={_property(file)},line=1,title={_property(title)}"
    return f"::{kind} {line}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summarise(verdict: Verdict, folder: Path) -> bool:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as f:
        f.write(summary(verdict, folder))
    return True


def summary(verdict: Verdict, folder: Path) -> str:
    result = verdict.verdict
    sign = {"pass": ":white_check_mark:", "fail": ":x:"}.get(result, ":grey_question:")
    profile = clean(verdict.profile or "?", 80)
    parts = [
        f"## {sign} {result.upper()} {_text(profile)}: {_text(phrases.one_line(verdict))}",
        f"Target: {_text(phrases.target_text(verdict))}",
    ]
    parts += [_failure(verdict, f) for f in sorted(verdict.failures, key=phrases.worst_first)[:_MOST]]
    rules = [*verdict.expectations, *(r for r in verdict.checks if r.verdict != "pass")]
    if rules:
        marks = {"pass": "ok", "fail": "**FAIL**"}
        cells = [
            (marks.get(r.verdict, "unknown"), x.label, x.found, x.expected)
            for r, x in zip(rules, map(phrases.rule_text, rules), strict=True)
        ]
        parts.append(_table(("result", "rule", "found", "expected"), cells))
    parts += [_text(clean(verdict.worth, 400))] if verdict.worth else []
    by = {clean(t, 40): counts for t, counts in verdict.by_traffic.items()}
    if by:
        outcomes = [o for o, n in verdict.outcomes.items() if n]
        rows = [(t, *(number(c.get(o, 0)) for o in outcomes), *_latency(verdict, t)) for t, c in by.items()]
        parts.append(_table(("traffic", *map(phrases.outcome_text, outcomes), "TTFT p50", "TTFT p99", "E2E p99"), rows))
    if endpoints := endpoint_rows(verdict):
        heads = ("endpoint", "traffic", "requests", "ok", *ENDPOINT_HEADS, "other outcomes")
        parts.append(_table(heads, [tuple(row) for row in endpoints]))
    parts.append(f"Evidence: `{folder.name}/report.html`, `{folder.name}/incidents/`")
    return "\n\n".join(parts) + "\n\n"


def _failure(verdict: Verdict, f: FailureResult) -> str:
    count = f", {plural(f.count, 'time')}" if f.count > 1 else ""
    lines = [
        f"### {_text(clean(f.id, 80))} ({phrases.severity_text(f)}{count})",
        _text(clean(f.title, 300)),
    ]
    parts = [
        phrases.when_text(verdict, f),
        *(phrases.known_text(k) for k in f.known[:3]),
        phrases.remedy_text(f.remedy),
    ]
    lines += [f"- {_text(t)}" for t in parts if t]
    if evidence := phrases.evidence_text(f.evidence):
        lines.append(f"- {_code(evidence)}")
    lines += [f"- {_code(i)}" for i in phrases.incident_paths(f)[:3]]
    return "\n".join(lines)


def _latency(verdict: Verdict, traffic: str) -> list[str]:
    found = verdict.latency.get(traffic)
    if found is None:
        return [duration(None)] * 3
    return [time_text(found.ttft_s, "p50"), time_text(found.ttft_s, "p99"), time_text(found.e2e_s, "p99")]


def _table(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    body = (" | ".join(str(c) if c == "**FAIL**" else _text(clean(c, 200)) for c in row) for row in rows)
    return "\n".join([f"| {' | '.join(map(_text, head))} |", "|---" * len(head) + "|", *(f"| {b} |" for b in body)])


def _text(text: str) -> str:
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
    return re.sub(r"([\\`*_\[\]|!])", r"\\\1", plain)


def _code(text: str) -> str:
    plain = clean(text, 500)
    fence = "`" * (max((len(x) for x in re.findall("`+", plain)), default=0) + 1)
    return f"{fence} {plain} {fence}"
