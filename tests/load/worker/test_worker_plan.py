import re
from pathlib import Path
from typing import Any

import pytest

from loadchaos.core.errors import LedgerError
from loadchaos.core.redact import REDACTED
from loadchaos.load.wire.contract import asked_tokens
from tests.load.worker.conftest import TRAFFIC, first_requests, planned

KEY = "s3cr3t-value+of/a-key"
TRACEPARENT = re.compile(rb"\r\ntraceparent: (00-([0-9a-f]{32})-([0-9a-f]{16})-01)\r\n")


@pytest.mark.parametrize(("worker", "workers"), [(1, 1), (2, 2), (-1, 2)])
def test_worker_outside_its_count_is_refused(worker: int, workers: int) -> None:
    with pytest.raises(LedgerError, match=f"worker {worker} of {workers}"):
        planned(Path("/nowhere"), worker=worker, workers=workers)


@pytest.mark.parametrize(
    ("dialect", "stream", "fresh"), [("vllm", True, False), ("llamacpp", True, True), ("llamacpp", False, False)]
)
def test_connection_is_not_kept_where_the_server_closes_it_after_a_stream(
    tmp_path: Path, dialect: str, stream: bool, fresh: bool
) -> None:
    (request,) = first_requests(planned(tmp_path, [{**TRAFFIC[0], "stream": stream}], dialect=dialect), 1)
    assert request.fresh is fresh


def test_traceparent_is_sent_only_where_asked_for(tmp_path: Path) -> None:
    assert not any(b"traceparent" in r.head for r in first_requests(planned(tmp_path), 3))
    first, again = (
        [TRACEPARENT.search(r.head) for r in first_requests(planned(tmp_path, traceparent=True), 3)] for _ in range(2)
    )
    assert len({match[2] for match in first if match}) == 3, "each request has a trace of its own"
    assert [m and m[1] for m in again] == [m and m[1] for m in first]


@pytest.mark.parametrize("contract", [False, True])
def test_request_has_the_limit_of_its_body_or_of_its_step(tmp_path: Path, contract: bool) -> None:
    extra = {"payload": {**TRAFFIC[0]["payload"], "structured": {"choices": ["a"]}}} if contract else {}
    (request,) = first_requests(planned(tmp_path, [{**TRAFFIC[0], **extra}]), 1)
    assert request.rules.most_tokens == asked_tokens(request.body) is not None


@pytest.mark.parametrize(
    "field",
    [
        {"request_id": KEY}, {"finish_reason": KEY}, {"error_code": KEY}, {"labels": {"service_tier": KEY}},
        {"detail": {"retry_after": KEY}}, {"wrong": [{"got": f"another model: {KEY}"}]}, {"content": {"id": KEY}},
    ],
)  # fmt: skip
def test_key_is_in_no_field_of_a_row(field: dict[str, Any], tmp_path: Path) -> None:
    row: Any = {"row": "end", "error": None, "evidence": [], "itl_hist": {7: 1}, **field}
    planned(tmp_path, key=KEY).redact(row)
    assert KEY not in str(row)
    assert (row["itl_hist"], REDACTED in str(row)) == ({7: 1}, True)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_log_probabilities_that_were_asked_for_are_missed(tmp_path: Path, endpoint: str) -> None:
    payload = {**TRAFFIC[0]["payload"], "sampling": {"logprobs": 2}}
    (request,) = first_requests(planned(tmp_path, [{**TRAFFIC[0], "endpoint": endpoint, "payload": payload}]), 1)
    assert request.rules.logprobs
