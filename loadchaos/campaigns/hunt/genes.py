"""Genes of a workload, and the values that a server's facts allow. To add a gene of traffic: a `Gene` in
`TRAFFIC_GENES` and its lines in `workload.traffic_entry`. A value None means that the gene is absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadchaos.core.model import Facts
from loadchaos.run.endpoint_check import ENDPOINTS_BESIDE_CHAT
from loadchaos.server.dialects import DIALECTS

_BLOCK, _CHUNK, _CONTEXT = 16, 2048, 4096
"""Assumed where a server does not report them."""
LEAST_TOKENS = 32
"""Prompt tokens that a workload has at least."""
_MOST_SHOWN = 6
_LEFT_OUT = frozenset(
    {
        "reset_encoder_cache", "collective_rpc", "scale_elastic_ep", "start_profile", "load_lora_adapter",
        "release_kv_cache_memory",
    }
)  # fmt: skip
"""Operations that break a healthy server by design, or need parameters of their own."""


@dataclass(frozen=True)
class ServerLimits:
    """Facts that genes depend on: settings by our names, models, most requests, endpoints beside chat."""

    facts: Facts
    settings: Mapping[str, object] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    requests: int = 64
    endpoints: tuple[str, ...] = ()

    @property
    def block(self) -> int:
        return self.facts.kv_block_size or _BLOCK

    @property
    def chunk(self) -> int:
        return int(str(self.settings.get("max_num_batched_tokens") or _CHUNK))

    @property
    def longest(self) -> int:
        facts = self.facts
        known = [n for n in (facts.max_model_len, facts.input_limit, facts.capacity_tokens) if n]
        return min(known, default=_CONTEXT) - 1


@dataclass(frozen=True)
class Gene:
    """A gene: how often it is present, and its values; none where the server has not what it needs."""

    name: str
    values: Callable[[ServerLimits], Sequence[Any]]
    share: float = 0.2


def _tokens(limits: ServerLimits) -> list[Any]:
    block, chunk, longest = limits.block, limits.chunk, limits.longest
    exact = [n + d for n in (4 * block, 16 * block, chunk, 2 * chunk) for d in (-1, 0, 1)]
    exact += [longest // 4, longest // 2, longest * 3 // 4, longest - 64]
    ranges = [(32, 128), (32, 512), (64, 2048), (256, 1024), (1024, 3000), (longest // 2, longest - 64)]
    found: list[Any] = [n for n in exact if LEAST_TOKENS <= n < longest]
    # Ranges come twice: exact lengths are many, and most failures need no edge.
    found += [f"{low}..{high}" for low, high in ranges if LEAST_TOKENS <= low < high < longest] * 2
    return found or [LEAST_TOKENS]


def _prefix(limits: ServerLimits) -> list[Any]:
    lengths = [n for n in (limits.block, 4 * limits.block, 16 * limits.block, limits.chunk) if n < limits.longest // 2]
    return [{"tokens": n, "groups": g} for n in lengths for g in (1, 4)]


def _images(limits: ServerLimits) -> list[Any]:
    most = limits.facts.max_images or 4
    return [] if not limits.facts.images else [n for n in (1, "1..2", 4) if (n if isinstance(n, int) else 2) <= most]


def _image_sizes(limits: ServerLimits) -> list[Any]:
    sides = [s for s in (64, 256, 448, 1024) if s * s // 700 < limits.longest]
    return [f"{s}x{s}" for s in sides] if limits.facts.images else []


def _near_limit(limits: ServerLimits) -> list[Any]:
    known = limits.facts.max_model_len or limits.facts.input_limit
    return [{"band": b, "step": s} for b, s in (("-1100..-1", 100), ("-64..-1", 9), ("-8..-1", 1))] if known else []


def _with_images(*values: Any) -> Callable[[ServerLimits], Sequence[Any]]:
    return lambda limits: values if limits.facts.images else ()


def _always(*values: Any) -> Callable[[ServerLimits], Sequence[Any]]:
    return lambda _: values


TRAFFIC_GENES: tuple[Gene, ...] = (
    Gene("tokens", _tokens, 1.0),
    Gene("output", _always(1, 2, 8, 32, 64, 128, 256), 1.0),
    Gene("exact", _always(True), 0.4),
    Gene("weight", _always(1, 3), 1.0),
    Gene("prefix", _prefix, 0.25),
    Gene("turns", _always(2, 4, 8), 0.15),
    Gene("script", _always("cjk", "emoji", "code", "mixed"), 0.05),
    Gene("near_limit", _near_limit, 0.08),
    Gene("images", _images, 0.35),
    Gene("image_size", _image_sizes, 1.0),
    Gene("unique", _with_images("80%", "50%", "20%"), 0.5),
    Gene("reuse_distance", _with_images(1, 8, 64, 200), 1.0),
    Gene("near_duplicates", _with_images("10%"), 0.1),
    Gene("uuid", _with_images("content", "fresh"), 0.1),
    Gene("abort", _always(
        {"before": "body"}, {"before": "first_byte"}, {"before": "end"}, {"at_token": "1..2"}, {"at_token": "1..20"},
        {"after": "50ms"}, {"after": "500ms"}, {"after": "50ms", "leave": "reset"},
    ), 0.3),
    Gene("abort_share", _always("10%", "50%", "100%"), 1.0),
    Gene("client", _always("slow_read", "drip", "churn", "half_open", "pipeline"), 0.08),
    Gene("whole", _always(True), 0.2),
    Gene("temperature", _always(0.7, 1.5), 0.3),
    Gene("top_k", _always(1, 20), 0.12),
    Gene("top_p", _always(0.9, 0.05), 0.12),
    Gene("min_p", _always(0.1), 0.06),
    Gene("seeded", _always(True, False), 0.12),
    Gene("n", _always(2, 4), 0.1),
    Gene("logprobs", _always(0, 5, 20), 0.12),
    Gene("prompt_logprobs", _always(1), 0.05),
    Gene("presence_penalty", _always(1.0), 0.08),
    Gene("frequency_penalty", _always(1.0), 0.08),
    Gene("repetition_penalty", _always(1.2), 0.08),
    Gene("schema", _always("small", "deep", "wide", "choice"), 0.12),
    Gene("tools", _always("auto", "required"), 0.05),
    Gene("adapters", lambda limits: (True,) if len(limits.models) > 1 else (), 0.5),
    Gene("endpoint", lambda limits: limits.endpoints, 0.15),
    Gene("image_position", _with_images(True), 0.06),
)  # fmt: skip

LOAD_GENES: tuple[Gene, ...] = (
    Gene("users", _always(1, 2, 4, 8, 16, 32, 64, 128), 1.0),
    Gene("requests", lambda limits: (limits.requests // 4, limits.requests // 2, limits.requests), 1.0),
    Gene("form", _always("steady", "steady", "burst", "waves", "rise"), 1.0),
    Gene("questions", _always(True), 0.3),
)


def _operations(limits: ServerLimits) -> list[str]:
    facts = limits.facts
    dialect = DIALECTS[facts.dialect]
    if not facts.development_endpoints:
        return []
    found = []
    for operation in dialect.admin.values():
        sleeps = operation.name == "sleep" and bool(limits.settings.get("sleep_mode"))
        gated = operation.gate == dialect.development_gate or sleeps
        undoes = any(operation.name == other.undo for other in dialect.admin.values())
        known = not operation.is_newer_than(facts.version)
        if known and operation.destructive and gated and not undoes and operation.name not in _LEFT_OUT:
            found.append(operation.name)
    return found


ATTACK_GENES: tuple[Gene, ...] = (
    Gene("admin", _operations, 1.0),
    Gene("every", _always("200ms", "1s", "3s"), 1.0),
    Gene("when", _always(
        {"requests_running": ">= 4"}, {"kv_usage_ratio": "> 50%"}, {"requests_waiting": ">= 1"},
        {"images_in_prefill": ">= 1"}, {"aborts_per_s": "> 0"},
    ), 0.5),
)  # fmt: skip

GENES: Mapping[str, tuple[Gene, ...]] = {"traffic": TRAFFIC_GENES, "load": LOAD_GENES, "attacks": ATTACK_GENES}


def value_key(group: str, name: str, value: Any) -> str:
    """Text of a gene with its value: `traffic.top_k=20`."""
    return f"{group}.{name}={json.dumps(value, sort_keys=True)}"


@dataclass(frozen=True)
class GenePool:
    """Values of every gene for one server, by group and name. `choices` of genes that the server or the user's file
    does not allow are empty; `keys` are the same as texts. `block` and `longest` bound small changes of lengths.
    `most_requests`: requests of the largest load, which follow from the users; None where the user's file has the gene
    `requests`. `named`: genes of the load that the user's file has.
    """

    choices: Mapping[str, Mapping[str, tuple[Any, ...]]]
    keys: Mapping[str, Mapping[str, tuple[str, ...]]]
    shares: Mapping[str, Mapping[str, float]]
    block: int
    longest: int
    models: tuple[str, ...] = ()
    most_requests: int | None = None
    named: frozenset[str] = frozenset()

    @property
    def attacks(self) -> bool:
        return bool(self.choices["attacks"]["admin"])


def pool_of(limits: ServerLimits, chosen: Mapping[str, Mapping[str, object]] | None = None) -> GenePool:
    """Pool for a server. In `chosen` a gene has a list of values, or False where it must be absent."""
    chosen = chosen or {}
    choices: dict[str, dict[str, tuple[Any, ...]]] = {}
    shares: dict[str, dict[str, float]] = {}
    for group, genes in GENES.items():
        wanted = chosen.get(group) or {}
        choices[group], shares[group] = {}, {}
        for gene in genes:
            allowed = tuple(gene.values(limits))
            own = wanted.get(gene.name)
            if own is False:
                allowed = ()
            elif isinstance(own, list | tuple) and allowed:
                allowed = tuple(own)
            choices[group][gene.name] = allowed
            # A gene that the file names is present more often: the user asked for it.
            shares[group][gene.name] = max(gene.share, 0.5) if own else gene.share
    keys = {
        group: {name: tuple(value_key(group, name, value) for value in values) for name, values in genes.items()}
        for group, genes in choices.items()
    }
    load = chosen.get("load") or {}
    most = None if load.get("requests") else limits.requests
    return GenePool(choices, keys, shares, limits.block, limits.longest, limits.models, most, frozenset(load))


def plain_values(group: str, name: str) -> str:
    """Values of a gene for a message: those of a server with everything."""
    return ", ".join(list(dict.fromkeys(map(str, _all_values(group, name))))[:_MOST_SHOWN])


def has_no_zero(group: str, name: str) -> bool:
    """Tell if 0, an empty text or nothing is no value of a gene. All values of such a gene are texts or mappings."""
    return all(isinstance(value, str | Mapping) for value in _all_values(group, name))


def _all_values(group: str, name: str) -> Sequence[Any]:
    gene = next(g for g in GENES[group] if g.name == name)
    facts = Facts("", "", "vllm", max_model_len=_CONTEXT, images=True, development_endpoints=True)
    return gene.values(ServerLimits(facts, models=("a", "b"), endpoints=ENDPOINTS_BESIDE_CHAT))
