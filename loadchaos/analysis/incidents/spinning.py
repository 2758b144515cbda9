"""A hang whose engine core computes and gets nowhere, told by name where the log had said what comes before it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import PurePath

from loadchaos.analysis.classify.signature_file import load
from loadchaos.analysis.classify.versions import within
from loadchaos.analysis.failure import Failure, evidence
from loadchaos.analysis.request_stats import S
from loadchaos.core.model import Facts, Row
from loadchaos.server.dialects import DIALECTS, UNKNOWN

ID = "mm_cache_spin"
_DESYNC = "Expected a cached item for mm_hash"
_AFFECTED = ">=0.11.0, <0.24.0"  # 0.23.0 still puts a key into the order that it does not hold, 0.24.0 does not (read)
_SPINS = 0.2
"""Of a processor: a machine that others use leaves it no more, and an engine that waits uses a hundredth of that."""
_SEEN_FOR_NS = 20 * S


@dataclass
class _Engine:
    """One life of a server: when its log told of the lost image, and what its engine core used lately (at, CPU s)."""

    lost_ns: int | None = None
    used: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=400))


class SpinningDetector:
    """Folds log, process, launch and state rows; `found` names hangs, each once."""

    def __init__(self) -> None:
        self.facts: Facts | None = None
        self._engines: dict[str, _Engine] = {}
        self._pending: list[Failure] = []

    def feed(self, row: Row) -> None:
        """Fold one row; other kinds change nothing."""
        kind, replica = row.get("row"), str(row.get("replica"))
        if kind == "log" and _DESYNC in str(row.get("text", "")):
            writer = PurePath(str(row.get("source") or "")).stem
            for name, engine in self._engines.items():
                if writer == name or writer not in self._engines:
                    engine.lost_ns = engine.lost_ns or int(row.get("at_ns") or 0)
        elif kind == "process" and row.get("role") == "engine_core":
            engine = self._engines.setdefault(replica, _Engine())
            if row.get("what") == "sample" and row.get("cpu_s") is not None:
                engine.used.append((int(row["at_ns"]), float(row["cpu_s"])))
            elif row.get("what") == "gone":
                del self._engines[replica]
        elif kind == "state" and row.get("to") == "hung" and row.get("engine") is None:
            self._hung(replica, row)

    def _hung(self, replica: str, row: Row) -> None:
        engine = self._engines.get(replica)
        if engine is None or engine.lost_ns is None or self._cured():
            return
        since_ns = int(row.get("since_ns") or row["at_ns"])
        used = [u for u in engine.used if u[0] >= since_ns]
        if not used or used[-1][0] - used[0][0] < _SEEN_FOR_NS:
            return
        seconds, cpu_s = (used[-1][0] - used[0][0]) / S, used[-1][1] - used[0][1]
        if cpu_s < _SPINS * seconds:
            return
        signature = load().get(ID)
        assert signature is not None
        text = f"the engine core used {cpu_s:.0f} s of CPU in {seconds:.0f} s in which nothing moved, after the log's"
        shown = evidence("figures", f"{text} `{_DESYNC}`")
        issues = tuple({"issue": i, **load().known.get(i, {})} for i in signature.known)
        self._pending.append(
            Failure(
                ID,
                signature.severity,
                signature.title,
                shown,
                since_ns,
                process=replica,
                known=issues,
                remedy=signature.remedy,
            )
        )

    def _cured(self) -> bool:
        facts = self.facts
        if facts is None:
            return False
        repository = DIALECTS.get(facts.dialect, UNKNOWN).repository
        signature = load().get(ID)
        if signature is None or not any(issue.startswith(f"{repository}#") for issue in signature.known):
            return True
        return facts.version is not None and within(_AFFECTED, facts.version) is False

    def found(self) -> list[Failure]:
        """Hangs that have got a name since the last call."""
        pending, self._pending = self._pending, []
        return pending
