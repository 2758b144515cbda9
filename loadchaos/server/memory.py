"""Keep what several runs on one server have asked the idle server. A hunt has many short runs on one server. What the
first of them learned is not asked again while the process of the server lives. After a restart the facts of the server
and one question show whether it still holds.
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
