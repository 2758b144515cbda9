"""Describe the failures found in a log: cause, place, known issues."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from loadchaos.analysis.classify.diagnosis import LogFailure
from loadchaos.analysis.classify.signature_file import Signature, Signatures
from loadchaos.analysis.failure import SERVER_LOST
from loadchaos.report.formatting import clean, number, plural
from loadchaos.report.phrases import SEVERITY, known_text, remedy_text

_MOST_DEATHS = 5
_MOST_OTHERS = 12
_AROUND = (60, 60)  # lines before and after the cause, for an upstream report
_NEAR_LINES = 400
_WIDE = 9


def render(
    source: str,
    failures: Sequence[LogFailure],
    *,
    lines: int,
    version: tuple[str, str, int] | None,
    marks: Mapping[str, Sequence[int]],
    width: int = 100,
) -> str:
    """Render the failures found in a log of so many `lines`. `version`: dialect, version and line number of the
    server's version, if the log has it; `marks`: numbers of the lines with flags and with the batch of a crash.
    """
    read = f"{source}: {plural(lines, 'line')}" + (f", {version[0]} {version[1]}" if version else "")
    if not failures:
        return f"{read}: no failure found." if lines else f"{source}: no lines, so that nothing was classified."
    deaths = [f for f in failures if f.severity in SERVER_LOST]
    others = [f for f in failures if f.severity not in SERVER_LOST]
    parts = [f"{read}: {_counts(deaths, others)}"]
    parts += [_failure_text(f, width) for f in deaths[:_MOST_DEATHS]]
    if len(deaths) > _MOST_DEATHS:
        rest = ", ".join(dict.fromkeys(f.id for f in deaths[_MOST_DEATHS:]))
        parts.append(f"  {number(len(deaths) - _MOST_DEATHS)} more: {rest}")
    if others:
        few = not deaths and len(others) <= 2
        parts += [_failure_text(f, width) for f in others] if few else [_others_text(others, width)]
    parts.append(_field("attach", _to_attach(failures[0], lines, version, marks), width))
    return "\n".join(parts)


def _counts(deaths: Sequence[LogFailure], others: Sequence[LogFailure]) -> str:
    counts = {s: sum(1 for f in deaths if f.severity == s) for s in SERVER_LOST}
    parts = [plural(n, SEVERITY[s]) for s, n in counts.items() if n]
    if others:
        parts.append(plural(len(others), "other failure"))
    return ", ".join(parts)


def _failure_text(f: LogFailure, width: int) -> str:
    where = f"line {number(f.evidence.line)}"
    where += f", {clean(f.process, 60)}" if f.process else ""
    where += f", at {f.at}" if f.at else ""
    more = f.repeats
    where += f" ({number(more + 1)} occurrences)" if more else ""
    rows: list[str] = [
        _field(str(SEVERITY.get(f.severity, f.severity)), clean(f.title, 400), width, lead=""),
        _field("id", clean(f.id, 80) + _what_is_known(f), width),
        _field("cause" if f.role == "cause" else "line", where, width),
        _field("", clean(f.evidence.text, 400), width),
    ]
    for n, candidate in enumerate(f.candidates):
        text = f"line {number(candidate.line)}: {clean(candidate.text, 300)}"
        rows.append(_field("maybe" if n == 0 else "", text, width))
    if f.frame:
        rows.append(_field("frame", clean(f.frame, 200), width))
    if f.also:
        rows.append(_field("also", ", ".join(clean(a, 80) for a in f.also), width))
    rows += [_field("why", clean(f.why, 600), width)] if f.why else []
    known = [known_text(k) for k in f.known]
    rows += [_field("known" if n == 0 else "", k, width) for n, k in enumerate(known[:4])]
    if not known:
        rows.append(_field("known", "no issue known to loadchaos", width))
    if len(known) > 4:
        rows.append(_field("", f"and {len(known) - 4} more (--json)", width))
    if remedy := remedy_text(f.remedy):
        rows.append(_field("remedy", remedy, width))
    return "\n".join(rows)


def _what_is_known(f: LogFailure) -> str:
    if f.role == "cause":
        return ""
    if f.candidates:
        return " (a symptom; no signature matches its cause. Unexplained lines, likeliest first:)"
    if f.id == "unexplained_end":
        return " (no signature matches this line)"
    return " (a symptom; its cause is not in this log)"


def _others_text(others: Sequence[LogFailure], width: int) -> str:
    rows: list[str] = []
    for f in others[:_MOST_OTHERS]:
        times = f" x{number(f.repeats + 1)}" if f.repeats else ""
        text = f"{clean(f.id, 80)}{times}, line {number(f.evidence.line)}: {clean(f.title, 200)}"
        rows.append(_field("other" if not rows else "", text, width))
    if len(others) > _MOST_OTHERS:
        rows.append(_field("", f"and {number(len(others) - _MOST_OTHERS)} more (--json)", width))
    return "\n".join(rows)


def _to_attach(
    worst: LogFailure, lines: int, version: tuple[str, str, int] | None, marks: Mapping[str, Sequence[int]]
) -> str:
    line = worst.evidence.line
    first, last = max(1, line - _AROUND[0]), min(lines, line + _AROUND[1])
    parts = [f"to an upstream report: lines {first} to {last}"]
    parts.append(f"line {version[2]} (version)" if version else "the server's version (not in this log)")
    flags = [n for n in marks.get("flags") or () if n <= line]  # those of its own life
    batch = [n for n in marks.get("batch") or () if abs(n - line) <= _NEAR_LINES][:2]
    parts.append(f"line {flags[-1]} (flags)" if flags else "its command line")
    if batch:
        parts.append(f"line {' and '.join(str(n) for n in batch)} (the batch of the crash; may contain prompts)")
    return ", ".join(parts) + ", GPU and driver, and the requests at that time"


def _field(name: str, text: str, width: int, *, lead: str = "  ") -> str:
    label = f"{lead}{name}".ljust(_WIDE + 2) if lead else f"{name}: "
    inside = " " * (_WIDE + 2)
    return textwrap.fill(
        text,
        max(width, 60),
        initial_indent=label,
        subsequent_indent=inside,
        break_long_words=False,
        break_on_hyphens=False,
    )


def explain(signature: Signature, signatures: Signatures, width: int = 100) -> str:
    rows = [f"{signature.id}: {signature.title}"]
    fields = ("severity", "role", "speaker", "layer", "versions", "trigger", "why", "remedy")
    rows += [_field(name, text, width) for name in fields if (text := str(getattr(signature, name)))]
    patterns = [p.pattern for p in signature.patterns]
    for n, pattern in enumerate(patterns or ["none: recognised from behaviour, not from a log line"]):
        rows.append(_field("pattern" if n == 0 else "", pattern, max(width, 4 + len(pattern))))
    for n, example in enumerate(signature.examples):
        rows.append(_field("example" if n == 0 else "", example, width))
    for n, variant in enumerate(signature.variants):
        text = f"{variant.title} (with {', '.join(variant.frames)} in its traceback)"
        rows.append(_field("variant" if n == 0 else "", text, width))
    if signature.refines:
        rows.append(_field("refines", ", ".join(signature.refines), width))
    for n, known in enumerate(signatures.all_issues(signature)):
        rows.append(_field("known" if n == 0 else "", known_text(known), width))
    return "\n".join(rows)
