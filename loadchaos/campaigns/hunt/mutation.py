"""New workloads: drawn at random, or changed from one of the corpus."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadchaos.campaigns.hunt.genes import GENES, LEAST_TOKENS, GenePool, value_key
from loadchaos.campaigns.hunt.workload import Genes, Part, Workload

Weigh = Callable[[str], float]
"""Weight of a gene with its value, by its key; 1 for one that nothing is known of."""
_MOST_TRAFFIC, _MOST_ATTACKS = 4, 2
_ATTACK_SHARE = 0.3
_DEADLY_WEIGHT = 0.2
"""Weight of a value below which it counts as deadly: a value has it after two deaths in two workloads."""
_MANY_USERS = 64
"""So many users get the most requests; fewer get a share of them, a quarter at least.

Most failures of a load need requests at once. More requests of the same genes, one after the other, find fewer failures a
request than other genes do.
"""
_BELONG_TO = {
    "images": ("image_size", "unique", "reuse_distance", "near_duplicates", "uuid"),
    "abort": ("abort_share",),
}
"""Genes that mean nothing without another one."""


class Breeder:
    """Draws genes of a pool; `weigh` gives the weight of each value."""

    def __init__(self, pool: GenePool, weigh: Weigh = lambda _: 1.0) -> None:
        self._pool, self._weigh = pool, weigh

    def drawn(self, rng: random.Random) -> Workload:
        traffic = tuple(self._genes("traffic", rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))
        attacks: tuple[Genes, ...] = ()
        if self._pool.attacks and rng.random() < _ATTACK_SHARE:
            attacks = (self._genes("attacks", rng),)
        return Workload(self._sized(self._genes("load", rng)), traffic, attacks)

    def _sized(self, load: Part) -> Part:
        """Give a load as many requests as its users; waves get twice as many."""
        most = self._pool.most_requests
        if most is None:
            return load
        users = int(load["users"]) * (2 if load["form"] == "waves" else 1)
        return {**load, "requests": max(most // 4, min(most, most * users // _MANY_USERS))}

    def _genes(self, group: str, rng: random.Random) -> Part:
        found = {}
        for gene in GENES[group]:
            if rng.random() < self._pool.shares[group][gene.name]:
                value = self._value(group, gene.name, rng)
                if value is not None:
                    found[gene.name] = value
        return _pruned(found)

    def _value(self, group: str, name: str, rng: random.Random) -> Any:
        choices = self._pool.choices[group][name]
        if not choices:
            return None
        weights = list(map(self._weigh, self._pool.keys[group][name]))
        if self._pool.shares[group][name] < 1 and rng.random() > max(weights):
            return None  # every value of it leads to what is known already
        return rng.choices(choices, weights)[0]

    def changed(self, parent: Workload, others: Sequence[Workload], rng: random.Random) -> tuple[Workload, str]:
        """Change a workload in one to three places, and name the changes. Genes of known deaths are left out."""
        child, names = parent, []
        for _ in range(rng.choice((1, 1, 2, 3))):
            name = rng.choices(list(_CHANGES), [share for _, share in _CHANGES.values()])[0]
            child = _CHANGES[name][0](self, child, others, rng)
            names.append(name)
        return self._without_deadly(child, rng), "+".join(names)

    def _without_deadly(self, child: Workload, rng: random.Random) -> Workload:
        """Leave out optional genes that often led to a death, which costs a start of the server."""

        def stays(group: str, name: str, value: Any) -> bool:
            weight = self._weigh(value_key(group, name, value))
            return weight > _DEADLY_WEIGHT or rng.random() < weight

        shares = self._pool.shares["traffic"]
        traffic = tuple(
            _pruned({n: v for n, v in genes.items() if shares[n] >= 1 or stays("traffic", n, v)})
            for genes in child.traffic
        )
        return Workload(child.load, traffic, tuple(a for a in child.attacks if stays("attacks", "admin", a["admin"])))

    def _gene(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        i = rng.randrange(len(parent.traffic))
        genes = dict(parent.traffic[i])
        for gene in rng.sample(GENES["traffic"], rng.choice((1, 2, 4, 8))):
            present = gene.name in genes and self._pool.shares["traffic"][gene.name] < 1
            value = None if present and rng.random() < 0.5 else self._value("traffic", gene.name, rng)
            before = genes.pop(gene.name, None)
            if value is not None:
                genes[gene.name] = value
            if before is None and value is not None:
                drawn = self._genes("traffic", rng)
                genes |= {name: drawn[name] for name in _BELONG_TO.get(gene.name, ()) if name in drawn}
        return _replaced(parent, i, {**_required(parent.traffic[i]), **_pruned(genes)})

    def _nudge(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        """Move a prompt length by a token or a block."""
        i = rng.randrange(len(parent.traffic))
        tokens = str(parent.traffic[i]["tokens"])
        block = self._pool.block
        length = int(rng.choice(tokens.split("..")))
        if rng.random() < 0.5:
            length = round(length / block) * block
        length += rng.choice((-block, -1, 0, 1, 2, block))
        length = max(LEAST_TOKENS, min(length, self._pool.longest - 1))
        return _replaced(parent, i, {**parent.traffic[i], "tokens": length})

    def _load(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        load, drawn = dict(parent.load), self._genes("load", rng)
        for gene in rng.sample(GENES["load"], rng.choice((1, 2, len(GENES["load"])))):
            load.pop(gene.name, None)
            if gene.name in drawn:
                load[gene.name] = drawn[gene.name]
        return replace(parent, load=self._sized(load))

    def _add_traffic(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        return replace(parent, traffic=_with(parent.traffic, self._genes("traffic", rng), _MOST_TRAFFIC, rng))

    def _drop_traffic(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        if len(parent.traffic) < 2:
            return replace(parent, attacks=())
        gone = rng.randrange(len(parent.traffic))
        return replace(parent, traffic=parent.traffic[:gone] + parent.traffic[gone + 1 :])

    def _splice(self, parent: Workload, others: Sequence[Workload], rng: random.Random) -> Workload:
        if not others:
            return self._gene(parent, others, rng)
        other = rng.choice(others)
        part = rng.random()
        if part < 0.6:
            return replace(parent, traffic=_with(parent.traffic, rng.choice(other.traffic), _MOST_TRAFFIC, rng))
        return replace(parent, load=other.load) if part < 0.85 else replace(parent, attacks=other.attacks)

    def _attack(self, parent: Workload, _: Sequence[Workload], rng: random.Random) -> Workload:
        if not self._pool.attacks:
            return self._gene(parent, (), rng)
        return replace(parent, attacks=_with(parent.attacks, self._genes("attacks", rng), _MOST_ATTACKS, rng))


def _pruned(genes: Part) -> Part:
    idle = {name for owner, names in _BELONG_TO.items() if owner not in genes for name in names}
    return {name: value for name, value in genes.items() if name not in idle}


def _required(genes: Genes) -> Part:
    return {name: genes[name] for name in ("tokens", "output", "weight")}


def _replaced(parent: Workload, i: int, genes: Genes) -> Workload:
    return replace(parent, traffic=(*parent.traffic[:i], genes, *parent.traffic[i + 1 :]))


def _with(parts: tuple[Genes, ...], new: Genes, most: int, rng: random.Random) -> tuple[Genes, ...]:
    """One more part, in the place of a random one where there are `most` already."""
    gone = rng.randrange(most) if len(parts) >= most else len(parts)
    return (*parts[:gone], *parts[gone + 1 :], new)


Change = Callable[[Breeder, Workload, Sequence[Workload], random.Random], Workload]
_CHANGES: Mapping[str, tuple[Change, float]] = {
    "gene": (Breeder._gene, 4),
    "nudge": (Breeder._nudge, 1),
    "load": (Breeder._load, 3),
    "add_traffic": (Breeder._add_traffic, 2),
    "drop_traffic": (Breeder._drop_traffic, 1),
    "splice": (Breeder._splice, 2),
    "attack": (Breeder._attack, 1),
}
"""Changes with their weights."""
