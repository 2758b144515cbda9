import json
from pathlib import Path

import pytest
import xxhash

from loadchaos.load.wire.exchange import Exchange, Progress
from loadchaos.load.wire.sockets import Slot
from loadchaos.load.worker.recorder import begin_row
from tests.load.worker.conftest import TRAFFIC, first_requests, planned


def test_begin_row_identifies_its_body_by_length_and_hash(tmp_path: Path) -> None:
    worker = planned(tmp_path)
    requests = first_requests(worker, 20)
    rows = [begin_row(Exchange(request, Slot(worker.target), Progress(), 0)) for request in requests]
    for request, row in zip(requests, rows, strict=True):
        body = request.body
        assert (row["len"], row["hash"]) == (len(body), xxhash.xxh3_64(body).hexdigest())
    assert len({row["hash"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("choice", "finish", "cut"), [("required", "length", True), ("required", "stop", False), ("auto", "length", False)]
)
def test_end_row_of_an_answer_cut_before_the_name_of_its_call_lacks_no_text(
    tmp_path: Path, choice: str, finish: str, cut: bool
) -> None:
    payload = {"text": {"tokens": 64}, "tools": {"count": 1, "choice": choice}}
    worker = planned(tmp_path, [{**TRAFFIC[0], "payload": payload}])
    (request,) = first_requests(worker, 1)
    assert json.loads(request.body)["tool_choice"] == choice
    exchange = Exchange(request, Slot(worker.target), Progress(), 0)
    usage = {"prompt_tokens": 9, "completion_tokens": 8, "total_tokens": 17}
    message = {"role": "assistant", "content": ""}
    body = json.dumps(
        {"id": "a", "usage": usage, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    )
    exchange.request.stream = False
    exchange._feed(1, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    exchange._feed(2, body.encode())
    row = exchange.end_row()
    assert row["outcome"] == "ok"
    assert row["detail"] == ({"call_cut": True} if cut else {"no_text": True})
    assert row.get("signs", []) == ([] if cut else ["no_text"])
