"""What a limiter refused, in its own words."""

import pytest

from loadchaos.analysis.figures.live import LiveFigures
from loadchaos.analysis.figures.refusals import QUOTA_SPENT
from loadchaos.analysis.verdict.model import Verdict
from loadchaos.report.performance import refusals_text
from tests.analysis.conftest import History
from tests.rows import S, answered, folded

LIMIT = "Rate limit reached for requests: 240 per minute, try again in {}.5s"


def limited(history: History) -> History:
    history.begin()
    for i in range(20):
        good, refused = history.send(2), history.send(1)
        history.serve(0.5, 3).answer(good)
        words = {"error": LIMIT.format(i), "detail": {"retry_after": "1"}, "status": 429}
        history.answer(refused, "shed", **words)  # type: ignore[arg-type]
    return history.end()


def test_refusals_are_told_with_the_words_of_the_limiter(history: History) -> None:
    verdict = limited(history).verdict()
    found = verdict["refusals"]
    assert (found["requests"], found["sent"], found["statuses"], found["retry_after"]) == (20, 60, ["429"], ["1"])
    assert found["texts"] == [LIMIT.format(0)]
    assert 3.8 <= found["accepted_per_s"] <= 4.4
    text = refusals_text(Verdict.from_json(verdict))
    assert text.startswith(f"20 of 60 requests (429): {LIMIT.format(0)}; Retry-After: 1 s; ")
    assert text.endswith("requests/s were accepted")


@pytest.mark.parametrize(
    ("words", "spent"),
    [("You exceeded your current quota, please check your plan and billing details.", True), (LIMIT, False)],
)
def test_quota_that_is_used_up_is_told_apart_from_a_rate(history: History, words: str, spent: bool) -> None:
    history.begin()
    good, refused = history.send(2), history.send(2)
    history.serve(0.5, 3).answer(good).answer(refused, "shed", error=words, status=429)
    (check,) = [c for c in history.end().verdict()["checks"] if c["name"] == "shed"]
    assert (QUOTA_SPENT in check["actual"]) is spent


def test_no_failures_beside_refusals_say_where_these_are_counted(history: History) -> None:
    verdict = limited(history).verdict(expect=["failures == 0", "ok_share >= 95%"])
    assert [e["actual"] for e in verdict["expectations"]] == [
        "0; 20 refused by admission control are counted by ok_share and shed_share",
        "66.67%, 40 of 60 requests that had to succeed",
    ]


def test_a_run_without_refusals_has_no_such_key(history: History) -> None:
    verdict = history.begin().work(3).end().verdict(expect=["failures == 0"])
    assert "refusals" not in verdict
    assert verdict["expectations"][0]["actual"] == "0"


def test_the_crash_rate_names_the_requests_that_it_leaves_out(history: History) -> None:
    limited(history).begin().send(9)
    history.die([])
    verdict = history.end().verdict()
    assert verdict["exposures"]["requests"] == 40
    assert "1 in 40 requests with a token, of 69 sent" in verdict["worth"]


def test_percentiles_of_a_load_that_is_over_are_those_of_the_whole_run() -> None:
    rows = [row for n in range(40) for row in answered((1 + n) * S, n, took_ns=(n + 1) * S // 20)]
    live = folded(LiveFigures(), [{"row": "run", "what": "load_begin", "at_ns": S}, *rows])
    during = live.snapshot().recent["ttft"]
    live.fold({"row": "run", "what": "load_end", "at_ns": 43 * S})
    after = live.snapshot().recent["ttft"]
    assert (during.n < 20, after.n) == (True, 40)
    whole = live.figures.answers.all_latency().ttft.quantile(0.5)
    assert whole is not None
    assert after.p50 == whole / S
