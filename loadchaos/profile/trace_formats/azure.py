"""Azure LLM inference traces of 2023 and 2024. CSV with `TIMESTAMP` (UTC, up to seven digits of a second),
`ContextTokens`, `GeneratedTokens`. https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md,
AzureLLMInferenceDataset2024.md)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from loadchaos.profile.trace_formats.base import Arrival, TraceFormat, answered, whole

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:\+00:00|Z)?")


def _arrivals(row: Mapping[str, object]) -> Iterable[Arrival]:
    try:
        match = _TIME.fullmatch(str(row["TIMESTAMP"]).strip())
        if match is None:
            raise ValueError
        seconds = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() + float(match[2] or 0)
    except ValueError:  # also of a date that no calendar has
        raise ValueError(
            f"TIMESTAMP: a time such as 2023-11-16 18:15:46.6805900 was expected (got {row['TIMESTAMP']!r})"
        ) from None
    sent, came = (whole(row[name], name) for name in ("ContextTokens", "GeneratedTokens"))
    return answered(seconds * 1000, sent, came)


FORMAT = TraceFormat(
    "Azure LLM inference traces (CSV)",
    frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    _arrivals,
    is_csv=True,
)
