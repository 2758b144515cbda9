"""W3C `traceparent` of a request, made from its id in the ledger. https://www.w3.org/TR/trace-context/: version, trace
id, span id, flags (1: sampled).
"""

from __future__ import annotations

import hashlib


def traceparent(request_id: str) -> str:
    """Make the header's value. Trace id and span id are the first 16 and the next 8 bytes of the id's BLAKE2b with 24."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-01"
