"""Corpus of a hunt: workloads that gave feedback; choice of the next one. `fold` takes the result of one workload, a
row of workloads.jsonl. Everything follows from the seed and the folded rows, so a hunt that is continued chooses what
it would have chosen. No clock, no disk.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations

from loadchaos.analysis.failure import DEADLY_OR_HUNG
from loadchaos.analysis.log_templates import TemplateMiner
from loadchaos.campaigns.hunt.genes import GenePool
from loadchaos.campaigns.hunt.journal import WorkloadRow
from loadchaos.campaigns.hunt.mutation import Breeder
from loadchaos.campaigns.hunt.workload import Workload
from loadchaos.core.rng import hash64

_FIRST_DRAWN = 4
FIRST_ASKING = 3
"""First workload with questions beside its load, which always has them.

Most deaths come in the first workloads, and what the idle server answers has to be learned once. The gene alone gives the
third workload on average, too.
"""
_DRAWN_SHARE = 0.75
_CANDIDATES = 32
"""Every second drawn workload is the one of so many with the most pairs of values that no workload has had.

The others are drawn alone: such a choice has many kinds of traffic at once, and some failures need one kind in quantity.
"""
_DEADLY_WEIGHT = 0.5
"""Weight of a value below which its pairs do not count as untried."""
_KIND_WEIGHTS = {"failure": 8.0, "state": 4.0, "log": 3.0, "pair": 2.0}
_LED_TO_KNOWN = 0.2
"""Factor for the energy of an entry that ended in a known failure: its children end there, too."""
_SHARPNESS = 2


@dataclass
class Entry:
    """Workload of the corpus; `news` are features that it showed first."""

    number: int
    workload: Workload
    features: frozenset[str]
    news: frozenset[str]
    chosen: int = 0
    known_failure: bool = False


@dataclass(frozen=True)
class WorkloadChoice:
    """Next workload, its number and seed, and where it comes from."""

    number: int
    workload: Workload
    seed: int
    change: str
    parent: int | None


@dataclass
class _Tried:
    """Runs with one value of a gene, and those of them that ended in death."""

    runs: int = 0
    known: int = 0


@dataclass
class Corpus:
    """Entries, counts of features and values, findings. Without `feedback` every workload is drawn at random."""

    seed: int
    pool: GenePool
    feedback: bool = True
    entries: list[Entry] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    findings: dict[str, int] = field(default_factory=dict)
    workloads: int = 0
    chosen: int = 0
    news_of_last: frozenset[str] = frozenset()
    _tried: dict[str, _Tried] = field(default_factory=dict)
    _pairs: set[tuple[str, str]] = field(default_factory=set)
    _templates: TemplateMiner = field(default_factory=TemplateMiner)

    def fold(self, row: WorkloadRow) -> bool:
        """Fold the result of a workload. Returns True if it became an entry."""
        self.workloads += 1
        self.chosen = max(self.chosen, row.n)
        for entry in self.entries:
            entry.chosen += row.parent is not None and entry.number == row.parent
        for line in row.idle_lines:
            self.hits[f"log:{self._templates.add(line)}"] += 1
        found = row.findings
        features = {*row.features, *(f"log:{self._templates.add(t)}" for t in row.lines)}
        features |= {f"failure:{f.key}" for f in found}
        self.news_of_last = news = frozenset(f for f in features if not self.hits[f])
        self.hits.update(features)
        known = any(f.key in self.findings for f in found)
        for failure in found:
            self.findings.setdefault(failure.key, row.n)
        died = any(f.severity in DEADLY_OR_HUNG for f in found)
        self._pairs.update(combinations(sorted(row.workload.values()), 2))
        for value in row.workload.values():
            tried = self._tried.setdefault(value, _Tried())
            tried.runs += 1
            tried.known += died
        if not news:
            return False
        self.entries.append(Entry(row.n, row.workload, frozenset(features), news, known_failure=known or died))
        return True

    def weigh(self, value: str) -> float:
        """Weight of a gene with its value. It is the square of its share of runs without a death."""
        tried = self._tried.get(value)
        if tried is None or not self.feedback:
            return 1.0
        return float(((1 + tried.runs - tried.known) / (1 + tried.runs)) ** _SHARPNESS)

    def energy(self, entry: Entry) -> float:
        """Energy of an entry: more for rare features, less for each choice."""
        rare = sum(_KIND_WEIGHTS.get(f.partition(":")[0], 1.0) / self.hits[f] for f in entry.news)
        rare += sum(1.0 / self.hits[f] for f in entry.features)
        return rare * (_LED_TO_KNOWN if entry.known_failure else 1.0) / (1 + entry.chosen)

    def _untried(self, workload: Workload) -> int:
        values = sorted(v for v in workload.values() if self.weigh(v) >= _DEADLY_WEIGHT)
        return sum(pair not in self._pairs for pair in combinations(values, 2))

    def _asking(self, number: int, drawn: Workload) -> Workload:
        """Move the questions of the first workloads to the one after, unless the user's file has the gene."""
        if number > FIRST_ASKING or not self.pool.choices["load"]["questions"] or "questions" in self.pool.named:
            return drawn
        load = {name: value for name, value in drawn.load.items() if name != "questions"}
        return replace(drawn, load=load if number < FIRST_ASKING else {**load, "questions": True})

    def choose(self) -> WorkloadChoice:
        self.chosen += 1
        number, seed = self.chosen, hash64(self.seed, self.chosen)
        rng = random.Random(seed)
        breeder = Breeder(self.pool, self.weigh)
        fresh = number <= _FIRST_DRAWN or not self.entries or rng.random() < _DRAWN_SHARE
        if fresh or not self.feedback:
            count = _CANDIDATES if self.feedback and number % 2 == 0 else 1
            candidates = [breeder.drawn(rng) for _ in range(count)]
            drawn = self._asking(number, max(candidates, key=self._untried))
            return WorkloadChoice(number, drawn, seed & 0x7FFFFFFF, "drawn", None)
        parent = rng.choices(self.entries, [self.energy(e) for e in self.entries])[0]
        others = [e.workload for e in self.entries if e is not parent]
        child, change = breeder.changed(parent.workload, others, rng)
        return WorkloadChoice(number, child, seed & 0x7FFFFFFF, change, parent.number)
