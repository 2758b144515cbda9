"""Draw latency heatmaps: time by latency, coloured by sample count. Quantiles hide that some answers were slow while
most were not. A heatmap shows a second band, a step and an outlier.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from loadchaos.analysis.figures.series import Series
from loadchaos.core.histogram import bucket_middle
from loadchaos.core.units import NS_PER_S
from loadchaos.report.formatting import duration, number, plural
from loadchaos.report.html.charts import HEIGHT, WIDTH, Axis, Chart, ChartLine, ChartSet, Tick
from loadchaos.report.html.distributions import log_ticks
from loadchaos.report.html.plots import Points

COLUMNS, ROWS, COLOURS = 240, 40, 5
"""Limits. A cell costs 7 characters at worst, as a stroke one row thick, so a heatmap is always under 70 kB."""

_ROWS_AN_OCTAVE = 12  # histograms have 64 buckets an octave: more rows would show their bounds as stripes
_TICKS_APART = 9  # per cent of the height
_KINDS = {
    "ttft": ("Time to first token, every answer", "answers"),
    "itl": ("Gaps between chunks, every gap", "gaps"),
}  # fmt: skip


def heatmaps(series: Series, drawn: ChartSet) -> tuple[str, list[Chart]]:
    """Draw TTFT and ITL heatmaps on the time axis of `drawn`: the time that a column covers, and the charts with data."""
    points = series.points()
    step = max(1, math.ceil(len(points) / COLUMNS))
    axis, width_s = Axis(drawn.from_s, drawn.to_s), step * series.width_s
    charts = (_heatmap(axis, kind, _columns(points, kind, step), points[0][0], width_s) for kind in _KINDS if points)
    return plural(width_s, "second"), [c for c in charts if c is not None]


def _columns(points: Points, kind: str, step: int) -> list[Counter[int]]:
    columns = [Counter[int]() for _ in range(math.ceil(len(points) / step))]
    for i, (_, bucket) in enumerate(points):
        if bucket is not None:
            columns[i // step].update(bucket.latency[kind].counts)
    return columns


def _heatmap(axis: Axis, kind: str, columns: Sequence[Mapping[int, int]], start_s: float, width_s: int) -> Chart | None:
    total: Counter[int] = Counter()
    for column in columns:
        total.update(column)
    if not total:
        return None
    title, noun = _KINDS[kind]
    # Values below the clock's resolution lie in the lowest row: a logarithmic axis has no place for 0.
    low = math.log10(bucket_middle(min((i for i in total if i > 0), default=1)))
    high = math.log10(max(bucket_middle(max(total)), 1.0))
    margin = max((high - low) / ROWS, (math.log10(2) - (high - low)) / 2)
    low, high = low - margin, high + margin
    rows = min(ROWS, math.ceil((high - low) / math.log10(2) * _ROWS_AN_OCTAVE))
    row_of = {
        i: min(rows - 1, max(0, int((math.log10(max(bucket_middle(i), 1.0)) - low) / (high - low) * rows)))
        for i in total
    }
    cells = [_cells(column, row_of) for column in columns]
    most = max(n for column in cells for n in column.values())
    bounds = _bounds(most)
    drawn = zip(_labels(bounds, most, noun), _colours(len(bounds)), _paths(cells, bounds, rows), strict=True)
    left = (start_s - axis.low) / (axis.high - axis.low) * WIDTH
    wide, tall = width_s / (axis.high - axis.low) * WIDTH, HEIGHT / rows
    return Chart(
        title,
        tuple(ChartLine(label, css, path, "heat") for label, css, path in drawn),
        tuple(Tick(at, label) for at, label in log_ticks(low, high, _TICKS_APART)),
        css="heat",
        text=_text(total, noun, columns),
        transform=f"matrix({wide:.5g} 0 0 {tall:.5g} {left:.5g} {tall / 2:.5g})",
    )


def _cells(column: Mapping[int, int], row_of: Mapping[int, int]) -> Counter[int]:
    cells: Counter[int] = Counter()
    for index, n in column.items():
        cells[row_of[index]] += n
    return cells


def _bounds(most: int) -> list[int]:
    """Smallest count of each colour; they grow by a factor. A busy second has thousands of gaps, an outlier is one."""
    return sorted({round(most ** (i / COLOURS)) for i in range(COLOURS)})


def _colours(n: int) -> list[str]:
    """Classes of n colours far apart; the palest one only if all are needed."""
    first = 1 if n == COLOURS else 2
    return [f"heat{first + round(i * (COLOURS - first) / max(1, n - 1))}" for i in range(n)]


def _labels(bounds: Sequence[int], most: int, noun: str) -> list[str]:
    ends = [b - 1 for b in bounds[1:]] + [most]
    labels = [number(a) if a == b else f"{number(a)} to {number(b)}" for a, b in zip(bounds, ends, strict=True)]
    return [*labels[:-1], f"{labels[-1]} {noun}" if most > 1 else f"{labels[-1]} {noun[:-1]}"]


def _paths(cells: Sequence[Mapping[int, int]], bounds: Sequence[int], rows: int) -> list[str]:
    """One path per colour on a plane of one unit per cell; equal neighbours become one stroke. y = 0 is the highest row."""
    paths: list[list[str]] = [[] for _ in bounds]
    for y in range(rows):
        row = [bisect_right(bounds, column.get(rows - 1 - y, 0)) for column in cells]
        pens: dict[int, int] = {}  # where the colour's last stroke in this row ended
        x = 0
        while x < len(row):
            end = x + 1
            while end < len(row) and row[end] == row[x]:
                end += 1
            if colour := row[x]:
                move = f"m{x - pens[colour]} 0" if colour in pens else f"M{x} {y}"
                paths[colour - 1].append(f"{move}h{end - x}")
                pens[colour] = end
            x = end
    return ["".join(p) for p in paths]


def _text(total: Mapping[int, int], noun: str, columns: Sequence[Mapping[int, int]]) -> str:
    n = sum(total.values())
    least, most = (duration(bucket_middle(i) / NS_PER_S) for i in (min(total), max(total)))
    busy = sum(1 for c in columns if c)
    return (
        f"Heatmap: {number(n)} {noun if n > 1 else noun[:-1]} from {least} to {most}, "
        f"in {number(busy)} of {plural(len(columns), 'column')} of time"
    )
