"""The shape of an attack, and what one act of it came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from loadchaos.chaos.toxics import Toxic
from loadchaos.core.ledger.rows import AttackDetail
from loadchaos.core.redact import Redactor
from loadchaos.server.dialects import Dialect


class TrafficProxy(Protocol):
    """The way from our clients to the server, on which toxics are laid. OSError where that could not be done."""

    async def add(self, one: Toxic) -> tuple[int, int] | None:
        """From now on; how many connections it hits now, of how many, where that is told."""
        ...

    async def remove(self, name: str) -> None:
        """No more."""
        ...


def _elsewhere() -> int | None:
    return None


@dataclass(frozen=True)
class AttackedReplica:
    """One server to act on: its name in the ledger and the root of its admin URLs (no /v1).

    `pid` gives the root of its processes as of now (a restart changes it), None for a server that is not on this machine.
    `path` is the proxy between our clients and it, where there is one.
    """

    name: str
    admin_url: str
    pid: Callable[[], int | None] = _elsewhere
    path: TrafficProxy | None = None


@dataclass(frozen=True)
class ActResult:
    """What one act came to, as the server told it. `ok` None: it is not known (no answer, or we were stopped)."""

    ok: bool | None
    status: int | None = None
    text: str = ""
    took_ns: int | None = None


class Attack(Protocol):
    """One kind of operation on a server. `effects` are failures and outcomes it may cause by itself.

    `holds` says that `begin` leaves the server changed until `undo`: a pause, a sleep, a stopped process. `undo` may be
    called without need and after a failed `begin`; it must then do no harm. Neither raises for what a server does.
    """

    @property
    def name(self) -> str:
        """As the ledger and the profile call it."""
        ...

    @property
    def effects(self) -> Sequence[str]:
        """Failure ids and outcomes."""
        ...

    @property
    def holds(self) -> bool:
        """Whether there is something to take back."""
        ...

    @property
    def undone_by(self) -> str | None:
        """The operation by which it is taken back, where that has a name of its own: wake_up."""
        ...

    def about(self, replica: AttackedReplica) -> AttackDetail:
        """What its rows say beside its name, asked once before each `begin`: the pid and signal of a process attack."""
        ...

    async def begin(self, replica: AttackedReplica) -> ActResult:
        """Do it."""
        ...

    async def undo(self, replica: AttackedReplica) -> ActResult:
        """Take it back."""
        ...

    async def preflight(self, replica: AttackedReplica) -> ActResult:
        """Whether this server offers it, without doing it."""
        ...


class AttackFactory(Protocol):
    """Makes an attack out of what a profile's entry says. OptionError where that is no such attack."""

    def __call__(
        self,
        spec: Any,
        params: Mapping[str, Any],
        dialect: Dialect,
        client: httpx.AsyncClient,
        redactor: Redactor,
        version: str | None,
        /,
    ) -> Attack:
        """`spec` is the value under the kind's key: `{admin: reset_mm_cache}` gives "reset_mm_cache"."""
        ...
