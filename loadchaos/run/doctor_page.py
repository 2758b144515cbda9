"""Write the result of `loadchaos doctor`, as text and as JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from loadchaos.analysis.advisories.advisory import OR, Advisory
from loadchaos.analysis.advisories.condition import Judgement, Result, ServerFacts
from loadchaos.core.typed_json import to_json
from loadchaos.core.version_ranges import within
from loadchaos.report.formatting import plural
from loadchaos.report.phrases import issue_path
from loadchaos.server.dialects import DIALECTS

FATAL = ("engine_death", "wrong_answers")
"""Severities of an advisory that applies for which the exit code is 1."""
_WORDS = {
    "security": ("security", "open it to an attacker", "opens it to an attacker"),
    "engine_death": ("engine death", "end the engine", "ends the engine"),
    "wrong_answers": ("wrong answers", "give wrong answers", "gives wrong answers"),
    "hang": ("hang", "hang it", "hangs it"),
    "startup": ("no start", "keep it from starting", "keeps it from starting"),
    "request": ("lost requests", "fail requests", "fails requests"),
    "degraded": ("degraded", "degrade it", "degrades it"),
}
_LINES = 40
_FEWEST_MAY = 6
"""Lines for what may apply, however much applies."""
_HOW = {
    "version": "--version ENGINE==VERSION",
    "hardware": "--fact hardware=cpu (or cuda, rocm)",
    "multimodal": "--fact multimodal=no (or yes)",
    "hybrid": "--fact hybrid=no (or yes)",
    "moe": "--fact moe=no (or yes)",
    "family": "--fact family=NAME (the model_type of its config.json)",
    "model": "--fact model=NAME",
    "connector": "--fact connector=NAME (or none)",
    "lmcache": "--fact lmcache=VERSION",
    "model_runner": "--fact model_runner=V1 (or V2)",
}


def title_of(one: Advisory) -> str:
    """Its title, or that of the failure without the figures that only a log has."""
    if one.title:
        return one.title
    from loadchaos.analysis.classify.signature_file import load

    signature = load().get(one.failure)
    assert signature is not None, one.id
    texts = [text for text in (*signature.alt, signature.title) if "{" not in text]
    return texts[0] if texts else re.sub(r"\s*\{\w+\}", " ...", signature.title).strip()


def links(one: Advisory) -> list[str]:
    return [f"https://github.com/{path}" if (path := issue_path(name)) else name for name in one.issues]


def evidence_text(one: Advisory, version: str | None) -> str:
    """Name the evidence that this version has the bug; without a version the best of all."""
    found = sorted(one.affected, key=lambda e: (not (version and within(e.versions, version)), e.proved is None))
    if not found:
        return ""
    best = found[0]
    if best.proved is None:
        return f"reported for {best.versions}"
    return f"proved on {best.proved.build} ({best.proved.tries}, {best.proved.date})"


def cure_texts(one: Advisory) -> list[str]:
    upgrade = [f"upgrade to {one.fixed} or later"] if one.first_good else [f"fixed by {one.fixed}"] if one.fixed else []
    return [*((c.flag or c.text) + (" (proved)" if c.by == "proved" else "") for c in one.cures), *upgrade]


@dataclass(frozen=True)
class DoctorResult:
    """Result for a server: what is known of it, and a judgement of each advisory, worst first."""

    facts: ServerFacts
    judgements: Sequence[Judgement]

    def of(self, result: Result) -> list[Judgement]:
        return [j for j in self.judgements if j.result == result]

    @property
    def exit_code(self) -> int:
        return int(any(j.advisory.severity in FATAL for j in self.of("applies")))

    @property
    def name(self) -> str:
        version = f" {self.facts.version.value}" if self.facts.version is not None else " of unknown version"
        return DIALECTS[self.facts.engine].title + version

    def to_json(self) -> dict[str, object]:
        """All judgements; of the facts those that a condition names, so that no secret of a command is among them."""
        named = {name for j in self.judgements for names in j.advisory.when for name in names.split(OR)}
        known = {n: f for n in sorted(named) if (f := self.facts.get(n)) is not None and f.source != "not given"}
        facts = {n: {"value": f.value, "source": f.source} for n, f in known.items()}
        version = self.facts.version
        return {
            "schema": 1,
            "engine": self.facts.engine,
            "version": None if version is None else {"value": version.value, "source": version.source},
            "all_flags_known": self.facts.complete,
            "facts": facts,
            "notes": list(self.facts.notes),
            "advisories": [
                {
                    "result": j.result,
                    "met": list(j.met),
                    "missing": list(j.missing),
                    "why_not": j.why_not,
                    **to_json(j.advisory),
                    "title": title_of(j.advisory),
                    "links": links(j.advisory),
                }
                for j in self.judgements
            ],
        }


def page(result: DoctorResult, width: int, *, everything: bool = False) -> str:
    """At most 40 lines; with `everything` all that applies or may apply in full, and the ids of the others."""
    applies, may, unsettled = result.of("applies"), result.of("may apply"), result.of("unsettled")
    head = [*_wrapped(_answer(result, applies, may), width)]
    head += [line for note in result.facts.notes for line in _wrapped(f"note: {note}", width)]
    foot = ["", *_wrapped(_others(result, unsettled, everything=everything), width)]
    if missing := _missing(may):
        foot = ["", *_wrapped(f"to decide what may apply: {missing}", width), *foot[1:]]
    if everything:
        blocks = [line for n, j in enumerate(applies, 1) for line in ["", *_block(result, n, j, width)]]
        more = [line for n, j in enumerate(may, len(applies) + 1) for line in ["", *_block(result, n, j, width)]]
        rest = [f"  {j.advisory.id}: {title_of(j.advisory)}" for j in unsettled]
        lines = [
            *head,
            *(["", "APPLIES"] if applies else []),
            *blocks,
            *(["", "MAY APPLY"] if may else []),
            *more,
            *foot,
        ]
        return "\n".join([*lines, *(["", f"NOT KNOWN FOR {result.name}"] if rest else []), *rest])
    room = _LINES - len(head) - len(foot)
    kept = 2 + min(len(may), _FEWEST_MAY) if may else 0
    above = ["", "APPLIES", *_fitted(result, applies, width, room - 2 - kept)] if applies else []
    below = ["", "MAY APPLY", *_listed(may, width, room - len(above) - 2)] if may else []
    return "\n".join([*head, *above, *below, *foot])


def _fitted(result: DoctorResult, found: Sequence[Judgement], width: int, room: int) -> list[str]:
    """As many in full as fit, then a line for each."""
    lines: list[str] = []
    for n, j in enumerate(found):
        block = _block(result, n + 1, j, width)
        if len(lines) + len(block) + min(len(found) - n - 1, 3) > room:
            return lines + _listed(found[n:], width, max(1, room - len(lines)))
        lines += block
    return lines


def _listed(found: Sequence[Judgement], width: int, most: int) -> list[str]:
    """All in full where they fit in so many lines; else a line for each, of which the last one counts the others."""
    whole = [
        line for j in found for line in textwrap.wrap(_brief(j), width, initial_indent="  ", subsequent_indent="      ")
    ]
    if len(whole) <= most:
        return whole
    short = [_short(j, width) for j in found]
    return short if len(short) <= most else [*short[: most - 1], f"  and {len(short) - most + 1} more: --all"]


def _answer(result: DoctorResult, applies: Sequence[Judgement], may: Sequence[Judgement]) -> str:
    version = result.facts.version
    where = f" ({version.source})" if version is not None else ""
    counts = {s: sum(j.advisory.severity == s for j in applies) for s in _WORDS}
    parts = [f"{n} {_WORDS[s][2 if n == 1 else 1]}" for s, n in counts.items() if n]
    number = (
        plural(len(applies), "known bug applies", "known bugs apply") if applies else "No known bug applies for certain"
    )
    also = f"; {len(may)} may apply" if may else ""
    return f"{number} to {result.name}{where}{': ' + ', '.join(parts) if parts else ''}{also}."


def _block(result: DoctorResult, n: int, j: Judgement, width: int) -> list[str]:
    one, version = j.advisory, result.facts.version
    rows = [
        ("because", "; ".join(j.met)),
        ("missing", ", ".join(j.missing)),
        ("when", one.trigger or (f"with {', '.join(one.traffic)}" if one.traffic else "")),
        ("cure", "; ".join(cure_texts(one))),
        (
            "known",
            "; ".join(filter(None, [evidence_text(one, str(version.value) if version else None), *links(one)[:2]])),
        ),
    ]
    first = f"{n}. {_WORDS[one.severity][0]}: {title_of(one)} [{one.id}]"
    lines = textwrap.wrap(first, width, subsequent_indent="   ", break_on_hyphens=False)
    for label, text in rows:
        if text:
            lines += textwrap.wrap(
                text, width, initial_indent=f"   {label:9}", subsequent_indent=" " * 12, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
    return lines


def _brief(j: Judgement) -> str:
    missing = f" (missing: {', '.join(j.missing)})" if j.missing else ""
    return f"[{j.advisory.id}] {_WORDS[j.advisory.severity][0]}{missing}: {title_of(j.advisory)}"


def _short(j: Judgement, width: int) -> str:
    text = f"  {_brief(j)}"
    return text if len(text) <= width else text[: width - 3] + "..."


def _missing(may: Sequence[Judgement]) -> str:
    names = list(dict.fromkeys(name for j in may for name in j.missing if not name.startswith("whether")))
    ways = [_HOW.get(name, f"--fact {name}=VALUE") for name in names if name in _HOW or name.startswith("env.")]
    flags = [name for name in names if name not in _HOW and not name.startswith("env.")]
    return ", ".join([*ways, *(["--flags 'the launch flags'"] if flags else [])])


def _others(result: DoctorResult, unsettled: Sequence[Judgement], *, everything: bool) -> str:
    text = f"{plural(len(result.of('does not apply')), 'advisory does', 'advisories do')} not apply."
    if unsettled:
        more = "" if everything else " (--all lists them)"
        text += f" {len(unsettled)} more are known; nothing that was read says whether {result.name} has them{more}."
    return text


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
