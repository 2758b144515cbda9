"""Reads a Prometheus page into our names: each series is parsed once by prometheus-client, then known by its text.

3,000 lines cost about 1 ms: a line is cut at its last blank and looked up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from loadchaos.server.dialects import MetricName

_MOST_SERIES = 100_000  # a server that makes new labels without end does not fill our memory
EVERY_ENGINE = "*"


@dataclass(frozen=True)
class _Series:
    """What one series of the page is for us: which of our names, how far down its list of names, whose engine."""

    ours: str
    rank: int
    engine: str
    value: float | None  # of an info metric: its label is the value, whatever the sample says


def _engine(labels: Mapping[str, str]) -> str:
    return labels.get("engine", EVERY_ENGINE)


class PageParser:
    """Parses pages of one server. `bad_lines` counts lines of the last page that are no exposition.

    `whose` says by its labels what a series belongs to: an engine as a rule; None leaves it out.
    """

    def __init__(self, names: Sequence[MetricName], whose: Callable[[Mapping[str, str]], str | None] = _engine) -> None:
        self._whose = whose
        self._wanted: dict[str, list[tuple[MetricName, int]]] = {}
        for name in names:
            for rank, theirs in enumerate(name.theirs):
                self._wanted.setdefault(theirs + name.part, []).append((name, rank))
        self._known: dict[bytes, tuple[_Series, ...]] = {}
        self.bad_lines = 0

    def parse(self, page: bytes) -> dict[str, dict[str, float]]:
        """Engine label -> our name -> value; sums over all other labels, of several names the first that is there.

        Series without an engine label (process_start_time_seconds) are put with every engine; a page without any engine
        label gives engine "0".
        """
        self.bad_lines = 0
        found: dict[tuple[str, str], tuple[int, float]] = {}
        known = self._known
        for line in page.split(b"\n"):
            if not line or line[0] == 0x23:  # "#"
                continue
            text, _, number = line.rpartition(b" ")
            series = known.get(text)
            if series is None:
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
            if not math.isfinite(value):
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
        if len(self._known) < _MOST_SERIES:
            self._known[text] = series
        return number, series

    def _series(self, sample: Sample) -> list[_Series]:
        engine = self._whose(sample.labels)
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
    """One line through prometheus-client. ValueError when it is no sample."""
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
