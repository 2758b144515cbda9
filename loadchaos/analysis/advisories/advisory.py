"""Define `Advisory`, and read the advisory files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import Annotated, Any, Final, Literal, get_args

from loadchaos.core.typed_json import Keywords, from_json
from loadchaos.core.version_ranges import SIGNS, Order, clauses, order, within

Severity = Literal["security", "engine_death", "wrong_answers", "hang", "startup", "request", "degraded"]
"""Worst first. Those of signatures (core/model.py), and two that no log line shows."""
WORST_FIRST: Final = get_args(Severity)
Traffic = Literal[
    "images", "video", "audio", "long prompts", "repeated prompts", "structured output", "tool calls", "reasoning",
    "logprobs", "seed", "sampling parameters", "penalties", "token ids", "prompt embeds", "several answers", "streams",
    "cancellations", "concurrency", "lora", "embeddings", "refused requests", "admin requests",
]  # fmt: skip
"""Kinds of requests and load. `doctor --without` rules one out."""
Test = bool | int | float | str | tuple[str | int, ...]
"""Condition of a fact: true (given, and not off) or false, a text or number that it equals, `>=2`, or a list of values."""

OR: Final = " or "
COMPARISON: Final = re.compile(r"(<=|>=|<|>)(\d+(?:\.\d+)*)")
OTHER_FACTS: Final = (
    "hardware", "multimodal", "hybrid", "moe", "family", "model", "connector", "lmcache", "model_runner",
)  # fmt: skip
"""Facts that are no option: `cpu`, `cuda` or `rocm`; takes images, audio or video; has recurrent (Mamba, GDN) layers; is a
mixture of experts; its architecture without its task (`GptOss`; `gpt_oss` is the same); the model's name or folder; the KV
connectors of vLLM; the version of LMCache; vLLM's model runner, `V1` or `V2`.
"""


Text = Annotated[str, Keywords(minLength=1)]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A reproducer that was run. `reproducer`: a folder of docs/repros; `tries` such as `3 of 3`."""

    build: Text
    date: Annotated[str, Keywords(pattern=r"^\d{4}-\d\d-\d\d$")]
    tries: Text
    reproducer: str = ""


@dataclass(frozen=True, kw_only=True)
class VersionEvidence:
    """Versions, and how they are known: `reported` by an issue or page, or `proved` here."""

    versions: Text
    reported: str = ""
    proved: Proof | None = None


@dataclass(frozen=True, kw_only=True)
class Cure:
    """Remedy: `flag` as it is pasted into the command, or `text`. `by` is the source, or `proved`."""

    flag: str = ""
    text: str = ""
    by: Text


@dataclass(frozen=True, kw_only=True)
class Advisory:
    """A known bug of a server.

    Attributes:
        id: begins with the engine; never changes.
        title: what goes wrong; without one, that of the failure holds.
        failure: id of the signature that its log has.
        issues: upstream issues and changes, `owner/repository#number` or URLs; the first one is its name.
        state: of the first issue when it was read.
        seen: where it was seen, if that is no range of versions.
        fixed: first good version, with a condition behind a blank, or the change with the fix.
        affected, unaffected: versions that certainly have it, or have it not.
        when: conditions of the launch flags and the machine, all of which must hold; `a or b` needs one of two.
        needs: conditions beside `when` that its reproducer has: small caches, limits that its requests exceed.
        traffic: kinds of traffic without which it does not happen.
        trigger: when it happens, in words.
        cures: likeliest first. An upgrade follows from `fixed`.
    """

    id: Text
    severity: Severity
    title: str = ""
    failure: str = ""
    issues: tuple[str, ...] = ()
    state: Literal["", "open", "closed", "merged"] = ""
    seen: str = ""
    fixed: str = ""
    trigger: str = ""
    traffic: tuple[Traffic, ...] = ()
    when: Mapping[str, Test] = field(default_factory=dict)
    needs: Mapping[str, Test] = field(default_factory=dict)
    affected: tuple[VersionEvidence, ...] = ()
    unaffected: tuple[VersionEvidence, ...] = ()
    cures: tuple[Cure, ...] = ()

    @property
    def engine(self) -> str:
        return self.id.partition("-")[0]

    @property
    def first_good(self) -> str | None:
        """The version from which on it is fixed without a condition."""
        return self.fixed if order(self.fixed) is not None and " " not in self.fixed else None

    @property
    def affected_range(self) -> str | None:
        """The affected versions where they are a range, not single releases."""
        return next((e.versions for e in self.affected if "==" not in e.versions), None)

    @property
    def proofs(self) -> list[Proof]:
        return [e.proved for e in self.affected if e.proved is not None]

    @property
    def reproducers(self) -> list[str]:
        """Folders of docs/repros, or of the user's own advisories, whose script shows the bug."""
        found = [e.proved.reproducer for e in (*self.affected, *self.unaffected) if e.proved is not None]
        return [name for name in dict.fromkeys(found) if name]

    def has(self, version: str) -> bool | None:
        """True or false by the sources; None: none of them says whether this version has the bug."""
        if any(within(e.versions, version) for e in self.affected):
            return True
        good, mine = order(self.first_good or ""), order(version)
        if any(within(e.versions, version) for e in self.unaffected) or (good and mine and mine >= good):
            return False
        return None

    def around(self, version: str) -> tuple[str, str] | None:
        """Nearest affected versions below and above `version`, which no source names; None if one between them is good."""
        mine = order(version)
        bad = [(at, text) for at, text in self._named(self.affected, ("==", ">=", "<=")) if at != mine]
        older, newer = [b for b in bad if mine and b[0] < mine], [b for b in bad if mine and b[0] > mine]
        if not older or not newer or self.has(version) is not None:
            return None
        (first, before), (last, after) = max(older), min(newer)
        good = [at for at, _ in self._named(self.unaffected)] + [order(self.first_good or "") or first]
        return None if any(first < at < last for at in good) else (before, after)

    @staticmethod
    def _named(evidence: Sequence[VersionEvidence], signs: Collection[str] = SIGNS) -> list[tuple[Order, str]]:
        """Versions that stand in ranges behind one of these signs."""
        found = [(order(text), text) for e in evidence for sign, text in clauses(e.versions) if sign in signs]
        return [(at, text) for at, text in found if at is not None]

    def is_newer_than_reports(self, version: str) -> bool:
        """True if every version that is known to have it is older."""
        mine = order(version)
        named = self._named(self.affected)
        return mine is not None and bool(named) and all(at < mine for at, _ in named)


@dataclass(frozen=True)
class EngineOptions:
    """Options and releases of an engine. `options`: each with all its names, and whether it takes a value. `log`: facts
    that its start-up lines tell, as groups. `arguments`: its page with all launch options by their names.
    """

    name: str
    releases: tuple[str, ...]
    options: Mapping[str, tuple[str, bool]]
    defaults: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, str]
    log: tuple[re.Pattern[str], ...]
    arguments: str
    connectors: tuple[str, ...]

    def default(self, name: str, version: str | None) -> Any:
        """Value of an option that is not given; None where it has none, or where that is not known."""
        found = self.defaults.get(name)
        if found is None or version is None or not within(f">={found['since']}", version):
            return None
        return found["value"]

    def unless(self, name: str) -> Mapping[str, Test]:
        """Conditions of other facts, each of which turns off an option that is not given."""
        tests = self.defaults.get(name, {}).get("unless", {})
        return {fact: tuple(test) if isinstance(test, list) else test for fact, test in tests.items()}


ENGINES: Final = ("vllm", "sglang", "lmdeploy", "llamacpp", "transformers")
_SHIPPED = resources.files("loadchaos.analysis.advisories")


@lru_cache
def engine(name: str) -> EngineOptions:
    data = tomllib.loads((_SHIPPED / f"{name}.toml").read_text("utf-8"))
    options: dict[str, tuple[str, bool]] = {}
    for line in data["options"]:
        *names, last = line.split(" ")
        names = names if last == "=" else [*names, last]
        for one in names:
            options[one] = (fact_name(names[0]), last == "=")
    log = tuple(re.compile(text) for text in data.get("log", ()))
    return EngineOptions(
        name, tuple(data["releases"].split()), options, data["defaults"], data["settings"], log, data.get("arguments", ""),
        tuple(data.get("connectors", ())),
    )  # fmt: skip


def fact_name(option: str) -> str:
    """Name of an option as a fact: `--max-num-seqs` is `max_num_seqs`, `--speculative-config.method` has its dot."""
    head, *rest = option.lstrip("-").split(".")
    return ".".join([head.replace("-", "_"), *rest])


def exists(name: str) -> bool:
    """True if an advisory with this id is shipped; reads none."""
    return name.partition("-")[0] in ENGINES and (_SHIPPED / name.partition("-")[0] / f"{name}.toml").is_file()


@cache
def shipped(name: str) -> Advisory:
    """The shipped advisory with this id. Tests have checked it: it is read without."""
    return from_json(Advisory, tomllib.loads((_SHIPPED / name.partition("-")[0] / f"{name}.toml").read_text("utf-8")))


@lru_cache
def all_shipped(of: str) -> tuple[Advisory, ...]:
    """All advisories of an engine, by id."""
    folder = _SHIPPED / of
    names = sorted(f.name.removesuffix(".toml") for f in folder.iterdir()) if folder.is_dir() else []
    return tuple(shipped(name) for name in names)


def reproducer_of(engine: str, failure: str) -> str | None:
    """Folder of docs/repros whose script causes this failure of an engine."""
    every = (one for one in all_shipped(engine) if failure and one.failure == failure) if engine in ENGINES else ()
    return next((name for one in every for name in one.reproducers), None)
