import math
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadchaos.core import resources
from loadchaos.profile import arrivals
from loadchaos.profile.arrivals import planned_requests
from loadchaos.profile.explain import explain
from loadchaos.profile.profile import Registry, load
from loadchaos.profile.steps import PHASE_STRIDE, of_phase, steps
from tests.profile.conftest import Write

rates = st.floats(0.5, 200)
times = st.floats(0.1, 20)


@given(rates, times)
def test_constant_arrivals_match_the_rate(rate: float, for_s: float) -> None:
    due = list(arrivals.constant(rate, for_s))
    assert abs(len(due) - rate * for_s) <= 1
    assert due[0] == 0.0
    assert due == sorted(due)
    assert due[-1] < for_s


@given(rates, rates, times)
def test_ramp_arrivals_match_the_integral_of_the_rate(rate: float, to: float, for_s: float) -> None:
    due = list(arrivals.ramp(rate, to, for_s))
    assert abs(len(due) - (rate + to) / 2 * for_s) <= 1
    assert due == sorted(due)
    assert due[-1] <= for_s


@given(rates, rates, st.integers(2, 9), times)
def test_step_arrivals_match_the_integral_of_the_rate(rate: float, to: float, levels: int, for_s: float) -> None:
    due = list(arrivals.step(rate, to, levels, for_s))
    assert abs(len(due) - (rate + to) / 2 * for_s) <= 1.01
    assert due == sorted(due)


@given(st.lists(st.tuples(st.floats(0, 5), rates), min_size=1, max_size=5))
def test_piecewise_arrivals_match_the_integral_across_segments(segments: list[tuple[float, float]]) -> None:
    due = list(arrivals.piecewise(segments))
    assert abs(len(due) - sum(length * rate for length, rate in segments)) <= 1.01
    assert due == sorted(due)


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("seed", range(3))
def test_gamma_arrivals_of_a_number_of_requests_take_its_time_at_the_rate(burstiness: float, seed: int) -> None:
    due = list(islice(arrivals.gamma(5.0, math.inf, burstiness, seed, 200), 200))
    assert due[-1] == pytest.approx(200 / 5.0)
    whole = list(islice(arrivals.gamma(5.0, math.inf, burstiness, seed), 200))
    assert [at / due[-1] for at in due] == pytest.approx([at / whole[-1] for at in whole])


@given(st.floats(5, 100), st.floats(0.2, 5), st.integers(0, 99))
def test_gamma_arrivals_keep_the_mean_rate_and_depend_on_the_seed(rate: float, burstiness: float, seed: int) -> None:
    due = list(arrivals.gamma(rate, 100, burstiness, seed))
    assert due == list(arrivals.gamma(rate, 100, burstiness, seed))
    assert due == sorted(due)
    planned = rate * 100
    assert abs(len(due) - planned) < 6 * (planned / burstiness) ** 0.5 + 2 / burstiness + 2


def test_day_arrivals_peak_and_repeat() -> None:
    due = list(arrivals.day(0, 20, 6 * 60, 24 * 60, 48 * 60))
    assert len(due) == pytest.approx(10 * 48 * 60, abs=2), "the mean of both rates, over whole days"
    assert due == sorted(due)

    def rate(at: float) -> float:
        return sum(at - 15 <= d < at + 15 for d in due) / 30

    assert rate(6 * 60) == pytest.approx(20, rel=0.02)
    assert rate(30 * 60) == pytest.approx(20, rel=0.02)
    assert rate(18 * 60) < 0.2, "half a day from the peak there is next to nobody"
    assert rate(12 * 60) == pytest.approx(10, rel=0.1)


def test_spike_arrivals_are_dense_only_during_the_spike() -> None:
    due = list(arrivals.spike(2, 50, 4, 2, 10))
    assert sum(4 <= t < 6 for t in due) == 100
    assert len(due) == 116


@given(rates, rates, st.floats(0, 1), st.floats(0.01, 30), times)
def test_spike_arrivals_match_the_integral_of_the_rate(
    rate: float, to: float, share: float, width: float, for_s: float
) -> None:
    at = share * for_s
    due = list(arrivals.spike(rate, to, at, width, for_s))
    dense_s = min(width, for_s - at)
    assert abs(len(due) - (rate * (for_s - dense_s) + to * dense_s)) <= 1.01
    assert due == sorted(due)
    assert all(-1e-9 <= t <= for_s + 1e-9 for t in due)


@given(st.floats(0, 20), st.floats(0.5, 20), st.floats(0, 90), st.floats(10, 90), times)
def test_day_arrivals_match_the_integral_of_the_rate(
    rate: float, to: float, peak: float, period: float, days: float
) -> None:
    for_s = period * math.ceil(days / 4)
    due = list(arrivals.day(rate, to, peak, period, for_s))
    assert abs(len(due) - (rate + to) / 2 * for_s) <= 1.01, "over whole days, the mean of both rates"
    assert due == sorted(due)


@given(st.integers(1, 50), st.integers(1, 20), st.floats(0, 100))
def test_burst_arrivals_have_size_and_interval(size: int, repeat: int, every_s: float) -> None:
    due = list(arrivals.burst(size, repeat, every_s))
    assert Counter(round_ for round_, _ in due) == dict.fromkeys(range(repeat), size)
    assert all(at == round_ * every_s for round_, at in due)
    assert due == sorted(due)


@pytest.mark.parametrize("law", ["constant", "poisson", "gamma"])
def test_rate_steps_end_at_the_number_of_requests(law: str, write: Write) -> None:
    traffic = "name: x\ntraffic: [{name: t, payload: {text: {}}}]\n"
    alone = write(f"{traffic}load: [{{rate: 20/s, law: {law}, requests: 30}}]\n")
    due = [s.due_s or 0.0 for s in steps(alone, 3)]
    assert len(due) == planned_requests(alone.load, 3) == 30
    timed = write(f"{traffic}load: [{{rate: 20/s, law: {law}, for: 1s, requests: 3000}}]\n")
    within = [s.due_s or 0.0 for s in steps(timed, 3)]
    assert len(within) == planned_requests(timed.load, 3)
    assert within[-1] < 1
    assert timed.load[0].timed_s == 1
    assert alone.load[0].timed_s == 1.5
    shared = [s.index for w in range(2) for s in steps(alone, 3, w, 2)]
    assert sorted(shared) == list(range(30))


@pytest.mark.parametrize("name", sorted(resources.profiles()))
def test_steps_of_shipped_profiles_depend_on_the_seed_only(name: str, registry: Registry) -> None:
    profile = load(resources.profile(name), registry)
    assert list(islice(steps(profile, 7), 2000)) == list(islice(steps(profile, 7), 2000))


def test_steps_differ_for_another_seed(registry: Registry) -> None:
    profile = load(resources.profile("mtp_mm"), registry)
    assert [s.traffic for s in steps(profile, 1)] != [s.traffic for s in steps(profile, 2)]


@pytest.mark.parametrize("name", ["mtp_mm", "near_max_len", "pp_memory_pressure"])
@pytest.mark.parametrize("workers", [2, 3])
def test_steps_are_shared_between_workers(name: str, workers: int, registry: Registry) -> None:
    profile = load(resources.profile(name), registry)
    alone = list(steps(profile, 5))
    shared = [s for w in range(workers) for s in steps(profile, 5, w, workers)]
    assert sorted(shared, key=lambda s: s.index) == alone
    assert all(s.index % workers == w for w in range(workers) for s in islice(steps(profile, 5, w, workers), 20))
    assert len(alone) == planned_requests(profile.load, 5)


def test_steps_have_round_and_phase_numbers(write: Write, good: str) -> None:
    profile = write(good + "  - {users: 1, requests: 2, rounds: 2}\n")
    got = [(s.phase, s.round, s.index) for s in steps(profile, 0)][10:]
    assert got == [(1, n // 2, PHASE_STRIDE + n) for n in range(4)]


def test_steps_of_a_phase_with_a_duration_are_endless(write: Write, good: str) -> None:
    profile = write(good, "load=[{users: 1, for: 3s}]")
    assert planned_requests(profile.load) is None
    assert len(list(islice(of_phase(profile, 0, 0), 5000))) == 5000


@pytest.mark.parametrize("law", [
    "constant", "poisson", "ramp, to: 90/s", "step, to: 90/s", "spike, to: 90/s, at: 5s, width: 9s",
    "day, to: 90/s, period: 40s, at: 3s",
])  # fmt: skip
def test_mean_number_of_arrivals_stands_for_many(law: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    load = f"load: [{{rate: 20/s, for: 50s, law: {law}}}]\n"
    phases = write(f"name: x\ntraffic: [{{name: t, payload: {{text: {{}}}}}}]\n{load}").load
    counted = planned_requests(phases)
    monkeypatch.setattr(arrivals, "_MOST_COUNTED", 1)
    assert planned_requests(phases) == pytest.approx(counted, rel=0.1 if law == "poisson" else 0, abs=1)


def test_steps_keep_weights_and_shares(registry: Registry) -> None:
    profile = load(resources.profile("mtp_mm"), registry, ["load.1.requests=20000", "load.1.rounds=1"])
    got = Counter((s.traffic, s.behaviour) for s in steps(profile, 3))
    assert abs(got["images", "plain"] / 20000 - 0.7) < 0.02
    text = got["text", "plain"] + got["text", "abort"]
    assert abs(got["text", "abort"] / text - 0.05) < 0.02


def test_steps_send_every_case_of_a_ladder(registry: Registry) -> None:
    profile = load(resources.profile("near_max_len"), registry)
    rungs = [s.payload["near_limit"].rung for s in of_phase(profile, 0, 0)]
    assert len({(r.margin, r.output) for r in rungs}) == 72
    assert [r.margin for r in rungs[:72]] == sorted(r.margin for r in rungs[:72])


PHASES_OF_TRAFFIC = """
name: phases
traffic:
  - {name: a, payload: {text: {tokens: 32}}, output: {max: 4}}
  - {name: b, weight: 3, payload: {text: {tokens: 64}}, output: {max: 4}}
  - {name: c, payload: {text: {tokens: 64}}, output: {max: 4}}
load:
  - {users: 1, requests: 10, traffic: [a]}
  - {users: 4, requests: 400, traffic: [b, c]}
  - {users: 1, requests: 50}
"""


def test_phase_sends_the_traffic_that_it_names(write: Write) -> None:
    profile = write(PHASES_OF_TRAFFIC)
    sent = [Counter(s.traffic for s in of_phase(profile, 5, n)) for n in range(3)]
    assert sent[0] == {"a": 10}
    assert set(sent[1]) == {"b", "c"}
    assert 250 < sent[1]["b"] < 350, "weights hold within a phase"
    assert set(sent[2]) == {"a", "b", "c"}


def test_explain_counts_traffic_by_the_phases_that_send_it(write: Write) -> None:
    lines = explain(write(PHASES_OF_TRAFFIC)).splitlines()
    assert "  a: 4% of the requests (about 20)" in lines
    assert "  b: 72% of the requests (about 330)" in lines
    assert "  2. 4 users in a closed loop, 400 requests in total, of b and c only" in lines
