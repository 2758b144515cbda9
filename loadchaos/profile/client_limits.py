"""Time limits of a client, retry and back-off."""

from __future__ import annotations

from loadchaos.core.unit_fields import DurationS
from loadchaos.profile.base import ProfilePart


class ClientLimits(ProfilePart):
    """Limits of a client in seconds: first byte and gap between bytes (then the outcome is `stalled`), total (`timeout`).
    `retry_idle`: a request is sent again if its
    connection was idle for longer and closed before a byte of the answer. `backoff`: pause of a user after an error,
    doubled after each further one, up to `backoff_max`; 0s: none.
    """

    first_byte: DurationS = 120.0
    between_bytes: DurationS = 30.0
    total: DurationS = 600.0
    retry_idle: DurationS = 0.5
    backoff: DurationS = 0.1
    backoff_max: DurationS = 2.0
