"""Write a verdict for GitHub Actions: annotations and a summary page.

Workflow commands and their escapes: docs.github.com, "Workflow commands for GitHub Actions". Foreign text is never a
command: `fenced` switches commands off around it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.report.formatting import clean, duration, number, plural
from loadchaos.report.performance import ENDPOINT_HEADS, endpoint_rows
from loadchaos.report.phrases import (
    evidence_text,
    incident_paths,
    known_text,
    one_line,
    outcome_counts,
    outcome_text,
    remedy_text,
    rule_text,
    severity_text,
    target_text,
    when_text,
    worst_first,
)

_MOST = 10
"""Annotations that GitHub shows per step; the worst failures come first."""


def fenced(text: str) -> str:
    """Switch workflow commands off around a text.

    A log line such as `::set-output` then stays text.
    """
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def annotate(verdict: Mapping[str, Any], profile: str) -> list[str]:
    """Build an annotation for each failure and rule not met, worst first.

    They are shown on the file `profile`.
    """
    found = []
    for f in sorted(verdict.get("failures") or [], key=worst_first):
        mild = f.get("accepted") or f.get("before_load") or str(f.get("attribution") or "server") != "server"
        text = [clean(f.get("title") or "", 300), when_text(verdict, f), evidence_text(f.get("evidence"))]
        text += [known_text(k) for k in (f.get("known") or [])[:3]] + [remedy_text(f.get("remedy"))]
        title = f"loadchaos: {clean(f.get('id'), 80)} ({severity_text(f)})"
        found.append(_command("warning" if mild else "error", profile, title, "\n".join(t for t in text if t)))
    for rule in [*(verdict.get("expectations") or []), *(verdict.get("checks") or [])]:
        if rule.get("verdict") in {"fail", "unknown"}:
            kind, text_of_rule = "error" if rule["verdict"] == "fail" else "warning", rule_text(rule)
            found.append(_command(kind, profile, f"loadchaos: {text_of_rule.label}", text_of_rule.sentence))
    return found[:_MOST]


def _command(kind: str, file: str, title: str, text: str) -> str:
    line = f"file={_property(file)},line=1,title={_property(title)}"
    return f"::{kind} {line}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summarise(verdict: Mapping[str, Any], folder: Path) -> bool:
    """Append the summary to $GITHUB_STEP_SUMMARY; False if it is not set."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as f:
        f.write(summary(verdict, folder))
    return True


def summary(verdict: Mapping[str, Any], folder: Path) -> str:
    """Render the verdict as Markdown."""
    result = str(verdict.get("verdict") or "unknown")
    sign = {"pass": ":white_check_mark:", "fail": ":x:"}.get(result, ":grey_question:")
    profile = clean(verdict.get("profile") or "?", 80)
    parts = [
        f"## {sign} {result.upper()} {_text(profile)}: {_text(one_line(verdict))}",
        f"Target: {_text(target_text(verdict))}",
    ]
    parts += [_failure(verdict, f) for f in sorted(verdict.get("failures") or [], key=worst_first)[:_MOST]]
    rules = [
        *(verdict.get("expectations") or []),
        *(r for r in verdict.get("checks") or [] if r.get("verdict") != "pass"),
    ]
    if rules:
        parts.append(
            _table(
                ("result", "rule", "found", "expected"),
                [
                    (
                        {"pass": "ok", "fail": "**FAIL**"}.get(str(r.get("verdict")), "unknown"),
                        x.label,
                        x.found,
                        x.expected,
                    )
                    for r in rules
                    for x in [rule_text(r)]
                ],
            )
        )
    worth = verdict.get("worth") or []
    parts += [_text(clean(w, 400)) for w in (worth if isinstance(worth, list) else [worth])]
    by = {clean(t, 40): outcome_counts(e) for t, e in (verdict.get("by_traffic") or {}).items()}
    if by:
        outcomes = [o for o, n in (verdict.get("outcomes") or {}).items() if n]
        rows = [(t, *(number(c.get(o, 0)) for o in outcomes), *_latency(verdict, t)) for t, c in by.items()]
        parts.append(_table(("traffic", *map(outcome_text, outcomes), "TTFT p50", "TTFT p99", "E2E p99"), rows))
    if endpoints := endpoint_rows(verdict):
        heads = ("endpoint", "traffic", "requests", "ok", *ENDPOINT_HEADS, "other outcomes")
        parts.append(_table(heads, [tuple(row) for row in endpoints]))
    parts.append(f"Evidence: `{folder.name}/report.html`, `{folder.name}/incidents/`")
    return "\n\n".join(parts) + "\n\n"


def _failure(verdict: Mapping[str, Any], f: Mapping[str, Any]) -> str:
    count = f", {plural(f['count'], 'time')}" if (f.get("count") or 0) > 1 else ""
    lines = [
        f"### {_text(clean(f.get('id'), 80))} ({severity_text(f)}{count})",
        _text(clean(f.get("title") or "", 300)),
    ]
    parts = [when_text(verdict, f), *(known_text(k) for k in (f.get("known") or [])[:3]), remedy_text(f.get("remedy"))]
    lines += [f"- {_text(t)}" for t in parts if t]
    if evidence := evidence_text(f.get("evidence")):
        lines.append(f"- {_code(evidence)}")
    lines += [f"- {_code(i)}" for i in incident_paths(f)[:3]]
    return "\n".join(lines)


def _latency(verdict: Mapping[str, Any], traffic: str) -> tuple[str, str, str]:
    kinds = (verdict.get("latency") or {}).get(traffic) or {}
    ttft, e2e = kinds.get("ttft_s") or {}, kinds.get("e2e_s") or {}
    return duration(ttft.get("p50")), duration(ttft.get("p99")), duration(e2e.get("p99"))


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    body = (" | ".join(str(c) if c == "**FAIL**" else _text(clean(c, 200)) for c in row) for row in rows)
    return "\n".join([f"| {' | '.join(map(_text, head))} |", "|---" * len(head) + "|", *(f"| {b} |" for b in body)])


def _text(text: str) -> str:
    """Escape foreign text: no tags, links, table edges or mentions."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
    return re.sub(r"([\\`*_\[\]|!])", r"\\\1", plain)


def _code(text: str) -> str:
    """Format foreign text as code that it cannot end."""
    plain = clean(text, 500)
    fence = "`" * (max((len(x) for x in re.findall("`+", plain)), default=0) + 1)
    return f"{fence} {plain} {fence}"
