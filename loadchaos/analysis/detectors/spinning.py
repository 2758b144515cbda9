"""Name a hang in which the engine core spins in its image cache."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import PurePath

from loadchaos.analysis.classify.signature_file import load
from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.failure import evidence, of_signature
from loadchaos.core.ledger.rows import LogRow, ProcessRow, StateRow
from loadchaos.core.units import NS_PER_S
from loadchaos.core.version_ranges import within
from loadchaos.server.dialects import DIALECTS, UNKNOWN

ID = "mm_cache_spin"
_DESYNC = "Expected a cached item for mm_hash"
_AFFECTED = ">=0.11.0, <0.24.0"  # 0.23.0 still puts a key into the order that it does not hold, 0.24.0 does not (read)
_SPINS = 0.2
"""Of a processor: a machine that others use leaves it no more, and an engine that waits uses a hundredth of that."""
_OBSERVED_NS = 20 * NS_PER_S


@dataclass
class _Engine:
    """One life of a server: its log marker, and recent (at_ns, CPU s)."""

    lost_ns: int | None = None
    cpu: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=400))


class SpinningDetector(Detector):
    """Folds log, process, facts and state rows."""

    def __init__(self) -> None:
        super().__init__()
        self._engines: dict[str, _Engine] = {}

    def on_log(self, row: LogRow) -> None:
        if _DESYNC not in str(row.get("text", "")):
            return
        writer = PurePath(str(row.get("source") or "")).stem
        for name, engine in self._engines.items():
            if writer == name or writer not in self._engines:
                engine.lost_ns = engine.lost_ns or int(row.get("at_ns") or 0)

    def on_process(self, row: ProcessRow) -> None:
        if row.get("role") != "engine_core":
            return
        replica = str(row.get("replica"))
        engine = self._engines.setdefault(replica, _Engine())
        if row.get("what") == "sample" and row.get("cpu_s") is not None:
            engine.cpu.append((int(row["at_ns"]), float(row["cpu_s"])))
        elif row.get("what") == "gone":
            del self._engines[replica]

    def on_state(self, row: StateRow) -> None:
        if row.get("to") != "hung" or row.get("engine") is not None:
            return
        replica = str(row.get("replica"))
        engine = self._engines.get(replica)
        if engine is None or engine.lost_ns is None or self._fixed_version():
            return
        since_ns = int(row.get("since_ns") or row["at_ns"])
        cpu = [sample for sample in engine.cpu if sample[0] >= since_ns]
        if not cpu or cpu[-1][0] - cpu[0][0] < _OBSERVED_NS:
            return
        seconds, cpu_s = (cpu[-1][0] - cpu[0][0]) / NS_PER_S, cpu[-1][1] - cpu[0][1]
        if cpu_s >= _SPINS * seconds:
            text = f"engine core used {cpu_s:.0f} s of CPU in {seconds:.0f} s without progress, after the log line"
            self._pending.append(
                of_signature(ID, evidence("figures", f"{text} `{_DESYNC}`"), since_ns, process=replica)
            )

    def _fixed_version(self) -> bool:
        facts = self._facts
        if facts is None:
            return False
        repository = DIALECTS.get(facts.dialect, UNKNOWN).repository
        signature = load().get(ID)
        if signature is None or not any(k.issue.startswith(f"{repository}#") for k in load().issues(signature.known)):
            return True
        return facts.version is not None and within(_AFFECTED, facts.version) is False
