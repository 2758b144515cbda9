"""Read the file of --genes: which genes a hunt uses, and their values.

traffic:
  images: false             # never
  tokens: [64, 65, 32..512] # only these
load: {users: [4, 16]}
attacks: {admin: [reset_prefix_cache]}
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadchaos.campaigns.hunt.genes import GENES, GenePool, ServerLimits, has_no_zero, plain_values, pool_of
from loadchaos.campaigns.hunt.workload import Genes, Part, Workload
from loadchaos.core.errors import LoadchaosError, ProfileError
from loadchaos.core.model import Facts
from loadchaos.load import registry
from loadchaos.profile import source
from loadchaos.profile.profile import from_mapping
from loadchaos.profile.source import Document, Mistake
from loadchaos.run.endpoint_check import ENDPOINTS_BESIDE_CHAT

Chosen = Mapping[str, Genes]
_NEEDED: Mapping[str, Genes] = {
    "traffic": {"tokens": 64, "output": 8},
    "load": {"users": 1, "requests": 8, "form": "steady"},
}
"""Genes that every workload has."""


def read(file: Path) -> Chosen:
    """Read the file. Raises ProfileError with line, key and expected value of each mistake."""
    document = Document(source.read(file, expected="genes such as `traffic: {images: false}`"), str(file), {})
    data = source.plain(document.node)
    mistakes: list[Mistake] = []
    for group, genes in data.items():
        if group not in GENES:
            mistakes.append(Mistake((group,), f"{_nearest(group, list(GENES))} was expected", of_key=True))
            continue
        if not isinstance(genes, dict):
            mistakes.append(Mistake((group,), f"genes with their values were expected (got {genes!r})"))
            continue
        names = [gene.name for gene in GENES[group]]
        for name, values in genes.items():
            if name not in names:
                mistakes.append(Mistake((group, name), f"{_nearest(name, names)} was expected", of_key=True))
            else:
                mistakes += _of_values(group, name, values)
    if mistakes:
        raise document.error(mistakes)
    return dict(data)


def _of_values(group: str, name: str, values: Any) -> list[Mistake]:
    if values is False:
        if name in _NEEDED.get(group, {}):
            return [Mistake((group, name), "a list of values was expected: every workload has this gene (got false)")]
        return []
    if not isinstance(values, list) or not values:
        return [Mistake((group, name), f"false or a list such as [{plain_values(group, name)}] was expected")]
    return [
        Mistake((group, name, i), f"a value such as {plain_values(group, name)} was expected: {why}")
        for i, value in enumerate(values)
        if (why := _refusal(group, name, value))
    ]


def _refusal(group: str, name: str, value: Any) -> str:
    """Say why a value makes no valid profile; "" if it does."""
    if not value and has_no_zero(group, name):
        return f"(got {value!r}); a gene that is not used is false"
    genes: dict[str, Part] = {g: dict(_NEEDED.get(g, {})) for g in GENES}
    genes["attacks"] = {"admin": "reset_prefix_cache", "every": "1s"}
    genes[group][name] = value
    if name in ("image_size", "unique", "reuse_distance", "near_duplicates", "uuid"):
        genes["traffic"]["images"] = 1
    if name == "abort_share":
        genes["traffic"]["abort"] = {"before": "body"}
    try:
        attacks = (genes["attacks"],) if group == "attacks" else ()
        workload = Workload(genes["load"], (genes["traffic"],), attacks)
        from_mapping(workload.profile(_checking_pool()), registry.full_registry())
    except LoadchaosError as e:
        first = e.mistakes[0] if isinstance(e, ProfileError) else str(e)
        return first.partition(": ")[2] or first
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"(got {value!r})"
    return ""


def _checking_pool() -> GenePool:
    return pool_of(
        ServerLimits(Facts("", "", "vllm", max_model_len=1 << 20), models=("a", "b"), endpoints=ENDPOINTS_BESIDE_CHAT)
    )


def _nearest(name: Any, names: list[str]) -> str:
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    return close[0] if close else f"one of {', '.join(names)}"
