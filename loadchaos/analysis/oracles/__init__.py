"""Oracles: find wrong answers without a second server to compare with.

To add one: one file with an `Oracle` (base.py), an entry in `_BUILT_IN`, and title and remedy of a new failure id in
analysis/signatures/figures.toml. The part of `correctness` that asks its questions is in server/probes/parts/.
"""

from __future__ import annotations

from loadchaos.analysis.oracles.adapters import AdaptersOracle
from loadchaos.analysis.oracles.alone_vs_load import AloneVsLoadOracle
from loadchaos.analysis.oracles.base import Oracle
from loadchaos.analysis.oracles.cold_warm import ColdWarmOracle
from loadchaos.analysis.oracles.image_canaries import ImageCanariesOracle
from loadchaos.analysis.oracles.keyed import KeyedOracle
from loadchaos.analysis.oracles.prefix_ladder import PrefixLadderOracle
from loadchaos.analysis.oracles.replicas import ReplicasOracle
from loadchaos.analysis.oracles.streamed import StreamedOracle
from loadchaos.core.plugins import PluginTable

__all__ = ["ORACLES", "Oracle"]

_BUILT_IN: tuple[type[Oracle], ...] = (
    KeyedOracle,
    ReplicasOracle,
    ColdWarmOracle,
    AloneVsLoadOracle,
    StreamedOracle,
    ImageCanariesOracle,
    AdaptersOracle,
    PrefixLadderOracle,
)
ORACLES = PluginTable[type[Oracle]]("oracles", Oracle, {oracle.name: oracle for oracle in _BUILT_IN})
"""Every oracle. Their failures and checks are reported in this order."""
