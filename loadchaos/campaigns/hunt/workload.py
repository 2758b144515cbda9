"""Workload: genes of some traffic, a load and attacks, as a profile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadchaos.campaigns.hunt.genes import GenePool, value_key
from loadchaos.core.typed_json import IF_SET, to_json
from loadchaos.core.units import int_range
from loadchaos.load.endpoints import DEFAULT, ENDPOINTS
from loadchaos.load.payloads.text import SHORT_TOKENS

Genes = Mapping[str, Any]
Part = dict[str, Any]
"""Part of a profile."""
_AS_GIVEN = (
    "temperature", "top_k", "top_p", "min_p", "seeded", "n", "logprobs", "prompt_logprobs", "presence_penalty",
    "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_DRAWN = ("top_k", "top_p", "min_p", "seeded", "n")
"""Options that do nothing to a greedy answer."""
_TEMPERATURE = 0.8
_QUESTIONS = {
    "probes": {"every": "1s"}, "replicas": {"n": 4, "every": "3s"}, "cold_warm": {"every": "2s"},
    "alone_vs_load": {"share": "5%"}, "streamed": {"every": "3s"},
}  # fmt: skip
_LIMITS = {"first_byte": "60s", "between_bytes": "30s", "total": "2m"}
_EXPECTED = ["ok", "rejected", "shed"]
"""A correct server may refuse a request with a 4xx: genes go beyond what a server supports."""


@dataclass(frozen=True)
class Workload:
    """Genes of one workload: one mapping for each traffic and attack."""

    load: Genes
    traffic: tuple[Genes, ...]
    attacks: tuple[Genes, ...] = field(default=(), metadata=IF_SET)

    def values(self) -> set[str]:
        groups = [("load", self.load), *(("traffic", t) for t in self.traffic), *(("attacks", a) for a in self.attacks)]
        return {value_key(group, name, value) for group, genes in groups for name, value in genes.items()}

    def name(self) -> str:
        data = json.dumps(to_json(self), sort_keys=True).encode()
        return hashlib.blake2b(data, digest_size=4).hexdigest()

    def profile(self, pool: GenePool) -> Part:
        names = [f"t{i}" for i in range(len(self.traffic))]
        attacks = [attack_entry(a) for a in self.attacks]
        return {
            "name": "hunt",
            "about": f"Workload {self.name()} of a hunt",
            "can_kill": True,
            "traffic": [traffic_entry(n, t, pool) for n, t in zip(names, self.traffic, strict=True)],
            "load": phases(self.load),
            "limits": _LIMITS,
            **({"attacks": attacks} if attacks else {}),
            **({"correctness": _QUESTIONS} if self.load.get("questions") else {}),
        }


def phases(load: Genes) -> list[Part]:
    users, requests = int(load["users"]), int(load["requests"])
    users = min(users, requests)
    form = load["form"]
    if form == "burst":
        return [{"burst": requests}]
    if form == "waves":
        each = max(1, requests // 4)
        return [{"users": min(users, each), "requests": each, "rounds": 4}]
    if form == "rise":
        first = max(1, requests // 4)
        return [{"users": 1, "requests": min(first, 8)}, {"users": users, "requests": max(1, requests - min(first, 8))}]
    return [{"users": users, "requests": requests}]


def traffic_entry(name: str, genes: Genes, pool: GenePool) -> Part:
    payload: Part = {}
    images = genes.get("images")
    if genes.get("image_position"):
        payload["image_positions"], images = {"size": genes.get("image_size") or "256x256"}, None
    elif genes.get("near_limit") and not images:
        payload["near_limit"] = {**genes["near_limit"], "plus": [0, 1], "output": ["one", "edge"]}
    elif genes.get("turns") and not images:
        turns = int(genes["turns"])
        tokens = max(int_range(genes["tokens"]).high, 40 * turns)
        payload["conversation"] = {"turns": turns, "tokens": min(tokens, pool.longest), "parallel": 8}
    else:
        text: Part = {"tokens": genes["tokens"]}
        prefix = genes.get("prefix")
        if prefix and prefix["tokens"] < int_range(genes["tokens"]).low:
            text["shared_prefix"] = prefix
        if genes.get("script"):
            text["script"] = genes["script"]
        payload["text"] = text
    if images:
        payload["images"] = _images(genes)
    sampling = _sampling(genes, pool)
    if sampling:
        payload["sampling"] = sampling
    if genes.get("schema"):
        payload["structured"] = {"json_schema": genes["schema"]}
    elif genes.get("tools"):
        payload["tools"] = {"count": 1, "choice": genes["tools"]}
    endpoint = genes.get("endpoint") or DEFAULT
    payload = _carried(payload, endpoint)
    entry: Part = {"name": name, "weight": genes.get("weight") or 1, "payload": payload, "expect": _EXPECTED}
    if endpoint != DEFAULT:
        entry["endpoint"] = endpoint
    if "near_limit" not in payload:
        kind = "exact" if genes.get("exact") and not (genes.get("schema") or genes.get("tools")) else "max"
        entry["output"] = {kind: genes["output"]}
    behaviour, stream = _behaviour(genes)
    if behaviour:
        entry["behaviour"] = behaviour
    if not stream:
        entry["stream"] = False
    return entry


def _carried(payload: Genes, endpoint: str) -> Part:
    """Payloads that a body of an endpoint can hold; a text stands in for any other payload that writes the prompt."""
    spec, found = ENDPOINTS[endpoint], {}
    for name, options in payload.items():
        kept = {key: value for key, value in options.items() if f"{name}.{key}" not in spec.lacks}
        if spec.carries(name) and (kept or not options):
            found[name] = kept
    if not found.keys() & {"text", "conversation", "near_limit", "image_positions"}:
        found["text"] = {"tokens": payload["conversation"]["tokens"] if "conversation" in payload else SHORT_TOKENS}
    return found


def _images(genes: Genes) -> Part:
    found = {"count": genes["images"], "size": genes.get("image_size") or "256x256"}
    return found | {k: genes[k] for k in ("unique", "reuse_distance", "uuid", "near_duplicates") if genes.get(k)}


def _sampling(genes: Genes, pool: GenePool) -> Part:
    found = {name: genes[name] for name in _AS_GIVEN if genes.get(name) is not None}
    if any(name in found for name in _DRAWN):
        found.setdefault("temperature", _TEMPERATURE)
    if genes.get("adapters") and len(pool.models) > 1:
        found["models"] = dict.fromkeys(pool.models, 1)
    return found


def _behaviour(genes: Genes) -> tuple[Part, bool]:
    """Behaviours of the clients, and True where answers stream."""
    found: Part = {}
    stream = not genes.get("whole")
    abort = genes.get("abort")
    if abort:
        found["abort"] = {"share": genes.get("abort_share") or "50%", **abort}
        stream = stream or "at_token" in abort or abort.get("before") == "end"
    elif genes.get("client"):
        found[genes["client"]] = {"share": "30%", **({"hold": "1s"} if genes["client"] == "half_open" else {})}
    return found, stream


def attack_entry(genes: Genes) -> Part:
    entry = {"admin": genes["admin"], "every": genes["every"]}
    if genes.get("when"):
        entry["when"] = genes["when"]
    if genes["admin"] in ("sleep", "pause"):
        entry |= {"for": "500ms", "params": {"mode": "keep"} if genes["admin"] == "pause" else {"level": 1}}
        entry["every"] = "3s"
    return entry
