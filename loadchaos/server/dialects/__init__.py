"""SHELF of values: what each kind of server calls its endpoints, metrics and errors. Data only; whoever needs it acts.

A new dialect is one file with one `Dialect` value, and one entry in DIALECTS. `dialect.at(version)` is the dialect as
an older version speaks it.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadchaos.server.dialects.base import AdminOperation, Dialect, Era, MetricName, version_key
from loadchaos.server.dialects.lmdeploy import LMDEPLOY
from loadchaos.server.dialects.openai import OPENAI
from loadchaos.server.dialects.sglang import SGLANG
from loadchaos.server.dialects.vllm import VLLM

__all__ = ["DIALECTS", "AdminOperation", "Dialect", "Era", "MetricName", "version_key"]

DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (VLLM, LMDEPLOY, SGLANG, OPENAI)}
