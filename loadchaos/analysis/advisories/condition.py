"""Compare an advisory with the facts of a server: it applies, may apply, or does not."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from loadchaos.analysis.advisories.advisory import COMPARISON, OR, OTHER_FACTS, WORST_FIRST, Advisory, Test, engine
from loadchaos.core.version_ranges import order

Result = Literal["applies", "may apply", "unsettled", "does not apply"]
"""`unsettled`: nothing that was read says whether this version has it."""
OFF: Final = (None, False, 0, "", "0", "none", "None", "off")
"""Values of an option that turn it off."""
_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """A value and where it was learned. A tuple: several values at once, such as KV connectors."""

    value: Any
    source: str


@dataclass(frozen=True)
class ServerFacts:
    """Facts of a server. `complete`: every option that was given is among the facts, so that the others have
    their defaults. `environment`: so is every variable. `never`: kinds of traffic that are ruled out.
    """

    engine: str
    version: Fact | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    complete: bool = False
    environment: bool = True
    never: Collection[str] = ()
    notes: Sequence[str] = ()

    def get(self, name: str) -> Fact | None:
        """A fact, or the default of an option that is not given; None if it is not known."""
        if name == "model_runner" and (runner := self._asked_runner()) is not None:
            return runner
        if name in self.facts:
            return self.facts[name]
        if name == "connector":
            return self._connector()
        head = name.partition(".")[0]
        if head in self.facts and self.facts[head].value in OFF:  # without speculation there is no method
            return Fact(None, self.facts[head].source)
        if not self.complete or name in OTHER_FACTS or (name.startswith("env.") and not self.environment):
            return None
        for other, test in engine(self.engine).unless(name).items():
            if (fact := self.get(other)) is not None and holds(test, fact.value):
                return Fact(False, f"{other} is {fact_text(fact)}")
        version = None if self.version is None else str(self.version.value)
        return Fact(engine(self.engine).default(name, version), "not given")

    def _asked_runner(self) -> Fact | None:
        """vLLM's model runner by its variable, which decides. Without it, model, features and Triton do: not known."""
        asked = self.facts.get("env.VLLM_USE_V2_MODEL_RUNNER")
        return None if asked is None else Fact("V1" if asked.value in OFF else "V2", asked.source)

    def _connector(self) -> Fact | None:
        """The KV connectors by the options of vLLM: --kv-offloading-size replaces the one of --kv-transfer-config."""
        size, given = self.get("kv_offloading_size"), self.get("kv_transfer_config.kv_connector")
        if size is not None and size.value not in OFF:
            backend, simple = self.get("kv_offloading_backend"), self.get("env.VLLM_USE_SIMPLE_KV_OFFLOAD")
            if backend is None or backend.value not in (None, "native") or simple is None or simple.value not in OFF:
                return None
            return Fact("OffloadingConnector", size.source)
        if given is None:
            return None
        if given.value != "MultiConnector":
            return given
        inner = self.get("kv_transfer_config.kv_connector_extra_config.connectors")
        if inner is None or not isinstance(inner.value, list):
            return None
        return Fact(tuple(str(one.get("kv_connector")) for one in inner.value), given.source)


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
    """True if a value, or one of several, meets a condition. None: that cannot be told."""
    if isinstance(test, bool):
        return (value not in OFF) is test
    if isinstance(test, str) and (comparison := COMPARISON.fullmatch(test)):
        compare, limit = _SIGNS[comparison[1]], comparison[2]
        try:
            return compare(float(value), float(limit))
        except (TypeError, ValueError):
            mine = order(str(value))
            return None if mine is None else compare(mine, order(limit))
    allowed = [_plain(one) for one in (test if isinstance(test, tuple) else (test,))]
    return any(_plain(one) in allowed for one in (value if isinstance(value, tuple) else (value,)))


def _plain(value: Any) -> str:
    """A word as it is compared: `gpt_oss`, `gpt-oss` and `GptOss` are one."""
    return re.sub(r"(?<=\w)[-_](?=\w)", "", str(value)).lower()


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
    value = " and ".join(value) if isinstance(value, tuple) else value
    return str(value) if fact.source == "not given" and fact.value is None else f"{value} ({fact.source})"


def judge_all(advisories: Sequence[Advisory], facts: ServerFacts) -> list[Judgement]:
    """Compare all advisories of the engine, worst first."""
    return sorted((judge(one, facts) for one in advisories if one.engine == facts.engine), key=lambda j: j.rank)
