import json
from typing import Any

from loadchaos.analysis.judge import Judge
from loadchaos.core.model import Terms
from loadchaos.core.typed_json import to_json
from tests.analysis.conftest import History
from tests.rows import S, folded


def test_judge_findings_report_a_death_at_open_and_close(history: History) -> None:
    history.begin().work(5).miss(5).idle(2).end()
    judge = Judge(Terms("test"))
    found: list[Any] = []
    for row in history.rows:
        judge.fold(row)
        found += judge.findings()
    judge.verdict()
    found += judge.findings()
    kinds = [(r["row"], r.get("what")) for r in found]
    assert kinds == [("incident", "open"), ("failure", None), ("incident", "close"), ("failure", None)]
    assert found[1]["id"] == found[3]["id"] == "encoder_cache_miss"
    assert found[2]["folder"] == found[3]["incident"] == "001-encoder_cache_miss"
    assert found[1]["at_ns"] - found[0]["at_ns"] < 4 * S


def test_judge_incident_has_what_upstream_needs(history: History) -> None:
    history.begin(kv_blocks=3).work(5).attacked("reset_mm_cache", ["mm_cache_desync_request"])
    ids = history.send(5, "images")
    history.serve(0.2).log(history.MISS).die(ids).idle(2).end()
    judge = folded(Judge(Terms("test")), history.rows)
    judge.verdict()
    [incident] = judge.incidents
    shown = to_json(incident.record())
    json.dumps(shown)
    assert len(shown["in_flight"]) == shown["in_flight_at_death"] == 5
    assert len(shown["admitted"]) == 55
    assert shown["attacks"][0]["attack"] == "reset_mm_cache"
    assert shown["log_lines"] == {"server.log": {"first": 7, "last": 7}}
    assert shown["environment"]["facts"]["version"] == "0.18.0"
    assert shown["environment"]["command"] == ["vllm", "serve"]
    texts = [t["text"] for t in shown["timeline"]]
    assert any(t.startswith("dead") for t in texts)
    assert [t["at_s"] for t in shown["timeline"]] == sorted(t["at_s"] for t in shown["timeline"])
    assert shown["exit"]["code"] == 0


def test_judge_memory_does_not_grow_with_the_run(history: History) -> None:
    judge = folded(Judge(Terms("test")), history.begin().rows)
    history.rows.clear()
    for n in range(20_000):
        ids = history.send(1)
        history.now += 1_000_000
        bad = n % 50 == 0
        history.answer(
            ids, "http_error" if bad else "ok", took_s=0.001, **({"error": f"unlike {n % 7}"} if bad else {})
        )
        for row in history.rows:
            judge.fold(row)
        history.rows.clear()
    assert not judge._stats.in_flight
    assert len(judge._bad_answers._waiting) < 100
    assert len(judge._registry.failures) < 10


def test_judge_failures_may_be_read_at_any_time(history: History) -> None:
    history.begin().work(5)
    for _ in range(3):
        history.answer(history.send(2), "http_error", status=500, error="Internal Server Error: odd")
        history.work(25)
    history.end()
    asked, silent = Judge(Terms("test")), Judge(Terms("test"))
    counts = []
    for n, row in enumerate(history.rows):
        asked.fold(row)
        silent.fold(row)
        if n % 50 == 0:
            counts.append(sum(f.count for f in asked.failures()))
    assert asked.verdict() == silent.verdict()
    assert counts == sorted(counts)
    assert sum(f.count for f in asked.failures()) == 6
