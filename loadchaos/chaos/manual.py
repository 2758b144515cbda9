"""What could be fired at a server by hand: the dialect's admin operations, and signals to processes that are here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadchaos.chaos.base import AttackedReplica
from loadchaos.chaos.process import SIGNALS
from loadchaos.server.dialects import Dialect, version_key

_AIM = "engine_core"


@dataclass(frozen=True)
class Offer:
    """One button: what Attacks.fire takes, how the ledger will call it, what it does, and what turns it on in the server."""

    kind: str
    name: str
    title: str
    about: str
    needs: str = ""
    params: dict[str, Any] = field(default_factory=dict)


def offers(dialect: Dialect, replicas: Sequence[AttackedReplica], version: str | None) -> list[Offer]:
    """In the dialect's own order; nothing that came after the server's version."""
    found = [
        Offer("admin", o.name, o.name, f"{o.method} {o.path}", o.gate)
        for o in dialect.admin.values()
        if o.destructive and not _later(o.since, version)
    ]
    return [*found, *_signals(dialect, replicas)]


def _later(since: str, version: str | None) -> bool:
    needed, there = version_key(since), version_key(version)
    return needed is not None and there is not None and there < needed


def _signals(dialect: Dialect, replicas: Sequence[AttackedReplica]) -> Iterator[Offer]:
    if any(replica.pid() is None for replica in replicas):
        return
    role = _AIM if any(r == _AIM for _, r in dialect.process_roles) else "api_server"
    for name in SIGNALS:
        about = f"{name.upper()} to the {role.replace('_', ' ')}" + (", for 5 s" if name == "sigstop" else "")
        yield Offer("process", name, f"{name}_{role}", about, params={"role": role})
