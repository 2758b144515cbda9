from typing import Any

import pytest

from tests.run.conftest import Start, embedded_target

ASKED: dict[str, Any] = {
    "probes": {"every": "300ms"}, "replicas": {"n": 4, "every": "1s"}, "cold_warm": {"every": "1s"},
    "alone_vs_load": {"share": "20%"}, "streamed": {"every": "1s"},
}  # fmt: skip
TEXT = {"name": "text", "payload": {"text": {"tokens": "60..200"}}, "output": {"max": "40..80"}}
SMALL_CACHE: dict[str, Any] = {"num_gpu_blocks": 60, "enable_prompt_tokens_details": True}
CHECKS = {"questions", "identical_requests", "cold_and_warm", "alone_vs_load", "streamed_and_whole"}


@pytest.mark.slow
@pytest.mark.parametrize("defects", [["stale_kv_on_resume"], []])
def test_questions_find_wrong_answers_under_load(defects: list[str], start: Start) -> None:
    target = embedded_target(*defects, **SMALL_CACHE)
    run = start(target=target, correctness=ASKED, traffic=[TEXT], load=[{"users": 16, "for": "10s"}])
    run.ends(120)
    verdict = run.verdict()
    found = {f["id"]: f for f in verdict["failures"]}
    assert run.rows("metrics.jsonl")[-1]["values"]["preemptions_total"] > 0
    if not defects:
        assert found == {}
        assert {c["name"] for c in verdict["checks"] if c["verdict"] == "pass"} >= CHECKS
        return
    assert found["wrong_answer"]["wrong_answers"][0]["expected"]
    assert set(found) >= {"wrong_answer", "identical_requests_differ", "answer_changed_under_load"}


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--no-questions"]])
def test_questions_before_the_load_are_told_or_left_out(words: list[str], start: Start) -> None:
    run = start(*words, correctness={"streamed": {"every": "200ms"}})
    run.ends(120)
    told = "asking at most 55 questions before the load" in run.output and "the questions take at most" in run.output
    asked = bool(run.rows(row="question"))
    unknown = run.check("streamed_and_whole")["verdict"] == "unknown"
    assert (told, asked, unknown) == ((False, False, True) if words else (True, True, False))


FOUND = {
    "streams_swapped": "answer_of_another_request", "lost_token": "wrong_answer", "repeated_token": "wrong_answer",
    "wrong_block_at_edge": "cache_changes_answer", "prompt_taken_for_decode": "cache_changes_answer",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("defect", FOUND)
def test_questions_find_each_defect(defect: str, start: Start) -> None:
    target = embedded_target(defect)
    asked = {**ASKED, "cold_warm": {"every": "100ms"}}
    run = start(target=target, correctness=asked, traffic=[TEXT], load=[{"users": 8, "for": "15s"}])
    run.ends(120)
    assert FOUND[defect] in {f["id"] for f in run.verdict()["failures"]}


IMAGES = {
    "name": "images", "payload": {"images": {"count": 1, "size": "448x448"}, "text": {"tokens": "32..128"}},
    "output": {"max": 32},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("defects", [["stale_image_embedding"], []])
def test_questions_find_answers_about_other_images(defects: list[str], start: Start) -> None:
    target = embedded_target(*defects)
    asked = {"probes": {"every": "500ms"}, "images": {"every": "1s"}, "replicas": {"n": 3, "every": "3s"}}
    run = start(target=target, correctness=asked, traffic=[TEXT, IMAGES], load=[{"users": 8, "for": "10s"}])
    run.ends(120)
    found = {f["id"]: f for f in run.verdict()["failures"]}
    if not defects:
        assert found == {}
        assert {c["name"]: c["verdict"] for c in run.verdict()["checks"]}["image_answers"] == "pass"
        return
    assert set(found) >= {"wrong_answer", "answer_of_another_image"}
    (folder,) = (run.folder / "incidents").glob("*answer_of_another_image")
    page = (folder / "incident.md").read_text()
    assert "## Server log" not in page
    assert "answer about the image" in page


@pytest.mark.slow
def test_questions_that_the_idle_server_cannot_answer_are_named(start: Start) -> None:
    kinds = {"every": "300ms", "kinds": ["copy", "needle"]}
    run = start(
        target={"embedded": {"dialect": "vllm", "era": "0.32", "flags": {"max_model_len": 130}}},
        correctness={"probes": kinds},
    )
    run.ends(120)
    learned = {row["kind"]: row for row in run.rows("events.jsonl") if row["row"] == "learned"}
    assert learned["copy"]["used"]
    assert not learned["needle"]["used"]
    assert "the idle server gave an error" in learned["needle"]["why"]
    assert "questions of the kind needle are not asked" in " ".join(run.output.split())
