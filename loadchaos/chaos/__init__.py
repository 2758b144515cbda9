"""SHELF: operations on the server and the way to it, each with begin, undo and the effects it lists.

    attacks = Attacks(specs, dialect, replicas, emit, redactor, headers, seed=7)
    await attacks.preflight() ... await attacks.start() ... attacks.pause() ... await attacks.stop()

A new kind of attack is one file with a class that fits the protocol Attack, and one entry in ATTACKS: the key under
which a profile names it, and what makes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.chaos import admin, engine, host, network, process
from loadchaos.chaos.admin import operation_named
from loadchaos.chaos.base import ActResult, Attack, AttackedReplica, AttackFactory
from loadchaos.chaos.injector import AttackInjector
from loadchaos.chaos.manual import Offer, offers
from loadchaos.chaos.network import ProxyPath, WholePath
from loadchaos.chaos.toxiproxy import ToxiproxyPath
from loadchaos.core.ledger.rows import AttackKind

__all__ = [
    "ATTACKS",
    "ActResult",
    "Attack",
    "AttackInjector",
    "AttackedReplica",
    "Offer",
    "ProxyPath",
    "ToxiproxyPath",
    "WholePath",
    "offers",
    "operation_named",
]

ATTACKS: Mapping[AttackKind, AttackFactory] = {
    "admin": admin.make,
    "process": process.make,
    "engine": engine.make,
    "host": host.make,
    "network": network.make,
}
