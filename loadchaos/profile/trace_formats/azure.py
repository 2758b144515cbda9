"""Azure LLM inference traces of 2023 and 2024. CSV with `TIMESTAMP` (UTC, up to seven digits of a second),
`ContextTokens`, `GeneratedTokens`. https://github.com/Azure/AzurePublicDataset (AzureLLMInferenceDataset2023.md,
AzureLLMInferenceDataset2024.md)
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime

from loadchaos.profile.trace_formats.base import csv_format

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:\+00:00|Z)?")


def _at_ms(text: str) -> float:
    if (match := _TIME.fullmatch(text)) is not None:
        with suppress(ValueError):  # a date that no calendar has
            at_s = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() + float(match[2] or 0)
            return at_s * 1000
    raise ValueError("a time such as 2023-11-16 18:15:46.6805900 was expected")


FORMAT = csv_format("Azure LLM inference traces (CSV)", "TIMESTAMP", _at_ms, "ContextTokens", "GeneratedTokens")
