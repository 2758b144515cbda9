"""BurstGPT: requests to ChatGPT and GPT-4 in a campus region. CSV with `Timestamp` (seconds), `Model`, `Request
tokens`, `Response tokens`, `Total tokens`, `Log Type`. A request with 0 response tokens failed there and is left out.
https://github.com/HPMLL/BurstGPT
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from loadchaos.profile.trace_formats.base import Arrival, TraceFormat, answered, whole


def _arrivals(row: Mapping[str, object]) -> Iterable[Arrival]:
    try:
        at_s = float(str(row["Timestamp"]))
        if not math.isfinite(at_s) or at_s < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"Timestamp: at least 0 seconds were expected (got {row['Timestamp']!r})") from None
    sent, came = (whole(row[name], name) for name in ("Request tokens", "Response tokens"))
    return answered(at_s * 1000, sent, came)


FORMAT = TraceFormat(
    "BurstGPT (CSV)", frozenset({"Timestamp", "Request tokens", "Response tokens"}), _arrivals, is_csv=True
)
