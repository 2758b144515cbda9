from typing import Any

import pytest

from tests.run.conftest import Start

pytestmark = pytest.mark.slow
TEXT = {"text": {"tokens": "40..90"}}
TARGET = {"embedded": {"dialect": "vllm", "era": "0.32"}}


def traffic(name: str, payload: dict[str, Any], *, output: dict[str, int] | None = None) -> dict[str, Any]:
    return {"name": name, "endpoint": name, "payload": payload, **({"output": output} if output else {})}


ALL = [
    *(traffic(name, TEXT, output={"exact": 8}) for name in ("completions", "responses")),
    traffic("messages", TEXT, output={"max": 8}),
    *(traffic(name, {**TEXT, "batch": {"count": "1..4"}}) for name in ("embeddings", "rerank", "score")),
    traffic("transcriptions", {"audio": {"seconds": 1}}, output={"max": 8}),
]


def test_endpoints_answer_with_exact_lengths(start: Start) -> None:
    run = start(traffic=ALL, target=TARGET, load=[{"users": 6, "requests": 140}])
    assert run.ends(90) == 0, run.output
    verdict = run.verdict()
    assert (verdict["outcomes"], verdict["failures"]) == ({"ok": 140}, [])
    ends = [r for r in run.rows("requests-0.jsonl") if r["row"] == "end"]
    counted = [r for r in ends if r["traffic"] != "transcriptions"]
    assert {r["traffic"] for r in counted if r["prompt_tokens"] == r["planned_tokens"]} == {t["name"] for t in ALL[:-1]}
    assert not any(r["length_mismatch"] for r in ends)


def test_death_of_the_engine_is_one_failure_on_all_endpoints(start: Start) -> None:
    long = [{**t, "output": {"max": 400}} if "output" in t else t for t in ALL]
    kill = [{"process": "sigkill", "role": "engine_core", "at": "12s"}]
    run = start(traffic=long, target=TARGET, load=[{"users": 14, "for": "20s"}], attacks=kill)
    run.ends(120)
    verdict = run.verdict()
    assert [f["attribution"] for f in verdict["failures"]] == ["expected"], run.output
    assert "rejected" not in verdict["outcomes"]


def test_audio_repeats_are_the_cache_hits_of_the_server(start: Start) -> None:
    payload = {"audio": {"seconds": 1, "unique": "50%", "near_duplicates": "10%", "reuse_distance": 16}}
    target = {"embedded": {**TARGET["embedded"], "flags": {"limit_mm_per_prompt": {"audio": 1}}}}
    heard = [{"name": "heard", "payload": {**payload, **TEXT}, "output": {"max": 2}}]
    run = start(traffic=heard, target=target, load=[{"users": 4, "requests": 160}])
    assert run.ends(90) == 0, run.output
    assert run.check("image_dial")["verdict"] == "pass"
    assert "repeats sent" in run.check("image_dial")["actual"]
