"""Compare an advisory with the facts of a server: it applies, may apply, or does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from loadchaos.analysis.advisories.advisory import COMPARISON, OR, OTHER_FACTS, WORST_FIRST, Advisory, Test, engine

Result = Literal["applies", "may apply", "unsettled", "does not apply"]
"""`unsettled`: nothing that was read says whether this version has it."""
OFF: Final = (None, False, 0, "", "0", "none", "None", "off")
"""Values of an option that turn it off."""


@dataclass(frozen=True)
class Fact:
    """A value and where it was learned."""

    value: Any
    source: str


@dataclass(frozen=True)
class ServerFacts:
    """Facts of a server. `complete`: every option that was given is among the facts, so that the others have
    their defaults. `never`: kinds of traffic that are ruled out.
    """

    engine: str
    version: Fact | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    complete: bool = False
    never: Collection[str] = ()
    notes: Sequence[str] = ()

    def get(self, name: str) -> Fact | None:
        """A fact, or the default of an option that is not given; None if it is not known."""
        if name in self.facts:
            return self.facts[name]
        head = name.partition(".")[0]
        if head in self.facts and self.facts[head].value in OFF:  # without speculation there is no method
            return Fact(None, self.facts[head].source)
        if not self.complete or name in OTHER_FACTS:
            return None
        version = None if self.version is None else str(self.version.value)
        return Fact(engine(self.engine).default(name, version), "not given")


@dataclass(frozen=True)
class Judgement:
    """Result for one advisory. `met`: the facts that meet its conditions; `missing`: what would decide it."""

    advisory: Advisory
    result: Result
    met: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Sort key, worst first; what was proved comes before what was reported."""
        one = self.advisory
        return WORST_FIRST.index(one.severity), len(self.missing), not one.proofs, one.id


def holds(test: Test, value: Any) -> bool | None:
    """True if a value meets a condition. None: that cannot be told."""
    if isinstance(test, bool):
        return (value not in OFF) is test
    if isinstance(test, str) and (comparison := COMPARISON.fullmatch(test)):
        try:
            number, limit = float(value), float(comparison[2])
        except (TypeError, ValueError):
            return None
        return {"<": number < limit, "<=": number <= limit, ">": number > limit, ">=": number >= limit}[comparison[1]]
    allowed = test if isinstance(test, tuple) else (test,)
    return str(value).lower() in [str(one).lower() for one in allowed]


def judge(one: Advisory, facts: ServerFacts) -> Judgement:
    """Compare an advisory of the server's engine with its facts."""
    if ruled_out := next((t for t in one.traffic if t in facts.never), None):
        return Judgement(one, "does not apply", why_not=f"no {ruled_out} are sent")
    met: list[str] = []
    missing: list[str] = []
    version = None if facts.version is None else str(facts.version.value)
    affected = None if version is None else one.has(version)
    if affected is False:
        return Judgement(one, "does not apply", why_not=f"{version} does not have it")
    for names, test in one.when.items():
        told = {name: fact for name in names.split(OR) if (fact := facts.get(name)) is not None}
        decided = {name: holds(test, fact.value) for name, fact in told.items()}
        if holding := next((name for name in decided if decided[name]), None):
            met.append(f"{holding} is {fact_text(told[holding])}")
        elif len(decided) == len(names.split(OR)) and None not in decided.values():
            why = ", ".join(f"{name} is {fact_text(fact)}" for name, fact in told.items())
            return Judgement(one, "does not apply", tuple(met), why_not=why)
        else:
            missing.append(names)
    if version is None:
        return Judgement(one, "may apply", tuple(met), ("version", *missing))
    around = None if affected else one.around(version)
    if affected or around:
        why = (
            f"{around[0]} and {around[1]} have it, and no version between them is known without it"
            if around
            else f"version {version} has it"
        )
        return Judgement(one, "may apply" if missing else "applies", (why, *met), tuple(missing))
    if one.state == "open" and one.is_newer_than_reports(version):
        return Judgement(one, "may apply", tuple(met), (f"whether {version} has it", *missing))
    return Judgement(one, "unsettled", tuple(met), tuple(missing))


def fact_text(fact: Fact) -> str:
    words = {None: "not given", True: "on", False: "off"}
    value = words[fact.value] if fact.value is None or isinstance(fact.value, bool) else fact.value
    return str(value) if fact.source == "not given" and fact.value is None else f"{value} ({fact.source})"


def judge_all(advisories: Sequence[Advisory], facts: ServerFacts) -> list[Judgement]:
    """Compare all advisories of the engine, worst first."""
    return sorted((judge(one, facts) for one in advisories if one.engine == facts.engine), key=lambda j: j.rank)
