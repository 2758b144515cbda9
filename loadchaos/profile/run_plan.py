"""Contents of plan.json: what a load process needs to know of a run, beside the facts of the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadchaos.core.tls import TlsSettings
from loadchaos.core.typed_json import IF_KNOWN, from_json
from loadchaos.profile.steps import SentSteps


@dataclass(frozen=True)
class ResumePoint:
    """Position in a plan at which a load is resumed. `left`: requests to send; None where time ends the load. `sent`:
    last steps sent by earlier runs, by worker. `loaded_s`: of the interrupted run.
    """

    run: str
    phase: int
    step: int
    behind_s: float
    left: int | None
    sent: SentSteps
    loaded_s: float


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan of a run. Secrets are in it by the names of their variables. `via`: proxy for the connections. A worker on
    another machine has its own folder `spool` and its number; request ids carry the `tag` of the run. `model`: that of
    a Locust that the user runs.
    """

    profile: Mapping[str, Any]
    seed: int
    base_url: str
    via: tuple[str, int] | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    folder: str
    workers: int = 1
    tls: TlsSettings = field(default_factory=TlsSettings)
    resume: ResumePoint | None = None
    spool: str | None = field(default=None, metadata=IF_KNOWN)
    worker: int | None = field(default=None, metadata=IF_KNOWN)
    tag: str | None = field(default=None, metadata=IF_KNOWN)
    model: str | None = field(default=None, metadata=IF_KNOWN)

    @classmethod
    def read(cls, file: Path) -> RunPlan:
        """Read plan.json. Raises OSError or ValueError where it cannot be read."""
        return from_json(cls, orjson.loads(file.read_bytes()))
