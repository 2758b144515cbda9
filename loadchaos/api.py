"""Public interface for plugins: the types of loadchaos' own tables. docs/how-to/plugins.md describes each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadchaos.analysis.classify.signature_file import SIGNATURES
from loadchaos.analysis.oracles import ORACLES, Oracle
from loadchaos.analysis.verdict.model import CheckResult, NotJudged
from loadchaos.chaos.base import NOTHING_TO_UNDO, ActResult, Attack, AttackContext, AttackedReplica
from loadchaos.core.attack_names import PLUGIN_ATTACKS
from loadchaos.core.http_answer import HttpAnswer
from loadchaos.core.ledger.rows import EndRow, QuestionRow
from loadchaos.core.model import Facts
from loadchaos.core.plugins import PluginError, PluginTable
from loadchaos.core.rng import Rng
from loadchaos.load.behaviours import BEHAVIOURS, Behaviour
from loadchaos.load.endpoints import ENDPOINTS, ModelEndpoint
from loadchaos.load.payloads import PAYLOADS, Payload
from loadchaos.load.wire.answer_reader import AnswerReader
from loadchaos.load.wire.exchange import Exchange
from loadchaos.load.wire.request import Request
from loadchaos.profile.trace_formats import FORMATS, Arrival, TraceFormat
from loadchaos.report.export.notify import NOTIFIERS, Notifier
from loadchaos.server.dialects import DIALECTS, Dialect
from loadchaos.server.dialects.base import AdminOperation, DetectionSign, MetricName, patterns

__all__ = [
    "API_VERSION", "NOTHING_TO_UNDO", "TABLES", "ActResult", "AdminOperation", "AnswerReader", "Arrival", "Attack",
    "AttackContext", "AttackedReplica", "Behaviour", "CheckResult", "DetectionSign", "Dialect", "EndRow", "Exchange",
    "Facts", "HttpAnswer", "MetricName", "ModelEndpoint", "NotJudged", "Notifier", "Oracle", "Payload", "PluginError",
    "QuestionRow", "Request", "Rng", "TraceFormat", "patterns", "require",
]  # fmt: skip

API_VERSION = 1
"""It is raised when a plugin that works would no longer do so."""

TABLES: Mapping[str, PluginTable[Any]] = {
    "payloads": PAYLOADS,
    "behaviours": BEHAVIOURS,
    "endpoints": ENDPOINTS,
    "dialects": DIALECTS,
    "oracles": ORACLES,
    "signatures": SIGNATURES,
    "trace_formats": FORMATS,
    "attacks": PLUGIN_ATTACKS,
    "notifiers": NOTIFIERS,
}
"""Table by kind: the group of its entry points is `loadchaos.KIND`."""


def require(version: int) -> None:
    """Raise PluginError where the plugin was written for another version of this module."""
    if version != API_VERSION:
        raise PluginError(f"it needs version {version} of loadchaos.api, and this loadchaos has {API_VERSION}")
