import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.campaigns.replay.refusals import refusal, refuses_some, shortened
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import TraceSend
from loadchaos.run.options import Options
from tests.campaigns.traces import trace_of
from tests.http_server import Asked, answering

REFUSED = b'{"error": {"message": "the model m does not exist"}}'
LONG = {"model": "m", "messages": [{"role": "user", "content": "time " * 500}], "max_tokens": 64, "top_k": 4}


def asked(tmp_path: Path, answer: Callable[[dict[str, object]], int], given: Sequence[Any] = (LONG,)) -> str:
    """Why a try proves nothing, on a server that answers with a status of its own."""

    def reply(request: Asked) -> tuple[int, object]:
        choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "length"}
        status = answer(request.json())
        return status, {"choices": [choice]} if status == 200 else REFUSED

    sends = tuple(
        TraceSend(id=f"r{n}", traffic=f"t{n}", body=store_body(tmp_path / "bodies", orjson.dumps(body)))
        for n, body in enumerate(given)
    )
    trace = trace_of(tmp_path, sends)
    answered = len(given) - 1
    tried = TryResult(False, None, False, len(given), 0.1, str(tmp_path), fresh=True, answered=answered)
    result = replace(tried, outcomes="1 rejected")
    assert refuses_some(result)
    with answering(reply) as url:
        return asyncio.run(refusal(result, trace, url, Options()))


def test_refusal_of_a_short_request_as_well_proves_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, lambda _: 404) == (
        "the server answers 0 of 1 requests, and refuses also a short one: 404 "
        '{"error": {"message": "the model m does not exist"}}'
    )


def test_refusal_of_a_long_request_alone_may_be_the_cure(tmp_path: Path) -> None:
    assert asked(tmp_path, lambda body: 400 if len(str(body)) > 500 else 200) == ""


def test_refusal_of_one_kind_of_traffic_proves_nothing(tmp_path: Path) -> None:
    """The text is answered, the request with an image, which may be the guilty one, is not."""
    image = {**LONG, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}
    said = asked(tmp_path, lambda body: 400 if "image_url" in str(body) else 200, (LONG, image))
    assert said.startswith("the server answers 1 of 2 requests, and refuses also a short one: 400")


def test_refusal_of_a_body_that_is_no_object_is_asked_as_it_is(tmp_path: Path) -> None:
    assert "refuses also a short one" in asked(tmp_path, lambda _: 400, ([1, 2],))


def test_shortened_body_keeps_its_options() -> None:
    assert shortened(LONG) == {
        "model": "m", "messages": [{"role": "user", "content": "time time time t"}], "max_tokens": 1, "top_k": 4,
    }  # fmt: skip
    assert shortened({"prompt": [1, 2, 3], "min_tokens": 5}) == {"prompt": [1], "min_tokens": 1}
