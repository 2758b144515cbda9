import math
import re
from pathlib import Path
from typing import Any

from loadchaos.analysis.figures.answers import AnswerFigures
from loadchaos.analysis.figures.series import Series
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.histogram import LogHistogram
from loadchaos.report.html import page
from loadchaos.report.html.distributions import distributions
from tests.rows import MS, answered


def answer(traffic: str, ttft_ms: float, **more: Any) -> dict[str, Any]:
    return answered(1, 0, took_ns=2 * round(ttft_ms * MS), traffic=traffic, **more)[1]


def test_distributions_of_fast_and_slow_traffic_share_an_axis() -> None:
    whole = AnswerFigures()
    for i in range(200):
        whole.fold(answer("fast", 10 + i / 100))
        whole.fold(answer("slow", 1000 + i))
    ttft = distributions(whole)[0]
    assert [r.traffic for r in ttft.rows] == ["fast", "slow"]
    fast, slow = (float(re.findall(r"M([\d.]+),", r.path)[0]) for r in ttft.rows)
    assert fast < 200 < 800 < slow
    assert [label for _, label in ttft.ticks] == ["10 ms", "20 ms", "50 ms", "100 ms", "200 ms", "500 ms", "1 s"]
    assert re.match(r"p50 1[01]\.\d ms, p90 1[12]\.\d ms", ttft.rows[0].text)
    at_10_ms = next(at for at, label in ttft.ticks if label == "10 ms")
    assert at_10_ms < ttft.rows[0].marks[0][0] < 15


def test_distribution_of_one_answer_is_a_bar_in_the_middle() -> None:
    whole = AnswerFigures()
    whole.fold(answer("t", 70))
    (row,) = distributions(whole)[0].rows
    x = float(re.findall(r"M([\d.]+),", row.path)[0])
    assert 400 < x < 600
    assert distributions(whole)[0].ticks


def test_totals_know_latencies_without_the_delay_of_our_own_client() -> None:
    whole = AnswerFigures()
    whole.fold({**answer("t", 70), "sent_ns": 2})
    assert whole.latency["t"].without_own_delay("ttft") is None
    whole.fold({**answer("t", 370), "sent_ns": 300 * MS})
    found = whole.latency["t"].without_own_delay("ttft")
    assert found is not None
    assert found.quantile(1.0) == whole.latency["t"].ttft.quantile(0.5)  # both took 70 ms


def test_distributions_need_answers() -> None:
    whole = AnswerFigures()
    whole.fold({**answer("t", 70), "outcome": "reset"})
    assert distributions(whole) == []


def test_distribution_counts_every_gap() -> None:
    gaps = LogHistogram()
    for ms in (5, 6, 7, 500):
        gaps.add(ms * MS)
    whole = AnswerFigures()
    whole.fold(answer("t", 70, itl_hist={str(k): v for k, v in gaps.counts.items()}))
    itl = distributions(whole)[1]
    assert "4 samples" in itl.rows[0].text
    assert itl.title == "Gaps between chunks"


def test_lengths_show_the_difference_from_the_plan(verdict: Verdict, tmp_path: Path) -> None:
    whole = AnswerFigures()
    for planned, counted in ((100, 100), (200, 200), (300, 297), (400, 401)):
        whole.fold(answer("t", 70, planned_tokens=planned, prompt_tokens=counted, images=2, image_tokens=500))
    whole.fold(answer("t", 70, planned_tokens=None, prompt_tokens=5))
    text = page.render(verdict, Series(answers=whole), tmp_path)
    table = text[text.index("tokens per image</th>") :].split("</table>")[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table)
    assert cells == ["t", "100 to 401", "4", "50.0 %", "up to 3 fewer and up to 1 more", "8", "250"]


def test_distribution_draws_zero_and_huge_latencies() -> None:
    whole = AnswerFigures()
    whole.fold(answer("t", 0))
    whole.fold(answer("t", 3_600_000))
    row = distributions(whole)[0].rows[0]
    assert all(math.isfinite(float(x)) for x in re.findall(r"[\d.]+", row.path))


# -- looked at in a browser ----------------------------------------------------------------------------------------


def test_warm_up_of_charts_begins_with_the_first_request_that_was_due() -> None:
    """As in the verdict: a slow first answer does not make the warm-up longer."""
    s = 1_000_000_000
    series = Series()
    series.fold({"row": "run", "at_ns": s, "what": "begin", "terms": {"warm_up": {"seconds": 2.0}}})
    for due_s in (1, 4):
        series.fold({"row": "begin", "at_ns": due_s * s, "due_ns": due_s * s, "id": str(due_s)})
    end = {"row": "end", "at_ns": 5 * s, "due_ns": 4 * s, "outcome": "ok", "traffic": "t", "first_token_ns": 5 * s}
    series.fold(end)
    assert series.answers.latency["t"].ttft.n == 1
