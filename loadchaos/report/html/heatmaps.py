"""Where all latencies of a run lay over time: cells of a stretch of time by a range of latency, coloured by how many.

Quantiles hide that some answers were slow while most were not; here a second band, a step and a lone outlier are seen.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

from loadchaos.core.stats import bucket_middle
from loadchaos.report.formatting import duration, number, plural
from loadchaos.report.html.charts import HEIGHT, WIDTH, Axis, Chart, ChartLine, ChartSet, Tick
from loadchaos.report.html.plots import Points
from loadchaos.report.live_stats.distributions import log_ticks
from loadchaos.report.live_stats.series import Series

COLUMNS, ROWS, COLOURS = 240, 40, 5
"""At most. A cell costs 7 characters at worst, as a stroke one row thick: a heatmap is under 70 kB whatever it shows."""

_ROWS_AN_OCTAVE = 12  # histograms have 64 buckets an octave: more rows would show their bounds as stripes
_TICKS_APART = 9  # per cent of the height
_NS = 1_000_000_000
_KINDS = {
    "ttft": ("Time to first token, of every answer", "answers"),
    "itl": ("Gaps between chunks, every one", "gaps"),
}  # fmt: skip


def heatmaps(series: Series, drawn: ChartSet) -> tuple[str, list[Chart]]:
    """How long a column is, in words, and TTFT and ITL under the time axis of `drawn`, where anything was measured."""
    points = series.points()
    step = max(1, math.ceil(len(points) / COLUMNS))
    axis, width_s = Axis(drawn.from_s, drawn.to_s), step * series.width_s
    charts = (_heatmap(axis, kind, _columns(points, kind, step), points[0][0], width_s) for kind in _KINDS if points)
    return plural(width_s, "second"), [c for c in charts if c is not None]


def _columns(points: Points, kind: str, step: int) -> list[Counter[int]]:
    """How many latencies each column has, by their histogram's bucket."""
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
    # What is below the clock's grain lies in the lowest row: a logarithmic axis has no place for 0.
    low = math.log10(bucket_middle(min((i for i in total if i > 0), default=1)))
    high = math.log10(max(bucket_middle(max(total)), 1.0))
    room = max((high - low) / ROWS, (math.log10(2) - (high - low)) / 2)
    low, high = low - room, high + room
    rows = min(ROWS, math.ceil((high - low) / math.log10(2) * _ROWS_AN_OCTAVE))
    row_of = {
        i: min(rows - 1, max(0, int((math.log10(max(bucket_middle(i), 1.0)) - low) / (high - low) * rows)))
        for i in total
    }
    cells = [_cells(column, row_of) for column in columns]
    most = max(n for column in cells for n in column.values())
    bounds = _bounds(most)
    drawn = zip(_labels(bounds, most, noun), _colours(len(bounds)), _paths(cells, bounds, rows), strict=True)
    left = (start_s - axis.from_s) / (axis.to_s - axis.from_s) * WIDTH
    wide, tall = width_s / (axis.to_s - axis.from_s) * WIDTH, HEIGHT / rows
    return Chart(
        title,
        tuple(ChartLine(label, css, path, "heat") for label, css, path in drawn),
        tuple(Tick(at, label) for at, label in log_ticks(low, high, _TICKS_APART)),
        css="heat",
        text=_text(total, noun, columns),
        transform=f"matrix({wide:.5g} 0 0 {tall:.5g} {left:.5g} {tall / 2:.5g})",
    )


def _cells(column: Mapping[int, int], row_of: Mapping[int, int]) -> Counter[int]:
    """How many latencies a column has in each of its rows, counted from below."""
    cells: Counter[int] = Counter()
    for index, n in column.items():
        cells[row_of[index]] += n
    return cells


def _bounds(most: int) -> list[int]:
    """The least count of each colour, growing by a factor: a gap in a busy second is one of thousands, an outlier is one."""
    return sorted({round(most ** (i / COLOURS)) for i in range(COLOURS)})


def _colours(n: int) -> list[str]:
    """The classes of n colours, far apart; the palest only where all are needed."""
    first = 1 if n == COLOURS else 2
    return [f"heat{first + round(i * (COLOURS - first) / max(1, n - 1))}" for i in range(n)]


def _labels(bounds: Sequence[int], most: int, noun: str) -> list[str]:
    ends = [b - 1 for b in bounds[1:]] + [most]
    labels = [number(a) if a == b else f"{number(a)} to {number(b)}" for a, b in zip(bounds, ends, strict=True)]
    return [*labels[:-1], f"{labels[-1]} {noun}" if most > 1 else f"{labels[-1]} {noun[:-1]}"]


def _paths(cells: Sequence[Mapping[int, int]], bounds: Sequence[int], rows: int) -> list[str]:
    """A path a colour on a plane of one unit a cell, 0 is the middle of the highest row; equal neighbours are one stroke."""
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
    least, most = (duration(bucket_middle(i) / _NS) for i in (min(total), max(total)))
    busy = sum(1 for c in columns if c)
    return (
        f"Heatmap: {number(n)} {noun if n > 1 else noun[:-1]} from {least} to {most}, "
        f"in {number(busy)} of {plural(len(columns), 'column')} of time"
    )
