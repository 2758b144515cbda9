from typing import Any

import pytest

from loadchaos.analysis.verdict.cause import cause_of
from loadchaos.analysis.verdict.model import FailureResult
from loadchaos.core.typed_json import from_json

REJECTED = {"id": "unexpected_rejection", "severity": "request"}
LINE = {"source": "vllm.log", "line": 12, "text": "KeyError: 'x'"}


def client(text: str) -> dict[str, Any]:
    return {"source": "client", "text": text}


def failure(**fields: Any) -> FailureResult:
    return from_json(FailureResult, {"id": "encoder_cache_miss", "severity": "request", "title": "t", **fields})


@pytest.mark.parametrize(
    ("fields", "who"),
    [
        ({"evidence": LINE}, "server"),
        ({"evidence": client("EngineCore encountered an issue")}, "server"),
        ({}, "unknown"),
        ({"evidence": LINE, "attribution": "expected"}, "attack"),
        ({"id": "queue_wait", "attribution": "load"}, "load"),
        ({"severity": "startup", "evidence": LINE}, "start"),
        ({"evidence": LINE, "layer": "host"}, "outside"),
        ({"evidence": LINE, "layer": "gateway"}, "gateway"),
        ({"id": "alive_but_hung", "severity": "hang", "evidence": {"source": "signs", "text": "no token"}}, "unknown"),
        ({"id": "outage_unexplained", "severity": "node", "evidence": {"source": "signs", "text": "reset"}}, "unknown"),
        (
            {"id": "unexplained_http_error", "title": "Unexplained HTTP error: 500 x", "evidence": client("x")},
            "unknown",
        ),
        (
            {
                "id": "unexplained_http_error",
                "title": "Unexplained HTTP error: 404 No fixture matched",
                "evidence": client("No fixture matched"),
            },
            "request",
        ),
        ({**REJECTED, "evidence": client("Unsupported parameter: 'max_tokens' is not supported")}, "request"),
        ({**REJECTED, "evidence": client('[{"type":"extra_forbidden","loc":["body","stream_options"]}]')}, "request"),
        ({**REJECTED, "evidence": client("temperature 0 is not supported")}, "request"),
        (
            {**REJECTED, "evidence": client("triggering Azure OpenAI's content management policy. Please modify")},
            "policy",
        ),
        ({**REJECTED, "evidence": client("Insufficient credits. Add more")}, "policy"),
        ({**REJECTED, "evidence": client("Insufficient Balance")}, "policy"),
        ({"id": "unusual_finish_reason", "evidence": client("unrequested finish_reason timeout")}, "unknown"),
        ({**REJECTED, "evidence": client("You exceeded your current quota: insufficient_quota")}, "policy"),
        ({**REJECTED, "evidence": client("Guardrail raised an exception")}, "policy"),
        ({"id": "answers_filtered", "evidence": client("unrequested finish_reason content_filter")}, "policy"),
    ],
)
def test_cause_names_the_server_only_with_a_reason(fields: dict[str, Any], who: str) -> None:
    assert cause_of(failure(**fields)).who == who


def test_process_that_a_signal_stopped_is_no_server_bug() -> None:
    sign = "engine_core (pid 11) is stopped (T)"
    hang = failure(id="alive_but_hung", severity="hang", signs=["no progress", sign], incidents=["001"], evidence=LINE)
    assert cause_of(hang).who == "outside"
    assert cause_of(hang).why == sign


def test_reason_of_a_server_bug_is_shown() -> None:
    assert cause_of(failure(evidence=LINE)).why == "shown by line 12 of vllm.log"
