"""What a run found, for GitHub Actions: annotations on the profile's file and a summary page in Markdown.

Workflow commands and their escapes: docs.github.com, "Workflow commands for GitHub Actions". Texts from outside are never
a command: `fenced` switches commands off around them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.report.phrases import (
    evidence_text,
    incident_paths,
    known_text,
    one_line,
    outcome_counts,
    remedy_text,
    target_in_words,
    value_text,
    when_text,
    worst_first,
)
from loadchaos.report.words import SEVERITY, clean, number, plural, seconds

_MOST = 10
"""Annotations GitHub shows a step; the worst failures come first."""


def fenced(text: str) -> str:
    """The text with workflow commands switched off in it: a log line such as `::set-output` of a server stays a line."""
    token = secrets.token_hex(16)
    return f"::stop-commands::{token}\n{text}\n::{token}::"


def annotate(verdict: Mapping[str, Any], profile: str) -> list[str]:
    """A line a failure and a broken expectation, worst first; `profile` is the file they are shown on."""
    found = []
    for f in sorted(verdict.get("failures") or [], key=worst_first):
        mild = f.get("accepted") or str(f.get("attribution") or "server") != "server"
        text = [clean(f.get("title") or "", 300), when_text(verdict, f), evidence_text(f.get("evidence"))]
        text += [known_text(k) for k in (f.get("known") or [])[:3]] + [remedy_text(f.get("remedy"))]
        title = f"loadchaos: {clean(f.get('id'), 80)} ({SEVERITY.get(str(f.get('severity')), 'failure')})"
        found.append(_command("warning" if mild else "error", profile, title, "\n".join(t for t in text if t)))
    for rule in [*(verdict.get("expectations") or []), *(verdict.get("checks") or [])]:
        if rule.get("verdict") in {"fail", "unknown"}:
            text_of = f"expected {value_text(rule.get('expected'))}, found {value_text(rule.get('actual'))}"
            kind = "error" if rule["verdict"] == "fail" else "warning"
            found.append(_command(kind, profile, f"loadchaos: {clean(rule.get('name'), 100)}", text_of))
    return found[:_MOST]


def _command(kind: str, file: str, title: str, text: str) -> str:
    line = f"file={_property(file)},line=1,title={_property(title)}"
    return f"::{kind} {line}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summarise(verdict: Mapping[str, Any], folder: Path) -> bool:
    """Append the summary to the file GitHub names in $GITHUB_STEP_SUMMARY; whether there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    with Path(path).open("a", encoding="utf-8") as f:
        f.write(summary(verdict, folder))
    return True


def summary(verdict: Mapping[str, Any], folder: Path) -> str:
    """The verdict as Markdown: what broke, what was expected, requests, latency, where the evidence is."""
    word = str(verdict.get("verdict") or "unknown")
    sign = {"pass": ":white_check_mark:", "fail": ":x:"}.get(word, ":grey_question:")
    profile = clean(verdict.get("profile") or "?", 80)
    parts = [
        f"## {sign} {word.upper()} {_text(profile)}: {_text(one_line(verdict))}",
        f"on {_text(target_in_words(verdict))}",
    ]
    parts += [_failure(verdict, f) for f in sorted(verdict.get("failures") or [], key=worst_first)[:_MOST]]
    rules = [
        *(verdict.get("expectations") or []),
        *(r for r in verdict.get("checks") or [] if r.get("verdict") != "pass"),
    ]
    if rules:
        parts.append(
            _table(
                ("", "rule", "expected", "found"),
                [
                    (
                        {"pass": "ok", "fail": "**FAIL**"}.get(str(r.get("verdict")), "unknown"),
                        r.get("name"),
                        value_text(r.get("expected")),
                        value_text(r.get("actual")),
                    )
                    for r in rules
                ],
            )
        )
    worth = verdict.get("worth") or []
    parts += [_text(clean(w, 400)) for w in (worth if isinstance(worth, list) else [worth])]
    by = {clean(t, 40): outcome_counts(e) for t, e in (verdict.get("by_traffic") or {}).items()}
    if by:
        outcomes = [o for o, n in (verdict.get("outcomes") or {}).items() if n]
        rows = [(t, *(number(c.get(o, 0)) for o in outcomes), *_latency(verdict, t)) for t, c in by.items()]
        parts.append(_table(("traffic", *outcomes, "TTFT p50", "TTFT p99", "E2E p99"), rows))
    parts.append(f"Evidence: `{folder.name}/report.html`, `{folder.name}/incidents/`")
    return "\n\n".join(parts) + "\n\n"


def _failure(verdict: Mapping[str, Any], f: Mapping[str, Any]) -> str:
    count = f", {plural(f['count'], 'time')}" if (f.get("count") or 0) > 1 else ""
    lines = [
        f"### {_text(clean(f.get('id'), 80))} ({SEVERITY.get(str(f.get('severity')), 'failure')}{count})",
        _text(clean(f.get("title") or "", 300)),
    ]
    told = [when_text(verdict, f), *(known_text(k) for k in (f.get("known") or [])[:3]), remedy_text(f.get("remedy"))]
    lines += [f"- {_text(t)}" for t in told if t]
    if evidence := evidence_text(f.get("evidence")):
        lines.append(f"- {_code(evidence)}")
    lines += [f"- {_code(i)}" for i in incident_paths(f)[:3]]
    return "\n".join(lines)


def _latency(verdict: Mapping[str, Any], traffic: str) -> tuple[str, str, str]:
    kinds = (verdict.get("latency") or {}).get(traffic) or {}
    ttft, e2e = kinds.get("ttft_s") or {}, kinds.get("e2e_s") or {}
    return seconds(ttft.get("p50")), seconds(ttft.get("p99")), seconds(e2e.get("p99"))


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    body = (" | ".join(str(c) if c == "**FAIL**" else _text(clean(c, 200)) for c in row) for row in rows)
    return "\n".join([f"| {' | '.join(map(_text, head))} |", "|---" * len(head) + "|", *(f"| {b} |" for b in body)])


def _text(text: str) -> str:
    """Foreign text that stays text: no tag, no link, no table edge, no mention of a person."""
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")
    return re.sub(r"([\\`*_\[\]|!])", r"\\\1", plain)


def _code(text: str) -> str:
    """Foreign text as code; the fence is longer than any run of backticks in it."""
    plain = clean(text, 500)
    fence = "`" * (max((len(x) for x in re.findall("`+", plain)), default=0) + 1)
    return f"{fence} {plain} {fence}"
