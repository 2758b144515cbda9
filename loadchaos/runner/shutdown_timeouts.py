"""How long the parts of a run's end may take: a run that nobody waits for, one that was interrupted, and once more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShutdownTimeouts:
    """Limits in seconds; `drain_s` None: as long as the load itself takes for its requests in flight."""

    drain_s: float | None
    locust_s: float
    locust_term_s: float
    settle_s: float
    server_s: float
    follower_s: float


_IN_PEACE = ShutdownTimeouts(
    None, 8.0, 3.0, 6.0, 3.0, 10.0
)  # a dead vLLM's API server takes up to 5 s to exit, and says why meanwhile
_INTERRUPTED = ShutdownTimeouts(1.0, 2.5, 1.0, 1.0, 2.0, 2.0)  # together under 10 s, with the verdict and the report
_AT_ONCE = ShutdownTimeouts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SHUTDOWN_TIMEOUTS = (_IN_PEACE, _INTERRUPTED, _AT_ONCE)
"""By how often the user has interrupted."""
