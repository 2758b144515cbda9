import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadchaos.analysis.verdict.model import FailureResult, Verdict
from loadchaos.campaigns.hunt.slot import _failure, _refusal, summary
from loadchaos.core.ledger.folder import RunFolder
from loadchaos.core.typed_json import from_json
from loadchaos.run.finalize import Result

MIN_P = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


def end(status: int, code: int | str | None, text: str = MIN_P) -> dict[str, Any]:
    """End row of a request with an error."""
    return {"row": "end", "status": status, "error_code": code, "error": text}


def named(line: str | None, severity: str = "request") -> dict[str, Any]:
    """Failure of a verdict whose evidence is a line."""
    return {"id": "stream_generator_error", "severity": severity, "attribution": "server", "evidence": {"text": line}}


@pytest.mark.parametrize(
    ("row", "line", "severity", "found"),
    [
        (end(200, 400), f"vllm.exceptions.VLLMValidationError: {MIN_P}", "request", False),
        (end(400, None), MIN_P, "request", False),
        (end(200, 500), MIN_P, "request", True),
        (end(500, 400), MIN_P, "request", True),
        (end(200, None), MIN_P, "request", True),
        (end(200, "invalid"), MIN_P, "request", True),
        (end(200, 400), "IndexError: list index out of range", "request", True),
        (end(200, 400), MIN_P, "engine_death", True),
        (end(200, 400, "no"), "no answer", "request", True),
        (end(200, 400), None, "request", True),
    ],
)
def test_refusals_in_a_status_or_a_stream_are_no_findings(
    row: dict[str, Any], line: str | None, severity: str, found: bool
) -> None:
    refusals = {text} if (text := _refusal(row)) else set()
    failures = [_failure(from_json(FailureResult, named(line, severity)), 0, refusals)]
    assert any(f.is_finding for f in failures) is found


def test_wait_in_the_queue_of_an_overloaded_server_is_no_finding() -> None:
    waited = {**named("no byte of the answer arrived for 60 s"), "id": "queue_wait", "attribution": "load"}
    failure = _failure(from_json(FailureResult, waited), 0, set())
    assert not failure.is_finding
    assert replace(failure, attribution="server").is_finding


def test_questions_are_counted_apart_from_the_load(tmp_path: Path) -> None:
    rows = [
        {"row": "begin", "at_ns": 1, "id": "0-0"},
        {"row": "question", "at_ns": 2, "text": ""},
        {"row": "question", "at_ns": 3, "text": ""},
        {"row": "last_question", "what": "ask", "at_ns": 4},
        {"row": "last_question", "what": "answer", "at_ns": 5},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = summary(Result(0, Verdict.from_json({}), RunFolder(tmp_path)))
    assert (made.requests, made.questions) == (1, 3)
