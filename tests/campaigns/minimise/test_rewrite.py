import ast
import asyncio
import base64
import io
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from PIL import Image

from loadchaos.campaigns.minimise import rewrite, script
from loadchaos.campaigns.minimise.candidate import Reduction
from loadchaos.campaigns.minimise.reductions import features, rewritten
from loadchaos.core.body_hash import store_body
from loadchaos.profile.request_trace import Cause, RequestTrace, TraceAbort, TraceAttack, TraceHeader, TraceSend

REPROS = Path(__file__).parents[3] / "docs" / "repros"
FACTS = script.ScriptFacts('a "quoted" failure', "http://127.0.0.1:1")


def body(text: str = "one two three four", images: int = 0, **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": rewrite.png(64, 48, i)}} for i in range(images)
    ]
    content: Any = [*parts, {"type": "text", "text": text}] if images else text
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "stream": True, **more}


def stored(folder: Path, *found: dict[str, Any]) -> RequestTrace:
    names = [store_body(folder / "bodies", orjson.dumps(b)) for b in found]
    sends = tuple(TraceSend(id=f"r{i}", body=name) for i, name in enumerate(names))
    return RequestTrace(TraceHeader(event="trace", version=1, model="m"), sends, folder=folder)


def test_generated_image_is_a_png_of_its_size_and_known_again() -> None:
    url = rewrite.png(64, 48, 0x0A0B0C)
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert (image.size, image.convert("RGB").getpixel((3, 3))) == ((64, 48), (10, 11, 12))
    assert rewrite.image_size(url) == (64, 48)
    assert rewrite.generated_seed(url) == 0x0A0B0C


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_image_size_of_other_images_is_read(kind: str) -> None:
    data = io.BytesIO()
    Image.effect_noise((70, 30), 50).convert("RGB").save(data, kind)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data.getvalue()).decode()}"
    assert rewrite.image_size(url) == (70, 30)
    assert rewrite.generated_seed(url) is None
    simple = rewrite.generated_images({"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]})
    assert rewrite.image_size(simple["messages"][0]["content"][0]["image_url"]["url"]) == (70, 30)


@pytest.mark.parametrize(
    "url", ["https://h/x.png", "data:image/png;base64,AAAA", "data:image/png;base64,%%", "data:,x"]
)
def test_image_that_cannot_be_read_stays(url: str) -> None:
    assert rewrite.image_size(url) is None
    image = {"messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    assert rewrite.generated_images(json.loads(json.dumps(image))) == image


def test_rewrites_make_bodies_smaller() -> None:
    long = body("a b c d", images=2, logprobs=True, top_k=3)
    assert rewrite.removable_keys([long]) == ["logprobs", "top_k"]
    assert rewrite.words(rewrite.half_text(body("a b c d", images=1))) == 2
    assert rewrite.half_output(body())["max_tokens"] == 4
    assert rewrite.half_output({"input": "x", "max_output_tokens": 8})["max_output_tokens"] == 4
    assert rewrite.plain_words(1.5)(body("a b c d"))["messages"][0]["content"] == "time " * 6
    assert len(rewrite.one_image(body(images=3))["messages"][0]["content"]) == 2
    assert len(rewrite.without_images(body(images=3))["messages"][0]["content"]) == 1
    assert "stream" not in rewrite.not_streamed(body())
    halved = rewrite.half_images(body(images=1))["messages"][0]["content"][0]["image_url"]["url"]
    assert rewrite.image_size(halved) == (64, 48)  # below twice the least side


def test_rewritten_request_has_a_new_body_and_its_facts(tmp_path: Path) -> None:
    trace = stored(tmp_path, body(images=1))
    found = rewritten(trace, trace.sends[0], rewrite.without_images)
    assert found.body != trace.sends[0].body
    assert (found.images, found.stream) == (0, True)
    assert rewritten(trace, trace.sends[0], lambda same: same) is trace.sends[0]


def scripts(folder: Path) -> dict[str, Reduction]:
    plain, images = body("time time "), body("time ", images=2, top_k=3)
    odd = body("another text")
    chain = stored(folder, plain, images, odd)
    sends = (
        chain.sends[0],
        chain.sends[1].model_copy(update={"after": (Cause(request="r0", delay_s=0.5),)}),
        chain.sends[2],
    )
    everything = RequestTrace(
        chain.header, sends, (TraceAbort(request="r1", after_token=3),),
        (TraceAttack(id="a", at_s=1.0, attack={"admin": "reset_mm_cache"}),), folder,
    )  # fmt: skip
    return {
        "words": Reduction(stored(folder, plain, plain, plain), (), ()),
        "images": Reduction(stored(folder, images), (), (), rounds=9),
        "raw": Reduction(stored(folder, odd), (), ()),
        "long": Reduction(stored(folder, *(body(f"text {i} " * 200) for i in range(12))), (), ()),
        "everything": Reduction(everything, (), ()),
    }


@pytest.mark.parametrize("name", ["words", "images", "raw", "long", "everything"])
def test_script_has_at_most_forty_lines_and_no_loadchaos(tmp_path: Path, name: str) -> None:
    for deadly in (True, False):
        facts = script.ScriptFacts(FACTS.failure, FACTS.url, "vllm", deadly)
        text = script.write(scripts(tmp_path)[name], facts, tmp_path).read_text()
        tree = ast.parse(text)
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        assert names <= {*sys.stdlib_module_names, "httpx"}
        assert text.count("\n") <= 40
    assert (tmp_path / "requests.json").exists() == (name == "long")


def against(folder: Path, server_text: str, file: Path) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    (folder / "server.py").write_text(server_text)
    argv = [sys.executable, str(folder / "server.py"), str(folder / "seen.jsonl")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        send = [sys.executable, str(file), f"http://127.0.0.1:{port}"]
        done = subprocess.run(send, capture_output=True, text=True, timeout=60, check=False)
        server.kill()
    return done, [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("status", [400, 500])
def test_script_reads_every_error_status_as_a_sign(tmp_path: Path, status: int) -> None:
    """An old vLLM answers 400 with its engine dead."""
    text = SERVER.replace("send_response(200)", f"send_response({status} if self.command == 'POST' else 200)")
    file = script.write(scripts(tmp_path)["words"], FACTS, tmp_path)
    done, _ = against(tmp_path, text, file)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.slow
def test_script_without_a_server_does_not_say_that_it_died(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    file = script.write(scripts(tmp_path)["words"], FACTS, tmp_path)
    for found in (file, *sorted(REPROS.glob("*/repro.py"))):
        done = subprocess.run(
            [sys.executable, str(found), url], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 2, f"{found}: {done.stdout}{done.stderr}"
        assert "ConnectError" in done.stderr


def test_script_sends_the_requests_of_its_candidate(tmp_path: Path) -> None:
    """The script against a server that records and then dies."""
    candidate = scripts(tmp_path)["everything"]
    file = script.write(candidate, FACTS, tmp_path)
    done, seen = against(tmp_path, SERVER, file)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.strip() == "the server died in round 1"
    sent = {json.dumps(b, sort_keys=True) for path, b in seen if path == "/v1/chat/completions"}
    for request in candidate.trace.sends:
        recorded = json.loads(candidate.trace.body_file(request).read_bytes())
        texts = [
            m["content"] if isinstance(m["content"], str) else m["content"][-1]["text"] for m in recorded["messages"]
        ]
        assert any(json.dumps(t.strip())[1:-1] in b for b in sent for t in texts)
    images = json.loads(candidate.trace.body_file(candidate.trace.sends[1]).read_bytes())
    assert json.dumps({**images, "model": "served"}, sort_keys=True) in sent
    assert "/reset_mm_cache" in {path for path, _ in seen}


SERVER = """
import http.server, json, os, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, data):
        self.send_response(200); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == "/health": os._exit(0)
        self.answer(b'{"data": [{"id": "served"}]}')
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open(sys.argv[1], "a") as f: f.write(json.dumps([self.path, body]) + "\\n")
        self.answer(b'data: {"error": "dead"}\\n\\n' if "another" in json.dumps(body) else b"data: {}\\n\\n")
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def test_equal_words_with_more_tokens_than_the_recorded_ones_are_halved(tmp_path: Path) -> None:
    """A server that refuses as many equal words as the prompt had, because its limit is in tokens."""
    trace = stored(tmp_path, body("one two three four"))

    async def fails(found: Reduction) -> bool:
        words = texts(found.trace)[0].split()
        return 4 * words.count("time") + sum(len(w) > 2 and w != "time" for w in words) in range(3, 9)

    found = asyncio.run(features(Reduction(trace, ("serve",), ()), fails))
    assert texts(found.trace) == ["time time "]


def texts(trace: RequestTrace) -> list[str]:
    return [orjson.loads(trace.body_file(s).read_bytes())["messages"][0]["content"] for s in trace.sends]
