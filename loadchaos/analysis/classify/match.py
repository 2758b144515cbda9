"""One signature seen in one line, with its title, remedy and known issues filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadchaos.analysis.classify.normalise import normalise
from loadchaos.analysis.classify.python_stack import Frame
from loadchaos.analysis.classify.signature_file import Signature, evaluate
from loadchaos.core.model import Severity

_LINES_A_SECOND = 50  # where a log has no clock at all
_TITLE = 240
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(slots=True, eq=False)
class Match:
    """One signature seen in one line. `chain` ties it to a traceback (0: none); group() turns matches into failures.

    `warned`: a logger only warned of it; what would be deadly otherwise is told only where something did die of it.
    """

    signature: Signature
    id: str
    severity: Severity
    role: str
    title: str
    alt: tuple[str, ...]
    remedy: str
    known: tuple[Mapping[str, Any], ...]
    evidence: Mapping[str, Any]
    process: str | None
    at_ns: int | None
    clock_s: float | None
    frames: tuple[str, ...]
    chain: int
    engine_side: bool
    why: str = ""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    repeats: int = 0
    frame: str = ""
    template: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    warned: bool = False


def name(
    signature: Signature,
    *,
    groups: Mapping[str, str],
    frames: Sequence[Frame],
    blamed: Frame | None,
    exception: tuple[str, str],
    engine_side: bool,
    known: Mapping[str, Mapping[str, Any]],
    evidence: Mapping[str, Any],
    process: str,
    at_ns: int | None,
    clock_s: float | None,
    chain: int,
) -> Match:
    """A match with its title, remedy and known issues filled in; its frames choose the variant."""
    where = [f"{f.path}:{f.function} {f.code}" for f in frames]
    variant = next((v for v in signature.variants if all(any(part in w for w in where) for part in v.frames)), None)
    facts: dict[str, float | str] = {k: _number(v) for k, v in groups.items()}
    for key, expression in signature.derive.items():
        try:
            facts[key] = evaluate(expression, {k: v for k, v in facts.items() if isinstance(v, (int, float))})
        except (KeyError, ValueError):  # the log did not tell enough for this figure
            continue
    values = {k: _shown(v) for k, v in facts.items()}
    values["exception"], values["message"] = exception[0] or "exception", normalise(exception[1])[:_TITLE]
    values["process"] = process
    if blamed is not None and not signature.asynchronous:  # an asynchronous fault's stack names the wrong place
        values["frame"] = blamed.where
    issues = (variant.known if variant else ()) or signature.known
    template = variant.title if variant else signature.title
    return Match(
        signature=signature,
        id=signature.id,
        severity=signature.severity,
        role=signature.role,
        title=_fill(template, values),
        alt=tuple(_fill(a, values) for a in signature.alt),
        remedy=_clauses(variant.remedy if variant and variant.remedy else signature.remedy, values),
        known=tuple({"issue": i, **known.get(i, {})} for i in issues),
        evidence=evidence,
        process=process or None,
        at_ns=at_ns,
        clock_s=clock_s,
        frames=tuple(str(f) for f in frames),
        chain=chain,
        engine_side=engine_side,
        why=_clauses(variant.why if variant and variant.why else signature.why, values),
        facts=facts if signature.derive else {},
        frame=str(blamed) if blamed is not None and not signature.asynchronous else "",
        template=template,
        values=values,
    )


def put_stack(match: Match, frames: Sequence[Frame], blamed: Frame | None) -> None:
    """Give a match the stack that its process printed after it (outermost first), and its title the guilty frame."""
    match.frames = tuple(str(f) for f in frames)
    if blamed is None or match.signature.asynchronous:
        return
    match.frame = str(blamed)
    match.title = _fill(match.template, {**match.values, "frame": blamed.where})


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:  # a word is a fact too
        return text


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}" if value != int(value) else str(int(value))


def _fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its names filled in; ` in {frame}` and `: {message}` go where there is none."""
    for optional in (" in {frame}", ": {message}"):
        if not values.get(optional.split("{")[1][:-1]):
            template = template.replace(optional, "")
    return _PLACEHOLDER.sub(lambda m: values.get(m[1], "?"), template)


def _clauses(template: str, values: Mapping[str, str]) -> str:
    """The clauses (parted by `; `) whose figures are all known, filled in."""
    parts = [p for p in template.split("; ") if all(m in values for m in _PLACEHOLDER.findall(p))]
    return _PLACEHOLDER.sub(lambda m: values[m[1]], "; ".join(parts))


def near(a: Match, b: Match, seconds: float) -> bool:
    """Whether two matches lie at most `seconds` apart, by arrival, else by the log's clock, else by lines."""
    if a.at_ns is not None and b.at_ns is not None:
        return abs(a.at_ns - b.at_ns) <= seconds * 1e9
    if a.clock_s is not None and b.clock_s is not None:
        return abs(a.clock_s - b.clock_s) <= seconds
    return bool(abs(a.evidence["line"] - b.evidence["line"]) <= max(seconds, 10.0) * _LINES_A_SECOND)
