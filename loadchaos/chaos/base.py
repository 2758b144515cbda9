"""The base of the attacks, the replica they act on, and the result of one act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect

if TYPE_CHECKING:
    from loadchaos.chaos.network import LocalProxy


@dataclass(frozen=True)
class AttackedReplica:
    """One server to attack. `admin_url`: without /v1; `pid`: gives the root of its processes now (a restart changes it),
    None where it is not on this machine; `proxy`: between our clients and it.
    """

    name: str
    admin_url: str
    pid: Callable[[], int | None] = lambda: None
    proxy: LocalProxy | None = None


@dataclass(frozen=True)
class ActResult:
    """The result of one act. `ok` is None where it is not known: no answer, or the run stopped before it came."""

    ok: bool | None
    status: int | None = None
    text: str = ""


NOTHING_TO_UNDO = ActResult(ok=True, text="nothing to undo")


class Attack:
    """One operation on a server: `begin` does it, `undo` takes it back. No method raises for what a server does. `undo`
    may be called without need and after a failed `begin`; it must then do no harm.
    """

    name: str
    """The name in the ledger and the report."""
    effects: Sequence[str]
    """Failure ids and outcomes that the attack may cause by itself."""
    holds: bool = True
    """The server stays changed until `undo`: a pause, a sleep or a stopped process holds, a cache reset does not."""
    fields: AttackDetail = {}  # noqa: RUF012 - never changed
    """Ledger fields of this kind of attack."""
    undone_by: str | None = None
    """The name of the operation that takes it back, such as wake_up."""

    def row_fields(self, replica: AttackedReplica) -> AttackDetail:  # noqa: ARG002 - most need no replica
        """Return the ledger fields of this kind of attack. Called once before each `begin`: a process attack chooses
        its process here.
        """
        return self.fields

    async def begin(self, replica: AttackedReplica) -> ActResult:
        raise NotImplementedError

    async def undo(self, replica: AttackedReplica) -> ActResult:
        raise NotImplementedError

    def without_effect(self, replica: AttackedReplica) -> str:  # noqa: ARG002 - most show it when they begin
        """Say, after `undo`, why the act had no effect; empty: it had one, or nothing tells."""
        return ""

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        raise NotImplementedError


@dataclass(frozen=True)
class AttackContext:
    """Objects that an attack may need beside its entry in the profile."""

    dialect: Dialect
    client: httpx.AsyncClient
    redactor: Redactor
    version: str | None = None


AttackFactory = Callable[[Any, Mapping[str, object], AttackContext], Attack]
"""Makes an attack of the value under its kind's key (`{admin: reset_mm_cache}` gives "reset_mm_cache") and its params.

It raises OptionError where they are not valid."""
