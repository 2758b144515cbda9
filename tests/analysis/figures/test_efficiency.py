from typing import Any

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core.model import Terms
from loadchaos.report.performance import efficiency_texts
from tests.rows import S, answered, decisions, judged, metrics_row
from tests.schemas import validate

BEGIN = 100 * S
EXPECT = ("prefix_hit_rate >= 50%", "text.prefix_hit_rate >= 50%", "acceptance >= 60%")


def request(n: int, cached: int | None, traffic: str = "text") -> list[Any]:
    """Sent every 0.1 s, one second long: 100 prompt tokens, 50 output tokens."""
    counted: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 50, "cached_tokens": cached}
    return answered(BEGIN + n * S // 10, n, traffic=traffic, **counted)


def power(at_s: float, watts: float, device: str = "gpu0", source: str = "nvml") -> dict[str, Any]:
    values = {"gpu_power_w": watts}
    return {
        "row": "device",
        "at_ns": round(at_s * S),
        "source": source,
        "host": "here",
        "device": device,
        "values": values,
    }


def verdict(*rows: Any, cached: tuple[int | None, ...] = (None,) * 20) -> Any:
    sent = [row for n, hit in enumerate(cached) for row in request(n, hit)]
    found = judged(Terms("p", expect=EXPECT), sorted([*sent, *rows], key=lambda r: r["at_ns"]))
    validate(found)
    return found


def texts(found: Any) -> dict[str, str]:
    return efficiency_texts(Verdict.from_json(found))


def test_prefix_hits_are_the_cached_tokens_of_the_answers() -> None:
    found = verdict(cached=(None, *(80,) * 19))
    assert found["efficiency"]["prefix_hit_rate"] == pytest.approx(0.76)
    assert found["efficiency"]["prefix_source"] == "usage"
    assert decisions(found) == ["pass", "pass", "unknown"]
    assert verdict(cached=(None, *(8,) * 19))["expectations"][0]["verdict"] == "fail"
    assert texts(found)["prefix cache"] == "76.0 % of the prompt tokens were cached (usage of the answers)"


def test_prefix_hits_leave_out_traffic_that_generates_nothing_and_tells_nothing() -> None:
    embedded = [{**row, "id": f"e{n}"} for n in range(20, 60) for row in request(n, None, "embed")]
    for row in embedded:
        if row["row"] == "end":
            row["completion_tokens"] = 0
    found = verdict(*embedded, cached=(80,) * 20)
    assert found["efficiency"]["prefix_hit_rate"] == pytest.approx(0.8)
    unhit = [row for n in range(20, 40) for row in request(n, None, "unhit")]
    found = verdict(*unhit, cached=(80,) * 20)
    assert found["efficiency"]["prefix_hit_rate"] == pytest.approx(0.4), "a server that leaves a 0 out told 0"


def test_prefix_hits_come_from_counters_where_no_answer_tells_them() -> None:
    names = ("prefix_cache_queries_total", "prefix_cache_hits_total")
    readings = [metrics_row(at, dict(zip(names, v, strict=True))) for at, v in ((99, (5000, 0)), (100.5, (6000, 600)))]
    before = metrics_row(98, prefix_cache_queries_total=0, prefix_cache_hits_total=0)
    found = verdict(before, *readings)
    assert (found["efficiency"]["prefix_hit_rate"], found["efficiency"]["prefix_source"]) == (0.6, "counters")
    assert decisions(found) == ["pass", "unknown", "unknown"], "the growth before the load does not count"


def test_efficiency_is_unknown_where_the_server_tells_nothing() -> None:
    found = verdict()
    assert set(found["efficiency"].values()) == {None}
    assert decisions(found) == ["unknown"] * 3
    assert "neither the answers (cached_tokens) nor the server's counters tell it" in found["expectations"][0]["actual"]
    assert texts(found) == {}


def test_acceptance_is_that_of_the_counters_and_survives_a_restart() -> None:
    values = [(1000, 500), (1200, 640), (0, 0), (100, 70)]
    rows = [
        metrics_row(99.9 + n / 2, spec_draft_tokens_total=drafted, spec_accepted_tokens_total=accepted)
        for n, (drafted, accepted) in enumerate(values)
    ]
    found = verdict(*rows)
    assert (found["efficiency"]["drafted_tokens"], found["efficiency"]["accepted_tokens"]) == (300, 210)
    assert found["efficiency"]["acceptance"] == pytest.approx(0.7)
    assert decisions(found) == ["unknown", "unknown", "pass"]


def test_acceptance_of_the_answers_has_traffic_and_quantiles_of_single_requests() -> None:
    counters = [
        metrics_row(at, spec_draft_tokens_total=n, spec_accepted_tokens_total=0) for at, n in ((99, 0), (101, 500))
    ]
    told = [
        {**row, "drafted_tokens": 40, "accepted_tokens": 4 * n} if row["row"] == "end" else row
        for n in range(1, 11)
        for row in request(100 + n, None, "code")
    ]
    found = verdict(*counters, *told, cached=())
    efficiency = found["efficiency"]
    assert (efficiency["drafted_tokens"], efficiency["accepted_tokens"]) == (400, 220), "not the counters"
    assert (efficiency["acceptance"], efficiency["acceptance_source"]) == (0.55, "answers")
    assert efficiency["acceptance_by_request"] == {"p10": 0.1, "p50": 0.5, "p90": 0.9, "n": 10}
    assert decisions(found)[2] == "fail"
    assert texts(found)["drafts"] == (
        "55.0 % accepted, 220 of 400 tokens (told by the answers); of single requests: p10 10 %, p50 50 %, p90 90 %"
    )


def test_acceptance_of_a_load_is_not_that_of_the_traffic_which_tells_it() -> None:
    """Answers of `responses` tell no drafts: those of `chat` beside them do not speak for all."""
    counters = [
        metrics_row(at, spec_draft_tokens_total=n, spec_accepted_tokens_total=n // 4)
        for at, n in ((99, 0), (101.5, 800))
    ]
    told = [
        {**row, "drafted_tokens": 40, "accepted_tokens": 40} if row["row"] == "end" else row
        for n in range(10)
        for row in request(100 + n, None, "code")
    ]
    found = verdict(*counters, *told)
    efficiency = found["efficiency"]
    assert (efficiency["acceptance"], efficiency["drafted_tokens"]) == (0.25, 800)
    assert efficiency["acceptance_source"] == "counters"
    assert decisions(found)[2] == "fail"
    assert "(counters of the server); of single requests that tell it: p10 100 %" in texts(found)["drafts"]


def test_energy_is_the_power_over_the_load() -> None:
    readings = [power(97 + t / 4, 300.0 if t / 4 >= 2.5 else 50.0, f"gpu{g}") for t in range(40) for g in range(2)]
    found = verdict(*readings)["efficiency"]
    assert found["mean_power_w"] == pytest.approx(600, rel=0.01)
    assert found["energy_j"] == pytest.approx(600 * 2.9, rel=0.01)
    assert found["joules_per_output_token"] == pytest.approx(600 * 2.9 / 1000, rel=0.01)
    assert found["output_tokens_per_s_per_w"] == pytest.approx(1000 / (600 * 2.9), rel=0.01)


def test_energy_is_counted_once_where_two_sources_read_the_same_gpus() -> None:
    both = [power(97 + t / 4, 300.0, source=source) for t in range(40) for source in ("dcgm", "nvml")]
    assert verdict(*both)["efficiency"]["mean_power_w"] == pytest.approx(300, rel=0.01)


def test_energy_is_unknown_where_power_was_read_for_a_part_of_the_load() -> None:
    part = [power(97 + t / 4, 300.0) for t in range(17)]
    assert verdict(*part)["efficiency"]["joules_per_output_token"] is None
