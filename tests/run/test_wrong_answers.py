from typing import Any

import pytest

from tests.run.conftest import Run, Start, embedded_target

EVERY: dict[str, Any] = {"canary": {"every": "300ms"}}
TEXT = {"name": "text", "payload": {"text": {"tokens": "32..64"}}, "output": {"exact": 120}}
SMALL_CACHE = {"num_gpu_blocks": 120, "enable_prefix_caching": False}
LEAVING = {**TEXT, "name": "leaving", "behaviour": {"abort": {"share": "100%", "at_token": "2..10"}}}


def ids(run: Run) -> set[str]:
    run.ends(120)
    return {f["id"] for f in run.verdict()["failures"]}


@pytest.mark.slow
@pytest.mark.parametrize("defects", [["stale_kv_on_resume"], []])
def test_canary_finds_wrong_answers_under_load(defects: list[str], start: Start) -> None:
    load = [{"users": 2, "for": "3s"}, {"users": 24, "for": "10s"}]
    run = start(target=embedded_target(*defects, **SMALL_CACHE), watch=EVERY, traffic=[TEXT], load=load)
    assert ids(run) == ({"canary_changed"} if defects else set())
    assert run.check("canary")["verdict"] == "pass"
    assert run.rows("metrics.jsonl")[-1]["values"]["preemptions_total"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("defects", [["rows_slip_on_abort"], []])
def test_secret_words_find_answers_of_other_requests(defects: list[str], start: Start) -> None:
    load = [{"users": 12, "for": "10s"}]
    run = start(target=embedded_target(*defects), watch=EVERY, traffic=[TEXT, LEAVING], load=load)
    found = ids(run)
    assert ("answer_of_another_request" in found) == bool(defects)
    assert found <= {"answer_of_another_request", "canary_changed"}
