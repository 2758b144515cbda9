import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadchaos.campaigns.replay.one_try import TryResult
from loadchaos.campaigns.replay.refusals import refusal, refuses_some, shortened
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import RequestTrace, TraceHeader, TraceSend
from loadchaos.run.options import Options

LONG = {"model": "m", "messages": [{"role": "user", "content": "time " * 500}], "max_tokens": 64, "top_k": 4}


def asked(tmp_path: Path, answer: Callable[[dict[str, object]], int], given: Sequence[Any] = (LONG,)) -> str:
    """Why a try proves nothing, on a server that answers with a status of its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        status = answer(orjson.loads(await reader.readexactly(length)))
        said = b'{"error": {"message": "the model m does not exist"}}'
        if status == 200:
            said = b'{"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "length"}]}'
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(said), said))
        writer.close()

    async def ask() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sends = tuple(
            TraceSend(id=f"r{n}", traffic=f"t{n}", body=store_body(tmp_path / "bodies", orjson.dumps(body)))
            for n, body in enumerate(given)
        )
        trace = RequestTrace(TraceHeader(event="trace", version=1), sends, folder=tmp_path)
        result = TryResult(
            False,
            None,
            False,
            len(given),
            0.1,
            str(tmp_path),
            fresh=True,
            outcomes="1 rejected",
            answered=len(given) - 1,
        )
        assert refuses_some(result)
        async with server:
            return await refusal(result, trace, f"http://127.0.0.1:{port}", Options())

    return asyncio.run(ask())


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
