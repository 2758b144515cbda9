from pathlib import Path
from typing import Any

import pytest

from loadchaos.load.registry import traffic_registry
from loadchaos.profile.cpu_estimate import CpuEstimate, choose_processes, estimate
from loadchaos.profile.profile import from_mapping


def estimated(phases: list[dict[str, Any]], *, tls: bool = False, **traffic: Any) -> CpuEstimate:
    one = {"name": "t", "payload": {"text": {"tokens": 64}}, "output": {"max": 100}, **traffic}
    return estimate(from_mapping({"name": "p", "traffic": [one], "load": phases}, traffic_registry()), tls=tls)


def test_cpu_of_two_thousand_streams_needs_several_processes() -> None:
    found = estimated([{"users": 2000, "for": "1m"}], output={"exact": 1000})
    assert found.tokens_per_s == pytest.approx(2000 * 1000 / 20.5)
    assert found.processes == 4


def test_cpu_of_sessions_counts_their_requests_and_time_to_think() -> None:
    """4 questions, after 2 of them 3 branches, each with 2 rounds of tools: 8 times 3 requests, 4 times 3 in a row."""
    conversation = {
        "answers": "live",
        "turns": 4,
        "think": "3s",
        "branches": {"count": 3, "after": 2},
        "tool_rounds": 2,
    }
    payload = {"conversation": conversation, "tools": {"count": 1}}
    rate = estimated([{"rate": "10/s", "for": "1m", "max_in_flight": 10_000}], payload=payload)
    assert (rate.requests_per_s, rate.tokens_per_s) == (240, 24_000)
    users = estimated([{"users": 78, "for": "1m"}], payload=payload)
    assert users.requests_per_s == pytest.approx(78 / (12 * 2.5 + 3 * 3) * 24)


def test_cpu_of_a_rate_is_that_of_its_peak() -> None:
    flat = estimated([{"rate": "10/s", "for": "1m"}])
    ramp = estimated([{"rate": "1/s", "for": "1m"}, {"rate": "1/s", "to": "10/s", "law": "ramp", "for": "1m"}])
    assert flat == ramp
    assert (flat.requests_per_s, flat.tokens_per_s) == (10, 1000)


def test_cpu_of_a_rate_ends_at_its_requests_in_flight() -> None:
    assert estimated([{"rate": "1000/s", "for": "1m", "max_in_flight": 5}]).requests_per_s == pytest.approx(2)


def test_cpu_of_a_trace_is_that_of_its_busiest_seconds(tmp_path: Path) -> None:
    arrivals = [*range(0, 100_000, 10_000), *range(100_000, 110_000, 100), *range(110_000, 200_000, 10_000)]
    rows = (f'{{"timestamp": {at}, "input_length": 64, "output_length": 8, "hash_ids": [1]}}\n' for at in arrivals)
    (tmp_path / "t.jsonl").write_text("".join(rows))
    assert estimated([{"trace": str(tmp_path / "t.jsonl")}]).requests_per_s == 10


def test_cpu_is_more_over_tls_and_less_for_answers_at_once() -> None:
    phases = [{"users": 64, "for": "1m"}]
    plain = estimated(phases)
    assert estimated(phases, tls=True).cores > plain.cores > estimated(phases, stream=False).cores
    assert estimated(phases, stream=False).tokens_per_s == 0


@pytest.mark.parametrize(
    ("needed", "cores", "chosen", "text"),
    [
        (0.01, 8, 1, "1 load process for about 5 requests/s and 9 streamed tokens/s (less than 0.1 cores)"),
        (1.9, 8, 4, "4 load processes for about 5 requests/s and 9 streamed tokens/s (1.9 cores)"),
        (1.9, 2, 2, "(1.9 cores, of which 2 are here: the load may be late)"),
    ],
)
def test_processes_follow_the_estimate_within_the_cores(needed: float, cores: int, chosen: int, text: str) -> None:
    number, line = choose_processes(CpuEstimate(5, 9, needed), cores)
    assert number == chosen
    assert line.startswith("--processes auto: ")
    assert line.endswith(text)
