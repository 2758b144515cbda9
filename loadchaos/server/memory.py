"""Answers of the idle server, which several short runs on it need not ask again while its process lives. After a
restart its facts and one question show whether they still hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadchaos.core.model import Facts
from loadchaos.server.discovery.memory import DiscoveryMemory
from loadchaos.server.probes.memory import ProbeMemory


@dataclass
class ServerMemory:
    """Answers to discovery and to questions of the idle server."""

    discovery: DiscoveryMemory = field(default_factory=DiscoveryMemory)
    probes: ProbeMemory = field(default_factory=ProbeMemory)

    def restarted(self) -> None:
        """Note that another process of the same command answers from now on."""
        self.discovery.restarted()
        self.probes.confirmed = False

    def identified(self, facts: Facts) -> None:
        if not self.discovery.identified(facts):
            self.probes.forget()
