"""Keep the answers of a server to discovery, for later runs. What it says about itself lasts as long as its process,
token counts and limits as long as its launch command, if it identifies itself by the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loadchaos.core.model import Facts

if TYPE_CHECKING:
    from loadchaos.server.discovery.client import DiscoveryResponse

Key = tuple[str, str, bytes]
"""Method, URL and body of a request."""
REFUSED_NOW = frozenset({401, 403, 408, 429})
"""Refusals that another try may not get."""


@dataclass
class DiscoveryMemory:
    """Answers by request. `generated`: the process has answered a request that runs the model."""

    generated: bool = False
    _process: dict[Key, DiscoveryResponse] = field(default_factory=dict)
    _command: dict[Key, DiscoveryResponse] = field(default_factory=dict)
    _identity: tuple[object, ...] = ()

    def restarted(self) -> None:
        self._process.clear()
        self.generated = False

    def identified(self, facts: Facts) -> bool:
        """Note what a server is. Another one than before: forget everything and return False."""
        identity = (facts.dialect, facts.version, facts.model, facts.max_model_len, facts.lora_adapters)
        same = self._identity in ((), identity)
        if not same:
            self._command.clear()
        self._identity = identity
        return same

    def answer(self, key: Key, *, process: bool = False) -> DiscoveryResponse | None:
        """Answer to the same request before, of this process or (without `process`) of its command."""
        return self._process.get(key) or (None if process else self._command.get(key))

    def keep(self, key: Key, answer: DiscoveryResponse, *, process: bool) -> None:
        """Keep an answer, but no 5xx, broken connection or refusal that may end."""
        if 200 <= answer.status < 500 and answer.status not in REFUSED_NOW:
            (self._process if process else self._command)[key] = answer
