import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import Run, Server, launch, lmdeploy_018, on

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
QUICK_HEALTH = {
    "LMDEPLOY_HEALTH_POLL_INTERVAL": "3",
    "LMDEPLOY_HEALTH_PROBE_TIMEOUT": "2",
    "LMDEPLOY_HEALTH_UNHEALTHY_AFTER": "6",
}


def test_smoke_passes(shared_lmdeploy: Server, loadchaos: Run) -> None:
    result = loadchaos("smoke", *on(shared_lmdeploy), "-t", "60s")
    assert result.verdict["verdict"] == "pass", result.output


def test_real_lmdeploy_ladder_finds_1216_of_21_blocks(shared_lmdeploy: Server, loadchaos: Run) -> None:
    ladder = {
        "name": "ladder",
        "payload": {"near_limit": {"band": "-20..-1", "step": 19, "plus": [0, 1, 64], "output": ["one"]}},
    }
    result = loadchaos(
        {"name": "ladder", "traffic": [ladder], "load": [{"users": 2, "requests": 15}]}, *on(shared_lmdeploy)
    )
    text = result.check("near_limit")
    assert "limit 1,217 tokens (21 blocks of 64 hold a prompt of 1,216, set by --num-gpu-blocks" in text, result.output
    assert "longest answered: -1; shortest refused: +0" in text
    assert result.verdict["verdict"] == "pass", result.output


def faulty(tmp_path: Path, directive: str) -> list[dict[str, Any]]:
    """Traffic of which one in four carries the directive."""
    bodies = tmp_path / "faulty.jsonl"
    body = {"model": "x", "messages": [{"role": "user", "content": f"please {directive}"}], "max_tokens": 8}
    bodies.write_text(json.dumps(body) + "\n")
    return [
        {"name": "plain", "weight": 3, "payload": {"text": {"tokens": "32..64"}}, "output": {"max": 8}},
        {"name": "faulty", "payload": {"requests": {"file": str(bodies)}}},
    ]


@pytest.mark.parametrize(
    ("directive", "outcome", "name"),
    [
        ("[[ERR:INTERNAL_ENGINE_ERROR]]", "stream_error", "lmdeploy_internal_engine_error"),
        ("[[ERR:INPUT_LENGTH_ERROR]]", "rejected", "unexpected_rejection"),
        ("[[MID:OUT_OF_MEMORY:5]]", "stream_error", "lmdeploy_internal_engine_error"),
        ("[[RAISE:2]]", "stream_error", "lmdeploy_request_exception"),
        ("[[EMPTY]]", "stream_error", "lmdeploy_internal_engine_error"),  # an engine that said nothing
        ("[[RAISE:0]]", "stream_error", "lmdeploy_request_exception"),
        ("[[MID:INTERNAL_ENGINE_ERROR:1]]", "stream_error", "lmdeploy_internal_engine_error"),
        ("[[MID:CANCEL:3]]", "finish_abort", "unexplained_finish_abort"),
        *(
            (f"[[ERR:{kind}]]", "stream_error", "lmdeploy_internal_engine_error")
            for kind in ("ENGINE_STOP_ERROR", "HANDLER_NOT_EXIST", "NO_QUEUE", "OUT_OF_MEMORY")
        ),
        *(
            (f"[[ERR:{kind}]]", "rejected", "unexpected_rejection")  # it blames the client for its own state
            for kind in ("SESSION_REPEAT", "PREFIX_CACHE_CONFLICT", "NOT_SUPPORTED")
        ),
        ("[[ERR:SESSION_NOT_EXIST]]", "stream_error", "unexplained_stream_error"),  # its log has no word of it
    ],
)
def test_real_lmdeploy_fault_has_its_outcome_and_name(
    shared_lmdeploy: Server, loadchaos: Run, tmp_path: Path, directive: str, outcome: str, name: str
) -> None:
    result = loadchaos(
        {"name": "faults", "traffic": faulty(tmp_path, directive), "load": [{"users": 2, "requests": 16}]},
        *on(shared_lmdeploy),
    )
    assert set(result.verdict["by_traffic"]["faulty"]) == {outcome}, result.output
    assert set(result.verdict["by_traffic"]["plain"]) == {"ok"}
    assert result.verdict["verdict"] == "fail"
    assert name in result.failures, result.output
    assert {f["attribution"] for f in result.failures.values()} == {"server"}
    assert {s["state"] for s in result.verdict["states"]} <= {"healthy", "degraded"}, "it lives on"


def test_real_lmdeploy_short_answer_is_no_fault(shared_lmdeploy: Server, loadchaos: Run, tmp_path: Path) -> None:
    result = loadchaos(
        {"name": "short", "traffic": faulty(tmp_path, "[[OUT:3]]"), "load": [{"users": 2, "requests": 16}]},
        *on(shared_lmdeploy),
    )
    assert result.verdict["verdict"] == "pass", result.output


@pytest.mark.parametrize(
    ("directive", "severity", "state"), [("[[HANG:1]]", "hang", "hung"), ("[[DIE]]", "engine_death", "dead")]
)
def test_real_lmdeploy_hang_and_death_differ(
    loadchaos: Run, tmp_path: Path, directive: str, severity: str, state: str
) -> None:
    command = lmdeploy_018("--blocks", "64", **QUICK_HEALTH)
    result = loadchaos({
        "name": "ending", "target": launch(command), "traffic": faulty(tmp_path, directive),
        "load": [{"users": 4, "for": "40s"}], "limits": {"first_byte": "20s", "between_bytes": "20s", "total": "30s"},
    })  # fmt: skip
    assert severity in {f["severity"] for f in result.failures.values()}, result.output
    assert result.verdict["verdict"] == "fail"
    assert state in {s["state"] for s in result.verdict["states"]}, result.output
    assert not {"hung", "dead"} - {state} & {s["state"] for s in result.verdict["states"]}


def test_real_lmdeploy_admin_attacks_are_expected(loadchaos: Run) -> None:
    command = lmdeploy_018("--blocks", "210", "--enable-abort-handling", "--allow-terminate-by-client")
    result = loadchaos({
        "name": "attacked", "target": launch(command), "load": [{"users": 8, "for": "40s"}],
        "traffic": [{"name": "text", "payload": {"text": {"tokens": "16..200"}}, "output": {"max": 16}}],
        "attacks": [
            {"admin": "sleep", "at": "5s", "for": "4s", "params": {"level": 2}},
            {"admin": "wakeup", "during": "sleep", "params": {"tags": ["weights"]}},
            {"admin": "abort_request", "at": "16s"},
            {"admin": "terminate", "at": "28s"},
        ],
    }, "--authorize", command.url.removeprefix("http://"))  # fmt: skip
    assert {a["ok"] for a in result.verdict["attacks"].values()} == {1}, result.output
    assert {f["attribution"] for f in result.failures.values()} == {"expected"}, result.output
    assert "server_terminated" in result.failures
