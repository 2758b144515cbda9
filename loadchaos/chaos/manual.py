"""Attacks that a user may fire by hand from the web UI: admin operations, and signals to local processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.signals import SIGNALS
from loadchaos.server.dialects import Dialect

_PREFERRED_ROLE = "engine_core"


@dataclass(frozen=True)
class Offer:
    """One button of the web UI. `kind`, `name` and `params` are the arguments of AttackInjector.fire. `title` is the
    name in the ledger, `about` a description, and `needs` the server option that turns it on.
    """

    kind: str
    name: str
    title: str
    about: str
    needs: str = ""
    params: dict[str, object] = field(default_factory=dict)


def offers(dialect: Dialect, replicas: Sequence[AttackedReplica], version: str | None) -> list[Offer]:
    found = [
        Offer("admin", o.name, o.name, f"{o.method} {o.path}", o.gate)
        for o in dialect.admin.values()
        if o.destructive and not o.is_newer_than(version)
    ]
    return [*found, *_signals(dialect, replicas)]


def _signals(dialect: Dialect, replicas: Sequence[AttackedReplica]) -> Iterator[Offer]:
    if any(replica.pid() is None for replica in replicas):
        return
    role = _PREFERRED_ROLE if any(r == _PREFERRED_ROLE for _, r in dialect.process_roles) else "api_server"
    for name, kind in SIGNALS.items():
        about = f"{name.upper()} to the {role.replace('_', ' ')}" + ("" if kind.undo_number is None else ", for 5 s")
        yield Offer("process", name, f"{name}_{role}", about, params={"role": role})
