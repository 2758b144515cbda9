"""The shape of a dialect: everything that differs from server to server, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadchaos.model import Outcome


@dataclass(frozen=True)
class AdminOperation:
    """One operation on the server's admin surface. `gate` says in words what turns it on (shown when it is missing)."""

    name: str
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    gate: str = ""
    effects: Sequence[str] = ()
    undo: str | None = None
    destructive: bool = True


@dataclass(frozen=True)
class MetricName:
    """One of our metric names and the server's names for it, newest first; `part` is "" or "_count" or "_sum"."""

    ours: str
    theirs: Sequence[str]
    part: str = ""


@dataclass(frozen=True)
class Dialect:
    """All that is particular to one kind of server. Regexes are searched in texts as the server sends them.

    `validation` are texts of a refusal that is the client's fault (outcome `rejected`); `shed` are texts of admission
    control; `engine_dead` are texts by which the server says its engine is gone. `health_ok` are the statuses of
    /health that mean healthy; `health_knows_death` is False where /health is a constant.
    """

    name: str
    title: str
    health_path: str = "/health"
    health_ok: Sequence[int] = (200,)
    health_knows_death: bool = True
    models_path: str = "/v1/models"
    chat_path: str = "/v1/chat/completions"
    completions_path: str = "/v1/completions"
    tokenize_path: str | None = None
    version_path: str | None = None
    metrics_path: str | None = "/metrics"
    sends_done: bool = True
    validation: Sequence[re.Pattern[str]] = ()
    shed: Sequence[re.Pattern[str]] = ()
    engine_dead: Sequence[re.Pattern[str]] = ()
    metrics: Sequence[MetricName] = ()
    admin: Mapping[str, AdminOperation] = field(default_factory=dict)
    development_gate: str = ""
    over_length: Sequence[Outcome] = ("rejected",)
    exact_output: Mapping[str, str] = field(default_factory=dict)
