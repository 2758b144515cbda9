"""Detect that another server took the place of the one under test: its answers, or its pages, name another version or
model. Several servers behind one address answer in turn, which is a note.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from loadchaos.analysis.detectors.base import Detector, Finding
from loadchaos.analysis.verdict.model import SAME_SERVER, CheckResult
from loadchaos.core.answer_labels import FINGERPRINT
from loadchaos.core.ledger.rows import EndRow, IdentityRow, RunRow
from loadchaos.core.units import NS_PER_S, counted

_ANSWERS = {FINGERPRINT: "the system_fingerprint of answers", "model": "the model that answers name"}
_PAGES = {"version": "its version", "model": "/v1/models"}
_FEWEST = 5
_CHANCE = 1e-4
"""Chance that one of several servers behind an address gave none of the answers before its first one."""
_MOST_VALUES = 100


@dataclass
class _Value:
    first_ns: int
    before: int
    n: int = 0


class ChangedServer(Detector):
    """Folds ok end rows and identity rows; judges at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._values: defaultdict[str, dict[str, _Value]] = defaultdict(dict)  # by source
        self._readings: Counter[str] = Counter()
        self._pages: dict[str, str] = {}
        self._came_back: set[str] = set()
        self._load_ns: int | None = None

    def on_run(self, row: RunRow) -> None:
        if row.get("what") == "load_begin":
            self._load_ns = int(row["at_ns"])

    def on_end(self, row: EndRow) -> None:
        if row.get("outcome") != "ok":
            return
        at_ns = int(row["at_ns"])
        if (fingerprint := (row.get("labels") or {}).get(FINGERPRINT)) is not None:
            self._add(_ANSWERS[FINGERPRINT], fingerprint, at_ns)
        named = (row.get("detail") or {}).get("other_model", "the one that was asked for")
        self._add(_ANSWERS["model"], str(named), at_ns)

    def on_identity(self, row: IdentityRow) -> None:
        for key, value in row["named"].items():
            source = _PAGES.get(key, key)
            if self._pages.get(source) != value:
                self._pages[source] = value
                if value in self._values[source]:
                    self._came_back.add(source)
                self._add(source, value, int(row["at_ns"]))

    def _add(self, source: str, value: str, at_ns: int) -> None:
        values = self._values[source]
        if value in values or len(values) < _MOST_VALUES:
            values.setdefault(value, _Value(at_ns, self._readings[source])).n += 1
        self._readings[source] += 1

    def _is_new(self, source: str, value: _Value) -> bool:
        """True for the value of a server that was not there before."""
        if source in self._pages:
            return value.before > 0 and source not in self._came_back
        share = (value.n - 1) / (self._readings[source] - value.before)
        return value.n >= _FEWEST and (1 - share) ** value.before < _CHANCE

    def finish(self) -> list[Finding]:
        told, mixed = list[str](), list[Finding]()
        for source, values in self._values.items():
            new = [name for name, value in values.items() if self._is_new(source, value)]
            if new:
                first, at_ns = next(iter(values)), values[new[-1]].first_ns
                after_s = (at_ns - (self._load_ns or at_ns)) / NS_PER_S
                told.append(f"{source} was {first!r}, and {new[-1]!r} from {after_s:.0f} s of the load on")
            elif len(values) > 1 and source != _ANSWERS["model"]:
                names = ", ".join(repr(name) for name in list(values)[:3])
                mixed.append(f"{source}: {counted(len(values), 'value')} in turn ({names}): several servers answer")
        return [CheckResult(SAME_SERVER, "one server", "; ".join(told), "unknown"), *mixed] if told else mixed
