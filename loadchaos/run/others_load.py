"""Load of others beside which a run watches: traffic that nobody here sees, or clients of our recording proxy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from loadchaos.core import typed_json
from loadchaos.core.ledger.row_fold import RowFold
from loadchaos.core.lifetime import PYTHON_MODULE
from loadchaos.core.tls import TlsSettings
from loadchaos.run.children import Locust

SETUP_VARIABLE = "LOADCHAOS_PROXY"
"""JSON of `ProxySetup`; no file, as the words of a command may hold keys."""


@dataclass(frozen=True)
class OthersOptions:
    """Load that a run watches in place of its own. The requests of a `command` come through a recording proxy, which
    listens at `listen` in a process of the module `proxy_module`. A proxy without a command serves the clients of
    others; without both nobody sees requests.
    """

    command: Sequence[str] = ()
    listen: tuple[str, int] | None = None
    proxy_module: str = ""

    @property
    def has_proxy(self) -> bool:
        return bool(self.command) or self.listen is not None

    @property
    def watched(self) -> Literal["traffic", "requests", "command"]:
        return "command" if self.command else "requests" if self.listen is not None else "traffic"


@dataclass(frozen=True)
class ProxySetup:
    """Settings of the process with the proxy. `via`: where it connects to, if not to the server of `url`."""

    folder: str
    url: str
    via: tuple[str, int] | None
    tls: TlsSettings
    listen: tuple[str, int]
    command: Sequence[str]


class UnseenLoad(RowFold):
    """Traffic that loadchaos neither sends nor sees. The run watches until it is told to end."""

    pid = None

    def __init__(self) -> None:
        self.alive = False

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:  # noqa: ARG002 - as a load process
        self.alive = True

    def lost_reason(self) -> str | None:
        return None

    async def end(self, grace_s: float) -> None:  # noqa: ARG002 - as a load process
        self.alive = False

    def record_exit(self) -> None:
        self.alive = False

    def failure(self) -> str | None:
        return None


class ProxyLoad(Locust):
    """Process with the recording proxy and the command that is the load. It writes the rows of the requests."""

    async def begin(self, argv: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        # Its output is that of the command.
        await self.start([*PYTHON_MODULE, *argv], variables or {}, None)
        self._emit({"row": "locust", "at_ns": time.monotonic_ns(), "what": "start", "pid": self.pid, "code": None})


def proxy_variables(setup: ProxySetup) -> dict[str, str]:
    return {SETUP_VARIABLE: json.dumps(typed_json.to_json(setup))}
