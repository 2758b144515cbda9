"""Parse a Prometheus page into our metric names. A series is parsed once and then known by its text: 1 ms for 3,000."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadchaos.server.dialects.base import MetricName

MOST_SERIES = 20_000
"""Series read of a page of metrics: a server that adds labels without end must not fill our memory, nor take our CPU."""
_LONGEST_LINE_BYTES = 1 << 16
_LARGEST = float(1 << 62)  # no count of a server: overflowed, and too large for a row of the ledger
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OTHER = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*[ \t]*(?:\{[^\n]*\})?[ \t]+[^ \t]+(?:[ \t]+-?[0-9.]+)?[ \t\r]*")
"""A line of a metric that is not read: the form is enough."""
EVERY_ENGINE = "*"


@dataclass(frozen=True)
class _Series:
    """One of our names that a series belongs to. `rank` is the position of the server's name in the list."""

    ours: str
    rank: int
    engine: str
    value: float | None  # of an info metric: the value of its label


def _engine(labels: Mapping[str, str]) -> str:
    return labels.get("engine", EVERY_ENGINE)


class PageParser:
    """Parses the pages of one server. `bad_lines` of the last page are no exposition, `unread` are beyond MOST_SERIES.
    `group_of`: group of a series, usually the engine; None leaves it out.
    """

    def __init__(
        self, names: Sequence[MetricName], group_of: Callable[[Mapping[str, str]], str | None] = _engine
    ) -> None:
        self._group_of = group_of
        self._wanted: dict[str, list[tuple[MetricName, int]]] = {}
        for name in names:
            for rank, theirs in enumerate(name.theirs):
                self._wanted.setdefault(theirs + name.part, []).append((name, rank))
        self._wanted_names = {name.encode() for name in self._wanted}
        self._known: dict[bytes, tuple[_Series, ...]] = {}
        self.bad_lines = 0
        self.unread = 0

    def parse(self, page: bytes) -> dict[str, dict[str, float]]:
        """Values by engine and our name, summed over other labels. Series without an engine label count for every
        engine; without any it is engine "0".
        """
        self.bad_lines = self.unread = 0
        found: dict[tuple[str, str], tuple[int, float]] = {}
        known = self._known
        for line in page.split(b"\n"):
            if not line or line[0] == 0x23:  # "#"
                continue
            text, _, number = line.rpartition(b" ")
            series = known.get(text)
            if series is None:
                name = _NAME.match(line)
                if name is None or name[0] not in self._wanted_names or len(line) > _LONGEST_LINE_BYTES:
                    self.bad_lines += len(line) > _LONGEST_LINE_BYTES or _OTHER.fullmatch(line) is None
                    continue
                if len(known) >= MOST_SERIES:
                    self.unread += 1
                    continue
                number, series = self._learn(line, text, number)
            if series:
                self._add(found, series, number)
        return _by_engine(found)

    def _add(self, found: dict[tuple[str, str], tuple[int, float]], many: tuple[_Series, ...], number: bytes) -> None:
        for series in many:
            try:
                value = float(number) if series.value is None else series.value
            except ValueError:
                self.bad_lines += 1
                return
            if not math.isfinite(value) or abs(value) > _LARGEST:
                continue
            key = (series.engine, series.ours)
            rank, so_far = found.get(key, (series.rank, 0.0))
            if series.rank > rank:
                continue
            if series.rank < rank:
                so_far = 0.0
            # Two ranks with the same cache_config_info have one capacity, not twice as much.
            together = so_far + value if series.value is None else max(so_far, value)
            found[key] = (series.rank, together)

    def _learn(self, line: bytes, text: bytes, number: bytes) -> tuple[bytes, tuple[_Series, ...]]:
        try:
            sample = _sample(line)
        except ValueError:
            self.bad_lines += 1
            return number, ()
        series = tuple(self._series(sample))
        if sample.timestamp is not None:
            # The text before the last blank holds the value here and changes with it: it cannot be a key.
            return str(sample.value).encode(), series
        self._known[text] = series
        return number, series

    def _series(self, sample: Sample) -> list[_Series]:
        engine = self._group_of(sample.labels)
        found: list[_Series] = []
        if engine is None:
            return found
        for name, rank in self._wanted.get(sample.name, ()):
            value = None
            if name.label:
                try:
                    value = float(sample.labels[name.label])
                except (KeyError, ValueError):  # an older page without this label, or "None"
                    continue
            found.append(_Series(name.ours, rank, engine, value))
        return found


def _sample(line: bytes) -> Sample:
    try:
        for family in text_string_to_metric_families(line.decode("utf-8") + "\n"):
            for sample in family.samples:
                return sample
    except (ValueError, KeyError, IndexError) as e:
        raise ValueError(f"no sample: {line[:80]!r}") from e
    raise ValueError(f"no sample: {line[:80]!r}")


def _by_engine(found: dict[tuple[str, str], tuple[int, float]]) -> dict[str, dict[str, float]]:
    engines: dict[str, dict[str, float]] = {}
    for (engine, ours), (_, value) in found.items():
        engines.setdefault(engine, {})[ours] = value
    common = engines.pop(EVERY_ENGINE, {})
    if not engines:
        return {"0": common} if common else {}
    return {engine: {**common, **values} for engine, values in sorted(engines.items())}
