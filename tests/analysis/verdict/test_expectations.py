from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.analysis.figures.requests import Part
from loadchaos.analysis.figures.steady import SteadySpan
from loadchaos.analysis.verdict import verdict as rules
from loadchaos.analysis.verdict.expectations import ExpectationInputs, judge
from loadchaos.analysis.verdict.model import CheckResult, FailureResult
from loadchaos.core.latency import LatencyHistograms
from loadchaos.core.model import Acceptance, Terms
from loadchaos.core.typed_json import from_json

S = 1_000_000_000


def latency(*ttfts_s: float, bounds: int = 0) -> LatencyHistograms:
    found = LatencyHistograms()
    for s in ttfts_s:
        found.ttft.add(s * S)
        found.e2e.add(s * S * 2)
    found.lower_bounds = bounds
    return found


def figures(**more: Any) -> ExpectationInputs:
    base: dict[str, Any] = {
        "counts": {"engine_deaths": 1, "hangs": 0, "failures": 2, "length_mismatch": 3},
        "ok": {"": Part(97, 100), "images": Part(1, 2), "none": Part(0, 0)},
        "outcomes": {"": {"ok": 97, "http_error": 3, "shed": 1}, "images": {"ok": 5}},
        "latency": {"": latency(*([0.1, 0.2, 0.3] * 100), bounds=1), "images": latency(1.0)},
        "recoveries_s": [],
    }
    return ExpectationInputs(**{**base, **more})


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("engine_deaths == 0", "fail"), ("engine_deaths <= 1", "pass"), ("hangs == 0", "pass"), ("failures < 3", "pass"),
        ("length_mismatch == 0", "fail"), ("ok_share >= 95%", "pass"), ("ok_share >= 0.98", "fail"),
        ("images.ok_share >= 95%", "fail"), ("none.ok_share >= 95%", "unknown"), ("outcomes.http_error == 0", "fail"),
        ("images.outcomes.http_error == 0", "pass"), ("video.outcomes.ok > 0", "unknown"), ("shed_share <= 1%", "pass"),
        ("ttft_p50 <= 250ms", "pass"), ("ttft_p99 < 250ms", "fail"), ("e2e_p99 <= 1s", "pass"),
        ("images.ttft_p99 <= 500ms", "fail"), ("itl_p99 <= 1s", "unknown"), ("video.ttft_p99 <= 1s", "unknown"),
        ("ttft_p42 <= 1s", "unknown"), ("ttft_p99 <= 1", "unknown"), ("outcomes.nonsense == 0", "unknown"),
        ("recovers_within <= 5m", "pass"), ("", "unknown"), ("== 0", "unknown"), ("failures = 0", "unknown"),
        ("failures == many", "unknown"),
    ],
)  # fmt: skip
def test_expectation_has_a_verdict_of_its_own(text: str, decision: str) -> None:
    assert judge(text, figures()).verdict == decision


def failure(**keys: Any) -> FailureResult:
    """A failure with these keys of verdict.json."""
    return from_json(FailureResult, keys)


def test_failure_counts_are_by_standing() -> None:
    rows = [
        ("encoder_cache_miss", "server", 1), ("unexplained_http_error", "server", 4),
        ("engine_death_unexplained", "server", 1), ("engine_core_proc_died", "expected", 2),
        ("encoder_cache_miss", "self-inflicted", 3),
        ("unknown_exception", "injected", 1), ("alive_but_hung", "server", 1),
    ]  # fmt: skip
    counts = rules.failure_counts([failure(id=i, attribution=a, count=n) for i, a, n in rows])
    assert counts == {"expected": 2, "ours": 4, "known": 1, "unexplained": 6}
    overload = failure(id="queue_wait", attribution="load", count=5)
    assert rules.failure_counts([overload]) == {"expected": 0, "ours": 0, "known": 0, "unexplained": 0, "load": 5}


def test_expectation_of_failures_names_kinds_and_occurrences() -> None:
    counted = figures(counts={"failures": 1, "occurrences": 5})
    assert judge("failures == 0", counted).actual == "1 kind, 5 occurrences"
    none = figures(counts={"failures": 0, "occurrences": 0})
    assert (
        judge("failures == 0", none).actual
        == "0; 1 refused by admission control are counted by ok_share and shed_share"
    )
    assert judge("failures == 0", replace(none, outcomes={"": {"ok": 1}})).actual == "0"


def test_expectation_of_a_share_names_its_denominator() -> None:
    assert judge("ok_share >= 95%", figures()).actual == "97.00%, 97 of 100 requests that had to succeed"
    assert judge("shed_share <= 1%", figures()).actual == "0.99%, 1 of 101 requests sent"


def test_expectation_marks_timeouts_as_lower_bounds() -> None:
    assert judge("ttft_p99 <= 1s", figures()).actual.endswith("(lower bound: 1 timed out)")


def test_expectation_of_latency_is_void_with_a_limited_generator() -> None:
    limited = figures(void="we were too slow ourselves")
    assert judge("ttft_p99 <= 1s", limited).verdict == "unknown"
    assert judge("ok_share >= 95%", limited).verdict == "pass"


@pytest.mark.parametrize(
    ("name", "needed"), [("p50", 20), ("p90", 50), ("p95", 100), ("p99", 300), ("p999", 3000), ("mean", 20)]
)
def test_expectation_of_a_percentile_needs_its_sample(name: str, needed: int) -> None:
    for n, decision in ((2, "unknown"), (needed - 1, "unknown"), (needed, "pass")):
        judged = judge(f"ttft_{name} < 2s", figures(latency={"": latency(*([0.1] * n))}))
        assert (judged.verdict, f"needs {needed:,} samples" in judged.actual) == (decision, decision == "unknown")


def test_expectation_of_a_percentile_fails_early_where_that_is_proved() -> None:
    slow, mixed = latency(5.0, 5.0), latency(*[0.1] * 40, 5.0)
    assert judge("ttft_p99 < 2s", figures(latency={"": slow})).verdict == "fail"
    assert judge("ttft_p99 < 2s", figures(latency={"": mixed})).verdict == "unknown"
    assert judge("ttft_p50 < 2s", figures(latency={"": slow})).verdict == "unknown"


def test_expectation_of_a_percentile_shows_its_interval() -> None:
    values = [i / 1000 for i in range(100, 500)]
    judged = judge("ttft_p50 < 2s", figures(latency={"": latency(*values)}))
    assert judged.verdict == "pass"
    assert judged.actual == "300 ms (90 % interval 283 ms to 317 ms, n = 400)"
    few = judge("ttft_p99 < 2s", figures(latency={"": latency(*[0.1] * 100)}))
    assert few.actual == "100 ms (at least 100 ms with 95 % confidence, n = 100): p99 needs 300 samples"


@pytest.mark.parametrize(
    ("rule", "span", "decision", "said"),
    [
        ("ttft_p99 < 2s", SteadySpan(60.0, 0.8), "pass", ""),
        ("ttft_p99 < 2s", SteadySpan(60.0, 0.7), "unknown",
         "p99 needs 300 samples in the steady state, which has 70% of the requests; run longer, e.g. 520 requests"),
        ("ttft_p50 < 2s", SteadySpan(3.2, 0.7), "unknown",
         "the steady state is 3.2 s long, 10 s are needed; run longer, e.g. 1,500 requests"),
        ("ttft_p50 < 2s", SteadySpan(0.0, 0.0), "unknown",
         "p50 needs 20 samples in the steady state, which has 0% of the requests; run longer"),
        ("itl_p50 < 2s", SteadySpan(60.0, 0.03), "unknown", "from 12 answers, 20 are needed in the steady state"),
        ("ttft_mean < 2s", SteadySpan(3.2, 0.7), "unknown", "3.2 s long"),
        # A limit that is broken by far stays broken, and the maximum is one of all requests.
        ("ttft_p50 < 50ms", SteadySpan(3.2, 0.7), "fail", ""),
        ("ttft_mean < 50ms", SteadySpan(3.2, 0.7), "fail", ""),
        ("ttft_max < 2s", SteadySpan(3.2, 0.7), "pass", ""),
        ("ttft_p50 < 2s", None, "pass", ""),  # bursts, several phases: no load that is to stay the same
    ],
)  # fmt: skip
def test_met_limit_of_latency_needs_a_long_steady_state(
    rule: str, span: SteadySpan | None, decision: str, said: str
) -> None:
    measured = latency(*[0.1] * 400)
    measured.itl.add(10_000_000, 4000)
    judged = judge(rule, figures(latency={"": measured}, steady=span))
    assert (judged.verdict, said in judged.actual) == (decision, True), judged.actual


def test_limit_that_only_the_ramp_up_may_break_is_unknown() -> None:
    """The median of 400 requests of which 205 are slow: its interval holds the limit."""
    slow = figures(latency={"": latency(*[0.1] * 195, *[3.0] * 205)})
    assert judge("ttft_p50 < 2s", slow).verdict == "fail"
    assert judge("ttft_p50 < 2s", replace(slow, steady=SteadySpan(3.2, 0.5))).verdict == "unknown"


def test_expectation_of_gaps_needs_answers_too() -> None:
    few = latency(0.1, 0.1)
    few.itl.add(10_000_000, 5000)
    judged = judge("itl_p99 < 1s", figures(latency={"": few}))
    assert (judged.verdict, judged.actual.partition(": ")[2]) == ("unknown", "from 2 answers, 20 are needed")


@pytest.mark.parametrize(
    ("recoveries", "away_s", "decision"),
    [
        ([10.0, 20.0], None, "pass"), ([10.0, 400.0], None, "fail"), ([], None, "pass"),
        ([10.0, None], 301.0, "fail"), ([400.0, None], 1.0, "fail"),
        ([10.0, None], 0.3, "unknown"),  # somebody ended the run as it died: nobody knows
    ],
)  # fmt: skip
def test_expectation_of_recovery_is_the_longest(recoveries: Any, away_s: float | None, decision: str) -> None:
    judged = judge("recovers_within <= 5m", figures(recoveries_s=recoveries, away_s=away_s))
    assert judged.verdict == decision
    if away_s is not None:
        assert "at the end of the run" in judged.actual


@given(st.text(max_size=60))
def test_expectation_never_raises_and_nonsense_never_passes(text: str) -> None:
    judged = judge(text, figures())
    assert judged.verdict in ("pass", "fail", "unknown")
    if judged.verdict == "pass":
        assert any(op in text for op in ("==", "!=", "<", ">"))


@given(
    st.lists(st.sampled_from(["pass", "fail", "unknown"])),
    st.lists(st.sampled_from(["pass", "fail", "unknown"])),
    st.booleans(),
)
def test_decide_puts_fail_over_unknown_over_pass(expected: list[Any], checked: list[Any], failed: bool) -> None:
    failures = [failure()] if failed else []
    judged = [CheckResult("x", "", "", v) for v in expected]
    checks = [CheckResult("x", "", "", v) for v in checked]
    decision = rules.decide(failures, judged, checks)
    if failed or "fail" in expected + checked:
        assert decision == "fail"
    elif "unknown" in expected + checked or not expected + checked:
        assert decision == "unknown"
    else:
        assert decision == "pass"


@pytest.mark.parametrize(
    ("attribution", "accepted", "against"),
    [
        ("server", False, True), ("server", True, False), ("self-inflicted", False, True), ("injected", False, True),
        ("expected", False, False),
    ],
)  # fmt: skip
def test_decide_counts_failures_unless_accepted_or_expected(attribution: str, accepted: bool, against: bool) -> None:
    assert failure(attribution=attribution, accepted=accepted).counts is against


def test_acceptance_counts_all_failures_of_an_id() -> None:
    failures = [failure(id="x", count=3, attribution=a) for a in ("server", "self-inflicted")]
    terms = Terms("p", accept=[Acceptance("x", "known", at_most=5)])
    found = rules.accepted(failures, terms, date(2026, 1, 1))
    assert [f.accepted for f in found] == [False, False]
    assert found[0].acceptance == "accepted at most 5 times"


@pytest.mark.parametrize(
    ("entry", "accepted"),
    [
        ({"text": "worker 7 is away"}, [True, False]),
        ({"text": "disk"}, [False, True]),
        ({"frame": "runner.py"}, [True, False]),
        ({"frame": "runner.py", "text": "disk"}, [False, False]),
        ({}, [True, True]),
    ],
)
def test_acceptance_with_a_text_or_a_frame_is_of_that_failure_alone(
    entry: dict[str, str], accepted: list[bool]
) -> None:
    failures = [
        failure(
            id="unexplained_http_error",
            title="HTTP 500: worker 3 is away",
            frames=("a.py, line 1", "runner.py, line 2"),
        ),
        failure(id="unexplained_http_error", title="HTTP 500: disk is full", count=9),
    ]
    terms = Terms("p", accept=[Acceptance("unexplained_http_error", "known", at_most=9 if entry else None, **entry)])
    found = rules.accepted(failures, terms, date(2026, 1, 1))
    assert [f.accepted for f in found] == accepted


def test_acceptance_holds_until_its_day() -> None:
    entry = Acceptance("x", "known", until="2026-03-01")
    for today, accepted in ((date(2026, 3, 1), True), (date(2026, 3, 2), False), (None, False)):
        (found,) = rules.accepted([failure(id="x", count=1)], Terms("p", accept=[entry]), today)
        assert found.accepted is accepted


@pytest.mark.parametrize(
    ("decision", "end", "sent", "code"),
    [
        ("pass", {}, True, 0), ("fail", {}, True, 1), ("unknown", {}, True, 3), ("unknown", None, False, 3),
        ("unknown", {"exit_code": 4}, False, 4), ("unknown", {"exit_code": 4}, True, 3), ("fail", {"exit_code": 4}, True, 1),
        ("unknown", {"exit_code": 2}, False, 2), ("fail", {"exit_code": 130}, True, 130),
        ("unknown", {"exit_code": 143}, False, 143), ("unknown", {"exit_code": 70}, True, 70),
        ("pass", {"exit_code": 70}, True, 70), ("fail", {"exit_code": 70}, True, 1),
    ],
)  # fmt: skip
def test_exit_codes(decision: Any, end: Any, sent: bool, code: int) -> None:
    assert rules.exit_code(decision, end, sent=sent) == code


def test_worth_of_a_failed_start_is_no_crash_rate() -> None:
    assert rules.worth("fail", 1, 0, "requests") == "Not assessed: no requests came before the death"
    assert rules.worth("fail", 1, 1, "requests") == "Crashes: 1 in 1 request"


@pytest.mark.parametrize(
    ("n", "text"),
    [(21_000, "Crash rate < 0.015 % (95 % confidence, 0 in 21,000 requests)"),
     (5, "Crash rate < 46 % (95 % confidence, 0 in 5 requests)"),
     (1, "Not assessed: 0 crashes in 1 request are too few to bound the crash rate"),
     (4, "Not assessed: 0 crashes in 4 requests are too few to bound the crash rate"), (0, "Not assessed: no exposure"),
     (600, "Crash rate < 0.5 % (95 % confidence, 0 in 600 requests)")],
)  # fmt: skip
def test_worth_of_a_pass_is_a_bound_of_the_crash_rate(n: int, text: str) -> None:
    assert rules.worth("pass", 0, n, "requests") == text


def test_worth_of_other_verdicts_bounds_nothing() -> None:
    assert rules.worth("unknown", 0, 10**6, "requests").startswith("Not assessed")
    assert rules.worth("fail", 2, 80, "requests") == "Crash rate 2.5 % (2 in 80 requests)"
