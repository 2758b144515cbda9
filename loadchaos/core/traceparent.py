"""W3C `traceparent` of a request, made from its id in the ledger. https://www.w3.org/TR/trace-context/: version, trace
id, span id, flags (1: sampled).
"""

from __future__ import annotations

import hashlib


def trace_ids(request_id: str) -> tuple[str, str]:
    """Make trace id and span id of a request in hex. They are the first 16 and the next 8 bytes of the id's BLAKE2b
    with 24 bytes.
    """
    digest = hashlib.blake2b(request_id.encode(), digest_size=24).hexdigest()
    return digest[:32], digest[32:]


def traceparent(request_id: str) -> str:
    """Make the header's value; equal ids give equal values."""
    trace_id, span_id = trace_ids(request_id)
    return f"00-{trace_id}-{span_id}-01"
