import random
import re
from typing import Any

import pytest

from loadchaos.analysis.figures.series import Series
from loadchaos.core.histogram import LogHistogram
from loadchaos.report.html.charts import Chart, picture
from loadchaos.report.html.heatmaps import COLOURS, COLUMNS, ROWS, heatmaps
from tests.rows import MS, S, answered, folded

Cell = tuple[int, int]


def answer(second: float, ttft_ms: float, **more: Any) -> dict[str, Any]:
    at_ns = round(second * S)
    return answered(at_ns, 0, took_ns=2 * round(ttft_ms * MS), at_ns=at_ns, last_byte_ns=at_ns, **more)[1]


def series_of(*rows: dict[str, Any]) -> Series:
    return folded(Series(), rows)


def drawn(*rows: dict[str, Any]) -> list[Chart]:
    series = series_of(*rows)
    return heatmaps(series, picture(series))[1]


def cells(chart: Chart) -> dict[Cell, str]:
    """(column, row from above) and colour of every cell; each occurs once."""
    found: dict[Cell, str] = {}
    for line in chart.lines:
        x = y = 0
        for kind, a, b in re.findall(r"([Mmh])(\d+)(?: (\d+))?", line.path):
            if kind == "h":
                for column in range(x, x + int(a)):
                    assert (column, y) not in found
                    found[column, y] = line.css
                x += int(a)
            else:
                x, y = (int(a), int(b)) if kind == "M" else (x + int(a), y + int(b))
    return found


def placed(chart: Chart, column: float, row: float) -> tuple[float, float]:
    """Middle of a cell in per cent from the left and from the bottom."""
    wide, _, _, tall, left, top = (float(x) for x in chart.transform.removeprefix("matrix(")[:-1].split())
    return (left + wide * (column + 0.5)) / 10, 100 - (top + tall * row)


def test_heatmap_places_slow_answers_above_fast_ones() -> None:
    (ttft,) = drawn(*(answer(s + i / 10, 1000 if i == 9 else 10) for s in range(60) for i in range(10)))
    found = cells(ttft)
    slow, fast = sorted({row for _, row in found})
    assert {c for c, _ in found} == set(range(61)), "the last answers had their tokens a second later"
    colours = {found[c, row] for c, row in found if row == slow and 0 < c < 60}
    assert colours == {ttft.lines[0].css}
    assert found[30, fast] == ttft.lines[-1].css
    assert ttft.lines[0].label == "1"
    assert ttft.lines[-1].label.endswith("9 answers")
    ticks = {t.label: t.at for t in ttft.ticks}
    assert placed(ttft, 0, slow)[1] == pytest.approx(ticks["1 s"], abs=100 / ROWS)
    assert placed(ttft, 0, fast)[1] == pytest.approx(ticks["10 ms"], abs=100 / ROWS)


def test_heatmap_columns_match_the_time_axis() -> None:
    rows = [{"row": "run", "at_ns": 0, "what": "begin"}, *(answer(s, 10) for s in range(20, 40))]
    series = series_of(*rows, {"row": "run", "at_ns": 80 * S, "what": "end"})
    above = picture(series)
    column, (ttft,) = heatmaps(series, above)
    assert column == "1 second"
    assert min(c for c, _ in cells(ttft)) == 20
    span = above.to_s - above.from_s
    assert placed(ttft, 20, 0)[0] == pytest.approx(100 * 20.5 / span, abs=0.1)


def test_heatmap_column_without_answers_is_empty() -> None:
    rows = [answer(s, 10) for s in (*range(10), *range(30, 40))]
    rows += [answer(s, 10, outcome="reset") for s in range(10, 30)]
    (ttft,) = drawn(*rows)
    assert {c for c, _ in cells(ttft)} == {*range(10), *range(30, 40)}
    assert ttft.text == "Heatmap: 20 answers from 10.0 ms to 10.0 ms, in 20 of 40 columns of time"
    assert ttft.lines[0].path.count("h") == 2, "equal neighbours are one stroke"
    assert drawn(*rows[20:]) == []
    assert drawn() == []


def test_heatmap_of_gaps_between_chunks() -> None:
    gaps = LogHistogram()
    for ms in (5, 5, 5, 700):
        gaps.add(ms * MS)
    _, itl = drawn(answer(1, 10, itl_hist={str(k): v for k, v in gaps.counts.items()}))
    assert itl.title.startswith("Gaps between chunks")
    assert sorted(line.label for line in itl.lines) == ["1", "2 to 3 gaps"]
    assert len(cells(itl)) == 2
    assert {line.css for line in itl.lines} == {"heat2", f"heat{COLOURS}"}, "few colours are far apart"


def test_heatmap_of_one_answer_is_one_cell() -> None:
    (ttft,) = drawn(answer(1, 0))
    assert list(cells(ttft).values()) == [ttft.lines[0].css]
    assert [line.label for line in ttft.lines] == ["1 answer"]
    three = cells(drawn(answer(1, 0), answer(1, 100), answer(1, 200))[0])
    assert len(three) == 2, "no delay stands in the lowest row, where the least one does"


def test_heatmap_of_noise_is_small() -> None:
    rng = random.Random(5)
    rows = [answer(i / 90, 10 ** rng.uniform(0, 4)) for i in range(40_000)]
    series = series_of(*rows)
    column, (ttft,) = heatmaps(series, picture(series))
    assert column == "2 seconds"
    assert 3000 < len(cells(ttft)) <= COLUMNS * ROWS
    assert sum(len(line.path) for line in ttft.lines) < 60_000
