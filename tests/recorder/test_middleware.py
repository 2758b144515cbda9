"""The recorder as middleware: what reaches the ring, when it is kept, and that the server never suffers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import loadchaos_vllm
import psutil
import pytest
from loadchaos_vllm import recorder as plugin

from loadchaos.core.errors import OptionError
from loadchaos.recorder import middleware
from loadchaos.recorder.frames import FrameKind, FrameReader
from loadchaos.recorder.from_recording import recording_of, trace_of_recording
from loadchaos.recorder.middleware import MiddlewareRecording, claim, exchange_of
from loadchaos.recorder.ring import RingLimits, segments_of
from loadchaos.recorder.tap import ConnectionTap
from tests.recorder.conftest import SeenExchanges, chunk, post, whole

ROOT = Path(__file__).parents[3]
WAIT_S = 20.0
PROMPT = "Inconceivable secrets of the Guilder frontier"
SENDING = {
    "type": "http",
    "method": "POST",
    "path": "/v1/chat/completions",
    "headers": [(b"x-api-key", b"sk-Buttercup")],
}
COMMAND = shlex.join([sys.executable, "-m", "loadchaos"])
Said = list[str]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for s in segments_of(folder) for line in s.read_bytes().splitlines()]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come in {WAIT_S:g} s"
        time.sleep(0.01)
    return found


class UvicornServer:
    """The app of asgi_app.py in uvicorn, with the recorder."""

    def __init__(self, out: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = int(unused.getsockname()[1])
        self.url, self.out = f"http://127.0.0.1:{port}/v1/chat/completions", out
        environment = {
            **os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/vllm'}", plugin.COMMAND: COMMAND,
            plugin.OPTIONS: shlex.join(["--out", str(out), *options]),
        }  # fmt: skip
        argv = [sys.executable, "-m", "uvicorn", "tests.recorder.asgi_app:app", "--port", str(port)]
        self.log = out.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*argv, "--log-level", "warning"], env=environment, stderr=log)
        self.client = httpx.Client(
            trust_env=False, timeout=WAIT_S, headers={"x-api-key": "sk-Buttercup", "connection": "close"}
        )

    def send(self, text: str, **more: Any) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return self.client.post(self.url, json=body).status_code
            except httpx.ConnectError:
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.05)

    def abort(self, text: str, after: int) -> None:
        body = {"stream": True, "messages": [{"role": "user", "content": text}]}
        with self.client.stream("POST", self.url, json=body) as answer:
            lines = answer.iter_lines()
            for _ in range(after):
                next(lines)

    def frozen(self) -> Path:
        return until(lambda: next(iter(self.out.glob("frozen-*")), None), "a kept recording")  # type: ignore[no-any-return]

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def uvicorn(tmp_path: Path) -> Iterator[Callable[..., UvicornServer]]:
    closing: list[UvicornServer] = []

    def start(*options: str) -> UvicornServer:
        closing.append(UvicornServer(tmp_path / "out", *options))
        return closing[-1]

    yield start
    for one in closing:
        one.close()


def test_middleware_of_a_killed_server_loses_nothing_and_its_recording_is_replayed(
    uvicorn: Callable[..., UvicornServer], tmp_path: Path
) -> None:
    server = uvicorn()
    assert server.send(PROMPT, stream=True, max_tokens=9) == 200
    assert server.send(PROMPT) == 200
    server.abort(f"hang {PROMPT}", after=6)
    assert server.send("raise") == 500
    with pytest.raises(httpx.HTTPError):
        server.send("kill")
    kept = server.frozen()
    assert kept.name.endswith("-server-ended")
    until(lambda: rows_of(kept)[-1]["row"] == "freeze", "the last row")
    ends = {r["id"]: r for r in rows_of(kept) if r["row"] == "end"}
    assert [ends[n]["outcome"] for n in (1, 2, 3, 4)] == ["ok", "ok", "aborted", "http_error"]
    assert (ends[1]["finish"], ends[1]["tokens"]) == ("stop", 4)
    assert ends[2]["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}
    text = b"".join(p.read_bytes() for p in server.out.rglob("*") if p.is_file()).decode()
    assert [w for w in [*PROMPT.split(), "Florin", "Buttercup"] if w in text and w not in ("of", "the")] == []
    assert "Inconceivable" not in server.log.read_text()
    found = recording_of(server.out)
    assert found == kept
    trace = trace_of_recording(found, tmp_path / "scratch")
    assert [s.outcome for s in trace.sends] == ["ok", "ok", "aborted", "http_error", None]  # the last one killed it
    assert [(a.request, (a.after_token or 0) >= 2) for a in trace.aborts] == [(trace.sends[2].id, True)]
    assert trace.header.server["dialect"] == "vllm"


class Answers:
    """App for the middleware, and the messages it sent."""

    def __init__(self, app: Any = None) -> None:
        self.recorder = plugin.Recorder(app or self.answer)
        self.sent: list[Any] = []

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}", "more_body": False})

    async def request(self, body: bytes = b'{"messages":[]}') -> None:
        pieces = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return pieces.pop(0)

        async def send(message: Any) -> None:
            self.sent.append(message)

        await self.recorder(dict(SENDING), receive, send)

    @property
    def link(self) -> plugin.RecordingLink:
        assert self.recorder._link is not None
        return self.recorder._link

    @contextlib.asynccontextmanager
    async def lifespan(self, **scope: Any) -> Any:
        """From the startup to the end of the shutdown."""
        over = asyncio.Event()

        async def receive() -> Any:
            await over.wait()
            return {"type": "lifespan.shutdown"}

        async def send(message: Any) -> None:
            pass

        running = asyncio.create_task(self.recorder({"type": "lifespan", **scope}, receive, send))
        await asyncio.sleep(0)
        yield
        over.set()
        await running


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(plugin.OPTIONS, f"--out {tmp_path / 'out'}")
    monkeypatch.setenv(plugin.COMMAND, COMMAND)
    return tmp_path / "out"


def test_middleware_without_options_says_so_and_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(plugin.OPTIONS, raising=False)
    served = Answers()
    asyncio.run(served.request())
    assert [m["type"] for m in served.sent] == ["http.response.start", "http.response.body"]
    assert "off: LOADCHAOS_RECORD is not set" in capsys.readouterr().err


def test_middleware_counts_its_own_errors_and_serves(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError(PROMPT)

    for name in ("start", "begin", "request", "answer", "end"):
        served = Answers()
        with monkeypatch.context() as patch:
            patch.setattr(plugin.RecordingLink, "start", lambda _: None)
            patch.setattr(plugin.RecordingLink, name, broken)
            asyncio.run(served.request())
        assert [m["type"] for m in served.sent] == ["http.response.start", "http.response.body"], name
        assert served.recorder.errors >= (name not in ("start", "end"))
    said = capsys.readouterr().err
    assert "error of the recorder: ValueError in line" in said
    assert PROMPT not in said


@pytest.mark.parametrize("error", [RuntimeError("of the app"), asyncio.CancelledError()])
def test_middleware_passes_on_the_errors_of_the_app(
    configured: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise error

    monkeypatch.setattr(plugin.RecordingLink, "start", lambda _: None)
    served = Answers(failing)

    async def scenario() -> None:
        with pytest.raises(type(error)):
            await served.request()

    asyncio.run(scenario())
    assert served.recorder.errors == 0


def test_middleware_gives_up_a_recording_process_that_does_not_live(
    configured: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(plugin.COMMAND, "false")
    monkeypatch.setattr(plugin, "PROGRESS_S", 0.01)
    monkeypatch.setattr(plugin, "_FIRST_RESTART_S", 0.0)
    served = Answers()

    async def scenario() -> None:
        await served.request()
        await asyncio.to_thread(until, lambda: not served.link.active, "the end of the link")
        await served.request()

    asyncio.run(scenario())
    assert len(served.sent) == 4
    assert "off: the recording process ended 3 times, with code 1" in capfd.readouterr().err
    assert served.link._waiting == []


def test_middleware_keeps_the_recording_when_the_engine_is_dead_at_the_shutdown(configured: Path) -> None:
    class App:
        class state:  # noqa: N801 - Starlette's name
            class engine_client:  # noqa: N801
                errored = True

    served = Answers()

    async def scenario() -> None:
        async with served.lifespan(app=App):
            await served.request()

    asyncio.run(scenario())
    (kept,) = configured.glob("frozen-*")
    assert kept.name.endswith("-engine-died")
    assert served.recorder.errors == 0
    # The next start finds a ring that was closed, and keeps nothing.
    assert not middleware.unclosed(configured, "another")


def test_killed_recording_process_is_started_again_with_the_same_hashes(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "PROGRESS_S", 0.02)
    monkeypatch.setattr(plugin, "_FIRST_RESTART_S", 0.0)
    body = json.dumps({"messages": [{"role": "user", "content": PROMPT}]}).encode()

    def shapes() -> list[Any]:
        return [r["shape"] for r in rows_of(configured / "ring") if r["row"] == "body"]

    async def scenario() -> None:
        served = Answers()
        async with served.lifespan():
            await served.request(body)
            await asyncio.to_thread(until, lambda: len(shapes()) == 1, "the first request")
            pid = served.link.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(psutil.Process(pid).wait) if psutil.pid_exists(pid) else None
            await asyncio.to_thread(until, lambda: served.link.pid != pid, "another recording process")
            await served.request(body)

    asyncio.run(scenario())
    assert len(shapes()) == 2
    assert shapes()[0] == shapes()[1]
    assert list(configured.glob("frozen-*")) == []


# The recording process, without a server.


def recording(out: Path, said: Said, **more: Any) -> MiddlewareRecording:
    given = {"bodies": False, "most_failed": None, **more}
    return MiddlewareRecording(out, RingLimits(), said.append, **given)


def setup(name: str = "aa") -> bytes:
    return json.dumps({"protocol": 1, "key": "00", "recording": name}).encode()


def answered(number: int = 1, **more: Any) -> bytes:
    row = {"how": "complete", "post": True, "path": "/v1/chat/completions", "begun_ns": number, "at_ns": number + 1}
    return json.dumps({**row, "status": 200, **more}).encode()


BEGIN = json.dumps({"at_ns": 1, "path": "/v1/chat/completions", "secrets": []}).encode()


def test_recording_is_kept_when_an_answer_says_that_the_engine_is_dead(tmp_path: Path) -> None:
    said: Said = []
    made = recording(tmp_path, said)
    made.feed(FrameKind.SETUP, 0, setup())
    made.feed(FrameKind.BEGIN, 1, BEGIN)
    made.feed(FrameKind.ANSWER, 1, answered(status=500, tail='{"error":{"message":"EngineDeadError"}}'))
    made.poll(time.monotonic())
    assert list(tmp_path.glob("frozen-*")) == []  # the ends of other requests are awaited
    made.poll(time.monotonic() + 2.0)
    (kept,) = tmp_path.glob("frozen-*")
    assert kept.name.endswith("-engine-died")
    made.finish()
    assert len(list(tmp_path.glob("frozen-*"))) == 1
    assert any(line.startswith("kept ") for line in said)


def test_recording_of_an_ordinary_shutdown_is_not_kept(tmp_path: Path) -> None:
    made = recording(tmp_path, [])
    made.feed(FrameKind.SETUP, 0, setup())
    made.feed(FrameKind.BEGIN, 1, BEGIN)
    made.feed(FrameKind.CLOSE, 0, b'{"at_ns":1,"errored":false}')
    made.finish()
    assert list(tmp_path.glob("frozen-*")) == []
    assert rows_of(tmp_path / "ring")[-1]["row"] == "close"


def test_recording_of_a_server_that_died_with_its_recorder_is_kept_at_the_next_start(tmp_path: Path) -> None:
    first = recording(tmp_path, [])
    first.feed(FrameKind.SETUP, 0, setup())
    first.feed(FrameKind.BEGIN, 1, BEGIN)
    first.poll(time.monotonic())
    assert first._lock is not None
    os.close(first._lock)  # as the kernel does for a killed process
    said: Said = []
    second = recording(tmp_path, said)
    second.feed(FrameKind.SETUP, 0, setup("bb"))
    (kept,) = tmp_path.glob("frozen-*-server-ended")
    assert [r["row"] for r in rows_of(kept)] == ["recording", "begin"]
    assert "ended without a shutdown" in said[0]
    second.finish()
    assert len(list(tmp_path.glob("frozen-*"))) == 1  # without a request there is nothing to keep


def test_servers_side_by_side_have_folders_of_their_own(tmp_path: Path) -> None:
    claims = [claim(tmp_path) for _ in range(3)]
    assert [folder for folder, _ in claims] == [tmp_path, tmp_path / "server-2", tmp_path / "server-3"]
    os.close(claims[1][1])
    assert claim(tmp_path)[0] == tmp_path / "server-2"


def test_recording_refuses_a_plugin_of_another_release(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="version 2 of the protocol"):
        recording(tmp_path, []).feed(FrameKind.SETUP, 0, b'{"protocol":2}')


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({"tail": whole("yes").decode()}, "ok"), ({"status": 404}, "http_error"),
        ({"how": "left"}, "aborted"), ({"how": "cut"}, "reset"),
        ({"how": "raised", "status": 0}, "http_error"), ({"how": "raised"}, "reset"),
        ({"sse": True, "tail": 'data: {"error":{"code":500}}\n\n'}, "stream_error"), ({"sse": True}, "truncated"),
    ],
)  # fmt: skip
def test_outcome_of_an_answer_that_the_middleware_saw(facts: dict[str, Any], outcome: str) -> None:
    assert exchange_of(1, json.loads(answered(**facts))).outcome == outcome


STREAMS = [
    [b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', b'data: {"x":1}\n\ndata: {"x":2}\n\n'],
    [b'data: {"x":1}\n', b"\n", b'data: {"x":2}\r\n\r\n', b"data: [DONE]\n\n"],
    [b": ping", b"\n\nda", b'ta: {"finish_reason":"stop","usage":{"prompt_tokens":3}}\n\n' + b"x" * 9000 + b"\n\n"],
]


@pytest.mark.parametrize("pieces", STREAMS)
@pytest.mark.parametrize("kind", [b"text/event-stream; charset=utf-8", b"application/json"])
def test_middleware_counts_as_the_proxy_does(pieces: list[bytes], kind: bytes) -> None:
    seen = SeenExchanges()
    tap = ConnectionTap(seen)
    tap.feed_request(post(b"{}"))
    tap.feed_answer(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n" % kind)
    ours = plugin.AsgiExchange(1, dict(SENDING))
    ours.start({"status": 200, "headers": [(b"content-type", kind)]})
    for piece in pieces:
        tap.feed_answer(chunk(piece))
        ours.feed(piece)
    tap.feed_answer(b"0\r\n\r\n")
    theirs, found = seen.ended[0], exchange_of(1, ours.row("complete", errored=False))
    for name in ("tokens", "events", "got_bytes", "sse", "end_text", "status", "recorded"):
        assert getattr(found, name) == getattr(theirs, name), name
    assert (found.usage(), found.finish()) == (theirs.usage(), theirs.finish())


def test_frames_of_the_plugin_are_those_of_the_recording_process() -> None:
    for name in ("SETUP", "BEGIN", "BODY", "BODY_END", "PROGRESS", "GAP", "ANSWER", "CLOSE"):
        kind = getattr(plugin, name)
        assert list(FrameReader().feed(plugin._frame(kind, 7, b"data"))) == [(FrameKind[name], 7, b"data")]
    assert plugin.PROTOCOL == middleware.PROTOCOL


def test_package_of_the_middleware_needs_no_other_package() -> None:
    assert loadchaos_vllm.Recorder is plugin.Recorder
    code = "import sys; import loadchaos_vllm.recorder; print([m for m in sys.modules if m in ('orjson', 'loadchaos')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "plugins/vllm", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
