import itertools
from typing import Any

import pytest

from loadchaos.analysis.verdict.model import Verdict
from loadchaos.core import typed_json
from loadchaos.core.model import Facts, Terms, TextFacts
from loadchaos.load.registry import traffic_registry
from loadchaos.profile.profile import from_mapping
from loadchaos.report.performance import efficiency_texts
from tests.rows import S, answered, decisions, judged, metrics_row
from tests.schemas import validate

BEGIN = 100 * S
TEMPLATE_TOKENS = 20
REQUESTS = 100


def rows(cached: int | None, traffic: str = "text") -> list[dict[str, Any]]:
    """Requests of 200 prompt tokens, sent every 0.1 s, with a first token after 0.5 s."""
    text = TextFacts(TEMPLATE_TOKENS, ((" the", 1),), " the", "tokenize")
    facts = Facts("http://127.0.0.1:1", "http://127.0.0.1:1", "vllm", "tiny", "0.32.0", text=text)
    found: list[dict[str, Any]] = [
        {"row": "facts", "at_ns": 98 * S, "facts": typed_json.to_json(facts)},
        {"row": "run", "at_ns": 99 * S, "what": "load_begin"},
    ]
    for n in range(REQUESTS):
        counted: dict[str, Any] = {"prompt_tokens": 200, "completion_tokens": 5, "cached_tokens": cached}
        found += answered(BEGIN + n * S // 10, n, traffic=traffic, **counted)
    return found


def counters(hits: int, preemptions: int = 0) -> list[dict[str, Any]]:
    """Counters of the server before the load and after it."""
    values = {
        "prefix_cache_queries_total": 200 * REQUESTS,
        "prefix_cache_hits_total": hits,
        "preemptions_total": preemptions,
    }
    return [
        metrics_row(at_s, found)
        for at_s, found in ((99, dict.fromkeys(values, 0)), (101, dict.fromkeys(values, 0)), (115, values))
    ]  # fmt: skip


def verdict(*groups: list[dict[str, Any]], limit: str = "2s", new: tuple[str, ...] = ("text",)) -> Any:
    expect = [f"ttft_p50 <= {limit}", "goodput >= 90%", "ok_share >= 99%"]
    terms = Terms("p", expect=expect, slo={"ttft": 2.0}, new_prompts=new)
    found = judged(terms, sorted(itertools.chain(*groups), key=lambda r: r["at_ns"]))
    validate(found)
    return found


@pytest.mark.parametrize("given", [[rows(160)], [rows(None), counters(160 * REQUESTS)]])
def test_warm_cache_makes_met_limits_of_latency_unknown(given: list[list[dict[str, Any]]]) -> None:
    found = verdict(*given)
    assert decisions(found) == ["unknown", "unknown", "pass"]
    assert "501 ms" in found["expectations"][0]["actual"]
    assert ", but the server had the prompts" in found["expectations"][0]["actual"]
    assert "give another --seed" in found["expectations"][0]["actual"]
    assert efficiency_texts(Verdict.from_json(found))["prefix cache"].endswith("; latencies are those of a warm cache")
    found["expectations"] = found["expectations"][2:]
    assert (
        "latencies are those of a warm cache: the server had the prompts"
        in efficiency_texts(Verdict.from_json(found))["prefix cache"]
    )


def test_warm_cache_excuses_no_broken_limit() -> None:
    found = verdict(rows(160), limit="100ms")
    assert decisions(found)[0] == "fail"
    assert ", although the server had the prompts in its prefix cache" in found["expectations"][0]["actual"]


@pytest.mark.parametrize(
    "given",
    [
        [rows(TEMPLATE_TOKENS)],
        [rows(None), counters(TEMPLATE_TOKENS * REQUESTS)],
        [rows(None)],
        [rows(None), counters(160 * REQUESTS, preemptions=3)],
    ],
    ids=["template", "template by counters", "not told", "preempted"],
)
def test_warm_cache_is_not_claimed_for_other_hits(given: list[list[dict[str, Any]]]) -> None:
    found = verdict(*given)
    assert (found["efficiency"]["warm_cache"], decisions(found)) == (None, ["pass"] * 3)


def test_warm_cache_leaves_out_traffic_that_repeats_prompts() -> None:
    assert decisions(verdict(rows(160), new=())) == ["pass"] * 3
    assert decisions(verdict(rows(None, "chat"), counters(160 * REQUESTS))) == ["pass"] * 3


def test_warm_cache_leaves_out_counters_that_count_our_questions() -> None:
    question = {"row": "question", "at_ns": 105 * S, "when": "load"}
    assert decisions(verdict(rows(None), counters(160 * REQUESTS), [question])) == ["pass"] * 3
    assert decisions(verdict(rows(160), [question]))[0] == "unknown", "the usage of an answer is its own"


@pytest.mark.parametrize(
    ("payload", "new"),
    [
        ({"text": {"tokens": 64}}, True),
        ({"text": {"tokens": 64}, "sampling": {"temperature": 0.7}}, True),
        ({"text": {"tokens": 64, "shared_prefix": {"tokens": 32}}}, False),
        ({"text": {"tokens": 64}, "sampling": {"n": 2, "temperature": 0.7}}, False),
        ({"text": {"tokens": 64}, "images": {"count": 1}}, False),
        ({"conversation": {"turns": 3}}, False),
    ],
)
def test_terms_name_traffic_without_repeated_prompts(payload: dict[str, Any], new: bool) -> None:
    traffic = {"name": "t", "payload": payload}
    load = [{"users": 1, "requests": 1}]
    profile = from_mapping({"name": "p", "traffic": [traffic], "load": load}, traffic_registry())
    assert list(profile.terms(0).new_prompts) == (["t"] if new else [])
