from collections.abc import Callable
from typing import Any

import pytest

from loadchaos.analysis.judge import Judge
from tests.rows import folded

LOST = "AssertionError: Expected a cached item for mm_hash='61ae43d2'"


def hang(
    make_history: Callable[[], Any], *, version: str = "0.22.1", log: str = LOST, cpu: float = 0.9
) -> dict[str, Any]:
    h = make_history().begin(version=version)
    h.pids = {30: ("api_server", "S"), 31: ("engine_core", "R")}
    h.work(20).log(log).work(5).send(4)
    h.tokens, h.working = 0, False
    for _ in range(100):
        h.cpu[31] += cpu
        h.cpu[30] += 0.02
        h.run(1)
    judge = folded(Judge(), h.rows)
    return {f["id"]: f for f in judge.verdict().to_json()["failures"] if f["severity"] == "hang"}


def test_spinning_hang_is_named_with_its_issue_and_fixed_version(
    make_history: Callable[[], Any],
) -> None:
    (found,) = hang(make_history).values()
    assert (found["id"], found["attribution"]) == ("mm_cache_spin", "server")
    assert found["known"][0]["issue"] == "vllm-project/vllm#43941"
    assert "lacks the fix" in found["known"][0]["standing"]
    assert "used" in found["evidence"]["text"]


@pytest.mark.parametrize(
    "otherwise", [{"log": "all is well"}, {"cpu": 0.01}, {"version": "0.24.0"}], ids=["no-lost-image", "rests", "cured"]
)
def test_spinning_detector_leaves_other_hangs_alone(make_history: Callable[[], Any], otherwise: dict[str, Any]) -> None:
    assert set(hang(make_history, **otherwise)) == {"alive_but_hung"}
