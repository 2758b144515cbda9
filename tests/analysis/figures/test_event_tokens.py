from typing import Any

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.report.html.plots import plots
from tests.rows import S


def rows(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A load of ten seconds: requests that end in their first one, and heartbeats with four events a second."""
    begun = [{"row": "begin", "id": str(n), "traffic": "t", "at_ns": 1} for n in range(len(outcomes))]
    ended = [{"row": "end", "id": str(n), "traffic": "t", "at_ns": S // 2, **o} for n, o in enumerate(outcomes)]
    beats = [{"row": "heartbeat", "file": "0", "at_ns": n * S, "tokens": 4, "in_flight": 1} for n in range(1, 11)]
    return [{"row": "load", "what": "begin", "at_ns": 0}, *begun, *ended, *beats]


def shown(outcomes: list[dict[str, Any]]) -> tuple[float, float | None]:
    """Tokens per second of the live view, and of the chart in the middle of the run."""
    fold, series = LiveFigures(), Series()
    for row in rows(outcomes):
        fold.fold(row)
        series.fold(row)
    drawn = plots(series.points(), series.width_s, series.answers.event_tokens.mean)
    [chart] = [p for p in drawn if p.title == "Tokens received per second"]
    return fold.snapshot(10 * S).tokens_per_s, chart.curves[0].values[5]


def test_speculated_tokens_of_an_event_all_count() -> None:
    live, drawn = shown([{"outcome": "ok", "chunks": 10, "completion_tokens": 20}])
    assert drawn == 8
    assert abs(live - 8) < 1  # its window begins or ends within a second


def test_a_whole_answer_is_one_event_with_all_its_tokens() -> None:
    assert shown([{"outcome": "ok", "chunks": 0, "completion_tokens": 32}])[1] == 4 * 32


def test_answers_without_usage_count_as_one_token_per_event() -> None:
    aborted = {"outcome": "client_abort", "chunks": 3, "completion_tokens": None}
    assert shown([aborted])[1] == 4
    assert shown([aborted, {"outcome": "ok", "chunks": 10, "completion_tokens": 15}])[1] == 6
