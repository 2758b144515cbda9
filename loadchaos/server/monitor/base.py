"""Define where the monitor writes and how it reaches the server."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadchaos.core.ledger.rows import Emit
from loadchaos.core.redact import Redactor


@dataclass(frozen=True)
class MonitorOutput:
    """The monitor's output: rows, raw pages and logs. Files go below the run folder."""

    emit_event: Emit
    emit_metrics: Emit
    folder: Path
    redactor: Redactor

    @property
    def log_folder(self) -> Path:
        return self.folder / "watch" / "logs"


@dataclass(frozen=True)
class ServerAccess:
    """Headers and TLS settings of requests to the server."""

    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
