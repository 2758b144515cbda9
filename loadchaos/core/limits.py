"""Limits that several packages share."""

from __future__ import annotations

# --- starts and ends of a server ------------------------------------------------------------------------------------------

READY_WITHIN_S = 1200.0
"""Wait for a server that we start."""
BACK_WITHIN_S = 120.0
"""Wait for a server that died and that somebody else starts again."""
DEATH_SHOWS_S = 3.0
"""Wait for the signs of a death after a request failed."""
LAST_LINES_S = 6.0
"""Wait for the exit of a dying server: the API server of a dead vLLM takes up to 5 s, and logs the reason meanwhile."""
SIGKILL_GRACE_OF_RUN_S = 3.0
"""From the SIGTERM to a server that loadchaos launched to its SIGKILL, at the end of a run."""
SIGKILL_GRACE_INTERRUPTED_S = 2.0
"""The same after a Ctrl-C."""
SIGKILL_GRACE_OF_LAUNCH_COMMAND_S = 10.0
"""The same for `loadchaos launch`, whose server may have requests of others in flight."""
LEFTOVERS_GRACE_S = 2.0
"""From the exit of such a server to the SIGKILL of processes that it left behind: an orphaned worker of vLLM still writes,
and its last lines may name the cause."""

# --- watching -------------------------------------------------------------------------------------------------------------

HEARTBEAT_S = 0.25
"""Period of the heartbeats of a load worker."""
SCRAPE_EVERY_S = 1.0
"""Period of reads of `/metrics`."""
OUTAGE_S = 3.0
"""Time for which every request has to fail for an outage."""
SILENT_STREAMS = 3
"""Streams that are silent together before their silence proves that the server hangs."""
TOLD_STALL_S = 5.0
"""Time without a token for all requests in flight that the verdict tells, beyond what waiting prompts explain."""

# --- sizes ----------------------------------------------------------------------------------------------------------------

MOST_ANSWER_BYTES = 32 << 20
"""Bytes read of one answer to the monitor or to a request before the load, packed or not."""
MOST_IMAGE_PIXELS = 100_000_000
"""Pixels of an image that is made."""
