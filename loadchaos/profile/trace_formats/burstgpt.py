"""BurstGPT: requests to ChatGPT and GPT-4 in a campus region. CSV with `Timestamp` (seconds), `Model`, `Request
tokens`, `Response tokens`, `Total tokens`, `Log Type`. A request with 0 response tokens failed there and is left out.
https://github.com/HPMLL/BurstGPT
"""

from __future__ import annotations

import math

from loadchaos.profile.trace_formats.base import csv_format


def _at_ms(text: str) -> float:
    try:
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not 0 <= at_s < math.inf:
        raise ValueError("at least 0 seconds were expected")
    return at_s * 1000


FORMAT = csv_format("BurstGPT (CSV)", "Timestamp", _at_ms, "Request tokens", "Response tokens")
