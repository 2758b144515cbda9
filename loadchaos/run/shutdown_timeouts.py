"""Shutdown timeouts per phase: normal end, after one Ctrl-C, after two."""

from __future__ import annotations

from dataclasses import dataclass

from loadchaos.analysis.state.limits import BALANCER_NS
from loadchaos.core.limits import LAST_LINES_S


@dataclass(frozen=True)
class ShutdownTimeouts:
    """Limits in seconds for each phase of a run's end.

    Args:
        drain_s: for requests in flight; None: as long as the load itself allows them.
        locust_s: from the stop command until Locust is ended by a signal.
        locust_term_s: from SIGTERM to SIGKILL for Locust.
        settle_s: for a dying server to write its last log lines and exit.
        restart_s: until it is clear whether the server restarted.
        server_s: from SIGTERM to SIGKILL for a server that the run started.
        follower_s: for the follower to read the ledger to its end.
    """

    drain_s: float | None
    locust_s: float
    locust_term_s: float
    settle_s: float
    restart_s: float
    server_s: float
    follower_s: float


_RESTART_S = BALANCER_NS / 1e9 + 2.0  # and until the next scrape has been folded
_NORMAL = ShutdownTimeouts(None, 8.0, 3.0, LAST_LINES_S, _RESTART_S, 3.0, 10.0)
_INTERRUPTED = ShutdownTimeouts(
    1.0, 2.5, 1.0, 1.0, 1.0, 2.0, 2.0
)  # together under 10 s, with the verdict and the report
_IMMEDIATE = ShutdownTimeouts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SHUTDOWN_TIMEOUTS = (_NORMAL, _INTERRUPTED, _IMMEDIATE)
"""Indexed by the number of interrupts: 0, 1, 2 or more."""
